"""Tables of models as generations: exported, served, and equal; and what can't be."""

import signal

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import rowmill.torch  # noqa: E402
from rowmill.torch import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor, export_tables  # noqa: E402

FORMATS = ["f32", "f16", "bf16", "int8", "int8-f16", "int4"]


def served_rows(serve, path, tables):
    """All rows of a generation's tables, as a service gives them."""
    with rowmill.connect(serve(path).url) as client:
        found = {}
        for name, (rows, dim) in tables.items():
            ids = torch.arange(rows)
            rowmill.torch.register("exported", client)
            collection = EmbeddingCollection([EmbeddingConfig(rows, dim, name)], model="exported")
            found[name] = collection(KeyedJaggedTensor([name], ids, lengths=torch.ones_like(ids)))[name].values().clone()
            rowmill.torch.unregister("exported")
    return found


def half_a_step(weight, format):
    """How far a stored value may lie from its own, for each row: half of the distance of two values that the format has."""
    most = weight.abs().amax(1, keepdim=True)
    if format in ("f32",):
        return torch.zeros_like(most)
    if format in ("f16", "bf16"):
        return most * (2.0**-11 if format == "f16" else 2.0**-8)
    span = weight.amax(1, keepdim=True) - weight.amin(1, keepdim=True)
    half = span / (15 if format == "int4" else 255) / 2
    # Scale and bias are rounded to f16, outwards, in two of the formats.
    return half * 1.001 + 1e-6 if format == "int8" else half * 1.01 + most * 2.0**-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_are_served_as_they_were(serve, tmp_path, dtype):
    torch.manual_seed(11)
    weights = {format: torch.randn(700, 20).to(dtype) for format in FORMATS}
    state = {f"model.embeddings.{name}.weight": weight for name, weight in weights.items()}
    names = export_tables(state, tmp_path / "generation", format={format: format for format in FORMATS}, generation=5)
    assert names == {format: format for format in FORMATS}
    found = served_rows(serve, tmp_path / "generation", {name: (700, 20) for name in FORMATS})
    for format, weight in weights.items():
        if format == "f32":
            assert torch.equal(found[format], weight.float())
        assert ((found[format] - weight.float()).abs() <= half_a_step(weight.float(), format)).all(), format


def test_weights_with_the_negative_bit(serve, tmp_path):
    weight = torch.randn(6, 8)
    export_tables({"embeddings.t.weight": torch._neg_view(-weight)}, tmp_path / "generation")
    assert torch.equal(served_rows(serve, tmp_path / "generation", {"t": (6, 8)})["t"], weight)


def test_a_model_with_collections_and_bags_of_its_own(serve, tmp_path):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.plain = torch.nn.ModuleList([torch.nn.EmbeddingBag(30, 8), torch.nn.Embedding(20, 4, padding_idx=0)])
            self.other = torch.nn.Linear(3, 3)

    model = Model()
    names = export_tables(model, tmp_path / "generation", names={"plain.1": "countries"})
    assert names == {"plain.0": "plain.0", "plain.1": "countries"}
    found = served_rows(serve, tmp_path / "generation", {"plain.0": (30, 8), "countries": (20, 4)})
    assert torch.equal(found["plain.0"], model.plain[0].weight)
    assert torch.equal(found["countries"], model.plain[1].weight)


def test_torchrecs_collections(serve, tmp_path):
    torchrec = pytest.importorskip("torchrec", reason="torchrec is not installed")
    bags = torchrec.EmbeddingBagCollection(
        tables=[torchrec.EmbeddingBagConfig(num_embeddings=50, embedding_dim=8, name="über uns", feature_names=["a"])]
    )
    rows = torchrec.EmbeddingCollection(
        tables=[torchrec.EmbeddingConfig(num_embeddings=60, embedding_dim=4, name="words", feature_names=["b"])]
    )
    model = torch.nn.ModuleDict({"bags": bags, "rows": rows})
    names = export_tables(model, tmp_path / "module")
    assert names == {"über uns": "_ber_uns", "words": "words"}
    assert export_tables(model.state_dict(), tmp_path / "state") == names
    found = served_rows(serve, tmp_path / "module", {"_ber_uns": (50, 8), "words": (60, 4)})
    assert torch.equal(found["_ber_uns"], bags.embedding_bags["über uns"].weight)
    assert torch.equal(found["words"], rows.embeddings["words"].weight)
    for file in ("00000.rows", "00001.rows"):
        assert np.array_equal(np.fromfile(tmp_path / "module" / file), np.fromfile(tmp_path / "state" / file))
    with pytest.raises(rowmill.InputError, match="both have a table words"):
        export_tables(torch.nn.ModuleDict({"one": rows, "other": torch.nn.ModuleDict({"more": rows_again(torchrec)})}), tmp_path / "x")


