"""Futures: threads, event loops, cancelling, signals, the connection's end."""

import asyncio
import gc
import os
import signal
import threading
import time
import weakref

import numpy as np
import pytest
from conftest import FEATURES, Paused, assert_no_more_descriptors, descriptors

import rowmill

ONE = rowmill.Jagged(np.array([7, 8]), np.array([1, 1]))


def warm(client: rowmill.Client) -> rowmill.Schema:
    """Memory for results is asked for with the first lookup, which a service that is stopped does not answer."""
    schema = client.bind(FEATURES)
    client.lookup(schema, ONE)
    return schema


class Loops:
    """Event loops of a kind."""

    def __init__(self, new):
        self.new = new

    def run(self, main, debug=None):
        with asyncio.Runner(loop_factory=self.new, debug=debug) as runner:
            return runner.run(main)


@pytest.fixture(params=["asyncio", "uvloop"])
def loops(request):
    if request.param == "asyncio":
        return Loops(asyncio.new_event_loop)
    return Loops(pytest.importorskip("uvloop", reason="uvloop is not installed").new_event_loop)


def test_awaiting(client, schema, service, loops):
    async def several():
        results = await asyncio.gather(*(client.submit(schema, ONE) for _ in range(6)))
        assert all(np.array_equal(r["clicked"].numpy(), service.tables["items"][7:8]) for r in results)
        future = client.submit(schema, ONE)
        first, second = await asyncio.gather(asyncio.ensure_future(both(future)), both(future))
        assert first is second is await future

    async def both(future):
        return await future

    loops.run(several(), debug=True)


def test_an_exception_comes_to_who_awaits(client, schema, loops):
    async def fails():
        future = client.submit(schema, rowmill.Jagged(np.array([7, 1000]), np.array([1, 1])))
        with pytest.raises(rowmill.IdError, match="feature `user`, position 0") as raised:
            await future
        assert (raised.value.status, raised.value.feature, raised.value.position) == ("IdOutOfRange", "user", 0)
        assert isinstance(future.exception(), rowmill.IdError)

    loops.run(fails())


def test_two_loops_and_many_one_after_another(client, schema, loops):
    async def some():
        for _ in range(20):
            await client.submit(schema, ONE)

    failed = []

    def run():
        try:
            loops.run(some())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    # A client can have 16 bells at a time.
    before = descriptors()
    for _ in range(40):
        loops.run(some())
    assert_no_more_descriptors(before)


def test_a_future_is_awaited_in_one_loop(own_service, loops):
    with rowmill.connect(own_service.url) as client:
        schema = warm(client)
        with Paused(own_service):
            future = client.submit(schema, ONE)
            started, waits = threading.Event(), []

            async def first():
                task = asyncio.ensure_future(keep(future))
                await asyncio.sleep(0.05)
                started.set()
                waits.append(await task)

            async def keep(future):
                return await future

            async def second():
                with pytest.raises(rowmill.InputError, match="another event loop"):
                    await future

            thread = threading.Thread(target=lambda: loops.run(first()))
            thread.start()
            started.wait()
            loops.run(second())
        thread.join()
        assert waits == [future.result()]


def test_a_loop_that_is_closed_early(own_service, loops):
    with rowmill.connect(own_service.url) as client:
        schema = warm(client)
        before = descriptors()
        with Paused(own_service):
            loop = loops.new()
            future = client.submit(schema, ONE)

            async def waits():
                await future

            task = loop.create_task(waits())
            loop.run_until_complete(asyncio.sleep(0.02))
            assert not task.done()
            task._log_destroy_pending = False
            loop.close()
            del task, loop
            gc.collect()
        assert future.result(5).bags == 1
        assert loops.run(wrapped(client.submit(schema, ONE))).bags == 1
        assert_no_more_descriptors(before)


async def wrapped(future):
    return await future


def test_a_cancelled_task_cancels_its_request(own_service, loops):
    with rowmill.connect(own_service.url) as client:
        schema = warm(client)

        async def gives_up():
            future = client.submit(schema, ONE)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(wrapped(future), 0.02)
            return future

        with Paused(own_service):
            future = loops.run(gives_up())
            assert not future.done()
        assert isinstance(future.exception(5), rowmill.CancelledError | None)


