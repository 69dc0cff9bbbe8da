#!/usr/bin/env bash
# Cross-builds the pure crates and shm for arm64 and runs their tests under qemu-user, on a Cortex-A72, the
# core of BlueField-2: an instruction that it lacks is an illegal one here too. Installs what is missing.
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
    areas_grow_in_place_and_give_back what_cannot_be_had_changes_nothing
)
# Models of loom are of the language's memory model, whatever the machine: they take minutes here, and say nothing new.
not_emulated+=(
    no_row_is_read_while_it_is_written a_row_that_is_restored_is_found a_row_that_was_restored_leaves
    a_worker_that_wakes_finds_nothing writers_share_epochs rows_of_a_store_that_grows rows_of_a_store_that_shrinks
    nobody_sleeps_on_what_was_sent messages_and_notices_wake_who a_lane_that_leaves_keeps_no_message no_completion_is_slept_through
    a_client_sleeps_while_another_thread a_worker_sleeps_on_completions_and a_client_and_a_worker_that_sleep_wake
    a_worker_sleeps_on_the_rings_of_all a_sleeper_is_rung_once
)
# Arguments are cargo's: --no-run only builds.
cargo test "$@" --release --no-fail-fast --target "$target" --no-default-features --lib --tests \
    -p rowmill-wire -p rowmill-link -p rowmill-arena -p rowmill-pooling -p rowmill-table -p rowmill-policy -p rowmill-cache -p rowmill-engine \
    -p rowmill-port -p rowmill-client -- "${not_emulated[@]/#/--skip=}"
