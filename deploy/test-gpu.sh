#!/usr/bin/env bash
# The tests that need a GPU: from the kit, where there is one and no cargo, else built here. Without a GPU they are skipped, and say
# why. Their results go to RESULTS, by default target/gpu-results.json.
set -euo pipefail
cd "$(dirname "$0")/.."
export RESULTS=${RESULTS:-target/gpu-results.json}
if ! command -v cargo > /dev/null; then
    [ -x target/gpu-kit/run.sh ] || { echo "skipped: neither cargo nor target/gpu-kit (make gpu-kit) is here"; exit 0; }
    exec target/gpu-kit/run.sh
fi
cargo build --release --bins -p rowmill-rowmilld -p rowmill-cli -p rowmill-tests
mkdir -p "$(dirname "$RESULTS")"
exec "${CARGO_TARGET_DIR:-target}/release/rowmill-gpu-tests" "${BYTES:-1073741824}" "$RESULTS"
