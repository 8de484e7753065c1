"""Flower's pool of actors without its dead."""

from typing import Any

import pytest

from fedsuite.core.errors import RunError
from fedsuite.workarounds.lost_actors import (
    TRIES,
    add_back_unless_dead,
    process_again,
    submit_when_free,
)


class DiedError(Exception):
    """Stands for Ray's error."""


class Pool:
    """What the functions know of Flower's pool."""

    def __init__(self) -> None:
        self.pool: list[str] = []
        self.num_actors = 1
        self._future_to_actor = {"future": "actor"}

    def add(self, future: str) -> None:
        self.pool.append(self._future_to_actor.pop(future))


def test_dead_actor_does_not_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    pool: Any = Pool()
    add_back = add_back_unless_dead(Pool.add, DiedError)
    try:
        raise DiedError
    except DiedError:
        add_back(pool, "future")
    assert (pool.pool, pool.num_actors, pool._future_to_actor) == ([], 0, {})
    assert "a Ray actor died" in capsys.readouterr().out


@pytest.mark.parametrize("error", [None, ValueError])
def test_living_actor_comes_back(error: type[Exception] | None) -> None:
    pool: Any = Pool()
    try:
        if error:
            raise error
        add_back_unless_dead(Pool.add, DiedError)(pool, "future")
    except ValueError:
        add_back_unless_dead(Pool.add, DiedError)(pool, "future")
    assert (pool.pool, pool.num_actors) == (["actor"], 1)


def test_submit_waits_for_an_actor_and_not_for_none() -> None:
    pool, calls = Pool(), []

    def submit(pool: Any, actor_fn: Any, job: Any) -> str:
        calls.append(job)
        return [].pop() if len(calls) < 3 else "future"

    assert submit_when_free(submit, DiedError)(pool, None, "job") == "future"
    assert len(calls) == 3
    pool.num_actors = 0
    with pytest.raises(RunError, match="all of Ray's actors have died"):
        submit_when_free(submit, DiedError)(pool, None, "job")


def test_message_goes_to_another_actor_but_not_for_ever() -> None:
    tries = []

    def process(_backend: Any, message: int, _context: Any) -> str:
        tries.append(message)
        if len(tries) <= message:
            raise DiedError
        return "reply"

    assert process_again(process, DiedError)(None, TRIES - 1, None) == "reply"
    tries.clear()
    with pytest.raises(DiedError):
        process_again(process, DiedError)(None, TRIES, None)
    assert len(tries) == TRIES
