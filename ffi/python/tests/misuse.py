"""Wrong uses of the package, a section of them at a time, by a process of its own: ``python misuse.py URL PID SECTION``.

Each line says what came of a case. It ends with 0 where each was an exception with a sentence that tells what to do, or did no harm, and
where neither descriptors, threads nor mappings are left; PID is the dataplane's, which some sections stop, and one kills.
"""

import asyncio
import contextlib
import faulthandler
import gc
import os
import pathlib
import signal
import sys
import threading
import time

import numpy as np

import rowmill

# No hang: it ends with the stacks of all threads.
faulthandler.dump_traceback_later(50, exit=True)

NONE = np.array([], np.int64)
IDS, LENGTHS = np.array([1, 2, 3, 4, 5]), np.array([1, 2, 1, 1])
ONE = rowmill.Jagged(np.array([7, 8]), np.array([1, 1]))
failures = 0


def check(what, good, said=""):
    global failures
    failures += not good
    print("ok  " if good else "FAIL", what, said, flush=True)


def refused(what, error, sentence, call):
    try:
        call()
    except error as raised:
        check(what, sentence in str(raised), f"{type(raised).__name__}: {raised}")
    except BaseException as other:
        check(what, False, repr(other))
    else:
        check(what, False, "nothing was raised")


class Place:
    """A client, and a schema of two features."""

    def __init__(self, url, process):
        self.url, self.process = url, process
        self.client = rowmill.connect(url)
        self.table = next(table for table in self.client.tables() if table.kind == "dense" and table.rows > 16)
        self.features = [rowmill.Feature(name, self.table.name) for name in ("first", "second")]
        self.schema = self.client.bind(self.features, max_batch=64)
        # What it gives, and memory for results.
        self.wanted = self.lookup(ONE)

    def lookup(self, batch, **more):
        return self.client.lookup(self.schema, batch, **more).numpy().copy()

    def is_well(self, what):
        check(what, np.array_equal(self.lookup(ONE), self.wanted))

    @contextlib.contextmanager
    def stopped(self):
        os.kill(self.process, signal.SIGSTOP)
        status = pathlib.Path(f"/proc/{self.process}/stat")
        try:
            while status.read_text().rsplit(")", 1)[1].split()[0] != "T":
                time.sleep(0.001)
            yield
        finally:
            os.kill(self.process, signal.SIGCONT)


def dtypes(place):
    for name, batch in {
        "ids of floats": rowmill.Jagged(IDS.astype(float), LENGTHS),
        "ids of bools": rowmill.Jagged(IDS > 2, LENGTHS),
        "ids of 16 bits": rowmill.Jagged(IDS.astype(np.int16), LENGTHS),
        "ids of the other order of bytes": rowmill.Jagged(IDS.astype(">i8"), LENGTHS),
        "ids of objects": rowmill.Jagged(IDS.astype(object), LENGTHS),
        "ids in a list": rowmill.Jagged([1, 2, 3, 4, 5], LENGTHS),
        "ids of bytes": rowmill.Jagged(b"12345", LENGTHS),
        "lengths of 8 bits": rowmill.Jagged(IDS, LENGTHS.astype(np.uint8)),
        "offsets of floats": rowmill.Jagged(IDS, offsets=np.array([0, 1, 3, 4, 5.0])),
        "weights of 64 bits": rowmill.Jagged(IDS, LENGTHS, weights=np.ones(5)),
        "a batch that is a list": [IDS, LENGTHS],
    }.items():
        refused(name, rowmill.DtypeError, "", lambda batch=batch: place.lookup(batch))


def gaps(place):
    for name, batch in {
        "ids with gaps": rowmill.Jagged(np.arange(10)[::2], LENGTHS),
        "lengths with gaps": rowmill.Jagged(IDS, np.arange(8)[::2]),
        "weights with gaps": rowmill.Jagged(IDS, LENGTHS, weights=np.ones(10, np.float32)[::2]),
        "ids backwards": rowmill.Jagged(IDS[::-1], LENGTHS),
        "ids of two dimensions": rowmill.Jagged(IDS.reshape(5, 1), LENGTHS),
        "ids of no dimension": rowmill.Jagged(np.array(3), LENGTHS),
    }.items():
        refused(name, rowmill.InputError, "", lambda batch=batch: place.lookup(batch))
    buffer = np.frombuffer(place.client.buffer(8192), np.float32)
    for name, out in {"out with gaps": buffer[::2], "out elsewhere": np.zeros(999, np.float32), "out too small": buffer[:3]}.items():
        refused(name, rowmill.InputError, "", lambda out=out: place.lookup(ONE, out=out))


