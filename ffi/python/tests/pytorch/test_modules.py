"""The collections without TorchRec: against torch's own functions, at limits, and with bad input."""

import inspect
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import rowmill.torch  # noqa: E402
from rowmill.torch import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig  # noqa: E402
from rowmill.torch import JaggedTensor, KeyedJaggedTensor, PoolingType  # noqa: E402

KEYS = {"word": 300, "user": 1000, "article": 5000}


def tables(pooling=PoolingType.SUM):
    return [
        EmbeddingBagConfig(1000, 16, "users", ["user"], pooling),
        EmbeddingBagConfig(5000, 8, "articles", ["article"], pooling),
    ]


def keyed(batches, bags, seed=1, most=5):
    ids, lengths, weights = batches(KEYS, seed).draw(bags, torch.int64, torch.int64, most)
    return KeyedJaggedTensor(list(KEYS), ids, weights, lengths)


@pytest.mark.parametrize("pooling", [PoolingType.SUM, PoolingType.MEAN])
@pytest.mark.parametrize("bags", [0, 1, 33])
def test_against_embedding_bag(client, weights, batches, pooling, bags):
    batch = keyed(batches, bags)
    found = EmbeddingBagCollection(tables(pooling))(batch)
    assert found.keys() == ["user", "article"]
    for key, table in (("user", "users"), ("article", "articles")):
        offsets = batch[key].offsets()
        wanted = torch.nn.functional.embedding_bag(
            batch[key].values(), weights[table], offsets, mode=pooling.name.lower(), include_last_offset=True
        )
        torch.testing.assert_close(found[key], wanted)


@pytest.mark.parametrize(("max_batch", "max_ids"), [(7, 1 << 17), (1024, 40), (3, 10)])
def test_batches_above_the_limits_are_looked_up_in_parts(client, batches, max_batch, max_ids):
    batch = keyed(batches, 61, most=4)
    weighted = EmbeddingBagCollection(tables(), is_weighted=True)
    rows = EmbeddingCollection([EmbeddingConfig(300, 8, "words", ["word"]), EmbeddingConfig(5000, 8, "articles", ["article"])])
    whole, whole_rows = weighted(batch).values().clone(), {k: v.values().clone() for k, v in rows(batch).items()}
    rowmill.torch.register("default", client, max_batch=max_batch, max_ids=max_ids)
    assert torch.equal(weighted(batch).values(), whole)
    for name, jagged in rows(batch).items():
        assert torch.equal(jagged.values(), whole_rows[name])


def test_more_parts_than_the_pool_has_room_for(exported, weights):
    ids = torch.arange(1000)
    batch = KeyedJaggedTensor(["users"], ids, lengths=torch.ones_like(ids))
    with rowmill.connect(exported.url, pool_bytes=4096) as client:
        rowmill.torch.register("small", client, max_batch=1)
        bags = EmbeddingBagCollection([EmbeddingBagConfig(1000, 16, "users")], model="small")
        assert torch.equal(bags(batch).values(), weights["users"])
        rows = EmbeddingCollection([EmbeddingConfig(1000, 16, "users")], model="small")
        assert torch.equal(rows(batch)["users"].values(), weights["users"])
        rowmill.torch.unregister("small")


def test_more_rows_of_a_feature_than_a_request_has_room_for(client, weights):
    ids = torch.arange(40_000) % 300
    lengths = torch.full((40,), 1000)
    rows = EmbeddingCollection([EmbeddingConfig(300, 8, "words")])
    found = rows(KeyedJaggedTensor(["words"], ids, lengths=lengths))["words"]
    assert torch.equal(found.values(), weights["words"][ids])


def test_results_that_are_kept(client, weights):
    """More than the pool has room for: they are copied then, and none is written over."""
    collection = EmbeddingBagCollection([EmbeddingBagConfig(1000, 16, "users")])
    kept = [collection(KeyedJaggedTensor(["users"], torch.tensor([n]), lengths=torch.tensor([1]))) for n in range(300)]
    for n, result in enumerate(kept):
        assert torch.equal(result.values()[0], weights["users"][n])


