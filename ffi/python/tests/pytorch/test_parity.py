"""Our collections against TorchRec's on the same tables: keys, lengths and vectors."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
torchrec = pytest.importorskip("torchrec", reason="torchrec is not installed")

import rowmill.torch  # noqa: E402
from torchrec.models.dlrm import DLRM  # noqa: E402
from torchrec.modules.embedding_configs import DataType, PoolingType  # noqa: E402

# The keys of batches: more than are looked up, and in another order than the tables'.
KEYS = {"word": 300, "user": 1000, "unused": 10, "item": 5000, "seen": 5000, "tag": 100, "both": 300}
# A feature that is in two tables, and tables with several features.
FEATURES = {"users": ["user", "both"], "articles": ["seen", "item"], "tags": ["tag"], "words": ["word", "both"]}
BAGS = [0, 1, 5, 64]


def configs(weights, kind, **more):
    types = {torch.float32: DataType.FP32, torch.float16: DataType.FP16}
    return [
        kind(
            name=name,
            num_embeddings=len(weight),
            embedding_dim=weight.shape[1],
            feature_names=list(FEATURES[name]),
            data_type=types[weight.dtype],
            **more,
        )
        for name, weight in weights.items()
    ]


def bag_collections(weights, pooling, weighted):
    """TorchRec's and ours."""
    tables = configs(weights, torchrec.EmbeddingBagConfig, pooling=pooling)
    theirs = torchrec.EmbeddingBagCollection(tables=copy.deepcopy(tables), is_weighted=weighted)
    with torch.no_grad():
        for name, weight in weights.items():
            theirs.embedding_bags[name].weight.copy_(weight)
    return theirs, rowmill.torch.EmbeddingBagCollection(tables, is_weighted=weighted)