def nothing(place):
    for name, batch in {
        "no bags": rowmill.Jagged(NONE, NONE),
        "offsets of no bags": rowmill.Jagged(NONE, offsets=np.array([0])),
        "features without bags": {"first": (NONE, NONE), "second": (NONE, NONE)},
    }.items():
        check(name, place.lookup(batch).shape == (0, 2 * place.table.dim))
    empty = place.lookup(rowmill.Jagged(NONE, np.zeros(6, np.int64)))
    check("bags without ids are zeros", empty.shape[0] == 3 and not empty.any())
    refused("ids without bags", rowmill.InputError, "no lengths; give", lambda: place.lookup(rowmill.Jagged(IDS, NONE)))
    refused("no offsets", rowmill.InputError, "offsets are empty; give", lambda: place.lookup(rowmill.Jagged(NONE, offsets=NONE)))
    refused("a buffer of nothing", rowmill.InputError, "nbytes of 0; give a whole number from 1", lambda: place.client.buffer(0))


def lengths(place):
    for name, division in {
        "too many": {"lengths": np.array([1, 2, 1, 2])},
        "too few": {"lengths": np.array([1, 2, 1, 0])},
        "negative": {"lengths": np.array([1, 2, -1, 3])},
        "as many as there are atoms": {"lengths": np.array([1, 2**62, 2**62, 2**63 - 1])},
        "not as many for each feature": {"lengths": np.array([1, 2, 2])},
        "offsets that fall": {"offsets": np.array([0, 1, 3, 2, 5])},
        "offsets that end early": {"offsets": np.array([0, 1, 3, 4, 4])},
        "offsets that end late": {"offsets": np.array([0, 1, 3, 4, 7])},
        "offsets from 2 on": {"offsets": np.array([2, 3, 5, 6, 7])},
        "negative offsets": {"offsets": np.array([-1, 0, 2, 3, 4])},
    }.items():
        refused(name, rowmill.InputError, "; ", lambda division=division: place.lookup(rowmill.Jagged(IDS, **division)))


def order(place):
    for name, batch in {
        "the other way round": rowmill.Jagged(np.array([8, 7]), np.array([1, 1]), keys=["second", "first"]),
        "one more": rowmill.Jagged(np.array([8, 9, 7]), np.array([1, 1, 1]), keys=["second", "more", "first"]),
        "a dict": {"second": (np.array([8]), np.array([1])), "first": (np.array([7]), np.array([1]))},
    }.items():
        check(name, np.array_equal(place.lookup(batch), place.wanted))
    for name, keys in {"one that lacks": ["first", "other"], "one twice": ["first", "first"]}.items():
        batch = rowmill.Jagged(IDS, LENGTHS, keys=keys)
        refused(name, rowmill.FeatureError, "; ", lambda batch=batch: place.lookup(batch))
    bag = (np.array([1]), np.array([1]))
    batch = {"first": bag, "second": bag, "third": bag}
    refused("one too many in a dict", rowmill.FeatureError, "does not have `third`", lambda: place.lookup(batch))


def ids(place):
    rows = place.table.rows
    for name, number, dtype, status in [
        ("one too large", rows, np.int64, "IdOutOfRange"),
        ("one too large of 32 bits", rows, np.int32, "IdOutOfRange"),
        ("one negative", -1, np.int64, "IdNegative"),
        ("one negative of 32 bits", -1, np.int32, "IdNegative"),
        ("the largest", 2**63 - 1, np.int64, "IdOutOfRange"),
    ]:
        batch = rowmill.Jagged(np.array([1, 2, 3, number], dtype), np.array([1, 3]))
        try:
            place.lookup(batch)
            check(name, False, "nothing was raised")
        except rowmill.IdError as raised:
            check(name, (raised.status, raised.feature, raised.position) == (status, "second", 2), str(raised))


