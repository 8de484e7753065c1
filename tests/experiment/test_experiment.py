"""Experiments: what is accepted, what is refused and how, and what they come to."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import AUTO, With
from fedsuite.core.registry import METHODS
from fedsuite.experiment import experiment as module
from fedsuite.experiment.experiment import Experiment, parse_assignment
from fedsuite.experiment.key_catalog import (
    ambiguous_keys,
    known_keys,
    local_keys,
    table_default,
)
from fedsuite.strategies import load_strategy


def refused(**given):
    values = {name.replace("_", "-"): value for name, value in given.items()}
    with pytest.raises(ConfigError) as caught:
        Experiment.from_values(values)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_alone_are_an_experiment():
    experiment = Experiment.from_values({})
    assert experiment["method"] == "fedavg"
    assert experiment["num-clients"] == 10
    assert experiment["learning-rate"] == 0.1
    assert experiment["dataset"] == "digits"


def test_only_keys_that_apply_have_values():
    names = set(Experiment.from_values({"partitioner": "shards"}).values)
    assert "shards-per-client" in names
    assert not names & {"dirichlet-alpha", "proximal-mu"}


def test_values_are_sorted_by_key():
    names = list(Experiment.from_values({}).values)
    assert names == sorted(names)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_default_experiment(method):
    assert Experiment.from_values({"method": method})["method"] == method


def test_a_method_has_defaults_of_its_own():
    experiment = Experiment.from_values({"method": "fedsgd"})
    assert (experiment["local-steps"], experiment["batch-size"]) == (1, 0)


def test_auto_stands_for_the_default_whatever_the_method():
    auto = {"local-steps": AUTO, "batch-size": AUTO}
    for method in METHODS:
        automatic = Experiment.from_values({"method": method, **auto})
        assert automatic == Experiment.from_values({"method": method})


def test_auto_is_refused_where_the_default_is_known():
    assert refused(num_clients=AUTO) == (
        "key num-clients = 'auto': expected a whole number >= 1"
    )


def test_a_method_may_choose_model_and_partitioner(monkeypatch):
    chosen = {"model": "linear", "partitioner": "shards", "shards-per-client": 3}
    monkeypatch.setattr(load_strategy(METHODS["fedsgd"]), "DEFAULTS", chosen)
    module.ambiguous_keys.cache_clear()
    try:
        for given in ({}, {"model": AUTO, "partitioner": AUTO, "shards-per-client": AUTO}):
            experiment = Experiment.from_values({"method": "fedsgd", **given})
            assert {name: experiment[name] for name in chosen} == chosen
            assert "hidden-width" not in experiment.values
        other = Experiment.from_values({"method": "fedavg", "model": AUTO})
        assert (other["model"], other["partitioner"]) == ("mlp", "iid")
        kept = Experiment.from_values({"method": "fedsgd", "model": "mlp"})
        assert (kept["model"], kept["hidden-width"]) == ("mlp", 200)
    finally:
        monkeypatch.undo()
        module.ambiguous_keys.cache_clear()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("learning-rat", "learning-rate"),
        ("learning_rate", "learning-rate"),
        ("shard-per-client", "shards-per-client"),
        ("proximal-nu", "proximal-mu"),
    ],
)
def test_unknown_key_gets_the_nearest_known_one(name, meant):
    with pytest.raises(ConfigError) as caught:
        Experiment.from_values({name: 1})
    assert str(caught.value) == f"unknown key {name!r}: did you mean {meant!r}?"


def test_a_key_like_no_other_gets_advice():
    assert (
        refused(xyzzy=1)
        == "unknown key 'xyzzy': `fedsuite methods NAME --all` lists the keys"
    )


@pytest.mark.parametrize(
    ("key", "typo", "meant"),
    [
        ("method", "fedprocks", "fedprox"),
        ("dataset", "fashion-mnits", "fashion-mnist"),
        ("partitioner", "dirichelt", "dirichlet"),
        ("model", "resnet-18", "resnet18"),
        ("optimizer", "adma", "adam"),
    ],
)
def test_unknown_choice_gets_the_nearest_known_one(key, typo, meant):
    message = refused(**{key: typo})
    assert message.startswith(f"key {key} = {typo!r}: did you mean {meant!r}? expected ")


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("num-rounds", "many", "a whole number >= 1"),
        ("num-rounds", 1.0, "a whole number >= 1"),
        ("num-rounds", 0, "a whole number >= 1"),
        ("seed", -1, "a whole number >= 0"),
        ("learning-rate", "abc", "a number > 0"),
        ("learning-rate", 0, "a number > 0"),
        ("momentum", 1.5, "a number >= 0 and <= 1"),
        ("test-fraction", 0.95, "a number > 0 and <= 0.9"),
        ("report", "yes", "true or false"),
        ("optimizer", "rmsprop", "one of sgd, adam"),
        ("threads", 1000, "a whole number >= 1 and <= 256"),
        ("method", 3, "one of fedavg, "),
        ("output-dir", 3, 'a string, or "auto"'),
    ],
)
def test_wrong_values_are_named_with_what_is_allowed(key, value, allowed):
    with pytest.raises(ConfigError) as caught:
        Experiment.from_values({key: value})
    assert str(caught.value).startswith(f"key {key} = ")
    assert f"expected {allowed}" in str(caught.value)


def test_a_key_that_does_not_apply_is_refused_unless_it_is_the_default():
    assert refused(proximal_mu=0.5) == (
        "key proximal-mu = 0.5: it does not apply here, it belongs to method fedprox, "
        "method fedprox-ft; leave it out"
    )
    assert "belongs to partitioner shards" in refused(shards_per_client=5)
    assert "belongs to model mlp" in refused(model="cnn", hidden_width=5)
    default = Experiment.from_values({"proximal-mu": 0.01})
    assert default == Experiment.from_values({})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"clients-per-round": 11},
            "key clients-per-round = 11 cannot go with num-clients = 10",
        ),
        (
            {"quorum": 11},
            "clients-per-round = 0 and num-clients = 10: 10 replies close a round",
        ),
        (
            {"quorum": 4, "clients-per-round": 3},
            "key quorum = 4 cannot go with clients-per-round = 3 and num-clients = 10: 3",
        ),
        (
            {"local-epochs": 0, "local-steps": 0},
            "key local-epochs = 0 cannot go with local-steps = 0",
        ),
        ({"run-name": "../elsewhere"}, "key run-name = '../elsewhere': expected letters"),
        ({"run-name": ""}, "key run-name = '': expected letters"),
        ({"run-name": "a" * 122}, "expected letters"),
    ],
)
def test_impossible_combinations_are_refused(given, words):
    with pytest.raises(ConfigError) as caught:
        Experiment.from_values(given)
    assert words in str(caught.value)


def test_possible_combinations_at_the_edge():
    Experiment.from_values({"clients-per-round": 10, "quorum": 10})
    Experiment.from_values({"clients-per-round": 3, "quorum": 3})
    Experiment.from_values({"run-name": "a" * 121})


def write(path, text):
    path.write_text(text)
    return path


def test_overrides_win_over_the_file(tmp_path):
    path = write(tmp_path / "file.toml", "seed = 3\nnum-rounds = 5\n")
    experiment = Experiment.load(path, {"seed": 4})
    assert (experiment["seed"], experiment["num-rounds"]) == (4, 5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[fedavg]\nseed = 3\n", "key fedavg holds a dict; keys are flat"),
        ("seed = [1, 2]\n", "key seed holds a list; keys are flat"),
        ("a.b = 3\n", "key a holds a dict"),
        ("seed = \n", "is not valid TOML"),
        ("seed = 1\nseed = 2\n", "is not valid TOML"),
        ("seed = 2020-01-01\n", "key seed = datetime.date(2020, 1, 1): expected a whole"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, words):
    with pytest.raises(ConfigError) as caught:
        Experiment.load(write(tmp_path / "bad.toml", text))
    assert words in str(caught.value)


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read experiment .*none.toml: No such"):
        Experiment.load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"cannot read experiment .*: Is a directory"):
        Experiment.load(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'run-name = "\xe9"')
    with pytest.raises(ConfigError, match=r"latin.toml is not valid TOML"):
        Experiment.load(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("seed=3", ("seed", 3)),
        ("learning-rate=1", ("learning-rate", 1.0)),
        ("report=true", ("report", True)),
        ("run-name=a=b", ("run-name", "a=b")),
        ("output-dir=", ("output-dir", "")),
        ("local-steps=auto", ("local-steps", AUTO)),
        ("engine=auto", ("engine", AUTO)),
    ],
)
def test_assignments(text, pair):
    assert parse_assignment(text) == pair
    assert type(parse_assignment(text)[1]) is type(pair[1])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed", "'seed': expected key=value"),
        ("sead=3", "unknown key 'sead': did you mean 'seed'?"),
        ("seed=three", "key seed = 'three': expected a whole number >= 0"),
        ("num-clients=auto", "key num-clients = 'auto': expected"),
        ("=3", "unknown key ''"),
    ],
)
def test_bad_assignments(text, words):
    with pytest.raises(ConfigError) as caught:
        parse_assignment(text)
    assert words in str(caught.value)


OTHER_VALUES = {
    "engine": "ray",
    "workers": 2,
    "resume": True,
    "output-dir": "elsewhere",
    "run-name": "other",
    "state-dir": "elsewhere",
    "client-memory": 64,
    "data-dir": "elsewhere",
    "public-dir": "elsewhere",
    "num-rounds": 11,
    "checkpoint-every": 3,
    "connect-timeout": 1.0,
    "round-timeout": 1.0,
    "report": False,
    "trackers": "tensorboard",
    "preset": "paper",
    "site-dirs": "elsewhere",
    "only-statistics": True,
    "metrics-port": 9400,
    "metrics-host": "0.0.0.0",
}
"""Other values of the keys that are not decisive."""

DIFFERENT = {"method": "standalone", "clients-per-round": 0, "client-models": "mlp"}
"""What the keys about clients' networks need beside them."""

