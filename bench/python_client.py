"""The Python package's side of `rowmill-bench serve`: looks up when it is told to, and says how long it took.

Reads commands from standard input, one a line, and answers each with a line. Queries come from files, so that both sides ask for the
same rows: `ids` and `lengths` hold those of all queries as int64, `counts` the ids of each query.

    connect URL MAX_BATCH          binds a sum of each table              -> ready
    queries FOLDER BAGS            takes queries of as many samples       -> ready COUNT
    pipelined DEPTH                all of them, as many at a time         -> SECONDS
    single                         all of them, one after another         -> MICROSECONDS (median)
    first FILE                     writes the result of the first one     -> written
"""

import collections
import pathlib
import statistics
import sys
import time

import numpy as np
import rowmill


class Side:
    def connect(self, url: str, max_batch: str) -> str:
        self.client = rowmill.connect(url, name="bench python", wait="poll")
        features = [rowmill.Feature(table.name, table.name) for table in self.client.tables()]
        self.schema = self.client.bind(features, max_batch=int(max_batch))
        return "ready"

    def queries(self, folder: str, bags: str) -> str:
        ids, lengths, counts = (np.fromfile(pathlib.Path(folder) / name, np.int64) for name in ("ids", "lengths", "counts"))
        each = int(bags) * len(self.schema.features)
        starts = np.concatenate([[0], np.cumsum(counts)])
        self.batches = [
            rowmill.Jagged(ids[starts[q] : starts[q + 1]], lengths[q * each : (q + 1) * each])
            for q in range(len(counts))
        ]
        return f"ready {len(self.batches)}"

    def pipelined(self, depth: str) -> str:
        submit, schema, in_flight = self.client.submit, self.schema, collections.deque()
        began = time.perf_counter()
        for batch in self.batches:
            if len(in_flight) == int(depth):
                in_flight.popleft().result()
            in_flight.append(submit(schema, batch))
        while in_flight:
            in_flight.popleft().result()
        return repr(time.perf_counter() - began)

    def single(self) -> str:
        lookup, schema, now, times = self.client.lookup, self.schema, time.perf_counter_ns, []
        for batch in self.batches:
            began = now()
            lookup(schema, batch)
            times.append(now() - began)
        return repr(statistics.median(times) / 1000)

    def first(self, file: str) -> str:
        self.client.lookup(self.schema, self.batches[0]).numpy().tofile(file)
        return "written"


def main() -> None:
    side = Side()
    for line in sys.stdin:
        command, *arguments = line.split()
        print(getattr(side, command)(*arguments), flush=True)


main()
