"""Results: who sees their memory, how long it stays, and when it is given back."""

import ctypes
import gc
import struct
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from conftest import FEATURES, rss_bytes

import rowmill

ONE = rowmill.Jagged(np.array([7, 8]), np.array([1, 1]))


def held(client: rowmill.Client) -> int:
    gc.collect()
    return client.stats()["held"]


def test_memory_is_held_as_long_as_anybody_sees_it(client, schema, service):
    result = client.lookup(schema, ONE)
    views = [
        result.numpy(),
        np.asarray(result),
        np.asarray(result["user"]),
        memoryview(result),
        np.from_dlpack(result),
        np.from_dlpack(result["clicked"]),
    ]
    gone = weakref.ref(views[1])
    wanted = views[0].copy()
    del result
    for _ in range(100):
        other = client.lookup(schema, rowmill.Jagged(np.array([1, 2]), np.array([1, 1])))
        assert other.numpy().ctypes.data != views[0].ctypes.data
    del other
    assert np.array_equal(views[0], wanted)
    assert np.array_equal(views[5], service.tables["items"][7:8])
    while views:
        assert held(client) == 1
        del views[-1]
    assert held(client) == 0 and gone() is None


def test_a_view_outlives_the_client(service):
    with rowmill.connect(service.url) as client:
        schema = client.bind(FEATURES)
        result = client.lookup(schema, ONE)
    array = result.numpy()
    del client, result
    gc.collect()
    assert np.array_equal(array[:, :8], service.tables["items"][7:8])


def test_release(client, schema):
    result = client.lookup(schema, ONE)
    array = result.numpy()
    with pytest.raises(BufferError, match="1 arrays or tensors see"):
        result.release()
    del array
    result.release()
    result.release()
    assert held(client) == 0
    feature = result["user"]
    for see in [result.numpy, feature.numpy, result.__dlpack__, feature.__dlpack__]:
        with pytest.raises(rowmill.InputError, match="was released"):
            see()
    with pytest.raises(rowmill.InputError, match="was released"):
        memoryview(result)


def test_a_view_says_what_it_is(client, schema):
    view = memoryview(client.lookup(schema, ONE))
    assert (view.format, view.shape, view.strides, view.nbytes) == ("f", (1, 24), (96, 4), 96)
    assert view.c_contiguous and not view.readonly
    wide = client.lookup(schema, rowmill.Jagged(np.array([1, 2, 3, 4]), np.array([1, 1, 1, 1])))
    column = memoryview(wide["user"])
    assert (column.shape, column.strides, column.c_contiguous) == ((2, 16), (96, 4), False)
    with pytest.raises(BufferError, match="column of a matrix"):
        struct.unpack_from("f", wide["user"])


@pytest.mark.parametrize("max_version", [None, (0, 8), (1, 0), (1, 1)])
def test_capsules_that_are_used_and_not(client, schema, max_version):
    name = "dltensor_versioned" if max_version and max_version >= (1, 0) else "dltensor"
    result = client.lookup(schema, ONE)
    capsule = result.__dlpack__(max_version=max_version)
    assert f'"{name}"' in repr(capsule)
    assert result.__dlpack_device__() == (1, 0)
    del capsule, result
    assert held(client) == 0


def test_a_capsule_is_used_once(client, schema):
    class Once:
        def __init__(self, capsule):
            self.capsule = capsule

        def __dlpack__(self, **_):
            return self.capsule

        def __dlpack_device__(self):
            return (1, 0)

    result = client.lookup(schema, ONE)
    once = Once(result.__dlpack__())
    array = np.from_dlpack(once)
    with pytest.raises(ValueError):
        np.from_dlpack(once)
    assert np.array_equal(array, result.numpy())
    del array, once, result
    assert held(client) == 0


def test_what_dlpack_can_not_do(client, schema):
    result = client.lookup(schema, ONE)
    for asked, why in [
        ({"dl_device": (2, 0)}, "this machine's memory"),
        ({"stream": 1}, "no streams"),
    ]:
        with pytest.raises(BufferError, match=why):
            result.__dlpack__(**asked)


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", ctypes.c_byte * 48), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


def test_a_tensor_is_deleted_without_the_interpreters_lock(client, schema):
    result = client.lookup(schema, ONE)
    capsule = result.__dlpack__()
    del result
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
    pointer = api.PyCapsule_GetPointer(capsule, b"dltensor")
    used = ctypes.create_string_buffer(b"used_dltensor")
    assert api.PyCapsule_SetName(capsule, ctypes.cast(used, ctypes.c_char_p)) == 0
    del capsule
    assert held(client) == 1
    deleter = ctypes.cast(pointer, ctypes.POINTER(DLManagedTensor)).contents.deleter
    # A CFUNCTYPE call releases the interpreter's lock.
    delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)
    thread = threading.Thread(target=delete, args=(pointer,))
    thread.start()
    thread.join()
    assert held(client) == 0


