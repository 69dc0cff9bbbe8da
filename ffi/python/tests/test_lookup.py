"""Lookups: every way to give a batch, every way to take a result."""

import numpy as np
import pytest
from conftest import FEATURES, Service, pooled

import rowmill

LENGTHS = {"clicked": [2, 0, 3, 1], "user": [1, 1, 0, 4]}
RNG = np.random.default_rng(5)
IDS = {"clicked": RNG.integers(0, 5000, 6), "user": RNG.integers(0, 1000, 6)}


def wanted(service: Service) -> np.ndarray:
    clicked = pooled(service.tables["items"], IDS["clicked"], np.array(LENGTHS["clicked"]))
    user = pooled(service.tables["users"], IDS["user"], np.array(LENGTHS["user"]), "mean")
    return np.hstack([clicked, user])


def flat(keys: list[str], ids: type, lengths: type) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.concatenate([IDS[key] for key in keys]).astype(ids),
        np.concatenate([LENGTHS[key] for key in keys]).astype(lengths),
    )


class Keyed:
    """What a lookup wants of a KeyedJaggedTensor."""

    def __init__(self, keys, values, lengths=None, offsets=None, weights=None):
        self._parts = keys, values, lengths, offsets, weights

    def keys(self):
        return self._parts[0]

    def values(self):
        return self._parts[1]

    def lengths_or_none(self):
        return self._parts[2]

    def offsets_or_none(self):
        return self._parts[3]

    def weights_or_none(self):
        return self._parts[4]


@pytest.mark.parametrize("id_type", [np.int32, np.int64, np.uint32, np.uint64])
@pytest.mark.parametrize("length_type", [np.int32, np.int64])
@pytest.mark.parametrize("by", ["lengths", "offsets"])
def test_flat_arrays(client, schema, service, id_type, length_type, by):
    ids, lengths = flat(["clicked", "user"], id_type, length_type)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(length_type)
    division = {"lengths": lengths} if by == "lengths" else {"offsets": offsets}
    result = client.lookup(schema, rowmill.Jagged(ids, **division))
    assert np.array_equal(result.numpy(), wanted(service))
    assert np.array_equal(result["user"].numpy(), wanted(service)[:, 8:])
    assert result["clicked"].shape == (4, 8)
    assert (result.bags, result.generation, result.delta, result.keys()) == (4, 1, 0, ["clicked", "user"])
    assert 0 <= result.service_s < 10


@pytest.mark.parametrize("keys", [["clicked", "user"], ["user", "clicked"]])
def test_keys_in_another_order(client, schema, service, keys):
    ids, lengths = flat(keys, np.int64, np.int64)
    for batch in [rowmill.Jagged(ids, lengths, keys=keys), Keyed(keys, ids, lengths)]:
        assert np.array_equal(client.lookup(schema, batch).numpy(), wanted(service))


def test_keyed_with_more_keys_and_offsets(client, schema, service):
    lengths = np.concatenate([LENGTHS["user"], [1, 1, 1, 1], LENGTHS["clicked"]])
    ids = np.concatenate([IDS["user"], [1, 2, 3, 4], IDS["clicked"]])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    keys = ["user", "unused", "clicked"]
    for batch in [Keyed(keys, ids, lengths), Keyed(keys, ids, None, offsets), Keyed(keys, ids, lengths, offsets * 0)]:
        assert np.array_equal(client.lookup(schema, batch).numpy(), wanted(service))


def test_a_dict_of_features(client, schema, service):
    parts = {name: (IDS[name], np.array(LENGTHS[name])) for name in ["user", "clicked"]}
    assert np.array_equal(client.lookup(schema, parts).numpy(), wanted(service))
    offsets = np.concatenate([[0], np.cumsum(LENGTHS["user"])])
    parts["user"] = rowmill.Jagged(IDS["user"], offsets=offsets)
    assert np.array_equal(client.lookup(schema, parts).numpy(), wanted(service))


