#!/usr/bin/env bash
# The tests that need a GPU: from the kit, which is made where cargo is. Without a GPU they are skipped, and say
# why. Their results go to RESULTS, by default target/gpu-results.json.
set -euo pipefail
cd "$(dirname "$0")/.."
export RESULTS=${RESULTS:-target/gpu-results.json}
if ! command -v cargo > /dev/null; then
    [ -x target/gpu-kit/run.sh ] || { echo "skipped: neither cargo nor target/gpu-kit (make gpu-kit) is here"; exit 0; }
    exec target/gpu-kit/run.sh
fi
mkdir -p "$(dirname "$RESULTS")"
RESULTS=$(realpath -m "$RESULTS")
deploy/gpu-kit.sh
exec target/gpu-kit/run.sh
