"""The Python sides of `rowmill-bench peers` against TorchRec: one process has TorchRec's EmbeddingBagCollection, another one
rowmill's, and each looks up when it is told to, and says how long it took.

Reads commands from standard input, one a line, and answers each with a line:

    make FOLDER ROWS...       TorchRec's collection, of tables of so many rows, exported to FOLDER -> made WHAT
    connect URL WAIT ROWS...  rowmill's collection of the same tables                              -> connected
    cpus CPU...               run on these only                                                    -> pinned
    threads N                 threads of torch                                                     -> N
    queries FILE BAGS HOT...  ids, u32, of queries of BAGS samples with so many ids a feature      -> ready
    round CALLERS             looks all queries up, from so many threads                           -> SECONDS
    loop                      the same by an embedding_bag a table                                 -> SECONDS
    first FILE                writes the f32 results of the first query                            -> written
"""

import os
import sys
import time
from threading import Thread

import numpy as np
import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

sys.path.insert(0, sys.argv[1])  # The folder of the package that was built with the bench.
import rowmill  # noqa: E402
import rowmill.torch  # noqa: E402

DIM = 128


def configs(rows):
    return [EmbeddingBagConfig(num_embeddings=n, embedding_dim=DIM, name=f"cat_{t}", feature_names=[f"cat_{t}"]) for t, n in enumerate(rows)]


def filled(rows):
    """TorchRec's collection with made-up rows."""
    collection = EmbeddingBagCollection(tables=configs(rows), device="meta").to_empty(device="cpu")
    random = torch.Generator().manual_seed(5)
    for bag in collection.embedding_bags.values():
        bag.weight.uniform_(-0.1, 0.1, generator=random)
    return collection


class Side:
    def __init__(self):
        self.collection, self.queries, self.client = None, [], None

    def make(self, folder, *rows):
        self.collection = filled([int(n) for n in rows])
        rowmill.torch.export_tables(self.collection, folder)
        return f"made torchrec-{version('torchrec')}"

    def connect(self, url, wait, *rows):
        rowmill.torch.unregister("default")
        if self.client is not None:
            self.client.close()
        self.client = rowmill.connect(url, wait=wait)
        self.collection = rowmill.torch.EmbeddingBagCollection(configs([int(n) for n in rows]), client=self.client)
        return "connected"

    def cpus(self, *cpus):
        os.sched_setaffinity(0, [int(cpu) for cpu in cpus])
        return "pinned"

    def threads(self, count):
        torch.set_num_threads(int(count))
        return count

    def queries_(self, file, bags, *hots):
        hots = [int(hot) for hot in hots]
        ids = np.fromfile(file, dtype=np.uint32).astype(np.int64).reshape(-1, int(bags) * sum(hots))
        lengths = torch.from_numpy(np.repeat(np.array(hots, dtype=np.int32), int(bags)))
        # As a KeyedJaggedTensor usually comes: ids int64, lengths int32.
        self.keys = [f"cat_{table}" for table in range(len(hots))]
        self.queries = [(torch.from_numpy(own.copy()), lengths) for own in ids]
        self.hots, self.bags = hots, int(bags)
        return "ready"

    def look_up(self, query):
        ids, lengths = query
        return self.collection(KeyedJaggedTensor(self.keys, ids, lengths=lengths)).values()

    def look_up_in_a_loop(self, query):
        ids, _ = query
        parts = torch.split(ids, [self.bags * hot for hot in self.hots])
        tables = self.collection.embedding_bags.values()
        bags = [
            torch.nn.functional.embedding_bag(own, table.weight, torch.arange(0, len(own), hot), mode="sum")
            for own, table, hot in zip(parts, tables, self.hots)
        ]
        return torch.cat(bags, dim=1)

    def round(self, callers):
        callers = int(callers)
        threads = [Thread(target=self.look_up_some, args=(first, callers)) for first in range(1, callers)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        self.look_up_some(0, callers)
        for thread in threads:
            thread.join()
        return repr(time.perf_counter() - began)

    @torch.inference_mode()  # Of this thread alone.
    def look_up_some(self, first, step):
        for query in self.queries[first::step]:
            self.look_up(query)

    def loop(self):
        began = time.perf_counter()
        for query in self.queries:
            self.look_up_in_a_loop(query)
        return repr(time.perf_counter() - began)

    def first(self, file):
        self.look_up(self.queries[0]).numpy().tofile(file)
        return "written"


def version(package):
    from importlib.metadata import version

    return version(package)


def main():
    side = Side()
    commands = {name: getattr(side, name) for name in ("make", "connect", "cpus", "threads", "round", "loop", "first")}
    commands["queries"] = side.queries_
    with torch.inference_mode():
        for line in sys.stdin:
            name, *arguments = line.split()
            print(commands[name](*arguments), flush=True)


main()
