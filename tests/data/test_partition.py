import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom

from fedsuite.core.errors import ConfigError, DataError
from fedsuite.data import PARTITIONERS, Samples, load_federated_data
from fedsuite.data.partition import match_test, power_law_sizes

FASHION = (np.repeat(np.arange(10), 6000), np.repeat(np.arange(10), 1000))
MATCHED = ("shards", "dirichlet", "dirichlet-client", "pathological")


def divided(
    name, train, test, num_clients, options, seed, ids=(None, None), features=(None, None)
):
    samples = Samples(train, test, *ids, *features)
    return PARTITIONERS[name].of(options).divide(samples, num_clients, seed)


def training_divided(name, labels, num_clients, options, seed, ids=None, features=None):
    owners = (None, None) if ids is None else (ids, ids[:0])
    inputs = (None, None) if features is None else (features, features[:0])
    samples = Samples(labels, labels[:0], *owners, *inputs)
    return PARTITIONERS[name].of(options).divide_training(samples, num_clients, seed)


def counts(labels, parts, num_classes=10):
    return np.stack([np.bincount(labels[p], minlength=num_classes) for p in parts])


def variation_distance(labels, parts):
    """Mean total-variation distance of the clients' class mixes from the whole."""
    held = counts(labels, parts)
    mixes = held / held.sum(axis=1, keepdims=True)
    return float(np.abs(mixes - held.sum(axis=0) / held.sum()).sum(axis=1).mean() / 2)


@st.composite
def problems(draw):
    num_classes = draw(st.integers(1, 8))
    num_clients = draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    train = rng.integers(0, num_classes, draw(st.integers(num_clients, 400)))
    test = rng.integers(0, num_classes, draw(st.integers(num_clients, 200)))
    owners = rng.integers(0, 30, len(train)), rng.integers(0, 30, len(test))
    return train, test, num_clients, owners, draw(st.integers(0, 2**31))


def random_inputs(*labels):
    """Two inputs a row that have nothing to do with its label."""
    rng = np.random.default_rng(7)
    return tuple(rng.normal(size=(len(part), 2)) for part in labels)


OPTIONS = {
    "shift-dimensions": 2,
    "shards-per-client": 3,
    "dirichlet-alpha": 1.0,
    "dirichlet-min-size": 1,
    "dirichlet-client-alpha": 0.3,
    "classes-per-client": 2,
    "power-law-exponent": 0.7,
}


@pytest.mark.parametrize("name", PARTITIONERS)
@given(problem=problems())
@settings(max_examples=60, deadline=None)
def test_rows_are_used_once_whatever_the_sizes(name, problem):
    train, test, num_clients, owners, seed = problem
    try:
        parts = divided(
            name,
            train,
            test,
            num_clients,
            OPTIONS,
            seed,
            owners,
            random_inputs(train, test),
        )
    except DataError as error:
        assert "\n" not in str(error)
        assert "num-clients" in str(error) or "shift-dimensions" in str(error)
        return
    spec = PARTITIONERS[name]
    for labels, clients in ((train, parts.train), (test, parts.test)):
        assert len(clients) == num_clients
        assert min(map(len, clients)) > 0
        assert all((np.diff(rows) >= 0).all() for rows in clients)
        used = np.concatenate(clients)
        assert used.min() >= 0 and used.max() < len(labels)
        assert spec.SHARES_ROWS or len(np.unique(used)) == len(used)
        if spec.EXHAUSTIVE or name == "power-law":
            assert len(used) == len(labels)


@pytest.mark.parametrize("name", MATCHED)
@given(problem=problems())
@settings(max_examples=60, deadline=None)
def test_test_part_has_the_mix_of_the_training_part(name, problem):
    train, test, num_clients, _, seed = problem
    try:
        parts = divided(name, train, test, num_clients, OPTIONS, seed)
    except DataError:
        assume(False)
    held, tested = counts(train, parts.train), counts(test, parts.test)
    known = held.sum(axis=0) > 0
    share = held[:, known] / held.sum(axis=0)[known]
    assert (np.abs(tested[:, known] - share * tested.sum(axis=0)[known]) < 1).all()


