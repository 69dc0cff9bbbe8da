"""Results in a GPU's memory, in the order of its streams: over the stand-in for libcuda, whose memory is this machine's."""

import ctypes
import pathlib
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import FEATURES, Paused, pooled
from driver import Driver

import rowmill

BAGS = 4
# 8 elements of `items` and 16 of `users`.
WIDTH = 24
BYTES = 4 * WIDTH * BAGS
IDS = {"clicked": (np.array([5, 6, 7, 1, 2]), np.array([2, 1, 0, 2])), "user": (np.array([1, 2, 3, 9]), np.ones(4, np.int64))}
TOO_LARGE = {"clicked": (np.array([5000]), np.array([1])), "user": (np.array([1]), np.array([1]))}


def memory(driver: Driver, nbytes: int = BYTES) -> tuple[int, int]:
    return driver.memory(nbytes)


def read(driver: Driver, memory: tuple[int, int]) -> np.ndarray:
    return driver.read(memory).reshape(-1, WIDTH)


class Tensor:
    """What lookups use of a torch tensor on a GPU."""

    def __init__(self, memory: tuple[int, int], dtype: str = "torch.float32", contiguous: bool = True) -> None:
        self._address, self.nbytes = memory
        self.dtype = dtype
        self._contiguous = contiguous

    def data_ptr(self) -> int:
        return self._address

    def is_contiguous(self) -> bool:
        return self._contiguous


class Stream:
    """What lookups use of a torch.cuda.Stream."""

    def __init__(self, handle: int, device_index: int = 0) -> None:
        self.cuda_stream = handle
        self.device_index = device_index


@pytest.fixture
def gpu(client: rowmill.Client, driver: Driver) -> Iterator[rowmill.Gpu]:
    with client.gpu(library=driver.path) as gpu:
        yield gpu


def expected(tables: dict[str, np.ndarray]) -> np.ndarray:
    return np.hstack([pooled(tables["items"], *IDS["clicked"]), pooled(tables["users"], *IDS["user"], "mean")])


def test_a_stream_finds_the_result_in_its_place(service, schema, driver, gpu):
    out, later, stream = memory(driver), memory(driver), driver.stream()
    with Paused(service):
        gpu.lookup(schema, IDS, out=out, stream=stream)
        # Queued behind the lookup, which has no answer yet.
        driver.copy(later, out, stream)
        time.sleep(0.05)
        assert not driver.is_idle(stream)
        assert (read(driver, out) == read(driver, later)).all()
        gpu.check()
    gpu.synchronize(stream)
    assert driver.is_idle(stream)
    np.testing.assert_array_equal(read(driver, later), expected(service.tables))


def test_what_the_stream_does_before_is_done_before(service, schema, client, library, tmp_path):
    driver = Driver(library, tmp_path, "slow=cuMemcpyDtoDAsync:200000")
    out, before, stream = memory(driver), memory(driver), driver.stream()
    ones = read(driver, out)
    with client.gpu(library=driver.path) as gpu:
        driver.copy(before, out, stream)
        gpu.lookup(schema, IDS, out=out, stream=stream)
        gpu.synchronize(stream)
    np.testing.assert_array_equal(read(driver, before), ones)
    np.testing.assert_array_equal(read(driver, out), expected(service.tables))


def test_results_are_those_of_other_lookups(client, driver, gpu):
    features = [rowmill.Feature("clicked", "items", "weighted_sum"), rowmill.Feature("user", "users", "max")]
    schema = client.bind(features, max_batch=64)
    rng = np.random.default_rng(7)
    lengths = rng.integers(0, 6, 2 * 64).astype(np.int32)
    ids = rng.integers(0, 1000, lengths.sum())
    batch = rowmill.Jagged(ids, lengths, weights=rng.integers(1, 5, len(ids)).astype(np.float32))
    out = memory(driver, schema.result_bytes(64))
    stream = Stream(driver.stream())
    gpu.lookup(schema, batch, out=Tensor(out), stream=stream)
    gpu.synchronize(stream)
    np.testing.assert_array_equal(read(driver, out), client.lookup(schema, batch).numpy())


def test_without_a_stream_it_is_the_default_one(service, schema, driver, gpu):
    out = memory(driver)
    gpu.lookup(schema, IDS, out=out)
    gpu.synchronize()
    np.testing.assert_array_equal(read(driver, out), expected(service.tables))


def test_a_refused_request_leaves_nans_and_is_told(service, schema, driver, gpu):
    out, stream = memory(driver), driver.stream()
    gpu.lookup(schema, TOO_LARGE, out=out, stream=stream)
    with pytest.raises(rowmill.DeviceError, match="went on without its result.*IdOutOfRange"):
        gpu.synchronize(stream)
    assert np.isnan(read(driver, out)[0]).all()
    # Told once.
    gpu.check(stream)
    gpu.check_all()
    gpu.lookup(schema, TOO_LARGE, out=out, stream=stream)
    while not driver.is_idle(stream):
        time.sleep(0.001)
    with pytest.raises(rowmill.DeviceError, match="went on without its result"):
        gpu.lookup(schema, IDS, out=out, stream=stream)
    gpu.lookup(schema, IDS, out=out, stream=stream)
    gpu.synchronize(stream)
    np.testing.assert_array_equal(read(driver, out), expected(service.tables))


