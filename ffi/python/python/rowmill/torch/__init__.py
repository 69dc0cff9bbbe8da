"""rowmill in models of PyTorch and TorchRec: modules that look embeddings up in a service, and the export of a model's tables.

Works with and without torchrec installed; imported by itself, since it imports torch.
"""

from rowmill.torch.export import export_tables
from rowmill.torch.gpu import check
from rowmill.torch.models import client_of, register, unregister
from rowmill.torch.modules import EmbeddingBagCollection, EmbeddingCollection
from rowmill.torch.types import (
    EmbeddingBagConfig,
    EmbeddingConfig,
    JaggedTensor,
    KeyedJaggedTensor,
    KeyedTensor,
    PoolingType,
)

__all__ = [
    "EmbeddingBagCollection",
    "EmbeddingBagConfig",
    "EmbeddingCollection",
    "EmbeddingConfig",
    "JaggedTensor",
    "KeyedJaggedTensor",
    "KeyedTensor",
    "PoolingType",
    "check",
    "client_of",
    "export_tables",
    "register",
    "unregister",
]
