#!/usr/bin/env bash
# Installs what rowmill is compared with, PyTorch, into a virtual environment of its own in the cache (about
# 6 GB). Does nothing where it is there.
set -euo pipefail

version=2.14.1
folder="${ROWMILL_CACHE:-$HOME/.cache/rowmill}/peers"
if [ -f "$folder/torch-$version" ]; then
    exit 0
fi
if ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
    echo "error: Python has no venv; as root, run: apt-get install python3-venv" >&2
    exit 1
fi
echo "installing torch $version into $folder"
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet "torch==$version" numpy matplotlib
touch "$folder/torch-$version"
