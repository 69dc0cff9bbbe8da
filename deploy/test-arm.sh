#!/usr/bin/env bash
# Cross-builds the pure crates and shm for arm64 and runs their tests under qemu-user, on a Cortex-A72, the
# core of BlueField-2: an instruction that it lacks is an illegal one here too. CRATES='pooling cache' takes some of them.
# Installs what is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-gnu
# The toolchain of rustup has no standard library for arm64 where only package registries can be reached;
# Debian's rustc has one.
packages=(rustc-web libstd-rust-web-dev:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross libc6:arm64 libgcc-s1:arm64 qemu-user-static)
if ! dpkg-query -W -f='${Status}\n' "${packages[@]}" 2>/dev/null | awk '!/^install ok installed$/ {bad = 1} END {exit NR == 0 || bad}'; then
    sudo=""
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "error: as root, run: dpkg --add-architecture arm64; apt-get update; apt-get install ${packages[*]}" >&2
            exit 1
        fi
        sudo=sudo
    fi
    echo "installing ${packages[*]}"
    $sudo dpkg --add-architecture arm64
    $sudo apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi

export RUSTC=/usr/bin/rustc
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/arm"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -cpu cortex-a72 -L /"
# Emulation is some fifty times slower: of the kernels' matrix every 7th case, of properties 16 cases.
# With several threads of tests the emulator itself has died of a SIGBUS once.
export RUST_TEST_THREADS=1
export ROWMILL_TEST_EVERY="${ROWMILL_TEST_EVERY:-7}" PROPTEST_CASES="${PROPTEST_CASES:-16}"
# What the emulator lacks is left out: reserved huge pages; userfaultfd and faults of holes; processes that
# start their own program again (they would start it outside the emulator); what /proc says of its memory; terabytes of addresses.
not_emulated=(
    arena_of_reserved_pages memfd_of_reserved_pages reserved_pages_come_and_go
    hole_in_small_pages_reads_as_zeros holes_in_a_peers_memory_are_not_filled
    hole_in_huge_pages_with_an_empty_pool_loses_the_region lost_region
    unwatched_faults_kill_where sent_signals_kill_where ignored_signals_are_ignored_and_faults_kill
    the_handler_before_is_called_with a_handler_before_that_wants table_of_mappings_is_bounded
    control_memory_is_freed_though_it_is_kept a_killed_server_is_noticed
    areas_grow_in_place_and_give_back what_cannot_be_had_changes_nothing a_writer_that_is_killed_leaves
)
CRATES=${CRATES:-wire link arena pooling table policy cache engine port client}
read -ra crates <<<"$CRATES"
# All but loom's models, which are of the language's memory model, whatever the machine: they take minutes here, and say nothing new.
targets=(--lib --test '[!m]*')
[[ " $CRATES " != *" engine "* ]] || targets+=(--test modes)
[[ " $CRATES " != *" table "* ]] || targets+=(--test manifests --test memory)
# Arguments are cargo's: --no-run only builds.
cargo test "$@" --release --no-fail-fast --target "$target" --no-default-features "${targets[@]}" "${crates[@]/#/-prowmill-}" \
    -- "${not_emulated[@]/#/--skip=}"