def test_a_failure_is_told_to_its_own_stream(service, schema, driver, gpu):
    out, other, stream = memory(driver), memory(driver), driver.stream()
    gpu.lookup(schema, TOO_LARGE, out=out, stream=stream)
    while not driver.is_idle(stream):
        time.sleep(0.001)
    gpu.check()
    gpu.lookup(schema, IDS, out=other)
    gpu.synchronize()
    np.testing.assert_array_equal(read(driver, other), expected(service.tables))
    with pytest.raises(rowmill.DeviceError, match="IdOutOfRange"):
        gpu.check(Stream(stream))
    gpu.lookup(schema, TOO_LARGE, out=out, stream=stream)
    while not driver.is_idle(stream):
        time.sleep(0.001)
    with pytest.raises(rowmill.DeviceError, match="IdOutOfRange"):
        gpu.check_all()
    gpu.check(stream)


def test_a_service_that_dies_releases_streams(own_service, driver):
    with rowmill.connect(own_service.url) as client, client.gpu(library=driver.path) as gpu:
        schema = client.bind(FEATURES, max_batch=64)
        out, stream = memory(driver), driver.stream()
        with Paused(own_service):
            gpu.lookup(schema, IDS, out=out, stream=stream)
            own_service.stop()
        with pytest.raises(rowmill.DeviceError, match="connection"):
            gpu.synchronize(stream)
        assert np.isnan(read(driver, out)).all()
        with pytest.raises(rowmill.ClosedError):
            gpu.lookup(schema, IDS, out=out, stream=stream)


def test_a_stream_waits_no_longer_than_the_limit(service, schema, client, driver):
    with client.gpu(library=driver.path, limit=0.1) as gpu:
        out, stream = memory(driver), driver.stream()
        with Paused(service):
            gpu.lookup(schema, IDS, out=out, stream=stream)
            with pytest.raises(rowmill.DeviceError, match="has not answered within 100ms"):
                gpu.synchronize(stream)
    assert np.isnan(read(driver, out)).all()


def test_closing_releases_streams(service, schema, driver, client):
    out, stream = memory(driver), driver.stream()
    gpu = client.gpu(library=driver.path)
    with Paused(service):
        gpu.lookup(schema, IDS, out=out, stream=stream)
        gpu.close()
        while not driver.is_idle(stream):
            time.sleep(0.001)
        assert np.isnan(read(driver, out)).all()
    assert gpu.closed and "closed" in repr(gpu)
    gpu.close()
    assert gpu.staged_instead == 0
    for call in (gpu.check, gpu.check_all, gpu.synchronize, lambda: gpu.register(out), lambda: gpu.lookup(schema, IDS, out=out, stream=stream)):
        with pytest.raises(rowmill.ClosedError, match="open it again"):
            call()


def test_closing_ends_other_threads_waits(service, schema, driver, client):
    out, stream = memory(driver), driver.stream()
    with client.gpu(library=driver.path) as gpu, ThreadPoolExecutor(1) as threads:
        with Paused(service):
            gpu.lookup(schema, IDS, out=out, stream=stream)
            waiting = threads.submit(gpu.synchronize, stream)
            with pytest.raises(TimeoutError):
                waiting.result(0.05)
            gpu.close()
            with pytest.raises(rowmill.DeviceError, match="was closed before the answer came"):
                waiting.result(10)


def test_room_for_results_is_waited_for(service, schema, client, driver):
    with client.gpu(library=driver.path, requests=2) as gpu:
        stream = driver.stream()
        outs = [memory(driver) for _ in range(20)]
        for out in outs:
            gpu.lookup(schema, IDS, out=out, stream=stream)
        gpu.synchronize(stream)
        for out in outs:
            np.testing.assert_array_equal(read(driver, out), expected(service.tables))
        with Paused(service):
            for out in outs[:2]:
                gpu.lookup(schema, IDS, out=out, stream=stream)
            with pytest.raises(rowmill.BusyError, match="held"):
                gpu.lookup(schema, IDS, out=outs[2], stream=stream, timeout=0.05)
        gpu.synchronize(stream)


def test_the_report_says_what_was_tried(gpu, driver):
    assert gpu.way == "staging" and gpu.ordinal == 0 and repr(gpu) == "Gpu(0, staging)"
    device, *tried = gpu.report
    assert device.startswith("GPU 0: ") and driver.path in device
    assert [line.split(":")[0] for line in tried] == ["dma-buf", "nvidia-peermem", "staging"]


def test_staging_can_be_ruled_out(client, driver):
    with pytest.raises(rowmill.DeviceError, match="no NIC can write to the GPU's memory.*dma-buf: .*nvidia-peermem: "):
        client.gpu(library=driver.path, allow_staging=False)