def test_a_collection_is_saved_by_its_names(client, batches, tmp_path):
    module = EmbeddingBagCollection(tables())
    torch.save(module, tmp_path / "module.pt")
    loaded = torch.load(tmp_path / "module.pt", weights_only=False)
    batch = keyed(batches, 4)
    assert torch.equal(loaded(batch).values(), module(batch).values())


def test_memory_with_gaps(client, batches):
    batch = keyed(batches, 4)
    spread = torch.stack([batch.values()] * 2, 1)[:, 0]
    assert not spread.is_contiguous()
    other = KeyedJaggedTensor(batch.keys(), spread, lengths=batch.lengths())
    module = EmbeddingBagCollection(tables())
    assert torch.equal(module(other).values(), module(batch).values())


def changed(batch, **fields):
    given = {
        "keys": batch.keys(), "values": batch.values(), "weights": batch.weights_or_none(), "lengths": batch.lengths()
    } | fields
    return KeyedJaggedTensor(**given)


def test_batches_that_contradict_themselves(client, batches):
    batch = keyed(batches, 4)
    plain, weighted = EmbeddingBagCollection(tables()), EmbeddingBagCollection(tables(), is_weighted=True)
    ids, lengths = batch.values(), batch.lengths()
    cases = [
        (plain, {"values": ids.float()}, rowmill.DtypeError, "ids are torch.float32"),
        (plain, {"lengths": lengths.float()}, rowmill.DtypeError, "lengths are torch.float32"),
        (plain, {"lengths": lengths[:-1]}, rowmill.InputError, "11 lengths for 3 keys"),
        (plain, {"lengths": lengths + 1}, rowmill.InputError, "ids"),
        (plain, {"lengths": torch.tensor([-1] * 12)}, rowmill.InputError, "-1"),
        (plain, {"lengths": None, "offsets": torch.arange(13).flip(0)}, rowmill.InputError, "offset"),
        (plain, {"lengths": lengths[:0]}, rowmill.InputError, "no bags"),
        (plain, {"values": ids.view(1, -1)}, rowmill.InputError, "need one dimension"),
        (plain, {"values": ids + 5000}, rowmill.IdError, "user"),
        (plain, {"values": -ids - 1}, rowmill.IdError, "user"),
        (plain, {"keys": ["word", "user", "other"]}, rowmill.FeatureError, "the batch lacks article; its keys are word, user, other"),
        (weighted, {"weights": None}, rowmill.InputError, "the batch has no weights"),
        (weighted, {"weights": batch.weights_or_none().double()}, rowmill.DtypeError, "weights are torch.float64"),
        (weighted, {"weights": batch.weights_or_none()[1:]}, rowmill.InputError, "weights for"),
        (weighted, {"weights": batch.weights_or_none().clone().requires_grad_()}, rowmill.InputError, "require a gradient"),
    ]
    for module, fields, error, text in cases:
        with pytest.raises(error, match=text):
            module(changed(batch, **fields))
    with pytest.raises(rowmill.DtypeError, match="features are a dict"):
        plain({"user": ids})
    # The client goes on.
    assert plain(batch).values().shape == (4, 24)