def same(ours, theirs):
    assert type(ours) is type(theirs)
    assert ours.keys() == theirs.keys()
    assert ours.length_per_key() == theirs.length_per_key()
    # Sums of small whole numbers are exact; means and f16 round.
    torch.testing.assert_close(ours.values(), theirs.values(), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("bags", BAGS)
@pytest.mark.parametrize("lengths", [torch.int32, torch.int64])
@pytest.mark.parametrize("ids", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("pooling", "weighted"), [(PoolingType.SUM, False), (PoolingType.MEAN, False), (PoolingType.SUM, True)]
)
def test_bags(client, weights, batches, pooling, weighted, ids, lengths, bags):
    if ids != lengths and weighted and bags:
        # torch's embedding_bag takes weights with ids and offsets of one type only.
        lengths = ids
    if weighted:
        weights = {name: weight for name, weight in weights.items() if weight.dtype == torch.float32}
    theirs, ours = bag_collections(weights, pooling, weighted)
    values, counts, drawn = batches(KEYS, bags).draw(bags, ids, lengths)
    keyed = torchrec.KeyedJaggedTensor(list(KEYS), values, drawn, lengths=counts)
    with torch.no_grad():
        same(ours(keyed), theirs(keyed))


@pytest.mark.parametrize("given", ["lengths", "offsets", "both"])
def test_lengths_and_offsets(client, weights, batches, given):
    theirs, ours = bag_collections(weights, PoolingType.SUM, False)
    values, counts, _ = batches(KEYS, 3).draw(7, torch.int64, torch.int64)
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    keyed = torchrec.KeyedJaggedTensor(
        list(KEYS),
        values,
        lengths=None if given == "offsets" else counts,
        offsets=None if given == "lengths" else offsets,
    )
    with torch.no_grad():
        same(ours(keyed), theirs(keyed))


def test_tensor_dict(client, weights, batches):
    from tensordict import TensorDict

    theirs, ours = bag_collections(weights, PoolingType.MEAN, False)
    values, counts, _ = batches(KEYS, 4).draw(6, torch.int64, torch.int64)
    keyed = torchrec.KeyedJaggedTensor(list(KEYS), values, lengths=counts)
    nested = {
        key: torch.nested.nested_tensor_from_jagged(jagged.values(), offsets=jagged.offsets().long())
        for key, jagged in keyed.to_dict().items()
    }
    features = TensorDict(nested, batch_size=[6])
    with torch.no_grad():
        same(ours(features), theirs(features))


@pytest.mark.parametrize("pooling", [PoolingType.SUM, PoolingType.MEAN])
def test_a_number_of_bags_of_its_own_for_each_key(client, weights, batches, pooling):
    tables = {name: weights[name] for name in ("users", "articles")}
    theirs, ours = bag_collections(tables, pooling, False)
    strides = [3, 1, 4, 2]
    keys = {"user": 1000, "item": 5000, "seen": 5000, "both": 300}
    random = batches(keys, 5)
    parts = [batches({key: rows}, 5).draw(bags, torch.int64, torch.int64) for (key, rows), bags in zip(keys.items(), strides)]
    inverse = torch.stack([torch.randint(0, stride, (6,), generator=random.random) for stride in strides])
    keyed = torchrec.KeyedJaggedTensor(
        list(keys),
        torch.cat([values for values, _, _ in parts]),
        lengths=torch.cat([lengths for _, lengths, _ in parts]),
        stride_per_key_per_rank=[[stride] for stride in strides],
        inverse_indices=(list(keys), inverse),
    )
    with torch.no_grad():
        same(ours(keyed), theirs(keyed))
    alone = torchrec.KeyedJaggedTensor(
        list(keys), keyed.values(), lengths=keyed.lengths(), stride_per_key_per_rank=[[stride] for stride in strides]
    )
    with pytest.raises(rowmill.InputError, match="keys have 3, 1, 4, 2 bags"):
        ours(alone)


@pytest.mark.parametrize("bags", BAGS)
@pytest.mark.parametrize("need_indices", [False, True])
@pytest.mark.parametrize("ids", [torch.int32, torch.int64])
def test_rows(client, weights, batches, ids, need_indices, bags):
    tables = {name: weights[name] for name in ("articles", "words")}
    described = configs(tables, torchrec.EmbeddingConfig)
    theirs = torchrec.EmbeddingCollection(tables=copy.deepcopy(described), need_indices=need_indices)
    with torch.no_grad():
        for name, weight in tables.items():
            theirs.embeddings[name].weight.copy_(weight)
    ours = rowmill.torch.EmbeddingCollection(described, need_indices=need_indices)
    assert ours.embedding_names_by_table() == theirs.embedding_names_by_table()
    values, counts, _ = batches(KEYS, bags).draw(bags, ids, ids)
    keyed = torchrec.KeyedJaggedTensor(list(KEYS), values, lengths=counts)
    with torch.no_grad():
        wanted, found = theirs(keyed), ours(keyed)
    assert list(wanted) == list(found)
    for name, jagged in wanted.items():
        assert type(found[name]) is type(jagged)
        assert torch.equal(found[name].values(), jagged.values())
        assert torch.equal(found[name].lengths(), jagged.lengths())
        if need_indices:
            assert torch.equal(found[name].weights(), jagged.weights())
        else:
            assert found[name].weights_or_none() is None


def test_in_torchrecs_dlrm(client, weights, batches):
    """A whole model whose collection is exchanged, with the checkpoint of the one that was trained."""
    tables = {name: weights[name] for name in ("articles", "words")}
    theirs, ours = bag_collections(tables, PoolingType.SUM, False)

    def model(collection):
        torch.manual_seed(1)
        return DLRM(collection, dense_in_features=3, dense_arch_layer_sizes=[16, 8], over_arch_layer_sizes=[8, 1])

    trained, serving = model(theirs), model(ours)
    with torch.no_grad():
        for parameter in trained.dense_arch.parameters():
            parameter.add_(0.25)
    serving.load_state_dict(trained.state_dict(), strict=True)
    values, counts, _ = batches(KEYS, 9).draw(12, torch.int64, torch.int32)
    keyed = torchrec.KeyedJaggedTensor(list(KEYS), values, lengths=counts)
    dense = torch.randn(12, 3)
    with torch.no_grad():
        torch.testing.assert_close(serving(dense, keyed), trained(dense, keyed))


def test_state_dicts(client, weights):
    theirs, ours = bag_collections(weights, PoolingType.SUM, False)
    state = theirs.state_dict()
    assert ours.load_state_dict(state, strict=True).unexpected_keys == []
    assert ours.state_dict() == {}
    with pytest.raises(RuntimeError, match="embedding_bags.other.weight"):
        ours.load_state_dict(state | {"embedding_bags.other.weight": torch.zeros(3, 4)})
    with pytest.raises(RuntimeError, match=r"embedding_bags.users.weight: the checkpoint has \(3, 4\)"):
        ours.load_state_dict(state | {"embedding_bags.users.weight": torch.zeros(3, 4)})


def test_two_tables_of_one_name(client, weights):
    tables = configs({"articles": weights["articles"]}, torchrec.EmbeddingBagConfig) * 2
    with pytest.raises(ValueError, match="Duplicate table name articles"):
        torchrec.EmbeddingBagCollection(tables=tables)
    with pytest.raises(rowmill.InputError, match="two tables are named articles"):
        rowmill.torch.EmbeddingBagCollection(tables)
