"""Modules whose results lie in a GPU's memory: over the stand-in for libcuda, and on a GPU where there is one."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import rowmill

torch = pytest.importorskip("torch")
import rowmill.torch  # noqa: E402
from rowmill.torch import (  # noqa: E402
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
)
from rowmill.torch import gpu as on_gpu  # noqa: E402

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")
CONFIGS = [
    EmbeddingBagConfig(name="users", num_embeddings=1000, embedding_dim=16, feature_names=["user"]),
    EmbeddingBagConfig(name="articles", num_embeddings=5000, embedding_dim=8, feature_names=["clicked", "seen"]),
]
ROW_CONFIGS = [EmbeddingConfig(name="articles", num_embeddings=5000, embedding_dim=8, feature_names=["clicked", "seen"])]
ROWS = {"user": 1000, "clicked": 5000, "seen": 5000}
WIDTH = 32


def batch_of(batches: Any, bags: int, device: str = "cpu") -> Any:
    values, lengths, _ = batches(ROWS, 11).draw(bags, torch.int64, torch.int32)
    return KeyedJaggedTensor(list(ROWS), values.to(device), lengths=lengths.to(device))


@pytest.fixture
def stand_in(driver: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has results lie in the stand-in's memory, where torch without a GPU can see them, for a stream of its own."""
    stream = driver.stream()

    def place(bags: int, width: int, device: Any) -> tuple[Any, int, int]:
        assert device.type == "cuda"
        address, nbytes = driver.memory(4 * bags * width)
        numbers = (ctypes.c_float * (nbytes // 4)).from_address(address)
        return torch.from_numpy(np.frombuffer(numbers, np.float32)).view(bags, width), 0, stream

    def joined(pieces: Any) -> Any:
        # As the stream would.
        while not driver.is_idle(stream):
            pass
        return torch.cat(pieces)

    monkeypatch.setattr(on_gpu, "_place", place)
    monkeypatch.setattr(on_gpu, "_joined", joined)
    monkeypatch.setenv("ROWMILL_CUDA_LIBRARY", driver.path)
    driver.own_stream = stream
    return driver


def finished(client: rowmill.Client, driver: Any) -> None:
    while not driver.is_idle(driver.own_stream):
        pass


@pytest.mark.parametrize("max_batch", [1024, 5])
def test_results_come_to_the_stand_in(client, stand_in, batches, max_batch):
    rowmill.torch.register("default", client, max_batch=max_batch)
    batch = batch_of(batches, 24)
    expected = EmbeddingBagCollection(CONFIGS)(batch).values()
    values = EmbeddingBagCollection(CONFIGS, device="cuda")(batch).values()
    finished(client, stand_in)
    rowmill.torch.check()
    assert values.shape == (24, WIDTH) and values.data_ptr() != expected.data_ptr()
    torch.testing.assert_close(values, expected, rtol=0, atol=0)


def test_a_result_that_does_not_come_is_told_at_the_next_lookup_or_check(client, stand_in, batches):
    module = EmbeddingBagCollection(CONFIGS, device="cuda")
    wrong = KeyedJaggedTensor(list(ROWS), torch.tensor([1000]), lengths=torch.tensor([1, 0, 0]))
    values = module(wrong).values()
    finished(client, stand_in)
    assert values.isnan().all()
    with pytest.raises(rowmill.DeviceError, match="IdOutOfRange"):
        rowmill.torch.check("default")
    rowmill.torch.check("default")
    module(wrong)
    finished(client, stand_in)
    with pytest.raises(rowmill.DeviceError, match="IdOutOfRange"):
        module(batch_of(batches, 3))
    with pytest.raises(rowmill.InputError, match="no client is registered"):
        rowmill.torch.check("other")


@pytest.mark.parametrize(("bags", "max_batch"), [(24, 1024), (24, 5), (600, 1024)])
def test_rows_come_to_the_stand_in(client, stand_in, batches, bags, max_batch, monkeypatch):
    rowmill.torch.register("default", client, max_batch=max_batch)
    batch = batch_of(batches, bags)
    expected = EmbeddingCollection(ROW_CONFIGS)(batch)
    sent = []
    monkeypatch.setattr(on_gpu, "_place", lambda *place, place_of=on_gpu._place: sent.append(place) or place_of(*place))
    found = EmbeddingCollection(ROW_CONFIGS, device="cuda")(batch)
    rowmill.torch.check()
    assert list(found) == ["clicked", "seen"] and sent
    assert all(4 * rows * width <= 64 << 20 for rows, width, _ in sent)
    for name, jagged in found.items():
        torch.testing.assert_close(jagged.values(), expected[name].values(), rtol=0, atol=0)
        torch.testing.assert_close(jagged.lengths(), expected[name].lengths())


def test_rows_for_which_there_is_no_room_on_their_way_come_by_the_host(client, stand_in, monkeypatch):
    # Room for 256 rows of each feature.
    monkeypatch.setattr(on_gpu, "_PART_BYTES", 4 * 2 * 256 * 8)
    sent = []
    monkeypatch.setattr(on_gpu, "_place", lambda *place, place_of=on_gpu._place: sent.append(place) or place_of(*place))
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device: tensor)
    rows = EmbeddingCollection(ROW_CONFIGS)
    for length, parts in ((256, 2), (257, 0)):
        ids, lengths = torch.arange(3 * length) % 5000, torch.tensor([length, length, 0, 0, 0, length])
        expected = rows(KeyedJaggedTensor(["clicked", "seen"], ids, lengths=lengths))
        found = torch.ops.rowmill.rows(ids, lengths, None, [0, 1], 2, "default", rows._plan, 8, torch.device("cuda"))
        assert len(sent) == parts
        torch.testing.assert_close(found, torch.cat([jagged.values() for jagged in expected.values()]), rtol=0, atol=0)
        sent.clear()


def test_a_row_that_does_not_come_is_told(client, stand_in):
    wrong = KeyedJaggedTensor(["clicked", "seen"], torch.tensor([5000]), lengths=torch.tensor([1, 0]))
    found = EmbeddingCollection(ROW_CONFIGS, device="cuda")(wrong)
    assert found["clicked"].values().isnan().all()
    with pytest.raises(rowmill.DeviceError, match="IdOutOfRange"):
        rowmill.torch.check()


def test_without_a_driver_it_says_so(client, batches, stand_in, monkeypatch):
    monkeypatch.setenv("ROWMILL_CUDA_LIBRARY", "/nowhere/libcuda.so.1")
    with pytest.raises(rowmill.DeviceError, match="`/nowhere/libcuda.so.1` can't be opened"):
        EmbeddingBagCollection(CONFIGS, device="cuda")(batch_of(batches, 3))


@on_a_gpu
@pytest.mark.parametrize("ids_on", ["cpu", "cuda"])
@pytest.mark.parametrize("max_batch", [1024, 100])
def test_results_come_to_a_gpu(client, batches, ids_on, max_batch):
    rowmill.torch.register("default", client, max_batch=max_batch)
    batch = batch_of(batches, 512)
    expected = EmbeddingBagCollection(CONFIGS)(batch).values()
    module = EmbeddingBagCollection(CONFIGS, device="cuda")
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            values = module(batch_of(batches, 512, ids_on)).values()
            # In the same stream, without waiting.
            doubled = values * 2
        assert values.is_cuda and values.shape == (512, WIDTH)
        stream.synchronize()
        rowmill.torch.check()
        torch.testing.assert_close(doubled.cpu(), expected * 2, rtol=0, atol=0)


@on_a_gpu
@pytest.mark.parametrize(("ids_on", "max_batch"), [("cpu", 1024), ("cuda", 100)])
def test_rows_come_to_a_gpu(client, batches, ids_on, max_batch):
    rowmill.torch.register("default", client, max_batch=max_batch)
    expected = EmbeddingCollection(ROW_CONFIGS)(batch_of(batches, 512))
    with torch.cuda.stream(torch.cuda.Stream()):
        found = EmbeddingCollection(ROW_CONFIGS, device="cuda")(batch_of(batches, 512, ids_on))
        # In the same stream, without waiting.
        doubled = {name: jagged.values() * 2 for name, jagged in found.items()}
        torch.cuda.current_stream().synchronize()
    rowmill.torch.check()
    for name, values in doubled.items():
        assert values.is_cuda
        torch.testing.assert_close(values.cpu(), expected[name].values() * 2, rtol=0, atol=0)


@on_a_gpu
def test_many_lookups_follow_each_other_on_a_gpu(client, batches):
    module = EmbeddingBagCollection(CONFIGS, device="cuda")
    batch = batch_of(batches, 64)
    expected = EmbeddingBagCollection(CONFIGS)(batch).values()
    total = torch.zeros(64, WIDTH, device="cuda")
    for _ in range(100):
        # The memory of each result is used again by torch for the next one.
        total += module(batch).values()
    torch.cuda.synchronize()
    rowmill.torch.check()
    torch.testing.assert_close(total.cpu(), expected * 100, rtol=0, atol=0)


@on_a_gpu
def test_a_gpu_is_told_of_what_does_not_come(client):
    module = EmbeddingBagCollection(CONFIGS, device="cuda")
    values = module(KeyedJaggedTensor(list(ROWS), torch.tensor([1000]), lengths=torch.tensor([1, 0, 0]))).values()
    torch.cuda.synchronize()
    assert values.isnan().all()
    with pytest.raises(rowmill.DeviceError, match="IdOutOfRange"):
        rowmill.torch.check()


@on_a_gpu
def test_modules_are_compiled_for_a_gpu(client, batches):
    module = EmbeddingBagCollection(CONFIGS, device="cuda")
    compiled = torch.compile(lambda batch: module(batch).values() + 1, backend="aot_eager")
    batch = batch_of(batches, 64)
    expected = EmbeddingBagCollection(CONFIGS)(batch).values() + 1
    torch.testing.assert_close(compiled(batch).cpu(), expected, rtol=0, atol=0)
    rowmill.torch.check()


@on_a_gpu
def test_lookups_of_a_client_come_to_tensors_on_a_gpu(client, batches):
    schema = client.bind([rowmill.Feature("user", "users")])
    batch = {"user": (np.array([1, 2, 3]), np.array([2, 1]))}
    out = torch.ones(2, schema.width, device="cuda")
    with client.gpu() as gpu:
        gpu.lookup(schema, batch, out=out)
        twice = out * 2
        gpu.synchronize()
        np.testing.assert_array_equal(twice.cpu().numpy(), 2 * client.lookup(schema, batch).numpy())
        with pytest.raises(rowmill.InputError, match="no memory of GPU 0"):
            gpu.lookup(schema, batch, out=out.cpu())