SITES = {"sites": "a, b, c, d, e"}
"""What the keys about sites need beside them."""


NUMBERS = {**SITES, "dataset": "own-table", "columns": "a", "task": "regression"}
"""What the keys of losses of numbers need beside them."""


TIMES = {"dataset": "tcga-brca", "loss": "discrete-time", "interval-ends": "365"}
"""What the key of intervals of time needs beside it."""


def other_value(name, value):
    """Return another value that the key allows."""
    key = known_keys()[name].declarations[0]
    if name in OTHER_VALUES:
        return OTHER_VALUES[name]
    told = {
        "site-rows": "1, 2, 3, 4, 5",
        "evaluation-only": "1",
        "client-settings": "1: drop-out=0.5",
        "devices": "hospitals",
        "over-select": 2.0,
        "selection-candidates": 7,
        "selection-ratio": 3.0,
        "class-weights": "balanced",
        "scores": "macro-f1",
        "interval-ends": "100, 200",
        "quantisation-bits": 16,
        "reconstruction-threshold": 4,
    }
    if name in told:
        return told[name]
    if key.choices:
        return next(choice for choice in key.choices if choice != value)
    if isinstance(value, bool):
        return not value
    if key.type is float:
        return value / 2 if isinstance(value, float) and value else 0.5
    return value + 1 if isinstance(value, int) else f"{value}x"


