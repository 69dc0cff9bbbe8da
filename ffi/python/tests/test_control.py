"""Signals while the library waits, and a dataplane that does not answer."""

import builtins
import contextlib
import os
import pathlib
import re
import signal
import socket
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from conftest import FEATURES, ROOT, Paused
from test_futures import warm

import rowmill
from rowmill import _rowmill

ONE = rowmill.Jagged(np.array([7, 8]), np.array([1, 1]))


class Raised(Exception):
    pass


def raises() -> None:
    raise Raised


class Interrupting:
    """Sends this process signals until the block has ended: one may come before it waits for anything."""

    def __init__(self, handle: Callable[[], None] = raises) -> None:
        self.handle = handle
        self.armed = True
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        while not self.ended.wait(0.1):
            os.kill(os.getpid(), signal.SIGUSR1)

    def handler(self, number: int, frame: object) -> None:
        if self.armed:
            self.handle()

    def __enter__(self) -> None:
        self.before = signal.signal(signal.SIGUSR1, self.handler)
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        # What follows is not interrupted.
        self.armed = False
        self.ended.set()
        self.thread.join()
        signal.signal(signal.SIGUSR1, self.before)


@contextlib.contextmanager
def silent(folder):
    """A service that takes connections, and answers none."""
    path = folder / "silent.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(8)
        yield f"shm:{path}"


def large(client):
    return client.bind([rowmill.Feature("user", "users")], max_batch=65_536)


def ids_of(bags):
    return rowmill.Jagged(np.arange(bags) % 1000, np.ones(bags, np.int64))


CALLS = {
    "tables": lambda client, schemas: client.tables(),
    "bind": lambda client, schemas: client.bind(FEATURES, max_batch=7),
    "buffer": lambda client, schemas: client.buffer(1 << 20),
    # The pool grows.
    "lookup": lambda client, schemas: client.lookup(schemas[1], ids_of(60_000)),
    "submit": lambda client, schemas: client.submit(schemas[1], ids_of(60_000)),
    "result": lambda client, schemas: client.submit(schemas[0], ONE).result(),
}


def first_call(own_service, name, **options):
    """A client, and the call: `tables` asks once a connection."""
    client = rowmill.connect(own_service.url, pool_bytes=4096, **options)
    schemas = () if name == "tables" else (warm(client), large(client))
    return client, lambda: CALLS[name](client, schemas)


@pytest.mark.parametrize("name", CALLS)
def test_a_signal_ends_each_call_that_waits(own_service, name):
    client, call = first_call(own_service, name, reply_limit=3600)
    with client:
        with Paused(own_service):
            for _ in range(2):
                with pytest.raises(Raised), Interrupting():
                    call()
        # The client goes on.
        call()
        assert client.lookup(client.bind(FEATURES), ONE)["user"].numpy().shape == (1, 16)


def test_a_signal_ends_connecting(tmp_path):
    with silent(tmp_path) as url, pytest.raises(Raised), Interrupting():
        rowmill.connect(url, reply_limit=3600)


@pytest.mark.parametrize("name", [name for name in CALLS if name != "result"])
def test_a_dataplane_that_does_not_answer_in_time(own_service, name):
    client, call = first_call(own_service, name, reply_limit=0.2)
    with client:
        with Paused(own_service):
            with pytest.raises(rowmill.ReplyTimeout, match="did not answer within 200ms; see whether it is stopped") as raised:
                call()
            assert isinstance(raised.value, TimeoutError)
        until = time.monotonic() + 15
        while True:
            # It has gone on, but may be slow.
            try:
                call()
                break
            except rowmill.ReplyTimeout:
                assert time.monotonic() < until
        assert client.lookup(client.bind(FEATURES), ONE)["user"].numpy().shape == (1, 16)


def test_connecting_to_what_does_not_answer(tmp_path):
    with silent(tmp_path) as url, pytest.raises(rowmill.ReplyTimeout, match="did not answer within 100ms"):
        rowmill.connect(url, reply_limit=0.1)


def test_a_timeout_counts_while_the_pool_grows(own_service):
    client, _ = first_call(own_service, "lookup", reply_limit=3600)
    with client:
        schema = large(client)
        with Paused(own_service), pytest.raises(rowmill.WaitTimeout, match="no answer within 0.3 s"):
            client.lookup(schema, ids_of(60_000), timeout=0.3)
        assert client.lookup(schema, ids_of(60_000)).bags == 60_000


def test_a_handler_may_use_the_client(own_service):
    """It runs in the midst of a call that waits, and so without any lock of the client's."""
    with rowmill.connect(own_service.url) as client:
        schema, looked_up = warm(client), []
        paused = Paused(own_service)

        def look_up():
            if not looked_up:
                paused.__exit__()
                looked_up.append(client.lookup(schema, ONE)["user"].numpy())

        with paused, Interrupting(look_up):
            assert client.bind(FEATURES, max_batch=7).max_batch == 7
        assert np.array_equal(looked_up[0], own_service.tables["users"][8:9])


def test_no_signal_is_delivered_to_the_librarys_threads(own_service):
    def masks():
        """The signals that are blocked in each thread, by its name."""
        found = {}
        for task in pathlib.Path("/proc/self/task").iterdir():
            # It may have ended.
            with contextlib.suppress(OSError):
                status = (task / "status").read_text()
                found[re.search(r"Name:\s*(.*)", status)[1]] = int(re.search(r"SigBlk:\s*([0-9a-f]+)", status)[1], 16)
        return found

    with rowmill.connect(own_service.url) as client:
        schema = warm(client)
        with Paused(own_service):
            # Each has a thread of its own: a bell, and a call.
            bell = client._bell()
            future = client.submit(schema, ONE)
            future._ring(bell, 1)
            asking = threading.Thread(target=lambda: client.bind(FEATURES, max_batch=9))
            asking.start()
            wanted = {"rowmill-progress"[:15], "rowmill-control"[:15]}
            until = time.monotonic() + 10
            while not wanted <= set(found := masks()):
                assert time.monotonic() < until, found
        asking.join()
        for name in wanted:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM, signal.SIGPROF, signal.SIGCHLD):
                assert found[name] & 1 << (number - 1), (name, number)
        del future, bell


def test_the_readme_names_the_class_of_each_status():
    text = (ROOT / "ffi/python/README.md").read_text()
    table = text.split("## Errors\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")][2:]
    statuses = dict(_rowmill._status_classes())
    told = {}
    for classes, also, when in rows:
        for name in re.findall(r"`(\w+)`", classes):
            error = getattr(rowmill, name)
            assert issubclass(error, rowmill.Error)
        of_row = re.findall(r"`(\w+)`", classes)
        for base in re.findall(r"`(\w+)`", also):
            base = getattr(rowmill, base, None) or getattr(builtins, base)
            assert any(issubclass(getattr(rowmill, name), base) for name in of_row), (classes, base)
        named = [name for name in re.findall(r"`(\w+)`", when) if name in statuses]
        for status, name in zip(named, of_row * len(named) if len(of_row) == 1 else of_row):
            told[status] = name
    assert {status: told.get(status, "RefusedError") for status in statuses} == statuses
    public = {name for name, thing in vars(rowmill).items() if isinstance(thing, type) and issubclass(thing, rowmill.Error)}
    assert public - {"Error"} == {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}
