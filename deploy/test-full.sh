#!/usr/bin/env bash
# What CI has no time for. Runs every stage, whatever became of the others, and prints a table. STAGES='arm|rxe.*' runs those alone.
set -uo pipefail
cd "$(dirname "$0")/.."

SEEDS=${SEEDS:-10000}
FUZZ_SECONDS=${FUZZ_SECONDS:-60}
STAGES=${STAGES:-.*}
names=() times=() outcomes=()
failed=0

# stage NAME LIMIT_SECONDS COMMAND...
stage() {
    local name=$1 limit=$2
    shift 2
    [[ $name =~ ^($STAGES)$ ]] || { skip "$name" "not one of $STAGES"; return; }
    printf '\n==== %s (limit %s s): %s\n' "$name" "$limit" "$*"
    local began=$SECONDS outcome=ok
    timeout --kill-after=10 "$limit" "$@" </dev/null
    local status=$?
    [ $status -eq 0 ] || { outcome="FAILED: exit $status"; failed=1; }
    names+=("$name"); times+=("$((SECONDS - began))"); outcomes+=("$outcome")
}

skip() {
    names+=("$1"); times+=("-"); outcomes+=("skipped: $2")
}

stage check 900 make check
# All code is generated in these two, which takes longer than the tests do.
stage build 900 make build
stage tests 900 make tests
stage test 900 make test
stage large 600 cargo test --release --workspace --exclude rowmill-workspace --test bounds -- --ignored
stage test-c 480 make test-c
# But that of two writers, which `test` runs with 2 preemptions: with more they yield to one another without end while the reader waits.
stage models 1800 env ROWMILL_MODEL_PREEMPTIONS=4 \
    cargo test --release --workspace --exclude rowmill-workspace --test models -- --skip writers_share_epochs
stage simulation 3600 make sim SEEDS="$SEEDS"
if rustup toolchain list 2>/dev/null | grep -q nightly; then
    cargo fuzz --version >/dev/null 2>&1 || stage cargo-fuzz 600 cargo install cargo-fuzz --locked --quiet
    stage fuzz 3600 tests/fuzz/run.sh "$FUZZ_SECONDS"
    # AddressSanitizer over the crates with unsafe code; the standard library is not instrumented. All tests but the port's
    # models: loom leaks where it finds a mistake, and some are planted. SIGBUS is the arena's own: see its tests.
    stage sanitizer 1800 env RUSTFLAGS="-Zsanitizer=address" ASAN_OPTIONS=handle_sigbus=0 CARGO_TARGET_DIR=target/sanitizer \
        cargo +nightly test --release --target "$(rustc -vV | sed -n 's/^host: //p')" --lib --test '[!m]*' --test modes \
        -p rowmill-arena -p rowmill-pooling -p rowmill-policy -p rowmill-cache -p rowmill-port -p rowmill-engine
    # ThreadSanitizer over threads that share a connection; it has to see into the standard library's locks.
    if rustup component list --installed --toolchain nightly | grep -q rust-src; then
        stage races 1800 env RUSTFLAGS="-Zsanitizer=thread" CARGO_TARGET_DIR=target/sanitizer-threads \
            cargo +nightly test -Zbuild-std --release --target "$(rustc -vV | sed -n 's/^host: //p')" --lib \
            -p rowmill-client --no-default-features -- hub
    else
        skip races "needs rustup component add rust-src --toolchain nightly"
    fi
else
    skip fuzz "needs a nightly toolchain"
    skip sanitizer "needs a nightly toolchain"
    skip races "needs a nightly toolchain"
fi
stage torch 1800 make peers
stage python 1200 make test-python
# After python, which installs the package that some of them use wrongly.
stage faults 600 make faults
stage arm 1800 env ROWMILL_TEST_EVERY=1 make test-arm
stage lab 1800 make lab
stage lab-tests 1200 deploy/lab/selftest.py
stage rxe 1200 make test-rxe FILTER='^(device|faults$|serve|gpu|capi|syscalls)'
# These run in user-mode Linux.
if grep -qm1 ' amx_tile' /proc/cpuinfo; then
    skip rxe-native "user-mode Linux does not run on a CPU with AMX"
    skip rxe-bench "user-mode Linux does not run on a CPU with AMX"
else
    stage rxe-native 900 make test-rxe FILTER='^faults-native'
    stage rxe-bench 600 make bench-rxe
fi
stage rxe-pairs 900 make test-rxe FILTER='^(pair|rdma|remote|exporter)'
stage run 900 make run

printf '\n%-12s %8s  %s\n' stage seconds outcome
for i in "${!names[@]}"; do
    printf '%-12s %8s  %s\n' "${names[$i]}" "${times[$i]}" "${outcomes[$i]}"
done
exit $failed
