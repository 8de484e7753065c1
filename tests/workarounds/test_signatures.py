"""What fedsuite overrides can be called as Flower's own, of this release and of 1.43."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from flwr.app import Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

import fedsuite.engines.apps.grid
import fedsuite.engines.local
import fedsuite.running.collusion
import fedsuite.strategies
import fedsuite.workarounds.packed_grid  # noqa: F401
from fedsuite.rounds.strategy import FederatedStrategy

Parameter = inspect.Parameter


class Later:
    """What Flower 1.43 has, in the words of its signatures."""

    def pull_messages(
        self,
        reply_to_message_ids: Iterable[str] | None = None,
        *,
        message_ids: Iterable[str] | None = None,
    ) -> Iterable[Message]:
        """Of a Grid."""
        raise NotImplementedError

    def start(
        self,
        grid: Grid,
        initial_arrays: Any,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: Any = None,
        evaluate_config: Any = None,
        evaluate_fn: Any = None,
        should_stop: Any = None,
    ) -> Any:
        """Of a Strategy."""
        raise NotImplementedError


def subclasses(base: type) -> Iterator[type]:
    for kind in base.__subclasses__():
        if kind.__module__.startswith("fedsuite."):
            yield kind
        yield from subclasses(kind)


def refused(ours: Callable[..., Any], theirs: Callable[..., Any]) -> list[str]:
    """Return the parameters with which theirs can be called and ours cannot."""
    own = list(inspect.signature(ours).parameters.values())
    kinds = {parameter.kind for parameter in own}
    by_name = {p.name for p in own if p.kind is not Parameter.POSITIONAL_ONLY}
    at_place = [p.name for p in own if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    missing = []
    parameters = inspect.signature(theirs).parameters.values()
    for place, parameter in enumerate(parameters):
        named = parameter.name in by_name or Parameter.VAR_KEYWORD in kinds
        placed = (
            parameter.kind is Parameter.KEYWORD_ONLY
            or at_place[place : place + 1] == [parameter.name]
            or (place >= len(at_place) and Parameter.VAR_POSITIONAL in kinds)
        )
        if not (named and placed):
            missing.append(parameter.name)
    known = {parameter.name for parameter in parameters}
    needed = [p for p in own if p.default is Parameter.empty and p.name not in known]
    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return missing + [p.name for p in needed if p.kind not in variable]


OVERRIDES = [
    pytest.param(getattr(kind, name), theirs, id=f"{kind.__name__}.{name}")
    for base in (Grid, Strategy)
    for kind in dict.fromkeys(subclasses(base))
    for name in vars(kind)
    for theirs in (vars(base).get(name), vars(Later).get(name))
    if not name.startswith("_") and inspect.isfunction(theirs)
]


@pytest.mark.parametrize(("ours", "theirs"), OVERRIDES)
def test_an_override_takes_all_that_flowers_takes(
    ours: Callable[..., Any], theirs: Callable[..., Any]
) -> None:
    # Flower 1.43 gives the first argument another name, and takes the old one by name.
    known = {"message_ids"} if theirs is vars(Grid)["pull_messages"] else set()
    assert set(refused(ours, theirs)) <= known


def test_what_would_be_found() -> None:
    def theirs(self: Any, a: int, b: int = 1, *, c: int = 2) -> None: ...

    def other_name(self: Any, a: int, d: int = 1, *, c: int = 2) -> None: ...

    def needs_more(self: Any, a: int, b: int, e: int, *, c: int) -> None: ...

    def takes_all(*everything: Any, **named: Any) -> None: ...

    assert refused(theirs, theirs) == refused(takes_all, theirs) == []
    assert refused(other_name, theirs) == ["b"]
    assert refused(needs_more, theirs) == ["e"]


def test_start_and_the_grids_are_among_them() -> None:
    found = {str(case.id) for case in OVERRIDES}
    assert f"{FederatedStrategy.__name__}.start" in found
    assert {"PackedGrid.pull_messages", "GridHere.pull_messages"} <= found
