"""Each rule of keys is read by experiment and constructor alike."""

import itertools
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest

from fedsuite.core.errors import ConfigError, Refused
from fedsuite.core.keys import AUTO, Key, Unless, With
from fedsuite.core.registry import METHODS
from fedsuite.core.rules import Rule
from fedsuite.experiment.experiment import Experiment
from fedsuite.experiment.key_catalog import known_keys
from fedsuite.experiment.rules import experiment_rules
from fedsuite.messages import decomposition
from fedsuite.rounds.exchange_layer import ExchangeLayer
from fedsuite.strategies import FedAvg, load_strategy

EXAMPLES: Mapping[str, tuple[Any, ...]] = {
    "best-model-metric": ("accuracy_mean", "validation_accuracy_mean", "new_accuracy_mean"),
    "early-stop-metric": ("accuracy_mean", "validation_accuracy_mean", "new_accuracy_mean"),
    "client-models": ("mlp",),
    "dataset": ("reddit", "own-table"),
    "class-weights": ("1, x", "balanced"),
    "scores": ("coverage-error",),
    "max-examples": (7.0,),
    "max-client-weight": (0.5,),
    "discriminator-widths": ("8",),
    "max-update-norm": (7.0,),
    "max-share-ratio": (7.0,),
    "public-dir": ("/srv",),
    "initial-model": ("/srv",),
    "sites": ("a, b",),
    "site-dirs": ("/srv",),
    "state-dir": ("/srv",),
    "num-clients": (2,),
    "clients-per-round": (1, 11),
    "liars": (0.4, 0.6, 1.5, 3.0),
    "attackers": (0.01, 1.0),
    "pfedme-learning-rate": (1.0,),
    "lp-proj-learning-rate": (1.0,),
    "quorum": (20,),
    "quantisation-bits": (16, 24),
    "evaluation-only": ("3",),
    "compress-bits": (4, 24),
    "travels": ("trainable",),
    "devices": ("hospitals",),
    "client-settings": ("1: drop-out=0.5",),
    "reconstruction-threshold": (1, 2, 9),
}
"""Values that no declaration names and that rules are about."""

ASIDE = {"method", "num-clients"}
"""What a constructor has of itself and not by a key."""

DIVERSE = ("fedavg", "standalone", "fedeba-plus", "fedbuff", "feddyn", "cyclic", "fedakd")
"""Methods of every kind: for what would take too long with all."""


def other_values(key: Key) -> tuple[Any, ...]:
    """Return a few values of a key that are not its default."""
    if key.name in EXAMPLES:
        return EXAMPLES[key.name]
    if key.choices:
        return tuple(choice for choice in key.choices if choice != key.default)
    if key.type is bool:
        return (not key.default,)
    if key.type is str:
        return ()
    start = 0 if key.default == AUTO else key.default
    numbers = (key.type(start / 2), start + key.type(1), key.maximum, key.minimum)
    given = (key.type(number) for number in numbers if number is not None)
    return tuple(n for n in dict.fromkeys(given) if n != start and is_legal(key, n))


def is_legal(key: Key, value: Any) -> bool:
    try:
        key.parse(value)
    except Refused:
        return False
    return True


class Factored(ExchangeLayer):
    """A layer with the keys of filter decomposition."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        defaults = {key.name: key.default for key in decomposition.KEYS}
        self._values = {**defaults, **given}

    def values(self) -> dict[str, Any]:
        return self._values


def made(method: str, given: Mapping[str, Any]) -> None:
    """Call a method's constructor with the keys that are its keywords.

    It stands without the parts that a run fills in, and may fail for want of one.
    """
    strategy = load_strategy(METHODS[method])
    named = {k.argument: given[k.name] for k in strategy.KEYS if k.name in given}
    factors = {k.name: given[k.name] for k in decomposition.KEYS if k.name in given}
    if given.get("decomposition"):
        named["layer"] = Factored(factors)
    named["num_clients"] = given.get("num-clients", 10)
    try:
        strategy(**named, **dict.fromkeys(strategy.PARTS))
    except Refused:
        raise
    except Exception:
        return


def refused(read: Any, *given: Any) -> ConfigError | None:
    try:
        read(*given)
    except ConfigError as error:
        return error
    return None


@cache
def base(method: str, factored: bool) -> Experiment:
    around = {"decomposition": True, "model": "cnn-shallow"} if factored else {}
    return Experiment.from_values({"method": method, **around})


def is_of_factors(keys: tuple[str, ...]) -> bool:
    names = {key.name for key in decomposition.KEYS}
    return bool(names & set(keys))


def example(method: str, rule: Rule) -> dict[str, Any] | None:
    """Return values of the rule's keys that it refuses."""
    try:
        values = base(method, is_of_factors(rule.keys)).values
    except ConfigError:
        # FedPara's methods take no decomposition.
        return None
    keys = {key.name: key for key in load_strategy(METHODS[method]).KEYS}
    free = [name for name in rule.keys if name in values and name != "method"]
    tried = []
    for name in free:
        key = keys.get(name) or known_keys()[name].declarations[0]
        of_rule = [
            condition.value
            for condition in rule.when
            if isinstance(condition, With) and condition.key == name
        ]
        legal = [value for value in of_rule if is_legal(key, value)]
        tried.append([*legal, values[name], key.default, *other_values(key)])
    for point in itertools.product(*tried):
        changes = dict(zip(free, point, strict=True))
        if rule.refuses({**values, **changes}, values):
            return changes
    return None


