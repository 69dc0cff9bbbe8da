"""The DLRM examples, run for a short while."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("example", "needs"), [("dlrm_torch", "torch"), ("dlrm_torchrec", "torchrec")])
@pytest.mark.parametrize("format", ["f32", "int8"])
def test_dlrm(programs, example, needs, format):
    pytest.importorskip(needs, reason=f"{needs} is not installed")
    command = [sys.executable, EXAMPLES / f"{example}.py", "--steps", "150", "--rounds", "10", "--format", format]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, env=os.environ | {"ROWMILL_PROGRAMS": programs})
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss ([0-9.]+)", done.stdout)]
    assert len(losses) == 5
    assert losses[-1] < losses[0]
    local, served = (float(re.search(rf"AUC {name} +([0-9.]+)", done.stdout)[1]) for name in ("local", "served"))
    others = float(re.search(r"other samples ([0-9.]+)", done.stdout)[1])
    assert abs(local - served) < 0.01
    # Without their own ids' embeddings samples can't be told apart as well.
    assert served > others + 0.05
    assert len(re.findall(r"^ +(?:1|16|128|512) +[0-9.]", done.stdout, re.MULTILINE)) == 4
