"""What the two DLRM examples have in common: made-up clicks, a measure of predictions, a service, and a table of times."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TextIO

import torch

import rowmill

DIM = 16
DENSE = 4


@dataclass(frozen=True)
class Feature:
    """A categorical feature with a table of its own.

    Attributes:
        name: Its name, and the table's.
        rows: Ids go from 0 to one less.
        most: Ids of a sample: from 0 (from 1 where that is 1) to so many.
    """

    name: str
    rows: int
    most: int


FEATURES = [Feature("user", 5000, 1), Feature("item", 20000, 1), Feature("category", 100, 3), Feature("history", 20000, 10)]


@dataclass
class Batch:
    """Samples: dense features ``[B, DENSE]``, for each categorical one lengths ``[B]`` and ids, and clicks ``[B]``."""

    dense: torch.Tensor
    lengths: dict[str, torch.Tensor]
    ids: dict[str, torch.Tensor]
    clicked: torch.Tensor

    def with_ids_of_others(self) -> "Batch":
        """The same with each sample's ids given to another one: what is left is what dense features tell."""
        order = torch.randperm(len(self.dense))
        parts = {name: torch.split(ids, self.lengths[name].tolist()) for name, ids in self.ids.items()}
        return Batch(
            self.dense,
            {name: lengths[order] for name, lengths in self.lengths.items()},
            {name: torch.cat([own[at] for at in order]) for name, own in parts.items()},
            self.clicked,
        )