def freed(place):
    with place.stopped():
        numbers, buffer = np.array([7, 8]), place_buffer
        futures = [
            place.client.submit(place.schema, rowmill.Jagged(numbers, np.array([1, 1]))),
            place.client.submit(place.schema, ONE, out=buffer.pop()),
        ]
        numbers[:] = 2**40
        del numbers
        storm = [np.full(2, 2**40) for _ in range(10_000)]
        gc.collect()
    for name, future in zip(["ids that are overwritten and freed in flight", "an output that is freed in flight"], futures):
        check(name, np.array_equal(future.result().numpy(), place.wanted))
    with place.stopped():
        place.client.submit(place.schema, ONE)
        gc.collect()
    del storm
    place.is_well("a future that is dropped in flight")


def closed(place):
    client = rowmill.connect(place.url)
    schema = client.bind(place.features)
    result, future = client.lookup(schema, ONE), client.submit(schema, ONE)
    client.close()
    client.close()
    for name, call in {
        "tables": client.tables,
        "bind": lambda: client.bind(place.features),
        "lookup": lambda: client.lookup(schema, ONE),
        "submit": lambda: client.submit(schema, ONE),
        "buffer": lambda: client.buffer(4096),
        "stats": client.stats,
    }.items():
        refused(name, rowmill.ClosedError, "the client was closed; connect again", call)
    error = future.exception()
    check("what was in flight has ended", error is None or isinstance(error, rowmill.ClosedError), repr(error))
    check("a result is read still", np.array_equal(result.numpy(), place.wanted))
    refused("another client's schema", rowmill.InputError, "schema is not one of this client", lambda: place.client.lookup(schema, ONE))


