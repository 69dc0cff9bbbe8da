"""TorchRec's DLRM: trained a little, exported, and served by rowmill, whose collection takes the place of TorchRec's.

    python dlrm_torchrec.py
"""

from __future__ import annotations

import pathlib
import tempfile

import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.models.dlrm import DLRM

import rowmill.torch
from dlrm_common import DENSE, DIM, FEATURES, TOLERANCES, Batch, Clicks, arguments, compare, service, train


def configs() -> list[EmbeddingBagConfig]:
    return [
        EmbeddingBagConfig(name=f.name, num_embeddings=f.rows, embedding_dim=DIM, feature_names=[f.name]) for f in FEATURES
    ]


def dlrm(collection: torch.nn.Module) -> DLRM:
    return DLRM(collection, dense_in_features=DENSE, dense_arch_layer_sizes=[32, DIM], over_arch_layer_sizes=[32, 1])


def predict(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """A logit for each sample; the same code for the local and the served model."""
    keys = [feature.name for feature in FEATURES]
    ids = torch.cat([batch.ids[key] for key in keys])
    lengths = torch.cat([batch.lengths[key] for key in keys])
    return model(batch.dense, KeyedJaggedTensor(keys, ids, lengths=lengths)).squeeze(1)


def main() -> None:
    given = arguments(__doc__)
    torch.manual_seed(1)
    clicks = Clicks(seed=2)
    trained = dlrm(EmbeddingBagCollection(tables=configs()))
    train(trained, predict, clicks, given.steps)
    with tempfile.TemporaryDirectory() as folder:
        generation = pathlib.Path(folder, "generation")
        names = rowmill.torch.export_tables(trained, generation, format=given.format)
        print(f"exported {', '.join(names.values())} as {given.format}")
        with service(generation) as client:
            served = dlrm(rowmill.torch.EmbeddingBagCollection(configs(), client=client))
            served.load_state_dict(trained.state_dict())  # The layers; rows are the service's.
            compare(clicks, (trained, predict), (served, predict), TOLERANCES[given.format], given.rounds)


main()
