#!/usr/bin/env bash
# Writes the Python package's reference, made of its docstrings, to target/doc/python. With PyTorch where deploy/setup-torch.sh has
# installed it; rowmill.torch is left out without.
set -euo pipefail
cd "$(dirname "$0")/.."

cache="${ROWMILL_CACHE:-$HOME/.cache/rowmill}"
target="${CARGO_TARGET_DIR:-target}"
version=16.0.0
folder="$cache/pdoc-$version"
if [ ! -f "$folder/complete" ]; then
    rm -rf "$folder"
    python3 -m venv "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check "pdoc==$version" numpy
    touch "$folder/complete"
fi
deploy/stage-python.sh
modules=(rowmill)
path="$target/release/python"
torch=$(echo "$cache"/peers/lib/python3*/site-packages)
if [ -d "$torch/torch" ]; then
    path="$path:$torch"
    modules+=(rowmill.torch)
else
    echo "PyTorch is not there (deploy/setup-torch.sh installs it): rowmill.torch is left out"
fi
PYTHONPATH="$path" "$folder/bin/pdoc" --docformat google --output-directory "$target/doc/python" "${modules[@]}"
echo "the reference: $target/doc/python/index.html"
