#!/bin/sh
# Runs every fuzz target for the given number of seconds (60 where none is given):
#   tests/fuzz/run.sh [SECONDS]
# Needs a nightly toolchain and cargo-fuzz; says so and ends with 0 where one is missing.
set -eu

seconds=${1:-60}
case $seconds in
    '' | *[!0-9]*) echo "usage: $0 [SECONDS]" >&2; exit 2 ;;
esac
cd "$(dirname "$0")"

skip() {
    echo "fuzz: skipped: $1"
    exit 0
}
cargo +nightly --version >/dev/null 2>&1 ||
    skip "no nightly toolchain (rustup toolchain install nightly --profile minimal)"
cargo +nightly fuzz --version >/dev/null 2>&1 ||
    skip "cargo-fuzz is missing (cargo install cargo-fuzz --locked)"

cargo +nightly fuzz build
for target in $(cargo +nightly fuzz list); do
    echo "fuzz: $target for $seconds s"
    # What is found grows corpus/, which stays here; seeds/ is in the repository.
    mkdir -p "corpus/$target"
    cargo +nightly fuzz run "$target" "corpus/$target" "seeds/$target" -- \
        -max_total_time="$seconds" -max_len=8256 -print_final_stats=1
done
echo "fuzz: all targets ran for $seconds s without a finding"
