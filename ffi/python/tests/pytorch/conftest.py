"""What the tests with PyTorch share. They are skipped where it is not installed."""

from __future__ import annotations

import faulthandler
import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

import rowmill

if TYPE_CHECKING:
    import torch

Weights = dict[str, "torch.Tensor"]


@pytest.fixture(autouse=True)
def patience() -> None:
    """Compilers take longer than after what tests' stacks are dumped; their own limits end them."""
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def weights() -> Weights:
    """Tables of small whole numbers, whose sums are exact in every type; one of them is f16."""
    import torch

    random = torch.Generator().manual_seed(7)

    def table(rows: int, dim: int) -> torch.Tensor:
        return torch.randint(-8, 9, (rows, dim), generator=random).float()

    return {"users": table(1000, 16), "articles": table(5000, 8), "tags": table(100, 4).half(), "words": table(300, 8)}


@pytest.fixture(scope="session")
def exported(weights: Weights, serve: Callable[[pathlib.Path], Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A service of these tables."""
    from rowmill.torch import export_tables

    path = tmp_path_factory.mktemp("generation") / "generation"
    state = {f"embedding_bags.{name}.weight": weight for name, weight in weights.items()}
    export_tables(state, path, format={"tags": "f16"})
    return serve(path)


@pytest.fixture
def client(exported: Any) -> Iterator[rowmill.Client]:
    """A client of it, registered as the model "default"."""
    import rowmill.torch

    with rowmill.connect(exported.url, name="tests") as client:
        rowmill.torch.register("default", client)
        yield client
        rowmill.torch.unregister("default")


class Batches:
    """Makes batches of ids, of as many bags for each key."""

    def __init__(self, rows: dict[str, int], seed: int) -> None:
        import torch

        self.rows = rows
        self.random = torch.Generator().manual_seed(seed)

    def draw(self, bags: int, ids: Any, lengths: Any, most: int = 5) -> tuple[Any, Any, Any]:
        """Ids, lengths and weights of a KeyedJaggedTensor with the keys of ``rows``; bags of no ids among them."""
        import torch

        counts = torch.randint(0, most + 1, (len(self.rows), bags), generator=self.random)
        drawn = [
            torch.randint(0, rows, (int(own.sum()),), generator=self.random) for rows, own in zip(self.rows.values(), counts)
        ]
        values = torch.cat(drawn).to(ids)
        weights = torch.randint(1, 5, (len(values),), generator=self.random).float() / 2
        return values, counts.flatten().to(lengths), weights


@pytest.fixture
def batches() -> Callable[..., Batches]:
    return Batches
