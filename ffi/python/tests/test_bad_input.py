"""What callers and the world do wrong: each is an exception with a sentence that tells what to do; nothing leaks or hangs.

Each test also counts descriptors, threads, mappings of registered memory, and results that are held, before and after.
"""

import asyncio
import collections
import gc
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback

import numpy as np
import pytest
from conftest import FEATURES, Paused, Service, descriptors
from test_futures import waiters, warm
from test_lookup import Keyed

import rowmill

try:
    import torch
except ImportError:
    torch = None

with_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")

# Two features of two bags.
IDS, LENGTHS = np.array([1, 2, 3, 4, 5]), np.array([1, 2, 1, 1])
ONE = rowmill.Jagged(np.array([7, 8]), np.array([1, 1]))


def counted() -> dict[str, collections.Counter | int]:
    gc.collect()
    maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
    return {
        "descriptors": collections.Counter(name.split(":")[0] for name in descriptors()),
        "threads": len(os.listdir("/proc/self/task")),
        "mappings": sum("memfd:" in line for line in maps),
    }


@pytest.fixture(scope="module", autouse=True)
def once(service):
    """What a process has for good from its first connection on."""
    rowmill.connect(service.url).close()
    # What earlier tests have left, such as torch's graphs, is not looked through again for each test.
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def nothing_leaks(once):
    before = counted()
    yield
    after = counted()
    # A thread that was joined is still listed for a moment: CPython lets go of it before the system has ended it.
    until = time.monotonic() + 5
    while after["threads"] > before["threads"] and time.monotonic() < until:
        time.sleep(0.001)
        after = counted()
    assert after["descriptors"] <= before["descriptors"]
    assert after["threads"] <= before["threads"]
    assert after["mappings"] <= before["mappings"]


@pytest.fixture
def client(service):
    with rowmill.connect(service.url, name="bad input") as client:
        yield client
        if not client.closed:
            gc.collect()
            until = time.monotonic() + 5
            while client.stats() != {"pending": 0, "held": 0} and time.monotonic() < until:
                time.sleep(0.001)
            assert client.stats() == {"pending": 0, "held": 0}


# Arrays that can't be read as they are


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        (rowmill.Jagged(IDS.astype(float), LENGTHS), "ids have dtype float64, but int32, int64, uint32 or uint64 is wanted"),
        (rowmill.Jagged(IDS > 2, LENGTHS), "ids have dtype bool"),
        (rowmill.Jagged(IDS.astype(np.int16), LENGTHS), "ids have dtype int16"),
        (rowmill.Jagged(IDS.astype(">i8"), LENGTHS), "ids have dtype >i8"),
        (rowmill.Jagged(IDS.astype(object), LENGTHS), "ids have dtype object"),
        (rowmill.Jagged(IDS, LENGTHS.astype(np.uint8)), "lengths have dtype uint8, but int32 or int64 is wanted"),
        (rowmill.Jagged(IDS, LENGTHS.astype(float)), "lengths have dtype float64"),
        (rowmill.Jagged(IDS, offsets=np.array([0, 1, 3, 4, 5.0])), "offsets have dtype float64"),
        (rowmill.Jagged(IDS, LENGTHS, weights=np.ones(5)), "weights have dtype float64, but float32 is wanted"),
        (rowmill.Jagged([1, 2, 3], LENGTHS), "the array of ids is of type list; give a NumPy array or a torch tensor"),
        (rowmill.Jagged(b"12345678", LENGTHS), "ids have dtype"),
        ([IDS, LENGTHS], "a batch of type list; give a rowmill.Jagged"),
        ({"clicked": (IDS.astype(float), LENGTHS), "user": (IDS, LENGTHS)}, "feature `clicked`: ids have dtype float64"),
    ],
)
def test_wrong_dtypes(client, schema, batch, sentence):
    with pytest.raises(rowmill.DtypeError, match=sentence) as raised:
        client.lookup(schema, batch)
    assert isinstance(raised.value, TypeError | ValueError)
    with pytest.raises(rowmill.DtypeError, match=sentence):
        client.submit(schema, batch)