def test_tensors_that_outlive_the_interpreters_modules(service):
    program = f"""
import numpy, rowmill
client = rowmill.connect({service.url!r})
schema = client.bind([rowmill.Feature("clicked", "items")])
result = client.lookup(schema, rowmill.Jagged(numpy.array([7]), numpy.array([1])))
kept = [numpy.from_dlpack(result), result.numpy(), result.__dlpack__(), client.buffer(4096)]
kept.append(client.submit(schema, rowmill.Jagged(numpy.array([7]), numpy.array([1]))))
kept.append(kept)
print(kept[0][0, 0])
"""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=15)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert float(ended.stdout) == service.tables["items"][7, 0]


def test_results_that_are_held_fill_the_pool(service):
    with rowmill.connect(service.url, pool_bytes=4096) as client:
        schema = client.bind([rowmill.Feature("user", "users")], max_batch=4096)
        batch = rowmill.Jagged(np.zeros(4096, np.int64), np.ones(4096, np.int64))
        kept = []
        with pytest.raises(rowmill.BusyError, match="release or drop those"):
            for _ in range(1000):
                kept.append(client.lookup(schema, batch))
        assert len(kept) == 8 * 4
        kept.pop().release()
        kept.append(client.lookup(schema, batch))


def test_free_memory_makes_way_for_larger_results(service):
    with rowmill.connect(service.url, pool_bytes=4096) as client:
        small = client.bind([rowmill.Feature("user", "users")], max_batch=1)
        large = client.bind([rowmill.Feature("user", "users")], max_batch=8192)
        kept = []
        with pytest.raises(rowmill.BusyError):
            for _ in range(1000):
                kept.append(client.lookup(small, rowmill.Jagged(np.array([8]), np.array([1]))))
        # What is still seen stays as it is.
        seen = kept[-1].numpy()
        del kept
        batch = rowmill.Jagged(np.arange(8192) % 1000, np.ones(8192, np.int64))
        for _ in range(3):
            assert np.array_equal(client.lookup(large, batch).numpy(), service.tables["users"][np.arange(8192) % 1000])
        assert np.array_equal(seen, service.tables["users"][8:9])


@pytest.mark.timeout(120)
def test_many_lookups_keep_no_memory(client, schema):
    ids, lengths = np.arange(32), np.full(16, 2)
    batch = rowmill.Jagged(ids, lengths)

    def some(count):
        for _ in range(count):
            client.lookup(schema, batch).numpy()
            np.from_dlpack(client.lookup(schema, batch)["user"])

    some(1000)
    before = rss_bytes()
    some(50_000)
    assert rss_bytes() - before < 2 << 20
    assert client.stats() == {"pending": 0, "held": 0}


def test_out(client, schema, service):
    buffer = client.buffer(1 << 16)
    assert (buffer.nbytes, len(buffer)) == (1 << 16, 1 << 16)
    array = np.frombuffer(buffer, np.float32)
    assert not array.any()
    for out, at in [(buffer, 0), (array, 0), (array[48:72].reshape(1, 24), 48)]:
        array[:] = 0
        result = client.lookup(schema, ONE, out=out)
        assert np.array_equal(array[at : at + 8], service.tables["items"][7])
        assert result.numpy().ctypes.data == array[at:].ctypes.data
        # The memory is the caller's again, so that it can be given once more while the result lives.
        future = client.submit(schema, ONE, out=out)
        assert np.array_equal(future.result()["user"].numpy(), service.tables["users"][8:9])
    assert held(client) == 0


def test_out_of_another_place(client, schema, service):
    buffer = client.buffer(1 << 16)
    array = np.frombuffer(buffer, np.float32)
    refused = [
        (np.zeros(24, np.float32), "does not lie in a buffer of this client"),
        (array[:23], "has 92 bytes, but the result of 1 bags takes 96"),
        (array.view(np.float16)[:48], "dtype float16, but results of the schema are float32"),
        (array[::2], "not contiguous"),
        (array[1:25].view(np.int32), "dtype int32"),
        ([0.0] * 24, "of type list"),
    ]
    for out, why in refused:
        with pytest.raises(rowmill.InputError, match=why):
            client.lookup(schema, ONE, out=out)
    with rowmill.connect(service.url) as other:
        with pytest.raises(rowmill.InputError, match="does not lie in a buffer of this client"):
            other.lookup(other.bind(FEATURES), ONE, out=buffer)
    with pytest.raises(rowmill.InputError, match="nbytes of 0; give a whole number from 1"):
        client.buffer(0)
    with pytest.raises(rowmill.InputError, match=f"nbytes of {1 << 40}; give a whole number from 1 to"):
        client.buffer(1 << 40)


def test_buffers_are_given_back(client, schema):
    for _ in range(40):
        buffer = client.buffer(8192)
        array = np.frombuffer(buffer, np.float32)
        future = client.submit(schema, ONE, out=buffer)
        future.cancel()
        # Cancelled or answered: it has ended, and writes no more.
        assert isinstance(future.exception(), rowmill.CancelledError | None)
        del buffer, array, future
    kept = []
    with pytest.raises(rowmill.RefusedError, match="LimitReached"):
        for _ in range(20):
            kept.append(client.buffer(4096))
    assert len(kept) >= 7
    array = np.frombuffer(kept.pop(), np.float32)
    client.close()
    array[0] = 1