def test_timeouts_and_cancelling(own_service):
    with rowmill.connect(own_service.url) as client:
        schema = warm(client)
        with Paused(own_service):
            future = client.submit(schema, ONE)
            assert not future.done() and repr(future) == "Future(in flight)"
            began = time.monotonic()
            with pytest.raises(rowmill.WaitTimeout, match="no answer within 0.05 s"):
                future.result(timeout=0.05)
            with pytest.raises(TimeoutError):
                client.lookup(schema, ONE, timeout=0)
            assert time.monotonic() - began < 5
            assert future.cancel()
        with pytest.raises(rowmill.CancelledError):
            future.result(5)
        assert client.lookup(schema, ONE).bags == 1
        for bad in [-1, float("nan"), float("inf")]:
            with pytest.raises(rowmill.InputError, match="give 0 or more"):
                future.result(bad)


def test_dropped_futures_give_everything_back(client, schema):
    for _ in range(1000):
        try:
            client.submit(schema, ONE)
        except rowmill.BusyError:
            client.lookup(schema, ONE)
    while client.stats()["pending"]:
        time.sleep(0.001)
    assert client.stats()["held"] == 0


def test_futures_are_collected(client, schema):
    future = client.submit(schema, ONE)
    future.result()
    gone = weakref.ref(future)
    del future
    assert gone() is None


def test_threads_share_a_client_and_others_run_meanwhile(client, schema, service):
    failed, counted = [], 0

    def looks_up(seed):
        try:
            rng = np.random.default_rng(seed)
            for _ in range(500):
                ids = rng.integers(0, 1000, 2)
                result = client.lookup(schema, rowmill.Jagged(ids, np.array([1, 1])))
                assert np.array_equal(result["user"].numpy()[0], service.tables["users"][ids[1]])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=looks_up, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        counted += 1
        time.sleep(0.001)
    assert not failed and counted > 0


def test_the_interpreters_lock_is_free_while_a_thread_waits(own_service):
    with rowmill.connect(own_service.url) as client:
        schema = warm(client)
        with Paused(own_service):
            waits = threading.Thread(target=client.lookup, args=(schema, ONE))
            waits.start()
            counted, until = 0, time.monotonic() + 0.2
            while time.monotonic() < until:
                counted += 1
            assert waits.is_alive()
        waits.join()
        # With the lock held there would be a turn each 20 ms.
        assert counted > 1000


def test_ctrl_c_ends_a_wait(own_service):
    with rowmill.connect(own_service.url) as client:
        schema = warm(client)
        waits = [
            lambda: client.lookup(schema, ONE),
            lambda: client.submit(schema, ONE).result(),
        ]
        for wait in waits:
            with Paused(own_service):
                threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
                began = time.monotonic()
                with pytest.raises(KeyboardInterrupt):
                    wait()
                assert time.monotonic() - began < 5
            assert client.lookup(schema, ONE).bags == 1


def waiters(client, schema, lookups):
    """Starts threads that look up and one that awaits. Gives them, and the list to which each adds that it was told of the end."""
    ended = []

    def waits():
        try:
            client.lookup(schema, ONE)
        except rowmill.ClosedError as error:
            ended.append(error)

    async def awaits():
        with pytest.raises(rowmill.ClosedError):
            await client.submit(schema, ONE)
        ended.append(None)

    threads = [threading.Thread(target=waits) for _ in range(lookups)]
    threads.append(threading.Thread(target=lambda: asyncio.run(awaits())))
    for thread in threads:
        thread.start()
    return threads, ended


def test_close_ends_all_waits(own_service):
    client = rowmill.connect(own_service.url)
    schema = warm(client)
    with Paused(own_service):
        threads, ended = waiters(client, schema, 4)
        future = client.submit(schema, ONE)
        time.sleep(0.1)
        client.close()
        client.close()
        for thread in threads:
            thread.join()
        with pytest.raises(rowmill.ClosedError, match="ended before"):
            future.result()
    assert len(ended) == 5 and client.closed and "closed" in repr(client)
