#!/usr/bin/env bash
# The Python package's tests that need a GPU, with the python3 that is here, if it has PyTorch and pytest; says why they are skipped else.
# gpu-python.sh FOLDER: where rowmill/ and tests/ are. ROWMILL_PROGRAMS: the folder of the programs.
set -euo pipefail
needs='import numpy, pytest, pytest_timeout, torch; assert torch.cuda.is_available(), "torch finds no GPU"'
if ! why=$(python3 -c "$needs" 2>&1); then
    echo "tests of the Python package: skipped: $(tail -n 1 <<<"$why")"
    exit 0
fi
cd "$1"
# What other versions of the libraries warn of is no failure here.
PYTHONPATH=$PWD exec python3 -m pytest -p no:cacheprovider -q -rs -W default --timeout 120 -k a_gpu tests/pytorch/test_cuda.py