@with_torch
@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        (lambda: torch.tensor([1.0] * 5), "ids have dtype torch.float32"),
        (lambda: torch.tensor([True] * 5), "ids have dtype torch.bool"),
        (lambda: torch.arange(10)[::2], "ids are not contiguous; call .contiguous()"),
        (lambda: torch.arange(5).reshape(5, 1), "ids have 2 dimensions, but 1 is wanted"),
        (lambda: torch.arange(5).to_sparse(), "ids are not contiguous; call .to_dense"),
        (lambda: torch.arange(5, device="meta"), "ids are on the device meta"),
    ],
)
def test_tensors_that_can_not_be_read(client, schema, ids, sentence):
    with pytest.raises(rowmill.InputError, match=sentence):
        client.lookup(schema, rowmill.Jagged(ids(), torch.tensor(LENGTHS)))


@pytest.mark.parametrize(
    ("batch", "sentence"),
    [
        (rowmill.Jagged(np.arange(10)[::2], LENGTHS), "ids are not contiguous; call numpy.ascontiguousarray"),
        (rowmill.Jagged(IDS, np.arange(8)[::2]), "lengths are not contiguous"),
        (rowmill.Jagged(IDS, LENGTHS, weights=np.ones(10, np.float32)[::2]), "weights are not contiguous"),
        (rowmill.Jagged(IDS.reshape(5, 1), LENGTHS), "ids have 2 dimensions, but 1 is wanted; call .reshape"),
        (rowmill.Jagged(np.asfortranarray(np.ones((2, 2), np.int64)), LENGTHS), "ids have 2 dimensions"),
        (rowmill.Jagged(np.array(3), LENGTHS), "ids can't be read .*; give a dense array of one dimension"),
    ],
)
def test_arrays_that_are_not_dense(client, schema, batch, sentence):
    with pytest.raises(rowmill.InputError, match=sentence):
        client.lookup(schema, batch)


def test_masked_arrays(client):
    weighted = client.bind([rowmill.Feature("w", "items", "weighted_sum")])
    ids, lengths, weights = np.array([7, 8]), np.array([2]), np.ones(2, np.float32)
    for what, batch in [
        ("ids", rowmill.Jagged(np.ma.array(ids, mask=[False, True]), lengths, weights=weights)),
        ("lengths", rowmill.Jagged(ids, np.ma.array(lengths), weights=weights)),
        ("weights", {"w": (ids, lengths, np.ma.array(weights, mask=[True, False]))}),
    ]:
        with pytest.raises(rowmill.InputError, match=f"{what} are a masked array.*; leave masked elements out with .compressed"):
            client.lookup(weighted, batch)


# Nothing to look up


def test_nothing(client, schema):
    none = np.array([], np.int64)
    for batch in [
        rowmill.Jagged(none, none),
        rowmill.Jagged(none, offsets=np.array([0])),
        Keyed(["user", "clicked"], none, none),
        {"clicked": (none, none), "user": (none, none)},
    ]:
        result = client.lookup(schema, batch)
        assert (result.bags, result.numpy().shape, result["user"].shape) == (0, (0, 24), (0, 16))
        assert np.from_dlpack(result).shape == (0, 24)
        assert client.submit(schema, batch).result().numpy().shape == (0, 24)
    # Bags without ids are zeros.
    empty = client.lookup(schema, rowmill.Jagged(none, np.zeros(6, np.int64)))
    assert empty.numpy().shape == (3, 24) and not empty.numpy().any()
    with pytest.raises(rowmill.InputError, match="5 ids are given, but no lengths"):
        client.lookup(schema, rowmill.Jagged(IDS, none))
    with pytest.raises(rowmill.InputError, match="offsets are empty"):
        client.lookup(schema, rowmill.Jagged(none, offsets=none))


@with_torch
def test_tensors_of_nothing(client, schema):
    none = torch.tensor([], dtype=torch.int64)
    result = client.lookup(schema, rowmill.Jagged(none, none))
    assert result.torch().shape == (0, 24) and result.torch().sum() == 0
    empty = client.lookup(schema, rowmill.Jagged(none, torch.zeros(6, dtype=torch.int32)))
    assert empty.torch().shape == (3, 24) and not empty.torch().any()


# Lengths


