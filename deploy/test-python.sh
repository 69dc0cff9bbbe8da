#!/usr/bin/env bash
# Tests the Python package: installs its folder with pip into virtual environments of its own in the cache, once into one without
# PyTorch and, where deploy/setup-torch.sh has made one, beside PyTorch; runs its tests there, compares its type stubs with it, and
# looks whether its wheel keeps to the stable ABI. The programs must have been built. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

cache="${ROWMILL_CACHE:-$HOME/.cache/rowmill}"
requirements=ffi/python/tests/requirements.txt
if ! python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "error: there is no Python 3.11 or newer with venv; as root, run: apt-get install python3-venv python3-dev" >&2
    exit 1
fi
export ROWMILL_PROGRAMS="${ROWMILL_PROGRAMS:-${CARGO_TARGET_DIR:-target}/release}"
ROWMILL_PROGRAMS=$(realpath "$ROWMILL_PROGRAMS")

folder="$cache/python-$(sha256sum <"$requirements" | cut -c 1-16)"
if [ ! -f "$folder/complete" ]; then
    echo "installing what $requirements lists into $folder"
    rm -rf "$folder"
    python3 -m venv "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check -r "$requirements"
    touch "$folder/complete"
fi

# Where `rowmill-bench` looks for a Python that has the package.
ln -sfn "$folder" "$cache/python"

wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
"$folder/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$wheels" ./ffi/python
wheel=$(ls "$wheels"/rowmill-*-abi3-*.whl)

# tests PYTHON ARGUMENT...: in a copy of nothing but the tests, so that it is the installed package that is tested. pytest says with 5
# that it found no test, and that is a failure, too.
tests() {
    local python=$1
    shift
    "$python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps "$wheel"
    (cd ffi/python && "$python" -X dev -m pytest -p no:cacheprovider -q -rs "$@")
}

tests "$folder/bin/python" "$@"
# The same wheel in the newest Python that there is beside it.
newest=$(for python in python3.{12..20} "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9].*/bin/python3; do
    "$python" -c 'import sys, venv, ensurepip; print("%d.%d" % sys.version_info[:2], sys.executable)' 2>/dev/null || true
done | sort -V | tail -1)
own=$("$folder/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ -n "$newest" ] && [ "${newest%% *}" != "$own" ]; then
    newer="$cache/python-${newest%% *}-$(sha256sum <"$requirements" | cut -c 1-16)"
    if [ ! -f "$newer/complete" ]; then
        rm -rf "$newer"
        "${newest#* }" -m venv "$newer"
        "$newer/bin/pip" install --quiet --disable-pip-version-check numpy pytest pytest-timeout uvloop -c "$requirements"
        touch "$newer/complete"
    fi
    echo "in Python ${newest%% *}:"
    tests "$newer/bin/python" --deselect tests/test_results.py::test_many_lookups_keep_no_memory "$@"
else
    echo "there is no Python newer than $own: the wheel was tried in that one only"
fi
echo "type stubs:"
(cd "$wheels" && "$folder/bin/python" -m mypy.stubtest rowmill._rowmill)
"$folder/bin/abi3audit" --strict --summary "$wheel"

torch=$(ls -d "$cache"/peers/bin/python 2>/dev/null || true)
if [ -n "$torch" ] && "$torch" -c 'import torch' 2>/dev/null; then
    # A virtual environment on top of PyTorch's, which is shared and stays as it is.
    beside="$cache/python-torch-$(sha256sum <"$requirements" | cut -c 1-16)"
    if [ ! -f "$beside/complete" ]; then
        rm -rf "$beside"
        python3 -m venv "$beside"
        packages=$(echo "$beside"/lib/python3*/site-packages)
        "$torch" -c 'import site; print(site.getsitepackages()[0])' >"$packages/torch.pth"
        "$beside/bin/pip" install --quiet --disable-pip-version-check pytest pytest-timeout uvloop -c "$requirements"
        touch "$beside/complete"
    fi
    echo "beside PyTorch:"
    # What takes long was seen above.
    tests "$beside/bin/python" --deselect tests/test_results.py::test_many_lookups_keep_no_memory "$@"
else
    echo "PyTorch is not there (deploy/setup-torch.sh installs it): tests with tensors were skipped"
fi