class Clicks:
    """Draws samples. Whether somebody clicks depends on a hidden value of each id, which a model learns as embeddings."""

    def __init__(self, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.hidden = {feature.name: torch.randn(feature.rows, generator=self.random) for feature in FEATURES}
        self.slope = torch.randn(DENSE, generator=self.random) / 4

    def draw(self, samples: int) -> Batch:
        """The next samples."""
        dense = torch.randn(samples, DENSE, generator=self.random)
        logit = dense @ self.slope
        lengths, ids = {}, {}
        for feature in FEATURES:
            own = torch.randint(min(feature.most, 2) // 2, feature.most + 1, (samples,), generator=self.random)
            own = own.clamp(min=1) if feature.most == 1 else own
            # Some ids are far more popular than others.
            drawn = (torch.rand(int(own.sum()), generator=self.random) ** 4 * feature.rows).long()
            lengths[feature.name], ids[feature.name] = own, drawn
            bag = torch.repeat_interleave(torch.arange(samples), own)
            logit = logit + torch.zeros(samples).index_add(0, bag, self.hidden[feature.name][drawn]) / own.clamp(min=1).sqrt()
        return Batch(dense, lengths, ids, torch.bernoulli(torch.sigmoid(logit), generator=self.random))


def train(model: torch.nn.Module, predict: Callable[[torch.nn.Module, Batch], torch.Tensor], clicks: Clicks, steps: int) -> None:
    """Trains a model a little, and prints how its loss falls."""
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    losses: list[float] = []
    for step in range(1, steps + 1):
        batch = clicks.draw(512)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(predict(model, batch), batch.clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % (steps // 5) == 0:
            recent = losses[-steps // 5 :]
            print(f"step {step:5}  loss {sum(recent) / len(recent):.4f}")


def auc(scores: torch.Tensor, clicked: torch.Tensor) -> float:
    """The share of pairs of one who clicked and one who did not in which the former has the higher score."""
    order = clicked[scores.argsort()]
    ranks = torch.arange(1, len(order) + 1, dtype=torch.float64)
    positive = order.sum().item()
    negative = len(order) - positive
    return (ranks[order == 1].sum().item() - positive * (positive + 1) / 2) / (positive * negative)


def program(name: str) -> str:
    """A program of rowmill's: in the folder that ROWMILL_PROGRAMS names, else in PATH, else in the workspace's target/release."""
    here = pathlib.Path(__file__).parents[3] / "target" / "release"
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("ROWMILL_PROGRAMS", ""), os.environ["PATH"], str(here)]))
    if found is None:
        raise SystemExit(f"{name} is not there: run `cargo build --release --bins`, or name its folder in ROWMILL_PROGRAMS")
    return found


@contextlib.contextmanager
def service(generation: pathlib.Path) -> Iterator[rowmill.Client]:
    """A client of a service of a generation, which ends with it."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"shm:{folder}/rowmill.sock"
        config = pathlib.Path(folder, "rowmilld.toml")
        config.write_text(f'endpoints = ["{url}"]\n[model]\ndirectory = "{generation}"\n[workers]\ncpus = 1\n[admin]\naddress = "off"\n')
        with open(f"{folder}/rowmilld.log", "w+") as log:
            command = [program("rowmilld"), "--config", str(config)]
            daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            try:
                with connected(url, daemon, log) as client:
                    yield client
            finally:
                daemon.terminate()
                daemon.wait()


def connected(url: str, daemon: "subprocess.Popen[bytes]", log: TextIO) -> rowmill.Client:
    """A client, as soon as the service takes one."""
    until = time.monotonic() + 30
    while True:
        try:
            return rowmill.connect(url)
        except rowmill.ConnectError:
            if daemon.poll() is not None or time.monotonic() > until:
                log.seek(0)
                raise SystemExit(f"rowmilld does not serve:\n{log.read()}") from None
            time.sleep(0.02)


def compare(
    clicks: Clicks,
    local: tuple[torch.nn.Module, Callable[[torch.nn.Module, Batch], torch.Tensor]],
    served: tuple[torch.nn.Module, Callable[[torch.nn.Module, Batch], torch.Tensor]],
    tolerance: float,
    rounds: int,
) -> None:
    """Prints how good both models are, how far their predictions differ, and how long they take."""
    batch = clicks.draw(4096)
    with torch.inference_mode():
        scores = {"local": local[1](local[0], batch), "served": served[1](served[0], batch)}
        others = served[1](served[0], batch.with_ids_of_others())
        for name, own in scores.items():
            print(f"AUC {name:7} {auc(own, batch.clicked):.4f}")
        print(f"AUC with the ids of other samples {auc(others, batch.clicked):.4f}")
        difference = (scores["local"].sigmoid() - scores["served"].sigmoid()).abs().max().item()
        print(f"predictions differ by {difference:.2e} at most, over {len(batch.dense)} samples")
        if difference > tolerance:
            raise SystemExit(f"that is more than {tolerance:.0e}")
        print("\nlatency of a prediction in ms, torch on one thread, rowmilld on one core: median and 99th percentile")
        print("samples        local          served")
        for samples in (1, 16, 128, 512):
            batches = [clicks.draw(samples) for _ in range(8)]
            times = [measure(model, predict, batches, rounds) for model, predict in (local, served)]
            print(f"{samples:7}  " + "  ".join(f"{p50:6.3f} {p99:7.3f}" for p50, p99 in times))


def measure(
    model: torch.nn.Module, predict: Callable[[torch.nn.Module, Batch], torch.Tensor], batches: list[Batch], rounds: int
) -> tuple[float, float]:
    times = []
    for at in range(rounds + 10):
        began = time.perf_counter()
        predict(model, batches[at % len(batches)])
        times.append(1e3 * (time.perf_counter() - began))
    times = sorted(times[10:])
    return times[len(times) // 2], times[len(times) * 99 // 100]


def arguments(description: str) -> argparse.Namespace:
    """What the command line says. Leaves a core to the service."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600, help="training steps of 512 samples")
    parser.add_argument("--rounds", type=int, default=200, help="predictions for each time")
    parser.add_argument("--format", default="f32", help="row format of the exported tables: f32, f16, bf16, int8, int8-f16, int4")
    return parser.parse_args()


# The most by which probabilities may differ: sums of f32 in another order, or rows rounded to the format.
TOLERANCES = {"f32": 1e-5, "f16": 1e-3, "bf16": 1e-2, "int8": 2e-2, "int8-f16": 2e-2, "int4": 3e-1}
