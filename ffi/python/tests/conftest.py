"""A dataplane for the tests: the programs that were built, a small model, and its tables as NumPy arrays.

The programs are in the folder that ROWMILL_PROGRAMS names, or in the workspace's target/release.
"""

import gc
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from driver import Driver

import rowmill

ROOT = pathlib.Path(__file__).parents[3]
START_LIMIT_S = 10.0

# A shell starts what it does not wait for with SIGINT ignored, and then Python leaves it so.
signal.signal(signal.SIGINT, signal.default_int_handler)


def program(name: str) -> str:
    target = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
    folder = os.environ.get("ROWMILL_PROGRAMS", pathlib.Path(target) / "release")
    path = pathlib.Path(folder) / name
    if not path.exists():
        pytest.exit(f"{path} is not there: run `cargo build --release --bins`, or set ROWMILL_PROGRAMS", 2)
    return str(path)


class Service:
    """A rowmilld that runs, and its tables."""

    def __init__(
        self,
        folder: pathlib.Path,
        model: pathlib.Path,
        tables: dict[str, np.ndarray],
        options: str = "",
        admin: str = "off",
    ) -> None:
        self.tables = tables
        self.socket = folder / "rowmill.sock"
        self.url = f"shm:{self.socket}"
        config = folder / "rowmilld.toml"
        config.write_text(
            f'endpoints = ["{self.url}"]\n{options}'
            f'[model]\ndirectory = "{model}"\nhuge_pages = "off"\n'
            "[workers]\ncpus = 1\npin = false\n"
            "[idle]\nspin_us = 20\nyield_us = 50\n"
            f'[admin]\naddress = "{admin}"\n'
        )
        self.log = folder / "rowmilld.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [program("rowmilld"), "--config", str(config)], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        until = time.monotonic() + START_LIMIT_S
        # Its socket is there a moment before anybody listens.
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise RuntimeError(f"rowmilld did not start: {self.log.read_text()}")
            time.sleep(0.01)

    def is_ready(self) -> bool:
        """Whether it says that clients can connect."""
        return "ready: serving" in self.log.read_text()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def made_up(rows: int, dim: int, seed: int) -> np.ndarray:
    """Small whole numbers, whose sums are exact in every type."""
    return np.random.default_rng(seed).integers(-8, 9, (rows, dim)).astype(np.float32)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, dict[str, np.ndarray]]:
    """A generation with two dense tables and a hashed one, whose ids are 7 times the row's number."""
    folder = tmp_path_factory.mktemp("model")
    tables = {
        "users": made_up(1000, 16, 1),
        "items": made_up(5000, 8, 2),
        "words": made_up(100, 4, 3),
    }
    ids = np.arange(100, dtype=np.int64) * 7
    np.save(folder / "words.ids.npy", ids)
    command = [program("rowmill"), "table", "import", str(folder / "generation")]
    for name, rows in tables.items():
        np.save(folder / f"{name}.npy", rows)
        command += ["--npy", f"{name}={folder / name}.npy"]
    command += ["--ids", f"words={folder / 'words.ids.npy'}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    return folder / "generation", tables


@pytest.fixture(scope="session")
def service(
    model: tuple[pathlib.Path, dict[str, np.ndarray]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """The service that tests share."""
    service = Service(tmp_path_factory.mktemp("service"), *model)
    yield service
    service.stop()


@pytest.fixture
def own_service(model: tuple[pathlib.Path, dict[str, np.ndarray]], tmp_path: pathlib.Path) -> Iterator[Service]:
    """A service of a test's own, which it may kill."""
    service = Service(tmp_path, *model)
    yield service
    service.stop()


@pytest.fixture(scope="session")
def programs() -> str:
    """The folder of the programs."""
    return str(pathlib.Path(program("rowmilld")).parent)


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[pathlib.Path], Service]]:
    """Starts services of other generations, which end with the tests."""
    services = []

    def start(generation: pathlib.Path) -> Service:
        services.append(Service(tmp_path_factory.mktemp("service"), generation, {}))
        return services[-1]

    yield start
    for service in services:
        service.stop()


@pytest.fixture
def client(service: Service) -> Iterator[rowmill.Client]:
    with rowmill.connect(service.url, name="tests") as client:
        yield client


@pytest.fixture
def library(programs: str) -> pathlib.Path:
    # What lies beside the programs may be of an earlier build.
    places = [pathlib.Path(programs, *folder, "libcuda_stand_in.so") for folder in (["deps"], [])]
    found = next((place for place in places if place.exists()), None)
    assert found, f"libcuda_stand_in.so is not in {programs}: run `cargo build --release`"
    return found


@pytest.fixture
def driver(library: pathlib.Path, tmp_path: pathlib.Path) -> Driver:
    return Driver(library, tmp_path)


FEATURES = [
    rowmill.Feature("clicked", "items"),
    rowmill.Feature("user", "users", pooling="mean"),
]


@pytest.fixture
def schema(client: rowmill.Client) -> rowmill.Schema:
    """Two features: sums of `items`, and means of `users`."""
    return client.bind(FEATURES, max_batch=64)


def pooled(table: np.ndarray, ids: np.ndarray, lengths: np.ndarray, pooling: str = "sum") -> np.ndarray:
    """The oracle: bags of ids, pooled."""
    out = np.zeros((len(lengths), table.shape[1]), np.float32)
    at = 0
    for bag, length in enumerate(lengths):
        rows = table[ids[at : at + length]]
        at += length
        if length:
            out[bag] = rows.sum(axis=0) if pooling == "sum" else rows.mean(axis=0)
    return out


class Paused:
    """Stops a service's process, and lets it go on in the end."""

    def __init__(self, service: Service) -> None:
        self.process = service.process

    def __enter__(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        # Until it has stopped.
        while pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
            time.sleep(0.001)

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGCONT)


def descriptors() -> list[str]:
    """What this process has open."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:
            # That of the list itself.
            pass
    return found


def assert_no_more_descriptors(before: list[str]) -> None:
    """A client's thread may let go of one a moment later."""
    until = time.monotonic() + 5
    while True:
        gc.collect()
        after = descriptors()
        if len(after) <= len(before):
            return
        assert time.monotonic() < until, f"{after} after {before}"
        time.sleep(0.01)


def rss_bytes() -> int:
    """Memory of this process that is resident, without what is mapped of files."""
    status = pathlib.Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) << 10