@pytest.mark.parametrize(
    ("division", "sentence"),
    [
        ({"lengths": np.array([1, 2, 1, 2])}, "feature `user`: the lengths add up to"),
        ({"lengths": np.array([1, 2, 1, 0])}, "feature `user`: the lengths add up to 4 but 5 ids are given"),
        ({"lengths": np.array([1, 2, -1, 3])}, "feature `user`, bag 0: a length of -1; lengths must not be negative"),
        ({"lengths": np.array([1, 2, 1])}, "3 lengths for 2 features can't be as many for each"),
        ({"lengths": np.array([1, 2**33, 1, 1])}, f"feature `clicked`, bag 1: {2**33} ids, but a bag may have at most"),
        ({"offsets": np.array([0, 1, 3, 2, 5])}, "feature `user`: the offset after bag 0 is below"),
        ({"offsets": np.array([0, 1, 3, 4, 7])}, "feature `user`: the lengths add up to"),
        ({"offsets": np.array([0, -1, 3, 4, 5], np.int32)}, "feature `clicked`: the offset after bag 0 is below"),
        ({"offsets": np.array([2, 3, 5, 6, 7])}, "offsets begin with 2; give offsets from 0 on"),
        ({"offsets": np.array([-1, 0, 2, 3, 4], np.int32)}, "offsets begin with -1; give"),
        ({"offsets": np.array([0, 1, 3, 4])}, "3 lengths for 2 features can't be as many for each"),
    ],
)
def test_lengths_that_do_not_add_up(client, schema, division, sentence):
    with pytest.raises(rowmill.InputError, match=sentence):
        client.lookup(schema, rowmill.Jagged(IDS, **division))
    # In a batch's own order, the feature is named still.
    if "user" in sentence:
        keyed = rowmill.Jagged(IDS, **division, keys=["clicked", "user", "more"][:2])
        with pytest.raises(rowmill.InputError, match=sentence):
            client.lookup(schema, keyed)


def test_offsets_of_features_of_their_own(client, schema):
    bag = (np.array([1]), np.array([1]))
    for offsets, sentence in [([1, 2], "begin with 1"), ([0, 2], "add up to 2 but 1 ids"), ([0, 0], "add up to 0 but 1 ids")]:
        batch = {"clicked": bag, "user": rowmill.Jagged(np.array([1]), offsets=np.array(offsets))}
        with pytest.raises(rowmill.InputError, match=f"feature `user`: .*{sentence}.*; give"):
            client.lookup(schema, batch)
    with pytest.raises(rowmill.InputError, match="offsets begin with 3"):
        client.lookup(schema, rowmill.Jagged(np.array([], np.int64), offsets=np.array([3])))


def test_divisions_that_are_missing_or_too_many():
    for divisions in [{}, {"lengths": LENGTHS, "offsets": LENGTHS}]:
        with pytest.raises(rowmill.InputError, match="by lengths or by offsets; give one of them"):
            rowmill.Jagged(IDS, **divisions)


def test_weights_that_do_not_fit(client, schema):
    weighted = client.bind([rowmill.Feature("w", "items", "weighted_sum")])
    lengths, weights = np.array([3, 2]), np.ones(5, np.float32)
    with pytest.raises(rowmill.InputError, match="`w` is weighted: push it with weights"):
        client.lookup(weighted, rowmill.Jagged(IDS, lengths))
    with pytest.raises(rowmill.InputError, match="4 weights for 5 ids; give one weight for each id"):
        client.lookup(weighted, rowmill.Jagged(IDS, lengths, weights=weights[:4]))
    with pytest.raises(rowmill.InputError, match="takes no weights"):
        client.lookup(schema, rowmill.Jagged(IDS, LENGTHS, weights=weights))
    with pytest.raises(rowmill.InputError, match="weights of their own"):
        client.lookup(weighted, {"w": (IDS, lengths)}, weights=weights)


def test_batches_above_the_limits(client, schema):
    with pytest.raises(rowmill.InputError, match="bags of a batch: 65 is more than the limit of 64"):
        client.lookup(schema, rowmill.Jagged(np.zeros(130, np.int64), np.ones(130, np.int64)))
    rows = client.bind([rowmill.Feature("rows", "items", "none", max_ids=2)])
    with pytest.raises(rowmill.Error, match="max_ids|block"):
        client.lookup(rows, rowmill.Jagged(IDS, np.array([5])))


# Features


