"""MLPerf LoadGen's side of `rowmill-bench loadgen`: the DLRM-v2 shape in the scenario Server or Offline, which is
its first argument; the second is the folder of the package `rowmill`.

Reads commands from standard input, one a line, and answers each with a line of JSON. A LoadGen sample is a query of
100 to 700 user-item pairs, as in MLPerf's DLRM-v2, each of which is a bag a table.

    tables ROWS,ROWS,... DIM HOT,HOT,...     -> {"pairs": mean of a sample, "ids": mean of a sample}
    client URL THREADS [whole]               -> {"what": ...}   rowmill, over a connection that THREADS share
    client torch THREADS [whole]             -> {"what": ...}   torch.nn.functional.embedding_bag in this process
    run QPS SECONDS FOLDER                   -> {"valid", "p50_ms", "p99_ms", "rate"}, or of Offline {"valid", "rate"}

With `whole` each query also goes through a model's dense part, by as many threads of torch as there are CPUs; without it, it is
answered when its bags are pooled.

Rates are queries a second. FOLDER gets LoadGen's own logs. The rules are those of `mlperf.conf` that LoadGen brings, but for
durations and the number of samples that are kept: a result is no MLPerf submission.
"""

import json
import os
import queue
import re
import sys
import threading

import mlperf_loadgen as lg
import numpy as np

# Distinct queries: 256 of 400 pairs and 214 ids a pair are 88 MB of int32, and their rows 11 GB: more than caches hold.
SAMPLES = 256
PAIRS = (100, 700)
SEED = 2021


class Queries:
    """The queries that LoadGen chooses from: ids and lengths of all tables one after the other."""

    def __init__(self, rows, dim, hot):
        self.rows, self.dim, self.hot = rows, dim, hot
        rng = np.random.default_rng(SEED)
        self.pairs = rng.integers(PAIRS[0], PAIRS[1] + 1, SAMPLES)
        self.ids, self.lengths = [], []
        for pairs in self.pairs:
            ids = [rng.integers(0, r, pairs * h, dtype=np.int32) for r, h in zip(rows, hot)]
            self.ids.append(np.concatenate(ids))
            self.lengths.append(np.repeat(np.array(hot, dtype=np.int32), pairs))

    def mean(self):
        return {"pairs": float(self.pairs.mean()), "ids": float(np.mean([len(i) for i in self.ids]))}


def mlp(torch, *widths):
    """Layers with a ReLU between them, in bfloat16."""
    layers = [torch.nn.Linear(*pair, dtype=torch.bfloat16) for pair in zip(widths, widths[1:])]
    between = [part for layer in layers for part in (layer, torch.nn.ReLU())]
    return torch.nn.Sequential(*between[:-1])


class Dense:
    """A DLRM around pooled vectors: DLRM-v2's bottom and top MLP, and between them the dots of all pairs of vectors.

    DLRM-v2 has a cross network there, which takes 21 MFLOP a pair, four times as much as all of this: 15 GFLOP for 700 pairs, which few
    CPUs do in 60 ms, whoever pools.
    """

    BOTTOM = (13, 512, 256)
    TOP = (1024, 1024, 512, 256, 1)

    def __init__(self, queries):
        import torch

        self.torch = torch
        torch.set_num_threads(os.cpu_count())
        torch.manual_seed(SEED)
        vectors = len(queries.hot) + 1
        self.dim = queries.dim
        self.bottom = mlp(torch, *self.BOTTOM, self.dim)
        self.top = mlp(torch, self.dim + vectors * (vectors - 1) // 2, *self.TOP)
        self.first, self.second = torch.triu_indices(vectors, vectors, 1)
        self.inputs = [torch.randn(int(pairs), self.BOTTOM[0], dtype=torch.bfloat16) for pairs in queries.pairs]

    def predict(self, index, pooled):
        """Clicks of a query, whose pooled vectors are `[pairs, tables * dim]`."""
        torch = self.torch
        with torch.inference_mode():
            own = self.bottom(self.inputs[index]).relu()
            vectors = torch.cat([own.unsqueeze(1), pooled.to(own.dtype).view(len(own), -1, self.dim)], dim=1)
            dots = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.first, self.second]
            return self.top(torch.cat([own, dots], dim=1)).sigmoid()


class Rowmill:
    """Lookups over a connection to a dataplane."""

    def __init__(self, url, queries):
        sys.path.insert(0, sys.argv[2])
        import rowmill

        self.client = rowmill.connect(url, name="loadgen", credits=16, wait="block")
        tables = self.client.tables()
        features = [rowmill.Feature(f"f{i}", table.name, "sum") for i, table in enumerate(tables)]
        self.schema = self.client.bind(features, max_batch=1024)
        self.batches = [rowmill.Jagged(ids, lengths=lengths) for ids, lengths in zip(queries.ids, queries.lengths)]
        self.what = f"rowmill-{rowmill.__version__}"

    def lookup(self, index):
        return self.client.lookup(self.schema, self.batches[index])

    def vectors(self, result):
        return result.torch()

    def release(self, result):
        result.release()

    def close(self):
        self.client.close()