def test_fingerprint_changes_with_decisive_keys_alone():
    assert set(OTHER_VALUES) == local_keys()
    networks = {"client-models", "client-model-assignment", "client-initialisation"}
    for name in Experiment.from_values({}).values:
        given = {"clients-per-round": 5, "optimizer": "sgd", "learning-rate": 0.1}
        given |= DIFFERENT if name in networks else {}
        # A preset decides by the values that it brings alone.
        own = {"method": "fedeba", "effective-clients": 0.5, "max-share-ratio": 3.0}
        own |= {"max-client-weight": 0.9}
        given |= own if name == "preset" else {}
        noise = name.startswith("dp-") and name != "dp-noise-multiplier"
        given |= {"dp-noise-multiplier": 1.0} if noise else {}
        given |= {"method": "term", name: 0.9} if name == "dp-max-weight" else {}
        own = {"method": "term", "max-share-ratio": "off"}
        given |= own if name == "most-loss" else {}
        given |= SITES if name.startswith(("site", "only")) else {}
        given |= {"server-momentum": 0.5} if name == "server-optimizer" else {}
        given |= NUMBERS if name in ("huber-delta", "quantile") else {}
        given |= TIMES if name == "interval-ends" else {}
        needs = known_keys()[name].declarations[0].needs
        for need in needs[:1]:
            if not any(need.met(Experiment.from_values({}).values) for need in needs):
                value = need.value
                met = value if isinstance(need, With) else other_value(need.key, value)
                given = {need.key: met, **given}
        base = Experiment.from_values(given)
        value = base[name]
        other = "linear" if name == "client-models" else other_value(name, value)
        changed = Experiment.from_values({**given, name: other})
        assert changed[name] != value
        assert (changed.fingerprint == base.fingerprint) == (name in local_keys()), name