def test_features_that_are_missing_unknown_or_twice(client, schema):
    with pytest.raises(rowmill.FeatureError, match="it lacks `user`; the schema has `clicked`, `user`") as raised:
        client.lookup(schema, rowmill.Jagged(IDS, LENGTHS, keys=["clicked", "other"]))
    assert isinstance(raised.value, KeyError | rowmill.InputError) and not str(raised.value).startswith(("'", '"'))
    bag = (np.array([1]), np.array([1]))
    with pytest.raises(rowmill.FeatureError, match="it lacks `user`; the schema does not have `other`"):
        client.lookup(schema, {"clicked": bag, "other": bag})
    with pytest.raises(rowmill.FeatureError, match="the schema does not have `other`"):
        client.lookup(schema, {"clicked": bag, "user": bag, "other": bag})
    with pytest.raises(rowmill.FeatureError, match="the key `user` twice"):
        client.lookup(schema, rowmill.Jagged(IDS, LENGTHS, keys=["user", "user"]))
    with pytest.raises(rowmill.InputError, match="`user` has 2 bags, but `clicked` has 1"):
        client.lookup(schema, {"clicked": bag, "user": (np.array([1]), np.array([1, 0]))})
    with pytest.raises(rowmill.InputError, match="feature `user` is no \\(ids, lengths\\)"):
        client.lookup(schema, {"clicked": bag, "user": np.array([1])})
    with pytest.raises(rowmill.InputError, match="are no list or tuple of names"):
        client.lookup(schema, rowmill.Jagged(IDS, LENGTHS, keys="user"))
    result = client.lookup(schema, ONE)
    with pytest.raises(rowmill.FeatureError, match="no feature `other`; it has `clicked`, `user`"):
        result["other"]


def test_schemas_that_can_not_be_bound(client):
    feature = rowmill.Feature
    refused = [
        ([feature("a", "nothing")], {}, rowmill.InputError, "no table `nothing`; it has `items`, `users`, `words`|it has"),
        ([feature("a", "items"), feature("a", "users")], {}, rowmill.FeatureError, "`a` is named twice"),
        ([], {}, rowmill.InputError, "0 features; give from 1 to 256"),
        ([feature(str(at), "items") for at in range(257)], {}, rowmill.InputError, "257 features; give from 1 to 256"),
        *(
            ([feature("a", "items")], {"max_batch": bags}, rowmill.InputError, f"max_batch of {bags}; give .* from 1 to 65536")
            for bags in (0, -1, 65537, 1 << 32, 1 << 65)
        ),
        ([feature("a", "items")], {"output": "float64"}, rowmill.InputError, "no results of type `float64`"),
    ]
    for features, options, error, sentence in refused:
        with pytest.raises(error, match=sentence):
            client.bind(features, **options)
    with pytest.raises(rowmill.InputError, match="no pooling is called `sums`; take one of sum, mean"):
        feature("a", "items", "sums")
    for arguments, sentence in [
        (("a" * 200, "items"), "name of 200 bytes in UTF-8; give one of at most 128"),
        (("a", "ü" * 65), "table of 130 bytes"),
        (("a", "items", "none", 0), "feature `a`: max_ids of 0; give a whole number from 1 to 8388608"),
        (("a", "items", "none", -1), "max_ids of -1"),
    ]:
        with pytest.raises(rowmill.InputError, match=sentence):
            feature(*arguments)
    with pytest.raises(rowmill.InputError, match="give max_ids for features with pooling=\"none\" only"):
        feature("a", "items", max_ids=4)
    two = client.bind([feature("a", "items", "none"), feature("b", "items", "none")])
    with pytest.raises(rowmill.InputError, match="take one by its name"):
        client.lookup(two, ONE).numpy()


def test_schemas_that_are_too_many(client, service):
    def bind(at, **options):
        return client.bind([rowmill.Feature("clicked", "items"), rowmill.Feature("user", "users")], max_batch=at + 1, **options)

    schemas = [bind(at) for at in range(15)] + [bind(0, output="float16")]
    # Those that are equal to one of them are that one.
    schemas += [bind(at) for at in range(15) for _ in range(3)]
    with pytest.raises(rowmill.InputError, match="schemas of a connection: 17 is more than the limit of 16; use those that are bound"):
        bind(15)
    for schema in schemas:
        assert np.array_equal(client.lookup(schema, ONE)["user"].numpy(), service.tables["users"][8:9])


