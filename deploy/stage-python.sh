#!/usr/bin/env bash
# Builds the Python package and puts it together in the folder python beside the programs, for PYTHONPATH: what an installed
# package has, without pip.
set -euo pipefail
cd "$(dirname "$0")/.."

programs="${CARGO_TARGET_DIR:-target}/release"
# All of the workspace, as `make archive` builds it: for this package alone cargo would choose other features, and build what it depends on anew.
cargo build --release --lib --bins
rm -rf "$programs/python"
mkdir -p "$programs/python"
cp -r ffi/python/python/rowmill "$programs/python/"
cp "$programs/lib_rowmill.so" "$programs/python/rowmill/_rowmill.abi3.so"
