"""Keys declared as typed fields: constructor, check, docs, and what clients are told."""

import inspect
import math
import typing
from typing import Any, Literal
from unittest.mock import MagicMock

import pytest

from fedsuite.clients import load_client
from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Key, Unless
from fedsuite.core.registry import METHODS
from fedsuite.core.settings import Declared, Settings, given, key, part, state
from fedsuite.messages.array_records import RecordError
from fedsuite.strategies import FedProx, load_strategy
from fedsuite.training.told import Told, told_of


class Base(Declared):
    """What all have."""

    quorum: int = key(default=1, help="least good replies", minimum=1)
    wire: str = given(default="message", help="how it speaks")
    memory: dict[int, float] = state(default_factory=dict)


class Pulled(Base):
    """Pulls."""

    mu: float = key(default=0.5, help="weight mu", minimum=0.0, told="train")
    mode: Literal["a", "b"] = key(default="a", help="how", told="evaluate")
    groups: object = part(help="the model's groups")


class Softer(Pulled):
    """Pulls less."""

    mu: float = 0.1


def test_one_line_is_a_keyword_a_key_and_a_message() -> None:
    made = Softer(groups=None, mode="b")
    assert (made.mu, made.mode, made.quorum, made.wire) == (0.1, "b", 1, "message")
    assert made.told("train") == {"mu": 0.1}
    assert made.told("evaluate") == {"mode": "b"}
    assert [k.name for k in Softer.KEYS] == ["quorum", "mu", "mode"]
    assert Softer.KEYS[1] == Key("mu", 0.1, "weight mu", minimum=0.0)
    assert Softer.KEYS[2].choices == ("a", "b")
    assert {"groups"} == Softer.PARTS
    assert made.memory is not Softer(groups=None).memory


@pytest.mark.parametrize(
    "wrong", [{"mu": -1.0}, {"mu": math.nan}, {"mode": "c"}, {"quorum": 0}, {"mu": "1"}]
)
def test_constructor_and_experiment_refuse_in_the_same_words(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    declared = {k.name: k for k in Softer.KEYS}[name]
    with pytest.raises(ConfigError) as experiment:
        declared.parse(value)
    with pytest.raises(ValueError, match=name) as constructor:
        Softer(groups=None, **wrong)
    assert f"key {constructor.value}" == str(experiment.value)


def test_a_bare_class_attribute_is_another_default() -> None:
    class Bare(Pulled):
        mu = 0.3
        wire = "numpy"

        def quorum_of(self) -> int:
            return self.quorum

    class Own(Bare):
        pass

    for strategy in (Bare(groups=None), Own(groups=None)):
        assert (strategy.mu, strategy.wire, strategy.quorum) == (0.3, "numpy", 1)
        assert strategy.told("train") == {"mu": 0.3}
    assert Bare.KEYS[1] == Key("mu", 0.3, "weight mu", minimum=0.0)
    assert Bare(groups=None, mu=0.1).mu == 0.1
    with pytest.raises(ConfigError, match=r"mu = -1"):

        class Wrong(Pulled):
            mu = -1.0

        Wrong(groups=None)


def test_a_subclass_may_say_some_of_a_key_anew() -> None:
    class Bound(Pulled):
        mu: float = key(default=0.2, maximum=1.0, needs=(Unless("mode", "b"),))

    assert Bound.KEYS[1] == Key(
        "mu", 0.2, "weight mu", minimum=0.0, maximum=1.0, needs=(Unless("mode", "b"),)
    )
    assert Bound(groups=None).told("train") == {"mu": 0.2}


def test_a_whole_number_will_do_for_a_float() -> None:
    assert type(Softer(groups=None, mu=1).mu) is float


def test_constructors_of_ones_own() -> None:
    class Own(Softer):
        def __init__(self, extra: int, **options: Any) -> None:
            super().__init__(groups=None, **options)
            self.extra = extra

    class Below(Own):
        plain: int = 3

    assert (Below(4, mu=0.2).mu, Below(4).mu, Below(4).extra) == (0.2, 0.1, 4)
    with pytest.raises(TypeError, match="Lost declares mu below a parent with a construct"):

        class Lost(Own):
            mu: float = 0.3


def test_settings_are_frozen_and_compare() -> None:
    class Work(Settings):
        """Work."""

        steps: int | Literal["auto"] = key(default="auto", help="steps", minimum=1)

    assert Work(steps=2) == Work(steps=2) != Work()
    assert Work.KEYS[0].type is int
    with pytest.raises(AttributeError):
        Work().steps = 3  # type: ignore[misc]


def test_the_docstring_is_a_numpydoc_page() -> None:
    text = inspect.getdoc(FedProx)
    assert text is not None
    own, others = text.split("Other Parameters\n----------------\n")
    assert "Parameters\n----------\nproximal_mu : a number >= 0, default 0.01\n" in own
    assert "server_learning_rate : a number > 0, default 1.0" in others
    assert "clients_per_round : a whole number >= 0, default 0" in others


class Hears:
    client_id = 3
    mu = Told(float)
    epochs = Told(int, otherwise=0)

    def __init__(self, **heard: Any) -> None:
        self.heard = heard


def test_clients_read_what_they_are_told() -> None:
    assert (Hears(mu=2).mu, Hears(epochs=3).epochs, Hears().epochs) == (2.0, 3, 0)
    for wrong in ({}, {"mu": "2"}, {"mu": True}):
        with pytest.raises(
            RecordError, match="client 3: the message has no number mu: use"
        ):
            Hears(**wrong).mu  # noqa: B018
    assert told_of(Hears) == {"mu": float, "epochs": int}


@pytest.mark.parametrize("method", METHODS)
def test_strategies_tell_what_their_clients_read(method: str) -> None:
    strategy = load_strategy(METHODS[method])
    keys = {key.name: key.type for key in strategy.KEYS}
    for name, kind in told_of(load_client(METHODS[method])).items():
        assert keys.get(name, kind) is kind, name
        assert name not in keys or name in strategy._TOLD, name


FORBIDDEN: dict[type, tuple[Any, ...]] = {
    float: (math.nan, math.inf, -math.inf, "nonsense"),
    int: (1.5, "nonsense"),
    bool: ("nonsense", 2),
    str: (3,),
}


PART = MagicMock()
"""Stands for what a run fills in: the keys are checked first."""


@pytest.mark.parametrize("method", METHODS)
def test_constructors_refuse_what_their_keys_forbid(method: str) -> None:
    strategy = load_strategy(METHODS[method])
    parts: dict[str, Any] = dict.fromkeys(strategy.PARTS, PART)
    for declared in strategy.KEYS:
        values = list(FORBIDDEN[declared.type])
        values += ["nonsense"] if declared.choices else []
        bounds = (declared.minimum, -1), (declared.above, 0), (declared.maximum, 1)
        values += [declared.type(b + step) for b, step in bounds if b is not None]
        for value in values:
            with pytest.raises(ConfigError):
                declared.parse(value)
            with pytest.raises(ValueError, match=f"^{declared.argument} = "):
                strategy(**{declared.argument: value}, **parts)


def test_a_mistyped_keyword_is_refused() -> None:
    with pytest.raises(TypeError, match="proxmal_mu"):
        FedProx(proxmal_mu=1)  # type: ignore[call-arg]
    assert "proximal_mu" in typing.get_type_hints(FedProx)