def test_batches_of_other_strides(client, schema):
    class Varies(Keyed):
        def variable_stride_per_key(self):
            return True

    with pytest.raises(rowmill.InputError, match="a number of bags of its own for each key"):
        client.lookup(schema, Varies(["clicked", "user"], IDS, LENGTHS))


# Ids


@pytest.mark.parametrize(
    ("table", "ids", "status", "position"),
    [
        ("items", [1, 5000], "IdOutOfRange", 1),
        ("items", [-1, 4], "IdNegative", 0),
        ("words", [7, 14, 8], "UnknownId", 2),
    ],
)
@pytest.mark.parametrize("ids_type", [np.int32, np.int64])
def test_ids_that_are_not_there(client, table, ids, status, position, ids_type):
    schema = client.bind([rowmill.Feature("ok", "users"), rowmill.Feature("bad", table)])
    batch = rowmill.Jagged(np.array([5, *ids], ids_type), np.array([1, len(ids)]))
    if status == "UnknownId" and ids_type is np.int32:
        batch = rowmill.Jagged(np.array([5, *ids], np.uint64), np.array([1, len(ids)]))
    with pytest.raises(rowmill.IdError, match=f"feature `bad`, position {position}: {status}") as raised:
        client.lookup(schema, batch)
    error = raised.value
    assert (error.status, error.feature, error.position) == (status, "bad", position)
    assert isinstance(error, IndexError | rowmill.RefusedError)


# Memory that goes away


def test_input_that_is_freed_in_flight(own_service):
    with rowmill.connect(own_service.url) as client:
        schema = client.bind(FEATURES)
        client.lookup(schema, ONE)
        with Paused(own_service):
            ids = np.array([7, 8])
            future = client.submit(schema, rowmill.Jagged(ids, np.array([1, 1])))
            ids[:] = 2**40
            del ids
            storm = [np.full(2, 2**40) for _ in range(10_000)]
        assert np.array_equal(future.result()["user"].numpy(), own_service.tables["users"][8:9])
        del storm


def test_out_that_is_freed_in_flight(own_service):
    with rowmill.connect(own_service.url) as client:
        schema = client.bind(FEATURES)
        buffer = client.buffer(4096)
        with Paused(own_service):
            future = client.submit(schema, ONE, out=buffer)
            del buffer
            gc.collect()
        assert np.array_equal(future.result()["user"].numpy(), own_service.tables["users"][8:9])


def test_the_same_out_twice_in_flight(own_service):
    with rowmill.connect(own_service.url) as client:
        schema = client.bind(FEATURES)
        buffer = client.buffer(4096)
        with Paused(own_service):
            future = client.submit(schema, ONE, out=buffer)
            with pytest.raises(rowmill.BusyError, match="overlap"):
                client.submit(schema, ONE, out=buffer)
        future.result()
        client.lookup(schema, ONE, out=buffer)


def test_out_of_a_future_that_was_dropped(own_service):
    with rowmill.connect(own_service.url) as client:
        schema = client.bind(FEATURES)
        buffer = client.buffer(4096)
        with Paused(own_service):
            future = client.submit(schema, ONE, out=buffer)
            del future
            with pytest.raises(rowmill.BusyError, match="overlap"):
                client.submit(schema, ONE, out=buffer)
        # Nobody but this call takes its answer in, which may have to come yet.
        until = time.monotonic() + 10
        while True:
            try:
                result = client.lookup(schema, ONE, out=buffer)
                break
            except rowmill.BusyError:
                assert time.monotonic() < until
        assert np.array_equal(result["user"].numpy(), own_service.tables["users"][8:9])
        del result


# The client's end


def test_a_closed_client(service):
    client = rowmill.connect(service.url)
    schema = client.bind(FEATURES)
    result = client.lookup(schema, ONE)
    client.close()
    client.close()
    calls = [
        client.tables,
        client.stats,
        lambda: client.generation,
        lambda: client.bind(FEATURES),
        lambda: client.lookup(schema, ONE),
        lambda: client.submit(schema, ONE),
        lambda: client.buffer(4096),
    ]
    for call in calls:
        with pytest.raises(rowmill.ClosedError, match="the client was closed; connect again"):
            call()
    assert np.array_equal(result["user"].numpy(), service.tables["users"][8:9])


