"""The operators in graphs: torch's own checks, torch.compile, and programs that are exported, saved and run elsewhere."""

import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import rowmill.torch  # noqa: E402
from rowmill.torch import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig  # noqa: E402
from rowmill.torch import KeyedJaggedTensor  # noqa: E402

KEYS = {"word": 300, "user": 1000, "article": 5000}


def bag_tables():
    return [EmbeddingBagConfig(1000, 16, "users", ["user"]), EmbeddingBagConfig(5000, 8, "articles", ["article"])]


def row_tables():
    return [EmbeddingConfig(5000, 8, "articles", ["article"]), EmbeddingConfig(300, 8, "words", ["word"])]


def keyed(batches, bags, seed):
    ids, lengths, weights = batches(KEYS, seed).draw(bags, torch.int64, torch.int32)
    return KeyedJaggedTensor(list(KEYS), ids, weights, lengths)


class Tower(torch.nn.Module):
    """Two collections and a layer above them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.bags = EmbeddingBagCollection(bag_tables())
        self.over = torch.nn.Linear(24, 4)

    def forward(self, features):
        return self.over(self.bags(features).values()).relu()


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.mark.parametrize("columns", [[1, 2], [1, 1]])
@pytest.mark.parametrize("weighted", [False, True])
def test_torchs_checks_of_lookup(client, batches, weighted, columns):
    batch = keyed(batches, 5, 1)
    tables = bag_tables()
    if columns == [1, 1]:
        tables[1].feature_names = ["user"]
    module = EmbeddingBagCollection(tables, is_weighted=weighted)
    weights = batch.weights_or_none() if weighted else None
    arguments = (batch.values() % 1000 % 300, batch.lengths(), None, weights, columns, 3, "default", module._plan, 24)
    torch.library.opcheck(torch.ops.rowmill.lookup.default, arguments)


@pytest.mark.parametrize("columns", [[2, 0], [2, 0, 1]])
def test_torchs_checks_of_rows(client, batches, columns):
    batch = keyed(batches, 5, 2)
    tables = row_tables()
    if len(columns) == 3:
        tables[1].feature_names = ["word", "user"]
    module = EmbeddingCollection(tables)
    arguments = (batch.values() % 300, batch.lengths(), None, columns, 3, "default", module._plan, 8)
    torch.library.opcheck(torch.ops.rowmill.rows.default, arguments)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_in_one_graph(client, batches, backend):
    tower = Tower()
    compiled = torch.compile(tower, backend=backend, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for seed, bags in enumerate([4, 9, 17]):
            batch = keyed(batches, bags, seed)
            torch.testing.assert_close(compiled(batch), tower(batch))


@pytest.mark.timeout(180)
def test_compiled_by_inductor(client, batches):
    tower = Tower()
    compiled = torch.compile(tower, fullgraph=True)
    with torch.inference_mode():
        batch = keyed(batches, 6, 5)
        torch.testing.assert_close(compiled(batch), tower(batch))


def test_equal_and_unused_lookups(client, batches):
    """A graph may merge and drop lookups: they are functions of their tensors."""
    bags = EmbeddingBagCollection(bag_tables())

    def twice(features):
        first, second, _unused = bags(features), bags(features), bags(features)
        return first["user"] + second["user"] * 2

    batch = keyed(batches, 5, 6)
    with torch.no_grad():
        found = torch.compile(twice, backend="aot_eager", fullgraph=True)(batch)
        torch.testing.assert_close(found, bags(batch)["user"] * 3)


def test_rows_compiled(client, batches):
    rows = EmbeddingCollection(row_tables())
    with torch._dynamo.config.patch(capture_scalar_outputs=True), torch.no_grad():
        compiled = torch.compile(lambda batch: {k: v.values() for k, v in rows(batch).items()}, backend="aot_eager", dynamic=True)
        for seed, bags in enumerate([4, 9]):
            batch = keyed(batches, bags, seed)
            wanted, found = rows(batch), compiled(batch)
            for name, jagged in wanted.items():
                assert torch.equal(found[name], jagged.values())


LOADED = """
import sys
import torch
import rowmill, rowmill.torch

