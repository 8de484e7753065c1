"""Sweeps: points and their names, and the record."""

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.experiment.experiment import Experiment
from fedsuite.sweeps.points import make_points, parse_grid, point_name, shared_values
from tests.small_runs import SMALL

# Points and their names.


def test_grid_is_typed_and_sorted():
    assert parse_grid(["num-clients=4, 8", "batch-size=auto,16", "model=mlp"]) == {
        "batch-size": ("auto", 16),
        "model": ("mlp",),
        "num-clients": (4, 8),
    }


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        (["learning-rate"], "--grid 'learning-rate': expected key=a,b,c"),
        (["learning-rat=1"], "unknown key 'learning-rat': did you mean 'learning-rate'"),
        (["learning-rate=0.1,high"], "key learning-rate = 'high': expected a number > 0"),
        (["learning-rate=0.1,"], "key learning-rate = '': expected a number > 0"),
        (["learning-rate=0.1,0.10"], "value 0.1 is given twice"),
        (["seed=1,2"], "give the number of seeds by --seeds"),
        (["num-rounds=1,2"], "where or how long a run works"),
        (["output-dir=a,b"], "where or how long a run works"),
        (["momentum=0.1", "momentum=0.9"], "--grid momentum is given twice"),
    ],
)
def test_bad_grids_are_refused(grid, words):
    with pytest.raises(ConfigError) as caught:
        parse_grid(grid)
    assert words in str(caught.value)


def test_points_are_the_product_with_seeds():
    points = make_points(SMALL, ["momentum=0.5,0.9", "batch-size=8,16"], range(2))
    assert [point.name for point in points] == [
        f"batch-size-{size}_momentum-{momentum}_s{seed}"
        for size in (8, 16)
        for momentum in (0.5, 0.9)
        for seed in (0, 1)
    ]
    given = {**SMALL, "batch-size": 8, "momentum": 0.9, "seed": 1}
    assert points[3].fingerprint == Experiment.from_values(given).fingerprint
    assert len({point.fingerprint for point in points}) == 8


def test_a_point_lets_go_of_keys_that_belong_to_another_method():
    given = {**SMALL, "proximal-mu": 1.0}
    pulled, plain = make_points(given, ["method=fedprox,fedavg"], range(1))
    assert pulled.fingerprint != plain.fingerprint
    assert (
        plain.fingerprint == make_points(SMALL, ["method=fedavg"], range(1))[0].fingerprint
    )


def test_every_point_is_checked():
    both = ["proximal-mu=1.0", "method=fedprox,fedavg"]
    refused = r"^method=fedavg, proximal-mu=1.0: key proximal-mu = 1.0: it does not"
    with pytest.raises(ConfigError, match=refused):
        make_points(SMALL, both, range(1))
    with pytest.raises(
        ConfigError, match=r"^clients-per-round=9, num-clients=8: key client"
    ):
        make_points(SMALL, ["num-clients=8,10", "clients-per-round=9"], range(1))


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "s3"),
        ({"learning-rate": 0.1}, "learning-rate-0.1_s3"),
        (
            {"resume": True, "learning-rate": 1e-05},
            "learning-rate-1e-05_resume-true_s3",
        ),
    ],
)
def test_names_say_what_the_point_is(settings, name):
    assert point_name(settings, 3) == name


@given(
    st.dictionaries(
        st.sampled_from(["learning-rate", "early-stop-metric", "method"]),
        st.floats(0, 10) | st.text(max_size=200),
    ),
    st.integers(0, 10**6),
)
def test_every_name_may_be_a_run_name(settings, seed):
    Experiment.from_values({"run-name": point_name(settings, seed)})


def test_replaced_and_cut_characters_do_not_make_names_equal():
    texts = ["a/b", "a-b", "a b", "a,b", "x" * 200, "x" * 201]
    names = {point_name({"early-stop-metric": text}, 0) for text in texts}
    assert len(names) == len(texts)
    assert {name.rpartition("_")[2] for name in names} == {"s0"}


# What the points share.


def test_another_base_is_refused(tmp_path):
    base = {**SMALL, "learning-rate": 0.5, "run-name": "x", "output-dir": "y", "seed": 9}
    shared = shared_values(tmp_path, base)
    assert shared == {**SMALL, "learning-rate": 0.5}
    (tmp_path / "base.toml").write_text(tomli_w.dumps(shared))
    # The same experiment in other words.
    same = {**base, "momentum": 0.0, "checkpoint-every": 3, "seed": 1}
    assert shared_values(tmp_path, same)["momentum"] == 0.0
    for changed, words in (
        ({"learning-rate": 0.4}, "key learning-rate is 0.5 there and 0.4 here"),
        ({"num-rounds": 7}, "key num-rounds is 1 there and 7 here"),
        ({"weight-decay": 0.1}, "key weight-decay is not set there and 0.1 here"),
        ({"public-dir": "own"}, "key public-dir is not set there and 'own' here"),
    ):
        with pytest.raises(RunError) as caught:
            shared_values(tmp_path, {**base, **changed})
        assert words in str(caught.value)


@pytest.mark.parametrize("text", ["learning-rate", 'a = "', "a = 1\na = 2"])
def test_a_damaged_base_is_refused(tmp_path, text):
    (tmp_path / "base.toml").write_text(text)
    with pytest.raises(RunError, match=r"base\.toml: .*: mend it") as caught:
        shared_values(tmp_path, SMALL)
    assert "\n" not in str(caught.value)