def test_things_of_another_client(client, service):
    with rowmill.connect(service.url) as other:
        with pytest.raises(rowmill.InputError, match="schema is not one of this client"):
            client.lookup(other.bind(FEATURES), ONE)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("shm:/nowhere/x.sock", "is rowmilld running, and is this its endpoint"),
        ("shm:x.sock", "must be absolute"),
        ("http://here", "no port of that name is known"),
        ("here", "names no port"),
        # Here is no device, nobody listens, or the package was built without.
        ("rdma://127.0.0.1:1", "(cannot connect to rdma://127.0.0.1:1: .*; (see whether|is rowmilld))|no port of that name"),
    ],
)
def test_nothing_to_connect_to(url, sentence):
    with pytest.raises(rowmill.ConnectError, match=sentence) as raised:
        rowmill.connect(url)
    assert isinstance(raised.value, ConnectionError)


def test_arguments_out_of_their_range(service):
    with pytest.raises(rowmill.InputError, match="take \"block\", \"sleep\" or \"poll\""):
        rowmill.connect(service.url, wait="spin")
    for argument, given, sentence in [
        ("reply_limit", -1, "reply_limit of -1 seconds; give 0 or more$"),
        ("credits", 0, "credits of 0; give a whole number from 1 to 65535"),
        ("credits", -1, "credits of -1; give"),
        ("credits", 1 << 20, "credits of 1048576; give"),
        ("source_bytes", -1, "source_bytes of -1; give a whole number from 0"),
        ("pool_bytes", -1, "pool_bytes of -1; give a whole number from 0"),
        ("name", "n" * 200, "name of 200 bytes in UTF-8; give one of at most 128"),
    ]:
        with pytest.raises(rowmill.InputError, match=sentence):
            rowmill.connect(service.url, **{argument: given})


def test_arguments_of_requests_out_of_their_range(client, schema):
    for options, sentence in [
        ({"deadline": 0}, "deadline of 0 seconds; give more than 0, or None for no limit"),
        ({"deadline": 1e-10}, "deadline of .* seconds; give more than 0, or None for no limit"),
        ({"deadline": -1}, "deadline of -1 seconds; give more than 0, or None for no limit"),
        ({"generation": -1}, "generation of -1; give 0 for the newest"),
    ]:
        for call in (client.lookup, client.submit):
            with pytest.raises(rowmill.InputError, match=sentence):
                call(schema, ONE, **options)
    with pytest.raises(rowmill.InputError, match="timeout of -1 seconds; give 0 or more, or None for no limit"):
        client.lookup(schema, ONE, timeout=-1)
    for nbytes in (-1, 0, 1 << 62, 1 << 70):
        with pytest.raises(rowmill.InputError, match=f"nbytes of {nbytes}; give a whole number from 1 to"):
            client.buffer(nbytes)
    with pytest.raises(rowmill.DtypeError, match="keys are no names; give a list or tuple of str"):
        client.lookup(schema, rowmill.Jagged(IDS, LENGTHS, keys=[1, 2]))
    with pytest.raises(rowmill.DtypeError, match="a batch of type NoneType; give a rowmill.Jagged"):
        client.lookup(schema, None)


def test_an_id_whose_highest_bit_is_set(client, schema):
    ids = np.array([2**32 - 1, 8], np.uint32)
    with pytest.raises(rowmill.IdError, match="of unsigned ids those with the highest bit count as negative"):
        client.lookup(schema, rowmill.Jagged(ids, np.array([1, 1])))


def test_more_requests_than_credits(own_service):
    with rowmill.connect(own_service.url) as client:
        schema = warm(client)
        futures = []
        with Paused(own_service), pytest.raises(rowmill.BusyError, match="no credit: .*; take results of futures or drop"):
            while True:
                futures.append(client.submit(schema, ONE))
        for future in futures:
            future.result(10)
        del futures, future


def test_connecting_to_a_full_service(model, tmp_path):
    service = Service(tmp_path, *model, options="limits.connections = 1\n")
    try:
        with rowmill.connect(service.url):
            with pytest.raises(rowmill.ConnectError, match="LimitReached.*; close clients that are not needed, raise limits"):
                rowmill.connect(service.url)
    finally:
        service.stop()