def rows_again(torchrec):
    config = torchrec.EmbeddingConfig(num_embeddings=60, embedding_dim=4, name="words", feature_names=["b"])
    return torchrec.EmbeddingCollection(tables=[config])


def test_memory_that_is_not_dense(serve, tmp_path):
    whole = torch.arange(800.0).view(20, 40)
    state = {"embeddings.turned.weight": whole.t(), "embeddings.part.weight": whole[:, 4:12]}
    export_tables(state, tmp_path / "generation")
    found = served_rows(serve, tmp_path / "generation", {"turned": (40, 20), "part": (20, 8)})
    assert torch.equal(found["turned"], whole.t())
    assert torch.equal(found["part"], whole[:, 4:12])


def bag(**more):
    return torch.nn.EmbeddingBag(10, 8, **more)


class Sharded:
    """Has what tells a tensor of several processes from others."""

    def local_shards(self):
        return []


@pytest.mark.parametrize(
    ("model", "arguments", "error", "text"),
    [
        (torch.nn.Linear(2, 2), {}, rowmill.InputError, "no embedding tables"),
        ({"embeddings.t.weight": torch.zeros(3, 6)}, {}, rowmill.InputError, "6 dimensions are not possible; .*pad with zeros"),
        ({"embeddings.t.weight": torch.zeros(0, 8)}, {}, rowmill.InputError, "0 rows are not possible"),
        ({"embeddings.t.weight": torch.zeros(8)}, {}, rowmill.InputError, r"shape \[8\]; a table has rows"),
        ({"embeddings.t.weight": torch.zeros(3, 8).double()}, {}, rowmill.DtypeError, "is torch.float64; convert it"),
        ({"embeddings.t.weight": torch.full((3, 8), torch.nan)}, {}, rowmill.InputError, "is NaN, which .*; replace the value, which no"),
        ({"embeddings.t.weight": torch.full((3, 8), 1e6)}, {"format": "f16"}, rowmill.InputError, "largest is 65504"),
        ({"embeddings.t.weight": torch.zeros(3, 8, device="meta")}, {}, rowmill.InputError, "on the meta device"),
        ({"embeddings.t.weight": Sharded()}, {}, rowmill.InputError, "a Sharded, of which .* a part; gather it first"),
        ({"a.embeddings.t.weight": torch.zeros(3, 8), "b.embeddings.t.weight": torch.zeros(3, 8)}, {}, rowmill.InputError, "both a table t"),
        (bag(), {"format": "f64"}, rowmill.InputError, "f64"),
        (bag(), {"format": {"other": "f16"}}, rowmill.InputError, "format names other, and the model's tables are weight"),
        (bag(), {"names": {"other": "x"}}, rowmill.InputError, "names names other"),
        (bag(), {"names": {"weight": "a/b"}}, rowmill.InputError, "`a/b` can't name a table"),
        (bag(padding_idx=1), {}, rowmill.InputError, "^the module leaves the id padding_idx=1 out"),
        (bag(max_norm=1.0), {}, rowmill.InputError, "^the module scales rows down to max_norm=1.0"),
        (torch.nn.Embedding(10, 8, max_norm=2.0), {}, rowmill.InputError, "scales rows down to max_norm=2.0"),
    ],
)
def test_what_can_not_be_exported(tmp_path, model, arguments, error, text):
    with pytest.raises(error, match=text):
        export_tables(model, tmp_path / "generation", **arguments)
    assert not (tmp_path / "generation").exists()


def test_what_the_sentence_on_max_norm_says(tmp_path):
    module = torch.nn.EmbeddingBag(10, 8, max_norm=1.0, mode="sum")
    wanted = module(torch.arange(10).view(10, 1))
    with torch.no_grad():
        module.weight.data.copy_(module.weight.data.renorm(2.0, 0, 1.0))
    module.max_norm = None
    torch.testing.assert_close(module(torch.arange(10).view(10, 1)), wanted)
    assert export_tables(module, tmp_path / "generation") == {"weight": "weight"}


def test_a_place_that_is_taken(tmp_path):
    export_tables(bag(), tmp_path / "generation")
    with pytest.raises(rowmill.InputError, match="exists; generations are never changed"):
        export_tables(bag(), tmp_path / "generation")
    (tmp_path / "file").touch()
    with pytest.raises(rowmill.Error, match="no directory can be made in"):
        export_tables(bag(), tmp_path / "file" / "generation")


def test_a_signal_ends_it(tmp_path):
    """Ctrl-C, in the midst of writing 200 MB; nothing that opens is left."""
    weight = torch.randn(1000, 64).repeat(800, 1)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            export_tables({"embeddings.t.weight": weight}, tmp_path / "generation", format="f32")
            pytest.fail("it was faster than the signal")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert list(tmp_path.iterdir()) == []