def fork(place):
    future, result = place.client.submit(place.schema, ONE), place.client.lookup(place.schema, ONE)
    child = os.fork()
    if child == 0:
        # The thread that would tell of stacks is the parent's.
        signal.alarm(20)
        for name, call in {
            "lookup": lambda: place.client.lookup(place.schema, ONE),
            "submit": lambda: place.client.submit(place.schema, ONE),
            "tables": place.client.tables,
            "buffer": lambda: place.client.buffer(4096),
            "result": future.result,
        }.items():
            refused(f"in the child: {name}", rowmill.ClosedError, "connect again in the child", call)
        place.client.close()
        del future, result
        with rowmill.connect(place.url) as own:
            vectors = own.lookup(own.bind(place.features), ONE).numpy()
            check("in the child: a connection of its own", np.array_equal(vectors, place.wanted))
        os._exit(min(failures, 1))
    check("the child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0)
    check("the parent's request", np.array_equal(future.result().numpy(), place.wanted))
    check("the parent's result", np.array_equal(result.numpy(), place.wanted))
    place.is_well("the parent goes on")


def loops(place):
    async def some():
        for _ in range(50):
            result = await place.client.submit(place.schema, ONE)
            good.append(np.array_equal(result.numpy(), place.wanted))

    good = []
    threads = [threading.Thread(target=lambda: asyncio.run(some())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check("two loops at a time", len(good) == 100 and all(good))

    async def awaits(future):
        return await future

    def in_a_loop(future):
        loop = asyncio.new_event_loop()
        task = loop.create_task(awaits(future))
        loop.run_until_complete(asyncio.sleep(0))
        return loop, task

    with place.stopped():
        future = place.client.submit(place.schema, ONE)
        loop, task = in_a_loop(future)
        refused("one future in two loops", rowmill.InputError, "submit a request in each", lambda: asyncio.run(awaits(future)))
    vectors = loop.run_until_complete(task).numpy()
    check("it comes to the first one", np.array_equal(vectors, place.wanted))
    loop.close()
    with place.stopped():
        loop, task = in_a_loop(place.client.submit(place.schema, ONE))
        task._log_destroy_pending = False
        loop.close()
        del loop, task
    place.is_well("a loop that is closed while it waits")


def interrupted(what, call):
    """Ctrl-C comes until it has ended the call."""
    armed, raised = True, False

    def handler(number, frame):
        if armed:
            raise KeyboardInterrupt

    def press():
        while armed:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)

    before = signal.signal(signal.SIGINT, handler)
    thread = threading.Thread(target=press)
    try:
        thread.start()
        call()
    except KeyboardInterrupt:
        raised = True
    armed = False
    thread.join()
    signal.signal(signal.SIGINT, before)
    check(what, raised, "KeyboardInterrupt")


def ctrl_c(place):
    client = rowmill.connect(place.url, reply_limit=3600, pool_bytes=4096)
    fresh = rowmill.connect(place.url, reply_limit=3600)
    schema = client.bind(place.features, max_batch=4096)
    client.lookup(schema, ONE)
    many = rowmill.Jagged(np.zeros(8192, np.int64), np.ones(8192, np.int64))
    with place.stopped():
        interrupted("lookup", lambda: client.lookup(schema, ONE))
        interrupted("result", client.submit(schema, ONE).result)
        interrupted("lookup, while the pool grows", lambda: client.lookup(schema, many))
        interrupted("bind", lambda: client.bind(place.features, max_batch=5))
        interrupted("buffer", lambda: client.buffer(4096))
        interrupted("tables", fresh.tables)
    check("the client goes on", np.array_equal(client.lookup(schema, ONE).numpy(), place.wanted))
    check("and its pool grows", client.lookup(schema, many).bags == 4096)
    client.close()
    fresh.close()
    place.is_well("the others, too")


def connecting(place):
    with place.stopped():
        interrupted("connect", lambda: rowmill.connect(place.url, reply_limit=3600))
        refused("no answer", rowmill.ReplyTimeout, "did not answer within", lambda: rowmill.connect(place.url, reply_limit=0.1))
    for name, url in {"nobody listens": "shm:/nowhere/x.sock", "no such port": "http://here", "no URL": "here"}.items():
        refused(name, rowmill.ConnectError, "", lambda url=url: rowmill.connect(url))
    place.is_well("the others")


def killed(place):
    ended = []

    def waits():
        try:
            place.client.lookup(place.schema, ONE)
        except Exception as error:
            ended.append(error)

    async def awaits():
        return await place.client.submit(place.schema, ONE)

    with contextlib.suppress(ProcessLookupError), place.stopped():
        thread = threading.Thread(target=waits)
        thread.start()
        future = place.client.submit(place.schema, ONE)
        loop = asyncio.new_event_loop()
        task = loop.create_task(awaits())
        loop.run_until_complete(asyncio.sleep(0))
        while place.client.stats()["pending"] < 3:
            time.sleep(0.001)
        os.kill(place.process, signal.SIGKILL)
    thread.join()
    check("who waits", len(ended) == 1 and isinstance(ended[0], rowmill.ClosedError), repr(ended))
    refused("a future", rowmill.ClosedError, "connect again", future.result)
    refused("who awaits", rowmill.ClosedError, "connect again", lambda: loop.run_until_complete(task))
    loop.close()
    for name, call in {
        "lookup": lambda: place.client.lookup(place.schema, ONE),
        "submit": lambda: place.client.submit(place.schema, ONE),
        "bind": lambda: place.client.bind(place.features, max_batch=3),
        "buffer": lambda: place.client.buffer(4096),
    }.items():
        refused(name, rowmill.ClosedError, "connect again", call)
    refused("connect", rowmill.ConnectError, "is rowmilld running", lambda: rowmill.connect(place.url))


def counted():
    gc.collect()
    maps = pathlib.Path("/proc/self/maps").read_text()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), maps.count("memfd:")


def main():
    global place_buffer
    url, process, section = sys.argv[1:]
    # What a process has for good from its first connection on.
    Place(url, int(process)).client.close()
    before = counted()
    place = Place(url, int(process))
    place_buffer = [place.client.buffer(8192)] if section == "freed" else []
    {
        "dtypes": dtypes,
        "gaps": gaps,
        "nothing": nothing,
        "lengths": lengths,
        "order": order,
        "ids": ids,
        "freed": freed,
        "closed": closed,
        "fork": fork,
        "loops": loops,
        "ctrl-c": ctrl_c,
        "connecting": connecting,
        "killed": killed,
    }[section](place)
    if section != "killed":
        place.is_well("afterwards")
        until = time.monotonic() + 10
        while place.client.stats() != {"pending": 0, "held": 0} and time.monotonic() < until:
            gc.collect()
        check("no result is held", place.client.stats() == {"pending": 0, "held": 0}, str(place.client.stats()))
    place.client.close()
    del place
    # A thread of the library may end a moment later.
    until = time.monotonic() + 10
    while counted() > before and time.monotonic() < until:
        time.sleep(0.01)
    now = counted()
    check("descriptors, threads and mappings left", all(a <= b for a, b in zip(now, before)), f"{now} after {before}")
    print(f"{failures} failed")
    sys.exit(min(failures, 1))


main()