def answers(folder, answer):
    """What listens in a dataplane's place, and answers the first message so."""
    path = folder / "other.sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen()

    def run():
        with listener, listener.accept()[0] as peer:
            peer.recv(4096)
            if answer:
                peer.send(answer)

    thread = threading.Thread(target=run)
    thread.start()
    return f"shm:{path}", thread


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(4096), b"x", None])
def test_connecting_to_something_else(tmp_path, answer):
    url, thread = answers(tmp_path, answer)
    with pytest.raises(rowmill.ConnectError, match=f"cannot connect to {url}: .*; (see what|is rowmilld running)") as raised:
        rowmill.connect(url)
    thread.join()
    assert isinstance(raised.value, ConnectionError)


# The process' children


def test_a_forked_child(client, service):
    schema = client.bind(FEATURES)
    result = client.lookup(schema, ONE)
    future = client.submit(schema, ONE)
    buffer = client.buffer(4096)
    child = os.fork()
    if child == 0:
        # pytest's own ways to end are the parent's.
        outcome = 1
        try:
            calls = [
                client.tables,
                client.stats,
                lambda: client.lookup(schema, ONE),
                lambda: client.submit(schema, ONE),
                future.done,
                future.cancel,
                lambda: asyncio.run(awaits(future)),
                future.result,
                lambda: client.buffer(4096),
            ]
            for call in calls:
                with pytest.raises(rowmill.ClosedError, match="connect again in the child"):
                    call()
            client.close()
            del result, future, buffer
            with rowmill.connect(service.url) as own:
                own.lookup(own.bind(FEATURES), ONE)
            outcome = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(outcome)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(future.result()["user"].numpy(), service.tables["users"][8:9])
    for _ in range(100):
        client.lookup(schema, ONE, out=buffer)
    del result, future, buffer


async def awaits(future):
    return await future


def test_a_child_of_multiprocessing(service):
    program = f"""
import multiprocessing, numpy, rowmill

def child(queue):
    try:
        client.lookup(schema, batch)
    except rowmill.ClosedError as error:
        queue.put(str(error))

client = rowmill.connect({service.url!r})
schema = client.bind([rowmill.Feature("clicked", "items")])
batch = rowmill.Jagged(numpy.array([7]), numpy.array([1]))
client.lookup(schema, batch)
context = multiprocessing.get_context("fork")
queue = context.SimpleQueue()
process = context.Process(target=child, args=(queue,))
process.start()
print(queue.get())
process.join()
assert process.exitcode == 0
print(client.lookup(schema, batch).bags)
"""
    command = [sys.executable, "-X", "dev", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=15)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "connect again in the child" in ended.stdout and ended.stdout.endswith("\n1\n")


# Signals, and the service's end


def test_ctrl_c(own_service):
    with rowmill.connect(own_service.url) as client:
        schema = warm(client)
        with Paused(own_service):
            timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                client.lookup(schema, ONE)
            timer.join()
        assert client.lookup(schema, ONE).bags == 1


def test_the_service_dies_in_mid_request(own_service: Service):
    with rowmill.connect(own_service.url) as client:
        schema = warm(client)
        kept = client.lookup(schema, ONE)
        with Paused(own_service):
            threads, ended = waiters(client, schema, 3)
            futures = [client.submit(schema, ONE) for _ in range(2)]
            time.sleep(0.05)
            own_service.stop()
        for thread in threads:
            thread.join()
        assert len(ended) == 4
        for future in futures:
            with pytest.raises(rowmill.ClosedError, match="connect again"):
                future.result(5)
        with pytest.raises(rowmill.ClosedError, match="connect again"):
            client.lookup(schema, ONE)
        assert client.closed and "closed" in repr(client)
        assert np.array_equal(kept["user"].numpy(), own_service.tables["users"][8:9])
    del kept, futures, ended, future


def test_a_call_finds_the_service_gone(own_service: Service):
    with rowmill.connect(own_service.url) as client:
        assert not client.closed
        own_service.stop()
        with pytest.raises(rowmill.ClosedError):
            client.buffer(4096)
        assert client.closed
