"""What the things of the package are to the rest of Python: mappings, buffers, tensors of the array API, copies and pickles."""

import copy
import ctypes
import hashlib
import pickle

import numpy as np
import pytest
from conftest import FEATURES

import rowmill
import rowmill.errors

TWO = rowmill.Jagged(np.array([7, 8, 9, 10]), np.array([1, 1, 1, 1]))


@pytest.fixture
def result(client, schema):
    return client.lookup(schema, TWO)


def test_a_result_is_read_as_a_dict(result):
    assert list(result) == result.keys() == ["clicked", "user"] and len(result) == 2
    assert "user" in result and "other" not in result and 7 not in result and None not in result
    as_dict = dict(result)
    for name, array in result.items():
        assert np.array_equal(array.numpy(), result[name].numpy()) and np.array_equal(as_dict[name].numpy(), array.numpy())
    assert np.array_equal(result.get("user").numpy(), result["user"].numpy())
    assert result.get("other") is None and result.get("other", 3) == 3 and result.get(0, result) is result
    for other in ["other", 0, None, ["user"]]:
        with pytest.raises(rowmill.FeatureError, match="the result has no feature .*; it has `clicked`, `user`"):
            result[other]


def test_bytes_of_a_result(result):
    wanted = result.numpy().tobytes()
    assert hashlib.sha256(result).digest() == hashlib.sha256(wanted).digest()
    assert bytes(result) == bytes(result.values) == wanted
    assert bytearray(result) == wanted
    # A column of the matrix has gaps, which a memoryview knows and a hash does not.
    assert memoryview(result["user"]).tobytes() == result["user"].numpy().tobytes()
    with pytest.raises(BufferError, match="column of a matrix"):
        hashlib.sha256(result["user"])
    for view in (memoryview(result), memoryview(result.values)):
        assert (view.readonly, view.contiguous, view.c_contiguous, view.f_contiguous) == (False, True, True, False)
    column = memoryview(result["user"])
    assert (column.contiguous, column.c_contiguous, column.f_contiguous) == (False, False, False)


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
    ]


def read(capsule):
    """The structure that it points to, as it was while there was the capsule."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return Versioned.from_buffer_copy(Versioned.from_address(pointer(capsule, b"dltensor_versioned")))


@pytest.mark.parametrize("name", [None, "user"])
def test_dlpack_of_the_array_api(client, schema, result, name):
    given = result if name is None else result[name]
    address = given.numpy().ctypes.data
    for wish, copied in [({}, False), ({"copy": None}, False), ({"copy": False}, False), ({"copy": True}, True)]:
        for device in [{}, {"dl_device": None}, {"dl_device": (1, 0)}]:
            tensor = read(given.__dlpack__(max_version=(1, 1), stream=None, **wish, **device))
            assert (tensor.major, tensor.flags) == (1, 2 if copied else 0)
            assert (tensor.data != address) == copied
    lent, copied = np.from_dlpack(given, copy=False), np.from_dlpack(given, copy=True, device="cpu")
    wanted = lent.copy()
    assert lent.ctypes.data == address and copied.ctypes.data != address
    assert np.array_equal(copied, wanted) and copied.flags.c_contiguous
    # It has memory of its own.
    copied += 1
    assert np.array_equal(lent, wanted)
    del given, lent, result
    assert np.array_equal(copied, wanted + 1)


def test_a_copy_holds_no_result(client, schema):
    result = client.lookup(schema, TWO)
    copied = np.from_dlpack(result, copy=True)
    plain = result.__dlpack__(copy=True)
    wanted = result.numpy().copy()
    result.release()
    assert client.stats()["held"] == 0
    assert np.array_equal(copied, wanted) and "dltensor" in repr(plain)
    with pytest.raises(rowmill.InputError, match="was released"):
        result.__dlpack__(copy=True)
    none = client.lookup(schema, rowmill.Jagged(np.array([], np.int64), np.array([], np.int64)))
    assert np.from_dlpack(none, copy=True).shape == (0, 24)


def ways():
    yield from (copy.copy, copy.deepcopy)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        yield lambda thing, protocol=protocol: pickle.loads(pickle.dumps(thing, protocol))


def test_features_and_batches_are_copied_and_pickled(client, schema, result):
    jagged = [
        TWO,
        rowmill.Jagged(np.array([7, 8]), offsets=np.array([0, 1, 2])),
        rowmill.Jagged(np.array([8, 7]), np.array([1, 1]), keys=["user", "clicked"]),
    ]
    weighted = rowmill.Jagged(np.array([7]), np.array([1]), weights=np.array([2], np.float32))
    of_weights = client.bind([rowmill.Feature("w", "items", "weighted_sum")])
    rows = rowmill.Feature("rows", "items", "none", max_ids=4)
    for way in ways():
        for feature in [*FEATURES, rows]:
            copied = way(feature)
            assert copied == feature and hash(copied) == hash(feature) and repr(copied) == repr(feature)
        for batch in jagged:
            assert np.array_equal(client.lookup(schema, way(batch)).numpy(), client.lookup(schema, batch).numpy())
        assert np.array_equal(client.lookup(of_weights, way(weighted)).numpy(), client.lookup(of_weights, weighted).numpy())
    assert len({*FEATURES, *(way(FEATURES[0]) for way in ways())}) == 2


def test_what_can_not_be_copied_says_what_to_do(client, schema, result):
    things = [
        (client, "pass the URL on, and connect again"),
        (schema, "bind its features again"),
        (result, "copy what it shows"),
        (result["user"], "copy what it shows"),
        (client.buffer(4096), "copy the bytes"),
        (client.submit(schema, TWO), "pass its result on"),
        (client.tables()[0], "Client.tables"),
    ]
    for way in ways():
        for thing, sentence in things:
            with pytest.raises(TypeError, match=f"a rowmill.{type(thing).__name__} can't be copied or pickled: .*{sentence}"):
                way(thing)


def test_every_class_is_copied_or_says_why_not():
    from rowmill._copies import _INSTEAD

    classes = {thing for thing in vars(rowmill).values() if isinstance(thing, type) and not issubclass(thing, BaseException)}
    assert classes - set(_INSTEAD) == {rowmill.Feature, rowmill.Jagged}


@pytest.mark.parametrize("name", rowmill.errors.__all__)
def test_exceptions_are_copied_and_pickled(name):
    error = getattr(rowmill, name)
    of_requests = issubclass(error, rowmill.RefusedError)
    raised = error("a sentence", "IdNegative", 33, "user", 4) if of_requests else error("a sentence")
    for way in ways():
        copied = way(raised)
        assert (type(copied), str(copied), copied.args) == (error, "a sentence", raised.args)
        assert vars(copied) == vars(raised)