def rules_of(method: str) -> Iterator[tuple[tuple[Any, ...], Rule]]:
    """Yield the rules of a method's experiment, each with what tells it from others."""
    strategy = load_strategy(METHODS[method])
    for rule in (*strategy.rules(), *experiment_rules(strategy)):
        words = rule.why if isinstance(rule.why, str) else ""
        yield (rule.keys, words, *(c for c in rule.when if not callable(c))), rule


def check_example(method: str, rule: Rule, given: dict[str, Any]) -> None:
    """Check that experiment and constructor refuse values of which a rule does."""
    around = {"decomposition": True, "model": "cnn-shallow"}
    given |= around if is_of_factors(rule.keys) else {}
    error = refused(Experiment.from_values, {"method": method, **given})
    assert isinstance(error, Refused), (method, given, rule.keys)
    assert not {"\n", "{"} & set(str(error))
    known = {key.name for key in load_strategy(METHODS[method]).KEYS}
    known |= {key.name for key in decomposition.KEYS} | {*ASIDE, "decomposition"}
    if set(rule.keys) <= known and rule.keys[0] != "method":
        own = refused(made, method, given)
        assert isinstance(own, Refused), (method, given, rule.keys)
        subjects = {next(iter(found.values)) for found in (error, own)}
        assert len(subjects) == 1, (method, str(error), str(own))


def test_each_rule_has_an_example_that_experiment_and_constructor_refuse() -> None:
    checked, without = set(), {}
    for method in METHODS:
        for about, rule in rules_of(method):
            if about in checked:
                continue
            given = example(method, rule)
            if given is None:
                without[about] = method
                continue
            check_example(method, rule, given)
            checked.add(about)
    left = {about for about in without if about not in checked}
    # Only code of one's own reads such rows: tests/data/test_own_rows.py.
    assert all("its rows alone say its shape" in str(about) for about in left), left
    assert len(checked) > 200


@pytest.mark.parametrize("method", METHODS)
def test_what_one_refuses_the_other_does(method: str) -> None:
    """Each keyword at another value, alone."""
    strategy = load_strategy(METHODS[method])
    own = {key.name for key in strategy.method_keys()}
    for key in strategy.KEYS:
        if key.name not in own and method not in DIVERSE:
            continue
        for value in other_values(key)[:2]:
            given = {key.name: value}
            by_key = refused(Experiment.from_values, {"method": method, **given})
            by_keyword = refused(made, method, given)
            if by_key and set(by_key.keys) - {k.name for k in strategy.KEYS} - ASIDE:
                # It is about a key that the constructor does not have.
                continue
            assert bool(by_key) == bool(by_keyword), (given, by_key, by_keyword)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"server-beta1": 0.5}, "server_beta1 = 0.5 has no effect with server_optimizer"),
        ({"server-optimizer": "adagrad", "server-beta2": 0.5}, "server_beta2 = 0.5 has no"),
        ({"server-optimizer": "nesterov"}, "server_optimizer = 'nesterov' cannot go with"),
        ({"dp-clipping-norm": 2.0}, "dp_clipping_norm = 2.0 has no effect with"),
        ({"clients-per-round": 20}, "clients_per_round = 20 cannot go with num_clients"),
        (
            {"quorum": 20},
            "quorum = 20 cannot go with clients_per_round = 0 and",
        ),
        ({"seed": -1}, "seed = -1: expected a whole number >= 0"),
    ],
)
def test_each_place_has_its_spelling(given: dict[str, Any], name: str) -> None:
    by_key = refused(Experiment.from_values, given)
    by_keyword = refused(made, "fedavg", given)
    assert by_key and by_keyword
    assert isinstance(by_keyword, ValueError)
    assert str(by_keyword).startswith(name)
    assert str(by_key).startswith("key " + name.replace("_", "-"))
    assert str(by_key).count("_") == 0


def test_what_a_method_has_no_use_for_is_said_before_what_its_key_needs() -> None:
    """Advice to set another key would only earn the next refusal."""
    for method in METHODS:
        strategy = load_strategy(METHODS[method])
        keys = {key.name: key for key in strategy.KEYS}
        for name in strategy.WITHOUT_EFFECT:
            for value in other_values(keys[name])[:1] if name in keys else ():
                error = refused(Experiment.from_values, {"method": method, name: value})
                said = f"key {name} = {value!r} has no effect with method {method}"
                assert str(error).startswith(said)


def test_a_default_is_never_without_effect() -> None:
    FedAvg(server_beta2=0.99, dp_clipping_norm=1.0, liars=0.2)


def test_a_condition_is_data() -> None:
    rule = Rule(("a", "b"), (With("a", 1), Unless("b", 0)), "why {a}", "set {b}")
    assert not rule.refuses({"a": 1}, {})
    assert not rule.refuses({"a": 1, "b": 0}, {})
    assert rule.refuses({"a": 1, "b": 2}, {})
    error = rule.error({"a": 1, "b": 2})
    assert str(error) == "key a = 1 cannot go with b = 2: why a; set b"


@pytest.mark.parametrize(
    ("overrides", "names_file"),
    [({}, True), ({"seed": 3}, True), ({"quorum": 2}, False), ({"num-clients": 5}, False)],
)
def test_the_file_is_named_where_it_is_at_fault(
    tmp_path: Any, overrides: dict[str, Any], names_file: bool
) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text("clients-per-round = 20\nquorum = 20\n")
    if "quorum" in overrides:
        path.write_text("dp-noise-multiplier = 1.0\n")
    error = refused(Experiment.load, path, overrides)
    assert error is not None
    assert str(error).startswith(f"{path}: key ") == names_file
