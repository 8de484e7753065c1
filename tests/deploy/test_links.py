"""Faults of the line to a node: cut, hung, lossy; and a node that hangs itself."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedsuite.deploy.rehearsal import LocalFederation
from fedsuite.engines.processes import World
from fedsuite.results.reader import Run, load_run
from tests.deploy.accidents import descendants, final_bits, undisturbed, values, when
from tests.deploy.link import Link, linked

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("FEDSUITE_FAULTS") != "all", reason="minutes: `make faults` runs it"
    ),
]


@contextlib.contextmanager
def with_link(folder: Path, mean_bytes: int = 0) -> Iterator[tuple[LocalFederation, Link]]:
    """Yield a federation that stands, and the line to its second node."""
    with World("fedsuite") as world:
        federation = LocalFederation(world, folder / "federation", 2)
        node = federation.nodes[1]
        with linked(node.superlink, mean_bytes) as link:
            federation.nodes[1] = replace(node, superlink=link.address)
            federation.start()
            yield federation, link


def rejected(run: Run) -> list[tuple[int, int | str]]:
    return [
        (e["round"], e["client"]) for e in run.events() if e["kind"] == "rejected-reply"
    ]


def spell(begin: Callable[[], None], seconds: float, end: Callable[[], None]) -> None:
    """Let something be so for a while, from some time into a round on."""
    time.sleep(1.5)
    begin()
    time.sleep(seconds)
    end()


@pytest.mark.parametrize("how", ["cut", "hang"])
def test_a_line_that_is_gone_for_seconds_costs_nothing(how: str, tmp_path: Path) -> None:
    expected = undisturbed(tmp_path)
    with with_link(tmp_path) as (federation, link):
        begin = link.cut if how == "cut" else link.hang
        lines: list[str] = []
        config = values(tmp_path, round_timeout=120.0)
        federation.run(
            config,
            when(lines, "round 2 of 4", lambda: spell(begin, 12.0, link.heal)),
        )
    run = load_run(tmp_path / "runs" / "run")
    assert run.manifest["status"] == "finished"
    assert how == "hang" or link.broken > 0
    assert rejected(run) == []
    assert final_bits(run) == final_bits(expected)


def test_a_line_that_breaks_again_and_again(tmp_path: Path) -> None:
    """Whatever is lost is lost to the round, and the run ends as planned.

    The app alone, which a node fetches in one piece, has about a megabyte.
    """
    expected = undisturbed(tmp_path)
    with with_link(tmp_path, mean_bytes=1_500_000) as (federation, link):
        federation.run(values(tmp_path, round_timeout=60.0), lambda line: None)
    run = load_run(tmp_path / "runs" / "run")
    assert run.manifest["status"] == "finished"
    assert link.broken > 0
    assert (final_bits(run) == final_bits(expected)) == (rejected(run) == [])


def test_a_line_that_is_gone_for_long_costs_its_rounds_alone(tmp_path: Path) -> None:
    with with_link(tmp_path) as (federation, link):
        lines: list[str] = []
        config = values(tmp_path, num_rounds=8, round_timeout=20.0)
        federation.run(
            config,
            when(lines, "round 2 of 8", lambda: spell(link.cut, 50.0, link.heal)),
        )
    check_that_it_came_back(load_run(tmp_path / "runs" / "run"), tmp_path)


def test_a_node_that_hangs_meets_the_deadline(tmp_path: Path) -> None:
    with with_link(tmp_path) as (federation, _):
        lines: list[str] = []

        def signal_all(number: signal.Signals) -> None:
            for program in federation.running["node-1"]:
                for pid in (*descendants(program.process.pid), program.process.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)

        def accident() -> None:
            spell(
                lambda: signal_all(signal.SIGSTOP),
                30.0,
                lambda: signal_all(signal.SIGCONT),
            )

        config = values(tmp_path, num_rounds=8, round_timeout=20.0)
        federation.run(config, when(lines, "round 2 of 8", accident))
    check_that_it_came_back(load_run(tmp_path / "runs" / "run"), tmp_path)


def check_that_it_came_back(run: Run, folder: Path) -> None:
    """Check that only the second node's clients missed rounds, and not the last one."""
    assert run.manifest["status"] == "finished"
    lost = rejected(run)
    assert lost, "nothing was lost: the accident came at no bad time"
    assert {client for _, client in lost} <= {1, 3, None}
    assert max(server_round for server_round, _ in lost) < 8
    last = {r["client"] for r in run.clients() if r["round"] == 8 and r["phase"] == "train"}
    assert last == {0, 1, 2, 3}
    states = folder / "federation" / "nodes" / "node-1" / "state" / "run"
    assert {p.name for p in states.iterdir()} == {"1", "3"}
