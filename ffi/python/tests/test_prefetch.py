"""Rows that are said to be wanted soon."""

import pathlib
import re
import time
import urllib.request

import numpy as np
import pytest
from conftest import FEATURES, Service

import rowmill

CACHED = """[cache]
page_cache = "allow"
[[tables]]
name = "items"
placement = "cached"
cache_bytes = 100000
"""


def held(service: Service) -> int:
    """Rows of the cached table that are in memory."""
    [address] = re.findall(r"admin pages on (http://\S+)", service.log.read_text())
    with urllib.request.urlopen(f"{address}/metrics", timeout=10) as page:
        figures = page.read().decode()
    [rows] = re.findall(r'^rowmill_cache_held_rows{table="items"} (\d+)$', figures, re.MULTILINE)
    return int(rows)


def test_rows_come_before_anybody_looks_them_up(model, tmp_path: pathlib.Path):
    service = Service(tmp_path, *model, options=CACHED, admin="127.0.0.1:0")
    try:
        with rowmill.connect(service.url) as client:
            schema = client.bind(FEATURES[:1], max_batch=64)
            assert held(service) == 0
            ids, lengths = np.arange(100, 150), np.array([20, 30])
            assert client.prefetch(schema, rowmill.Jagged(ids, lengths)) is None
            until = time.monotonic() + 10
            while held(service) < len(ids):
                assert time.monotonic() < until, f"{held(service)} rows came"
                time.sleep(0.01)
            result = client.lookup(schema, rowmill.Jagged(ids, lengths))
            assert np.array_equal(result.numpy()[1], service.tables["items"][ids[20:]].sum(axis=0))
    finally:
        service.stop()


def test_it_is_checked_and_keeps_nothing(client, schema):
    one = {"clicked": ([1, 2], [2]), "user": ([3], [1])}
    one = {name: (np.array(ids), np.array(lengths)) for name, (ids, lengths) in one.items()}
    for _ in range(1000):
        try:
            client.prefetch(schema, one, deadline=1.0)
        except rowmill.BusyError:
            client.lookup(schema, one)
    while client.stats()["pending"]:
        time.sleep(0.001)
    # Nobody hears that the dataplane has refused it.
    client.prefetch(schema, {**one, "user": (np.array([10**9]), np.array([1]))})
    while client.stats()["pending"]:
        time.sleep(0.001)
    assert client.stats()["held"] == 0
    client.prefetch(schema, {name: (np.array([], int), np.array([], int)) for name in one})
    with pytest.raises(rowmill.FeatureError):
        client.prefetch(schema, {"clicked": one["clicked"]})
    with pytest.raises(rowmill.InputError):
        client.prefetch(schema, one, deadline=-1.0)
    client.close()
    with pytest.raises(rowmill.ClosedError):
        client.prefetch(schema, one)
