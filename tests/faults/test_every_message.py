"""The process dies at its N-th message, for every N, and the run is taken up again."""

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest
from flwr.app import Message

import fedsuite.engines.local
from fedsuite.engines.local import LocalGrid
from tests.faults.runs import (
    EXPERIMENTS,
    KILLED,
    Outcome,
    assert_same,
    go_on,
    in_child,
    sample,
    start,
)

MESSAGES = {
    # 3 hellos; then a round: probes, training, evaluation
    "fedeba-plus": 3 + 3 * (3 + 3 + 3),
    # local phase, two transfers, evaluation
    "fedal": 3 + 3 * (3 + 2 * 3 + 3),
    "fedakd": 3 + 3 * (2 + 3),
    "fedala": 3 + 3 * (2 + 3),
    "fedbabu": 3 + 3 * (2 + 3),
    "fedem": 3 + 3 * (2 + 3),
    "fml": 3 + 3 * (2 + 3),
    "ifca": 3 + 3 * (2 + 3),
    "personal-atoms": 3 + 3 * (3 + 3),
    "scaffold": 3 + 3 * (2 + 3),
    # two replies close a round, and two clients take the free places
    "fedbuff": 3 + (3 + 3) + 2 * (2 + 3),
    "lp-proj": 3 + 3 * (3 + 3),
    "pfedck": 3 + 3 * (2 + 3),
}


def killing_grid(number: int, answered: bool) -> type[LocalGrid]:
    """Return a grid whose process dies at a message.

    Parameters
    ----------
    number
        Which message, from 1.
    answered
        Whether the client has answered it when the process dies.
    """

    class KillingGrid(LocalGrid):
        count = 0

        def send_and_receive(
            self, messages: Iterable[Message], *, timeout: float | None = None
        ) -> Iterator[Message]:
            for message in list(messages):
                self.count += 1
                if self.count == number and not answered:
                    os._exit(KILLED)
                [reply] = super().send_and_receive([message], timeout=timeout)
                if self.count == number:
                    os._exit(KILLED)
                yield reply

    return KillingGrid


def use_grid(
    patch: pytest.MonkeyPatch, grid: type[LocalGrid], clients_per_message: int = 1
) -> None:
    """Run in a grid; each client has a message of its own, unless told else."""
    patch.setattr(fedsuite.engines.local, "LocalGrid", grid)
    patch.setattr(fedsuite.engines.local, "CLIENTS_PER_MESSAGE", clients_per_message)


@pytest.mark.parametrize("answered", [False, True], ids=["unanswered", "answered"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_killed_at_a_message_and_resumed_equals_uninterrupted(
    name: str,
    answered: bool,
    whole_runs: dict[str, Outcome],
    survived: Callable[[], None],
    tmp_path: Path,
) -> None:
    for number in sample(name, MESSAGES[name]):
        fault = f"{name}-{number}"
        with pytest.MonkeyPatch.context() as patch:
            use_grid(patch, killing_grid(number, answered))
            assert in_child(partial(start, name, tmp_path, fault)) == KILLED, fault
        assert in_child(partial(go_on, name, tmp_path / fault)) == 0, fault
        assert_same(tmp_path / fault, whole_runs[name], fault)
        survived()


@pytest.mark.parametrize("answered", [False, True], ids=["unanswered", "answered"])
def test_killed_at_a_message_to_several_clients(
    answered: bool,
    whole_runs: dict[str, Outcome],
    survived: Callable[[], None],
    tmp_path: Path,
) -> None:
    """Three hellos, then one message each for training and evaluation: 5 is in round 1."""
    for number in (5, 6):
        fault = f"scaffold-{number}"
        with pytest.MonkeyPatch.context() as patch:
            use_grid(patch, killing_grid(number, answered), clients_per_message=32)
            assert in_child(partial(start, "scaffold", tmp_path, fault)) == KILLED, fault
        assert in_child(partial(go_on, "scaffold", tmp_path / fault)) == 0, fault
        assert_same(tmp_path / fault, whole_runs["scaffold"], fault)
        survived()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_there_are_no_more_messages_than_are_killed_at(
    name: str, whole_runs: dict[str, Outcome], tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        use_grid(patch, killing_grid(MESSAGES[name] + 1, answered=False))
        assert in_child(lambda: start(name, tmp_path, "run")) == 0
    assert_same(tmp_path / "run", whole_runs[name], "no fault")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_process_that_dies_in_every_round(
    name: str,
    whole_runs: dict[str, Outcome],
    survived: Callable[[], None],
    tmp_path: Path,
) -> None:
    """Each process manages one round, and dies in the middle of the next."""
    deaths = 0
    with pytest.MonkeyPatch.context() as patch:
        use_grid(patch, killing_grid((MESSAGES[name] - 3) // 3 + 5, answered=True))
        code = in_child(lambda: start(name, tmp_path, "run"))
        while code == KILLED:
            deaths += 1
            survived()
            code = in_child(lambda: go_on(name, tmp_path / "run"))
    assert (code, deaths) == (0, 2)
    assert_same(tmp_path / "run", whole_runs[name], "dying in every round")
