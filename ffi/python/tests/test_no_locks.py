"""No code of others' runs under a lock of the package's: what a finaliser, a comparison or the garbage collector runs may wait for a
thread that uses the same client, schema and future.

Each program ends, or hangs with the interpreter's lock held, and so is a process of its own.
"""

import subprocess
import sys

import pytest

BEGIN = """
import asyncio, gc, sys, threading
import numpy
import rowmill

client = rowmill.connect(sys.argv[1])
schema = client.bind([rowmill.Feature("clicked", "items")])
IDS, LENGTHS = numpy.array([7]), numpy.array([1])
inner = 0

def batch(keys=("clicked",)):
    return rowmill.Jagged(IDS, LENGTHS, keys=keys)

def in_a_thread(work):
    global inner
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    inner += 1
"""

COMPARED = """
class Key(str):
    __hash__ = str.__hash__

    def __eq__(self, other):
        in_a_thread(lambda: client.lookup(schema, batch()))
        return str.__eq__(self, other)

client.lookup(schema, batch())
client.lookup(schema, batch((Key("clicked"),)))
"""

DROPPED = """
class Key(str):
    def __del__(self):
        in_a_thread(lambda: client.lookup(schema, batch()))

def some():
    client.lookup(schema, batch((Key("clicked"),)))

some()
client.lookup(schema, rowmill.Jagged(IDS, LENGTHS, keys=["".join(["click", "ed"])]))
client.lookup(schema, rowmill.Jagged(numpy.array([7, 8]), numpy.array([1, 1]), keys=["clicked", "other"]))
"""

# The collector runs with almost each allocation, and at its begin this.
COLLECTED = """
busy = False

def collected(phase, info):
    global busy
    if phase == "start" and not busy:
        busy = True
        try:
            in_a_thread(again)
        finally:
            busy = False

def run(work):
    gc.callbacks.append(collected)
    gc.set_threshold(1)
    try:
        work()
    finally:
        gc.set_threshold(700, 10, 10)
        gc.callbacks.clear()
"""

AWAITED = """
async def once():
    return await client.submit(schema, batch())

def again():
    asyncio.run(once())

async def several():
    loop = asyncio.get_running_loop()
    future = client.submit(schema, batch())
    from rowmill import _await
    run(lambda: (_await._ear_of(client, loop), _await._claim(future, loop)))
    await future

asyncio.run(several())
"""

MODULES = """
import torch
import rowmill.torch

meddled = False

class Meddling:
    # As a signal's handler may, which runs while it waits.
    def __getattr__(self, name):
        return getattr(client, name)

    def bind(self, *features, **options):
        global meddled
        if not meddled:
            meddled = True
            in_a_thread(again)
        return client.bind(*features, **options)

rowmill.torch.register("default", Meddling())
table = rowmill.torch.EmbeddingBagConfig(5000, 8, "items", ["clicked"])
bags = rowmill.torch.EmbeddingBagCollection([table])
batches = rowmill.torch.KeyedJaggedTensor(["clicked"], torch.tensor([7]), lengths=torch.tensor([1]))

def again():
    bags(batches)

again()
"""

END = """
assert inner > 0
print("ended")
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "program",
    [COMPARED, DROPPED, COLLECTED + AWAITED, MODULES],
    ids=["compared", "dropped", "awaited", "modules"],
)
def test_code_of_others(service, program):
    if "torch" in program:
        pytest.importorskip("torch", reason="torch is not installed")
    command = [sys.executable, "-X", "dev", "-c", BEGIN + program + END, service.url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stderr, ended.stdout) == (0, "", "ended\n")