@pytest.mark.parametrize("name", PARTITIONERS)
def test_seed_decides(name):
    owners = (np.arange(60000) // 10, np.arange(10000) // 10)
    inputs = random_inputs(*FASHION)
    first, again, other = (
        divided(name, *FASHION, 10, OPTIONS, seed, owners, inputs) for seed in (0, 0, 1)
    )
    for part in ("train", "test"):
        pairs = zip(getattr(first, part), getattr(again, part), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs)
        pairs = zip(getattr(first, part), getattr(other, part), strict=True)
        assert not any(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", PARTITIONERS)
def test_training_part_does_not_depend_on_the_test_part(name):
    owners = (np.arange(60000) // 10, np.arange(10000) // 10)
    inputs = random_inputs(*FASHION)
    both = divided(name, *FASHION, 10, OPTIONS, 3, owners, inputs).train
    if name == "natural-id":  # owners of test rows only would be dealt as well
        owners = (owners[0], owners[0])
        both = divided(name, FASHION[0], FASHION[0], 10, {}, 3, owners).train
    alone = training_divided(name, FASHION[0], 10, OPTIONS, 3, owners[0], inputs[0]).train
    assert all(np.array_equal(a, b) for a, b in zip(both, alone, strict=True))


@pytest.mark.parametrize(
    "name", ["iid", "shards", "dirichlet", "dirichlet-client", "power-law"]
)
def test_one_client_holds_everything(name):
    parts = divided(name, FASHION[0], FASHION[1], 1, {}, 0)
    assert len(parts.train[0]) == 60000 and len(parts.test[0]) == 10000


def test_one_client_pathological_holds_all_classes():
    parts = divided("pathological", *FASHION, 1, {"classes-per-client": 10}, 0)
    assert len(parts.train[0]) == 60000 and len(parts.test[0]) == 10000


def test_iid_sizes_are_equal_and_mixes_alike():
    parts = divided("iid", FASHION[0], FASHION[1], 7, {}, 0)
    assert {len(rows) for rows in parts.train} == {8571, 8572}
    assert {len(rows) for rows in parts.test} == {1428, 1429}
    assert variation_distance(FASHION[0], parts.train) < 0.02


@pytest.mark.parametrize(
    ("total", "sizes"),
    [
        (30000, [10243, 5122, 3415, 2560, 2048, 1707, 1463, 1280, 1138, 1024]),
        (25000, [8536, 4268, 2846, 2134, 1708, 1422, 1219, 1066, 948, 853]),
        (35000, [11950, 5975, 3984, 2988, 2390, 1992, 1707, 1493, 1327, 1194]),
    ],
)
def test_power_law_golden_sizes(total, sizes):
    assert power_law_sizes(total, 10, 1.0).tolist() == sizes
    labels = np.arange(total) % 10
    parts = divided("power-law", labels, labels[:1000], 10, {}, 0)
    assert [len(rows) for rows in parts.train] == sizes


def test_power_law_zero_is_equal_sizes():
    assert power_law_sizes(10, 4, 0.0).tolist() == [3, 3, 2, 2]


def test_shards_are_pure_where_they_divide():
    """200 shards of 300 over 100 clients: 600 rows and at most two classes each."""
    parts = divided("shards", *FASHION, 100, {"shards-per-client": 2}, 0)
    held, tested = counts(FASHION[0], parts.train), counts(FASHION[1], parts.test)
    assert set(held.ravel().tolist()) == {0, 300, 600}
    assert np.array_equal(held, tested * 6)  # 100 test rows, the same mix
    assert {1, 2} == set((held > 0).sum(axis=1).tolist())


def test_shards_of_few_rows_still_give_each_client_its_test_rows():
    """Two rows a shard, a fifth of a test row per class and client (Tiny-ImageNet)."""
    train, test = np.repeat(np.arange(20), 500), np.repeat(np.arange(20), 50)
    parts = divided("shards", train, test, 100, {"shards-per-client": 50}, 0)
    assert {len(rows) for rows in parts.train} == {100}
    assert {len(rows) for rows in parts.test} == {10}


# Rows, classes, clients and shards of the filter decomposition paper's appendix G; then
# rows a shard, shards a class, and the mean number of distinct classes of a client.
DECOMPOSITION = [
    (50_000, 10, 100, 2, 250, 20, 1.92),
    (50_000, 10, 100, 5, 100, 50, 4.10),
    (50_000, 100, 100, 5, 100, 5, 4.93),
    (50_000, 100, 100, 20, 25, 20, 18.3),
    (100_000, 200, 20, 20, 250, 2, 19.6),
    (100_000, 200, 20, 50, 100, 5, 45.4),
    (100_000, 200, 1000, 20, 5, 100, 19.1),
    (100_000, 200, 1000, 50, 2, 250, 44.4),
]


@pytest.mark.parametrize("row", DECOMPOSITION)
def test_shards_are_those_of_the_decomposition_paper(row):
    """Its pool of labels, dealt and redeemed at random, is a deal of pure shards."""
    num_rows, num_classes, num_clients, per_client, size, of_class, distinct = row
    labels = np.random.default_rng(0).permutation(np.arange(num_rows) % num_classes)
    options = {"shards-per-client": per_client}
    parts = training_divided("shards", labels, num_clients, options, 0).train
    held = counts(labels, parts, num_classes)
    assert (held % size == 0).all()
    assert (held.sum(axis=1) == per_client * size).all()
    assert (held.sum(axis=0) == of_class * size).all()
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(num_rows))
    # A class is missed if none of its shards is among those dealt.
    shards = num_clients * per_client
    missed = hypergeom(shards, of_class, per_client).pmf(0)
    expected = num_classes * (1 - missed)
    assert expected == pytest.approx(distinct, abs=0.1)
    found = (held > 0).sum(axis=1)
    standard_error = found.std() / num_clients**0.5
    assert found.mean() == pytest.approx(expected, abs=4 * standard_error)


@pytest.mark.parametrize("row", DECOMPOSITION)
def test_pathological_deals_such_shards_of_different_classes(row):
    num_rows, num_classes, num_clients, per_client, size, _, _ = row
    labels = np.random.default_rng(0).permutation(np.arange(num_rows) % num_classes)
    options = {"classes-per-client": per_client}
    parts = training_divided("pathological", labels, num_clients, options, 0)
    parts = parts.train
    held = counts(labels, parts, num_classes)
    assert set(held.ravel().tolist()) == {0, size}
    assert ((held > 0).sum(axis=1) == per_client).all()


def test_dirichlet_holds_the_least_size_and_follows_alpha():
    distances = []
    for alpha in (0.1, 1.0, 100.0):
        options = {"dirichlet-alpha": alpha, "dirichlet-min-size": 50}
        parts = divided("dirichlet", *FASHION, 20, options, 0)
        assert min(map(len, parts.train)) >= 50
        distances.append(variation_distance(FASHION[0], parts.train))
    assert distances[0] > 0.6 > distances[1] > 0.2 > 0.1 > distances[2]


@pytest.mark.parametrize("alpha", [1e-3, 1e-8])
def test_dirichlet_gives_up_in_one_line(alpha):
    options = {"dirichlet-alpha": alpha, "dirichlet-min-size": 10}
    with pytest.raises(
        DataError, match=r"num-clients = 50 clients dirichlet-min-size = 10"
    ):
        divided("dirichlet", *FASHION, 50, options, 0)


def test_dirichlet_client_sizes_are_equal_and_follow_alpha():
    distances = []
    for alpha in (0.01, 1.0, 5.0, 1000.0):
        options = {"dirichlet-client-alpha": alpha}
        parts = divided("dirichlet-client", *FASHION, 11, options, 0)
        assert sorted({len(rows) for rows in parts.train}) == [5454, 5455]
        assert [len(rows) for rows in parts.train] == sorted(map(len, parts.train))[::-1]
        distances.append(variation_distance(FASHION[0], parts.train))
    assert distances == sorted(distances)[::-1]
    assert distances[0] > 0.6 and distances[-1] < 0.03


def test_dirichlet_client_mix_is_the_one_drawn():
    """While no class runs out, a client's classes follow its own draw, not the pool's."""
    labels = np.repeat(np.arange(2), [90_000, 10_000])
    parts = divided("dirichlet-client", labels, labels, 2, {}, 5)
    held = counts(labels, parts.train, 2)
    assert held.sum(axis=0).tolist() == [90_000, 10_000]
    assert abs(held[0, 1] - held[1, 1]) > 1000


@pytest.mark.parametrize(("num_clients", "per_client"), [(100, 2), (7, 3), (5, 2), (3, 10)])
def test_pathological_holds_exactly_so_many_classes(num_clients, per_client):
    options = {"classes-per-client": per_client}
    parts = divided("pathological", *FASHION, num_clients, options, 0)
    held = counts(FASHION[0], parts.train)
    assert ((held > 0).sum(axis=1) == per_client).all()
    assert held.sum() == 60000
    holders = (held > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1


@pytest.mark.parametrize(("num_clients", "per_client"), [(4, 2), (10, 11)])
def test_pathological_refuses_what_cannot_hold_all_classes(num_clients, per_client):
    with pytest.raises(DataError, match=f"classes-per-client = {per_client} cannot"):
        divided(
            "pathological", *FASHION, num_clients, {"classes-per-client": per_client}, 0
        )


def test_class_count_by_hand():
    """Six rows of two classes: client 1 takes 4 of class 0, client 2 takes 2 and 2."""
    labels = np.repeat(np.arange(2), 6)
    parts = divided("class-count", labels, labels, 2, {}, 0)
    assert counts(labels, parts.train, 2).tolist() == [[4, 0], [2, 2]]
    assert counts(labels, parts.test, 2).tolist() == [[4, 0], [2, 2]]


def test_class_count_client_k_holds_the_first_k_classes():
    parts = divided("class-count", *FASHION, 10, {}, 0)
    held = counts(FASHION[0], parts.train)
    assert np.array_equal(held > 0, np.tri(10, dtype=bool))
    assert len(set(held.sum(axis=1).tolist())) == 1
    spread = held.max(axis=1) - np.where(held > 0, held, 9999).min(axis=1)
    assert spread.max() <= 1
    assert held.sum(axis=0)[0] > 5990  # the scarcest class is used up


def test_class_count_refuses_more_clients_than_classes():
    with pytest.raises(DataError, match="num-clients = 11 is more than the 10 classes"):
        divided("class-count", *FASHION, 11, {}, 0)


def natural(num_clients, mode="group", min_size=1, seed=0):
    ids = np.array([0, 0, 0, 1, 1, 2, 3, 3]), np.array([0, 1, 3, 4])
    options = {"natural-ids": mode, "natural-min-size": min_size}
    labels = np.zeros(8, int), np.zeros(4, int)
    parts = divided("natural-id", *labels, num_clients, options, seed, ids)
    return ids, parts


@pytest.mark.parametrize("seed", range(5))
def test_natural_groups_keep_owners_whole(seed):
    (train_ids, test_ids), parts = natural(2, seed=seed)
    assert sum(map(len, parts.train)) == 8 and sum(map(len, parts.test)) == 4
    groups = [
        set(train_ids[a]) | set(test_ids[b])
        for a, b in zip(parts.train, parts.test, strict=True)
    ]
    assert not groups[0] & groups[1]
    assert sorted(map(len, groups)) == [2, 3]


def test_natural_sample_makes_clients_of_owners_with_both_parts():
    (train_ids, test_ids), parts = natural(3, "sample")
    owners = [np.unique(train_ids[rows]).tolist() for rows in parts.train]
    assert sorted(owners) == [[0], [1], [3]]
    assert [np.unique(test_ids[rows]).tolist() for rows in parts.test] == owners


@pytest.mark.parametrize("seed", [0, 1])
def test_natural_largest_takes_the_largest_first(seed):
    (train_ids, test_ids), parts = natural(2, "largest", seed=seed)
    sizes = np.bincount(np.concatenate([train_ids, test_ids]))
    both = np.intersect1d(train_ids, test_ids)
    wanted = sorted(both, key=lambda owner: (-sizes[owner], owner))[:2]
    found = [np.unique(train_ids[rows]).tolist() for rows in parts.train]
    assert found == [[owner] for owner in wanted]
    assert [np.unique(test_ids[rows]).tolist() for rows in parts.test] == found
    assert sizes[wanted[0]] > sizes[wanted[1]]


def test_natural_min_size_leaves_small_owners_out():
    (train_ids, _), parts = natural(1, min_size=4)
    assert train_ids[parts.train[0]].tolist() == [0, 0, 0]
    with pytest.raises(DataError, match="num-clients = 2 is more than the 1 owners"):
        natural(2, min_size=4)


def test_natural_id_needs_owners():
    with pytest.raises(DataError, match="names no owner"):
        divided("natural-id", *FASHION, 2, {}, 0)


def test_match_test_by_hand():
    """Client 0 holds 2/3 of class 0 and none of class 1; six and two test rows."""
    samples = Samples(np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 0, 0, 0, 1, 0]))
    parts = match_test(
        samples, [np.array([0, 1]), np.array([2, 3, 4])], np.random.default_rng(0)
    )
    assert counts(samples.test_labels, parts, 2).tolist() == [[4, 0], [2, 2]]


def test_match_test_spreads_an_unknown_class_by_size():
    samples = Samples(np.array([0, 0, 0, 0]), np.array([0, 0, 0, 0, 1, 1, 1, 1]))
    parts = match_test(
        samples, [np.array([0]), np.array([1, 2, 3])], np.random.default_rng(0)
    )
    assert counts(samples.test_labels, parts, 2).tolist() == [[1, 1], [3, 3]]


def test_more_clients_than_rows():
    with pytest.raises(DataError, match=r"expected 1 to 10, .* training rows"):
        divided("iid", np.zeros(10, int), np.zeros(50, int), 11, {}, 0)
    with pytest.raises(
        DataError, match=r"num-clients = 11: expected 1 to 10, .* test rows"
    ):
        divided("iid", np.zeros(50, int), np.zeros(10, int), 11, {}, 0)


def test_more_shards_than_rows():
    with pytest.raises(
        DataError, match="shards-per-client = 7 is more than the 60 training"
    ):
        divided(
            "shards", np.zeros(60, int), np.zeros(60, int), 10, {"shards-per-client": 7}, 0
        )


def test_empty_client_is_named():
    labels = np.arange(100) % 2
    with pytest.raises(
        DataError, match=r"client \d+ of num-clients = 20 gets none of the 100"
    ):
        divided("power-law", labels, labels, 20, {"power-law-exponent": 3.0}, 0)


def test_unknown_partitioner_and_bad_option():
    with pytest.raises(ConfigError, match="partitioner = 'magic': expected one of iid, "):
        load_federated_data({"partitioner": "magic"}, 0)
    with pytest.raises(
        ConfigError, match=r"shards-per-client = 0: expected a whole number"
    ):
        divided("shards", *FASHION, 2, {"shards-per-client": 0}, 0)