def test_replace_takes_arguments_in_snake_case():
    experiment = Experiment.from_values({}).replace(num_rounds=3, seed=1)
    assert (experiment["num-rounds"], experiment["seed"]) == (3, 1)
    with pytest.raises(ConfigError, match="key num-rounds"):
        experiment.replace(num_rounds=0)


NAMES = st.text("abcdefghijkABC0123456789._-", min_size=1, max_size=20).map("r{}0".format)
PATHS = st.text(st.characters(exclude_categories=["Cs"], min_codepoint=32))


@st.composite
def experiments(draw):
    num_clients = draw(st.integers(1, 10_000))
    per_round = draw(st.integers(0, num_clients))
    method = draw(st.sampled_from(sorted(METHODS)))
    strategy = load_strategy(METHODS[method])
    if "clients-per-round" in strategy.WITHOUT_EFFECT:
        per_round = 0
    defaults = {key.name: key.default for key in strategy.KEYS}
    replies = strategy.replies_per_round(defaults, per_round or num_clients)
    values = {
        "method": method,
        "partitioner": draw(
            st.sampled_from(sorted(known_keys()["partitioner"].declarations[0].choices))
        ),
        "model": draw(
            st.sampled_from(sorted(known_keys()["model"].declarations[0].choices))
        ),
        "num-clients": num_clients,
        "clients-per-round": per_round,
        "quorum": draw(st.integers(1, replies)),
        "optimizer": "sgd",
        "learning-rate": draw(st.floats(0, 1e9, exclude_min=True)),
        "local-steps": draw(st.integers(1, 100)),
        "report": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**63 - 1)),
        "run-name": draw(NAMES),
        "output-dir": draw(PATHS),
        "early-stop-metric": draw(PATHS),
        **load_strategy(METHODS[method]).FIXED,
    }
    if load_strategy(METHODS[method]).PRIVATE_MODELS and "client-models" not in values:
        values["client-models"] = draw(st.sampled_from(["", "mlp:hidden-width=3, linear"]))
    return Experiment.from_values(values)


@given(experiments())
def test_what_is_written_is_read_back(experiment):
    again = Experiment.from_values(tomllib.loads(experiment.to_toml()))
    assert again == experiment
    assert again.fingerprint == experiment.fingerprint


@given(experiments())
def test_flowers_run_config_with_every_key_is_the_same_experiment(experiment):
    # Flower hands the ServerApp the whole table, overridden by what the user gave.
    table = {name: table_default(name) for name in known_keys()}
    assert Experiment.from_values({**table, **experiment.values}) == experiment


def test_the_table_alone_is_the_default_experiment():
    table = {name: table_default(name) for name in known_keys()}
    assert Experiment.from_values(table) == Experiment.from_values({})
    assert {"local-steps", "batch-size"} <= ambiguous_keys()
    assert table["batch-size"] == AUTO
    assert table["weight-decay"] == 0.0


def test_keys_of_the_factors_apply_where_there_are_factors():
    plain = Experiment.from_values({"model": "cnn-shallow"})
    assert "coefficient-period" not in plain.values
    factored = Experiment.from_values({"model": "cnn-shallow", "decomposition": True})
    assert factored["coefficient-period"] == 1
    with pytest.raises(ConfigError, match="belongs to decomposition true"):
        Experiment.from_values({"model": "cnn-shallow", "coefficient-period": 3})