@pytest.mark.parametrize("max_batch", [2, 1024])
@pytest.mark.parametrize("module", ["bags", "rows"])
def test_lengths_and_offsets_that_do_not_divide_the_ids(client, module, max_batch):
    rowmill.torch.register("default", client, max_batch=max_batch)
    of = {"bags": (EmbeddingBagCollection, EmbeddingBagConfig), "rows": (EmbeddingCollection, EmbeddingConfig)}
    collection, config = of[module]
    served = collection([config(1000, 16, "users", ["user"])])
    ids = torch.arange(6)
    none = torch.tensor([], dtype=torch.int64)

    def of_user(ids, keys=("user", "other"), **division):
        return KeyedJaggedTensor(list(keys), ids, **division)

    for batch in [
        of_user(ids, lengths=torch.tensor([1, 2, 1, 1])),
        of_user(ids, lengths=torch.tensor([1, 2, 1, 3])),
        of_user(ids, lengths=torch.tensor([1, 2, 4, -1])),
        of_user(ids, lengths=torch.tensor([2**62, 2**62, 2**62, 2**62 + 6])),
        of_user(ids, lengths=none),
        of_user(none, lengths=torch.tensor([1, 0, 0, 0])),
        of_user(ids, ("user",), lengths=torch.tensor([2, 5])),
        of_user(ids, offsets=torch.tensor([0, 1, 3, 4, 5])),
        of_user(ids, offsets=torch.tensor([0, 1, 3, 4, 7])),
        of_user(ids, offsets=torch.tensor([0, 1, 3, 2, 6])),
        of_user(ids, offsets=torch.tensor([2, 3, 5, 6, 8])),
        of_user(ids, offsets=torch.tensor([-1, 0, 2, 3, 5])),
        of_user(none, offsets=torch.tensor([3])),
        of_user(none, offsets=none),
    ]:
        with pytest.raises(rowmill.InputError, match="give|must not be negative|never fall|at most"):
            served(batch)
    # None of them has kept anything, and a batch of several keys may be empty.
    served(of_user(ids, offsets=torch.tensor([0, 1, 3, 4, 6])))
    served(of_user(none, lengths=none))
    served(of_user(none, offsets=torch.tensor([0])))


@pytest.mark.parametrize("max_batch", [1, 7, 1024])
def test_an_id_that_is_not_there_is_counted_over_the_whole_batch(client, max_batch):
    rowmill.torch.register("default", client, max_batch=max_batch)
    ids = torch.arange(40)
    ids[33] = 5000
    batch = KeyedJaggedTensor(["user", "article"], ids, lengths=torch.ones(40, dtype=torch.int64))
    bags = EmbeddingBagCollection(tables())
    rows = EmbeddingCollection([EmbeddingConfig(5000, 8, "articles", ["article"])])
    for module in (bags, rows):
        with pytest.raises(rowmill.IdError, match="feature `article`, position 13: IdOutOfRange") as raised:
            module(batch)
        assert (raised.value.feature, raised.value.position) == ("article", 13)


def test_configurations_that_can_not_be_served(client):
    def config(**fields):
        return EmbeddingBagConfig(**({"num_embeddings": 1000, "embedding_dim": 16, "name": "users"} | fields))

    def described(tables, **more):
        with pytest.raises(rowmill.InputError) as raised:
            EmbeddingBagCollection(tables, client=client, **more)
        return str(raised.value)

    assert "there are no tables" in described([])
    assert "has 3 dimensions, and rows have a multiple of 4" in described([config(embedding_dim=3)])
    assert "no table 'other'" in described([config(name="other")])
    assert "is 1000 rows of 16 dimensions, and the module is configured for 999 of 16" in described([config(num_embeddings=999)])
    assert "torch has no mean of weighted rows" in described([config(pooling=PoolingType.MEAN)], is_weighted=True)
    assert "take an EmbeddingCollection" in described([config(pooling=PoolingType.NONE)])
    assert "both client and url" in described([config()], url="shm:/nowhere")
    with pytest.raises(rowmill.InputError, match="tables have 8, 16 dimensions"):
        EmbeddingCollection([EmbeddingConfig(1000, 16, "users"), EmbeddingConfig(5000, 8, "articles")])
    with pytest.raises(rowmill.ConnectError):
        EmbeddingBagCollection([config()], url="shm:/nowhere", model="nowhere")