def test_registered_memory_has_a_report_and_is_kept(service, schema, driver, gpu):
    first, second = memory(driver, 2 * BYTES), memory(driver)
    registered = gpu.register(Tensor(first))
    assert registered.way == "staging" and registered.nbytes == 2 * BYTES and registered.report[0] == gpu.report[0]
    inside = (first[0] + BYTES, BYTES)
    gpu.lookup(schema, IDS, out=inside, stream=0)
    gpu.synchronize(0)
    np.testing.assert_array_equal(read(driver, inside), expected(service.tables))
    del registered
    assert gpu.register(second).nbytes == BYTES


def test_a_batch_without_bags_sends_nothing(schema, driver, gpu):
    out = memory(driver)
    ones = read(driver, out)
    none = np.empty(0, np.int64)
    gpu.lookup(schema, {"clicked": (none, none), "user": (none, none)}, out=out, stream=driver.stream())
    np.testing.assert_array_equal(read(driver, out), ones)


@pytest.mark.parametrize(
    ("options", "ordinal", "text"),
    [
        ("no-device", 0, "cuInit failed: CUDA_ERROR_NO_DEVICE"),
        ("", 1, "there is no GPU 1: the driver knows 1"),
        ("fail=cuMemHostRegister_v2:304", 0, "cuMemHostRegister failed: CUDA_ERROR_OPERATING_SYSTEM"),
    ],
)
def test_a_gpu_that_is_not_there(client, library, tmp_path, options, ordinal, text):
    path = shutil.copy(library, tmp_path)
    ctypes.CDLL(path).rowmill_stand_in_options(options.encode())
    with pytest.raises(rowmill.DeviceError, match=text):
        client.gpu(ordinal, library=path)


def test_a_driver_that_is_not_there(client, tmp_path, monkeypatch):
    text = "the CUDA driver `.*libnone.so` can't be opened: .*; it comes with NVIDIA's driver for the GPU"
    with pytest.raises(rowmill.DeviceError, match=text):
        client.gpu(library=tmp_path / "libnone.so")
    monkeypatch.setenv("ROWMILL_CUDA_LIBRARY", str(tmp_path / "libnone.so"))
    with pytest.raises(rowmill.DeviceError, match=text):
        client.gpu()


def test_wrong_places(schema, driver, gpu):
    out = memory(driver)
    larger = memory(driver, 2 * BYTES)
    host = np.zeros((BAGS, WIDTH), np.float32)
    wrong = [
        (host, rowmill.InputError, "no memory of GPU 0: CUDA does not know them, or as the host's"),
        ((8, BYTES), rowmill.InputError, "no memory of GPU 0"),
        ((out[0] + BYTES - 4, BYTES), rowmill.InputError, "no memory of GPU 0"),
        ((2**64 - 8, BYTES), rowmill.InputError, "beyond all addresses"),
        ((larger[0] + 1, BYTES), rowmill.InputError, "no multiple of the 4 bytes"),
        ((out[0], BYTES - 4), rowmill.InputError, f"out has {BYTES - 4} bytes, but the result of 4 bags takes {BYTES}"),
        (Tensor(out, "torch.float16"), rowmill.DtypeError, "out has dtype float16, but results of the schema are float32"),
        (Tensor(out, contiguous=False), rowmill.InputError, "out is not contiguous"),
        ("here", rowmill.DtypeError, "out is of type str"),
    ]
    for out, error, text in wrong:
        with pytest.raises(error, match=text):
            gpu.lookup(schema, IDS, out=out, stream=driver.stream())
    gpu.check()


def test_managed_memory_is_refused(schema, client, library, tmp_path):
    driver = Driver(library, tmp_path)
    with client.gpu(library=driver.path) as gpu:
        driver.calls.rowmill_stand_in_options(b"managed")
        with pytest.raises(rowmill.InputError, match="managed memory; allocate with cudaMalloc"):
            gpu.lookup(schema, IDS, out=memory(driver), stream=0)


def test_wrong_streams(schema, driver, gpu):
    out = memory(driver)
    with pytest.raises(rowmill.DtypeError, match="stream is of type str; give a torch.cuda.Stream"):
        gpu.lookup(schema, IDS, out=out, stream="now")
    with pytest.raises(rowmill.InputError, match="stream is one of GPU 3; give one of GPU 0"):
        gpu.synchronize(Stream(0, device_index=3))
    stream = driver.stream()
    driver("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), 0)
    with pytest.raises(rowmill.DeviceError, match="captured into a CUDA graph"):
        gpu.lookup(schema, IDS, out=out, stream=stream)


def test_wrong_batches_and_limits(schema, driver, gpu, client):
    out = memory(driver)
    lengths = {**IDS, "clicked": (np.array([5, 6]), np.array([2, 1, 0, 2]))}
    with pytest.raises(rowmill.InputError, match="feature `clicked`"):
        gpu.lookup(schema, lengths, out=out, stream=0)
    with pytest.raises(rowmill.InputError, match="timeout of -1 seconds"):
        gpu.lookup(schema, IDS, out=out, stream=0, timeout=-1.0)
    with pytest.raises(rowmill.InputError, match="limit of -1 seconds"):
        client.gpu(library=driver.path, limit=-1.0)
    client.close()
    with pytest.raises(rowmill.ClosedError):
        gpu.lookup(schema, IDS, out=out, stream=0)