program, inputs, url = sys.argv[1:]
loaded = torch.export.load(program).module()
given, wanted = torch.load(inputs)
batches = [rowmill.torch.KeyedJaggedTensor(keys, ids, weights, lengths) for keys, ids, weights, lengths in given]
try:
    loaded(batches[0])
except rowmill.InputError as error:
    print(error)
with rowmill.connect(url) as client:
    rowmill.torch.register("default", client)
    for batch, vectors in zip(batches, wanted):
        torch.testing.assert_close(loaded(batch), vectors)
print("equal")
"""


@pytest.mark.timeout(120)
def test_exported_saved_and_run_by_another_process(exported, client, batches, tmp_path):
    tower = Tower()
    batch = keyed(batches, 6, 7)
    bags, ids = torch.export.Dim("bags", min=2), torch.export.Dim("ids", min=2)
    shapes = {"features": [{0: ids}, {0: ids}, {0: 3 * bags}, None]}
    with torch.no_grad():
        program = torch.export.export(tower, (batch,), dynamic_shapes=shapes)
        torch.export.save(program, tmp_path / "tower.pt2")
        given = [batch, keyed(batches, 11, 8)]
        wanted = [tower(one) for one in given]
    fields = [(one.keys(), one.values(), one.weights_or_none(), one.lengths()) for one in given]
    torch.save((fields, wanted), tmp_path / "inputs.pt")
    command = [sys.executable, "-c", textwrap.dedent(LOADED), tmp_path / "tower.pt2", tmp_path / "inputs.pt", exported.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert "no client is registered for the model 'default' in this process (registered: none)" in said[0]
    assert said[1] == "equal"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("division", ["lengths", "offsets"])
@pytest.mark.parametrize("weighted", [False, True])
def test_exported_with_one_sample(client, batches, division, weighted, strict):
    class Pooled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bags = EmbeddingBagCollection(bag_tables(), is_weighted=weighted)
            self.over = torch.nn.Linear(24, 4)

        def forward(self, features):
            pooled = self.bags(features)
            return self.over(pooled.values()).relu(), pooled["article"].sum(1)

    def drawn(bags, seed):
        batch = keyed(batches, bags, seed)
        given = {"lengths": batch.lengths()}
        if division == "offsets":
            given = {"offsets": torch.nn.functional.pad(batch.lengths().cumsum(0), (1, 0))}
        return KeyedJaggedTensor(batch.keys(), batch.values(), batch.weights_or_none(), **given)

    module, any_size = Pooled(), {0: torch.export.Dim.AUTO}
    fields = [any_size, any_size, *((any_size, None) if division == "lengths" else (None, any_size))]
    with torch.no_grad():
        program = torch.export.export(module, (drawn(1, 17),), dynamic_shapes={"features": fields}, strict=strict).module()
        for bags in (1, 5, 2, 64):
            batch = drawn(bags, bags)
            for found, wanted in zip(program(batch), module(batch)):
                torch.testing.assert_close(found, wanted)


def test_torchrecs_batches_are_compiled_and_exported(client, batches):
    torchrec = pytest.importorskip("torchrec", reason="torchrec is not installed")
    bags = EmbeddingBagCollection(bag_tables())

    class Values(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bags = bags

        def forward(self, features):
            return self.bags(features).values()

    ids, lengths, _ = batches(KEYS, 9).draw(5, torch.int64, torch.int64)
    batch = torchrec.KeyedJaggedTensor(list(KEYS), ids, lengths=lengths)
    with torch.no_grad():
        wanted = bags(batch).values()
        assert torch.equal(torch.compile(Values(), backend="aot_eager", fullgraph=True)(batch), wanted)
        assert torch.equal(torch.export.export(Values(), (batch,), strict=False).module()(batch), wanted)