def test_models_and_their_clients(exported, client, batches):
    module = EmbeddingBagCollection(tables(), model="mine")
    with pytest.raises(rowmill.InputError, match="no client is registered for the model 'mine'.*registered: 'default'"):
        module(keyed(batches, 2))
    EmbeddingBagCollection(tables(), client=client, model="mine")
    assert module(keyed(batches, 2)).values().shape == (2, 24)
    with rowmill.connect(exported.url) as other:
        with pytest.raises(rowmill.InputError, match="another client is registered for the model 'mine'"):
            EmbeddingBagCollection(tables(), client=other, model="mine")
        rowmill.torch.register("mine", other)
        assert rowmill.torch.client_of("mine") is other
    with pytest.raises(rowmill.ClosedError):
        module(keyed(batches, 2))
    # A closed client makes place.
    EmbeddingBagCollection(tables(), client=client, model="mine")
    assert module(keyed(batches, 2)).values().shape == (2, 24)
    rowmill.torch.unregister("mine")
    rowmill.torch.unregister("mine")


def test_jagged_tensors():
    jagged = {"a": JaggedTensor(torch.arange(3), lengths=torch.tensor([1, 2])), "b": JaggedTensor(torch.arange(2), offsets=torch.tensor([0, 0, 2]))}
    both = KeyedJaggedTensor.from_jagged(jagged)
    assert both.stride() == 2
    assert [part.tolist() for part in both["b"].to_dense()] == [[], [0, 1]]
    assert both["a"].offsets().tolist() == [0, 1, 3]
    with pytest.raises(KeyError, match="there is no key 'c'; the keys are a, b"):
        both["c"]
    with pytest.raises(ValueError, match="lengths or offsets"):
        JaggedTensor(torch.arange(3))
    with pytest.raises(ValueError, match="no weights"):
        jagged["a"].weights()


WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torchrec", "fbgemm_gpu", "tensordict"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import torch
import rowmill.torch as rt

table = rt.EmbeddingBagConfig(1000, 16, "users", ["user"])
bags = rt.EmbeddingBagCollection([table], url=sys.argv[1])
batch = rt.KeyedJaggedTensor(["user"], torch.tensor([3, 4]), lengths=torch.tensor([2], dtype=torch.int32))
result = bags(batch)
assert isinstance(result, rt.KeyedTensor)
print(*result["user"][0].tolist())
"""


@pytest.mark.timeout(60)
def test_without_torchrec(exported, weights):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(WITHOUT), exported.url], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    assert [float(x) for x in done.stdout.split()] == (weights["users"][3] + weights["users"][4]).tolist()


@pytest.mark.parametrize("wait", ["block", "sleep", "poll"])
def test_ways_of_waiting(exported, weights, wait):
    table = EmbeddingBagConfig(1000, 16, "users", ["user"])
    with rowmill.connect(exported.url, wait=wait) as client:
        module = EmbeddingBagCollection([table], client=client, model=f"waits-{wait}")
        for number in range(50):
            found = module(KeyedJaggedTensor(["user"], torch.tensor([number]), lengths=torch.tensor([1])))
            assert torch.equal(found["user"][0], weights["users"][number])
    rowmill.torch.unregister(f"waits-{wait}")


def test_docstrings():
    """Every public thing has one, which names its arguments."""
    for name in rowmill.torch.__all__:
        thing = getattr(rowmill.torch, name)
        assert thing.__doc__ and thing.__doc__.strip(), name
        calls = [(name, thing, thing)]
        if inspect.isclass(thing):
            members = [(f"{name}.{member}", call) for member, call in vars(thing).items() if member[0] != "_"]
            calls = [(name, thing.__init__, thing)] if "__init__" in vars(thing) else []
            calls += [(member, call, call) for member, call in members if inspect.isfunction(call)]
        for called, call, documented in calls:
            assert documented.__doc__, called
            for parameter in inspect.signature(call).parameters:
                known = parameter in documented.__doc__ or parameter == "self"
                assert known, f"{called} does not tell of {parameter}"