def test_weights(client, service):
    features = [rowmill.Feature("w", "items", "weighted_sum"), rowmill.Feature("m", "users", "weighted_mean")]
    schema = client.bind(features)
    ids, lengths = np.array([3, 4, 5, 6]), np.array([2, 0, 1, 1])
    weights = np.array([0.5, 2, 4, 1], np.float32)
    items, users = service.tables["items"], service.tables["users"]
    expected = np.zeros((2, 24), np.float32)
    expected[0, :8] = items[3] * 0.5 + items[4] * 2
    expected[:, 8:] = users[[5, 6]]
    batches = [
        (rowmill.Jagged(ids, lengths, weights=weights), None),
        (rowmill.Jagged(ids, lengths), weights),
        (Keyed(["w", "m"], ids, lengths, weights=weights), None),
        ({"w": (ids[:2], lengths[:2], weights[:2]), "m": (ids[2:], lengths[2:], weights[2:])}, None),
    ]
    for batch, own in batches:
        assert np.array_equal(client.lookup(schema, batch, weights=own).numpy(), expected)


@pytest.mark.parametrize("output", ["float32", "float16"])
def test_rows_that_are_not_pooled(client, service, output):
    features = [
        rowmill.Feature("rows", "users", "none", max_ids=50),
        rowmill.Feature("clicked", "items"),
        rowmill.Feature("words", "words", "none"),
    ]
    schema = client.bind(features, max_batch=4, output=output)
    batch = {
        "rows": (np.array([5, 9, 9]), np.array([2, 1])),
        "clicked": (np.array([1, 2, 3]), np.array([0, 3])),
        "words": (np.array([7, 0, 693]), np.array([3, 0])),
    }
    flat_batch = rowmill.Jagged(np.array([5, 9, 9, 1, 2, 3, 7, 0, 693]), np.array([2, 1, 0, 3, 3, 0]))
    offsets = np.concatenate([[0], np.cumsum([2, 1, 0, 3, 3, 0])])
    by_offsets = rowmill.Jagged(np.array([5, 9, 9, 1, 2, 3, 7, 0, 693]), offsets=offsets)
    for given in [batch, flat_batch, by_offsets]:
        result = client.lookup(schema, given)
        assert result["rows"].dtype == output
        assert np.array_equal(result["rows"].numpy(), service.tables["users"][[5, 9, 9]])
        assert np.array_equal(result["words"].numpy(), service.tables["words"][[1, 0, 99]])
        sums = pooled(service.tables["items"], np.array([1, 2, 3]), np.array([0, 3]))
        assert np.array_equal(result.numpy(), sums)


def test_tables_and_schema_describe_themselves(client, schema):
    tables = {table.name: table for table in client.tables()}
    assert repr(tables["items"]) == "Table(name='items', rows=5000, dim=8, format='f32', kind='dense')"
    assert tables["words"].kind == "hashed"
    assert (schema.features, schema.dims, schema.width) == (["clicked", "user"], [8, 16], 24)
    assert (schema.max_batch, schema.output) == (64, "float32")
    assert schema.result_bytes(4) == 4 * 24 * 4
    assert FEATURES[1] == rowmill.Feature("user", "users", "mean")
    assert repr(FEATURES[1]) == "Feature('user', 'users', pooling='mean', max_ids=None)"
    assert "clicked, user" in repr(schema)


def test_a_future_has_the_result(client, schema, service):
    ids, lengths = flat(["clicked", "user"], np.int64, np.int64)
    futures = [client.submit(schema, rowmill.Jagged(ids, lengths)) for _ in range(4)]
    ids[:] = 0  # They were copied when they were sent.
    for future in futures:
        assert np.array_equal(future.result(timeout=5).numpy(), wanted(service))
        assert future.done() and future.exception() is None and not future.cancel()
        assert future.result() is future.result()
