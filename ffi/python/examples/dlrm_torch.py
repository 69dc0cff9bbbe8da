"""A DLRM in plain PyTorch: trained a little, exported, and served by rowmill; torchrec is not needed.

    python dlrm_torch.py
"""

from __future__ import annotations

import pathlib
import tempfile

import torch
from torch import nn

import rowmill.torch
from dlrm_common import DENSE, DIM, FEATURES, TOLERANCES, Batch, Clicks, arguments, compare, service, train


class LocalTables(nn.Module):
    """An ``nn.EmbeddingBag`` for each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleDict({f.name: nn.EmbeddingBag(f.rows, DIM, mode="mean") for f in FEATURES})
        for bag in self.bags.values():
            nn.init.uniform_(bag.weight, -0.05, 0.05)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Vectors ``[B, len(FEATURES) * DIM]``."""
        offsets = {name: lengths.cumsum(0) - lengths for name, lengths in batch.lengths.items()}
        return torch.cat([bag(batch.ids[name], offsets[name]) for name, bag in self.bags.items()], dim=1)


class ServedTables(nn.Module):
    """The same from a service, with one request for all features."""

    def __init__(self, client: rowmill.Client, names: dict[str, str]) -> None:
        super().__init__()
        mean = rowmill.torch.PoolingType.MEAN
        self.bags = rowmill.torch.EmbeddingBagCollection(
            [rowmill.torch.EmbeddingBagConfig(f.rows, DIM, names[f"tables.bags.{f.name}"], [f.name], mean) for f in FEATURES],
            client=client,
        )

    def forward(self, batch: Batch) -> torch.Tensor:
        """Vectors ``[B, len(FEATURES) * DIM]``."""
        ids = torch.cat([batch.ids[f.name] for f in FEATURES])
        lengths = torch.cat([batch.lengths[f.name] for f in FEATURES])
        return self.bags(rowmill.torch.KeyedJaggedTensor([f.name for f in FEATURES], ids, lengths=lengths)).values()


class Dlrm(nn.Module):
    """Dense features through layers, the products of all pairs of vectors, and layers above."""

    def __init__(self, tables: nn.Module) -> None:
        super().__init__()
        self.tables = tables
        self.bottom = nn.Sequential(nn.Linear(DENSE, 32), nn.ReLU(), nn.Linear(32, DIM), nn.ReLU())
        vectors = len(FEATURES) + 1
        self.pairs = torch.triu_indices(vectors, vectors, offset=1)
        self.top = nn.Sequential(nn.Linear(DIM * vectors + self.pairs.shape[1], 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch: Batch) -> torch.Tensor:
        """A logit for each sample."""
        both = torch.cat([self.bottom(batch.dense), self.tables(batch)], dim=1)
        vectors = both.view(len(both), -1, DIM)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([both, products], dim=1)).squeeze(1)


def predict(model: nn.Module, batch: Batch) -> torch.Tensor:
    return model(batch)


def main() -> None:
    given = arguments(__doc__)
    torch.manual_seed(1)
    clicks = Clicks(seed=2)
    trained = Dlrm(LocalTables())
    train(trained, predict, clicks, given.steps)
    with tempfile.TemporaryDirectory() as folder:
        generation = pathlib.Path(folder, "generation")
        names = rowmill.torch.export_tables(trained, generation, format=given.format)
        print(f"exported {', '.join(names.values())} as {given.format}")
        with service(generation) as client:
            served = Dlrm(ServedTables(client, names))
            served.bottom, served.top = trained.bottom, trained.top
            compare(clicks, (trained, predict), (served, predict), TOLERANCES[given.format], given.rounds)


main()
