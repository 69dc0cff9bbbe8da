"""Lookups of torch tensors, and results as such."""

import numpy as np
import pytest

import rowmill

torch = pytest.importorskip("torch", reason="torch is not installed")

IDS = [5, 6, 7, 8, 9]
LENGTHS = [2, 1, 0, 2]


def expected(service):
    items, users = service.tables["items"], service.tables["users"]
    rows = [
        np.concatenate([items[5] + items[6], np.zeros(16, np.float32)]),
        np.concatenate([items[7], (users[8] + users[9]) / 2]),
    ]
    return torch.from_numpy(np.stack(rows))


@pytest.mark.parametrize("ids", [torch.int32, torch.int64])
@pytest.mark.parametrize("lengths", [torch.int32, torch.int64])
def test_tensors(client, schema, service, ids, lengths):
    batch = rowmill.Jagged(torch.tensor(IDS, dtype=ids), torch.tensor(LENGTHS, dtype=lengths))
    result = client.lookup(schema, batch)
    assert torch.equal(result.torch(), expected(service))
    assert torch.equal(torch.from_dlpack(result), expected(service))
    assert torch.equal(result["user"].torch(), expected(service)[:, 8:])
    assert result.torch().data_ptr() == result.numpy().ctypes.data


def test_bfloat16(client, service):
    schema = client.bind([rowmill.Feature("clicked", "items")], output="bfloat16")
    result = client.lookup(schema, rowmill.Jagged(torch.tensor([3]), torch.tensor([1])))
    assert result.torch().dtype == torch.bfloat16
    assert torch.equal(result.torch().float()[0], torch.from_numpy(service.tables["items"][3]))
    with pytest.raises(rowmill.DtypeError, match="no bfloat16"):
        result.numpy()
    with pytest.raises(rowmill.DtypeError, match="no bfloat16"):
        np.asarray(result)


def test_an_inner_call_by_addresses(client, schema, service):
    ids, lengths = torch.tensor(IDS, dtype=torch.int32), torch.tensor(LENGTHS)
    by_address = client._lookup_flat(
        schema, (ids.data_ptr(), 5, 32), (lengths.data_ptr(), 4, 64), False, 0, [0, 1], 2
    )
    assert torch.equal(by_address.torch(), expected(service))


def test_views_with_the_negative_bit_are_refused(client):
    weighted = client.bind([rowmill.Feature("w", "items", "weighted_sum")])
    ids, lengths, weights = torch.tensor([5]), torch.tensor([1]), torch.tensor([2.0])
    sentence = "are a view that torch negates when it reads it, .*; call .resolve_neg\\(\\) on them"
    for batch in [
        rowmill.Jagged(torch._neg_view(-ids), lengths, weights=weights),
        rowmill.Jagged(ids, torch._neg_view(-lengths), weights=weights),
        rowmill.Jagged(ids, offsets=torch._neg_view(torch.tensor([0, -1])), weights=weights),
        rowmill.Jagged(ids, lengths, weights=torch.tensor([1 + 2j]).conj().imag),
        {"w": (ids, lengths, torch._neg_view(weights))},
    ]:
        with pytest.raises(rowmill.InputError, match=sentence):
            client.lookup(weighted, batch)
    batch = rowmill.Jagged(ids, lengths, weights=weights)
    out = torch.frombuffer(client.buffer(256), dtype=torch.float32)
    with pytest.raises(rowmill.InputError, match="out are a view that torch negates"):
        client.lookup(weighted, batch, out=torch._neg_view(out))
    assert client.lookup(weighted, batch, out=out).torch().equal(out[:8].reshape(1, 8))


class OnGpu:
    """A tensor with the address of a GPU's memory, as torch's on a machine that has one."""

    def __init__(self, numbers):
        self.on_host = torch.tensor(numbers)
        self.copies = 0

    @property
    def device(self):
        return torch.device("cuda", 0)

    @property
    def dtype(self):
        return self.on_host.dtype

    def dim(self):
        return self.on_host.dim()

    def data_ptr(self):
        return 1 << 46

    def cpu(self):
        self.copies += 1
        return self.on_host


def test_tensors_on_a_gpu_are_copied_here(client, schema, service):
    ids, lengths = OnGpu(IDS), OnGpu(LENGTHS)
    for batch in [rowmill.Jagged(ids, lengths), rowmill.Jagged(ids, torch.tensor(LENGTHS))]:
        assert torch.equal(client.lookup(schema, batch).torch(), expected(service))
        assert torch.equal(client.submit(schema, batch).result().torch(), expected(service))
    assert (ids.copies, lengths.copies) == (4, 2)
    weighted = client.bind([rowmill.Feature("w", "items", "weighted_sum")])
    twice = client.lookup(weighted, rowmill.Jagged(OnGpu([5]), OnGpu([1]), weights=OnGpu([2.0])))
    assert torch.equal(twice.torch()[0], 2 * torch.from_numpy(service.tables["items"][5]))
    with pytest.raises(rowmill.InputError, match="ids have 2 dimensions"):
        client.lookup(schema, rowmill.Jagged(OnGpu([IDS]), lengths))