class Torch:
    """`embedding_bag` of every table, one after the other, in this process."""

    def __init__(self, threads, queries):
        import torch

        torch.set_num_threads(threads)
        self.torch = torch
        self.tables = []
        for rows in queries.rows:
            table = torch.empty(rows, queries.dim)
            # Numbers don't matter, but that each page is one of its own.
            for at in range(0, rows, 1 << 16):
                table[at : at + (1 << 16)].fill_(at * 1e-9)
            self.tables.append(table)
        self.batches = []
        for pairs, ids in zip(queries.pairs, queries.ids):
            parts, at = [], 0
            for hot in queries.hot:
                count = int(pairs) * hot
                offsets = torch.arange(0, count, hot, dtype=torch.int32)
                parts.append((torch.from_numpy(ids[at : at + count]), offsets))
                at += count
            self.batches.append(parts)
        self.what = f"torch-{torch.__version__.split('+')[0]}-embedding_bag"

    def lookup(self, index):
        bag = self.torch.nn.functional.embedding_bag
        with self.torch.inference_mode():
            parts = zip(self.batches[index], self.tables)
            return self.torch.cat([bag(ids, table, offsets, mode="sum") for (ids, offsets), table in parts], dim=1)

    def vectors(self, result):
        return result

    def release(self, result):
        pass

    def close(self):
        self.tables.clear()


class Sut:
    """The system under test: threads that take queries from a queue, look them up, and pass what they got to a thread that predicts,
    if there is a dense part. Where one thread looks up, it predicts, too: both take all CPUs."""

    def __init__(self, backend, threads, dense):
        self.backend, self.dense = backend, dense
        # Few results wait for the dense part, since they hold memory that others are to come to.
        self.queries, self.pooled = queue.SimpleQueue(), queue.Queue(2)
        self.failed = []
        self.threads = [threading.Thread(target=self.work, args=(threads > 1,), daemon=True) for _ in range(threads)]
        self.last = threading.Thread(target=self.predict, daemon=True)
        for thread in [*self.threads, self.last]:
            thread.start()

    def issue(self, ids, indices):
        for query in zip(ids, indices):
            self.queries.put(query)

    def work(self, pass_on):
        while (query := self.queries.get()) is not None:
            try:
                result = self.backend.lookup(query[1])
            except Exception as error:
                self.end(query, error)
                continue
            if pass_on and self.dense:
                self.pooled.put((query, result))
            else:
                self.answer(query, result)

    def predict(self):
        while (looked_up := self.pooled.get()) is not None:
            self.answer(*looked_up)

    def answer(self, query, result):
        failure = None
        try:
            if self.dense:
                self.dense.predict(query[1], self.backend.vectors(result))
            self.backend.release(result)
        except Exception as error:
            failure = error
        self.end(query, failure)

    def end(self, query, failure):
        """LoadGen waits for every query, answered or not."""
        if failure:
            self.failed.append(failure)
        lg.QuerySamplesComplete([lg.QuerySampleResponse(query[0], 0, 0)])

    def close(self):
        for _ in self.threads:
            self.queries.put(None)
        for thread in self.threads:
            thread.join()
        self.pooled.put(None)
        self.last.join()
        self.backend.close()


def figures(folder):
    """What LoadGen's summary says, by name."""
    with open(os.path.join(folder, "mlperf_log_summary.txt")) as file:
        return dict(re.findall(r"^(\S.*?)\s*: (.*)$", file.read(), re.MULTILINE))


def settings_of(scenario):
    """LoadGen's settings. Only the first call in a process reads the configuration: the second leaves all as it was."""
    settings = lg.TestSettings()
    settings.FromConfig(os.devnull, "dlrm-v2", scenario)
    assert settings.qsl_rng_seed, "LoadGen has read its configuration"
    settings.scenario = getattr(lg.TestScenario, scenario)
    settings.mode = lg.TestMode.PerformanceOnly
    settings.performance_sample_count_override = SAMPLES
    return settings


def run(sut, settings, rate, seconds, folder):
    settings.min_duration_ms = int(seconds * 1000)
    server = settings.scenario == lg.TestScenario.Server
    if server:
        settings.server_target_qps = rate
    else:
        settings.offline_expected_qps = rate
        settings.min_query_count = int(rate * seconds)
    logs = lg.LogSettings()
    logs.log_output.outdir = folder
    logs.log_output.copy_summary_to_stdout = False
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)  # LoadGen reads `audit.config` of the current folder.
    library = lg.ConstructQSL(SAMPLES, SAMPLES, lambda _: None, lambda _: None)
    under_test = lg.ConstructFastSUT(sut.issue, lambda: None)
    lg.StartTestWithLogSettings(under_test, library, settings, logs)
    lg.DestroyFastSUT(under_test)
    lg.DestroyQSL(library)
    if sut.failed:
        raise sut.failed[0]
    said = figures(folder)
    result = {"valid": said["Result is"] == "VALID"}
    if not server:
        return result | {"rate": float(said["Samples per second"])}
    milliseconds = lambda part: float(said[f"{part} percentile latency (ns)"]) / 1e6  # noqa: E731
    rate = float(said["Completed samples per second"])
    return result | {"rate": rate, "p50_ms": milliseconds("50.00"), "p99_ms": milliseconds("99.00")}


def main():
    settings = settings_of(sys.argv[1])
    queries = sut = None
    for line in sys.stdin:
        words = line.split()
        if words[0] == "tables":
            numbers = [[int(n) for n in word.split(",")] for word in words[1:]]
            queries = Queries(numbers[0], numbers[1][0], numbers[2])
            said = queries.mean()
        elif words[0] == "client":
            threads = int(words[2])
            dense = Dense(queries) if words[3:] == ["whole"] else None
            if words[1] == "torch":
                sut = Sut(Torch(threads, queries), 1, dense)
            else:
                sut = Sut(Rowmill(words[1], queries), threads, dense)
            said = {"what": sut.backend.what}
        else:
            said = run(sut, settings, float(words[1]), float(words[2]), words[3])
        print(json.dumps(said), flush=True)
    if sut:
        sut.close()


if __name__ == "__main__":
    main()
