"""The strangers' apps, unchanged, by ``fedsuite simulate`` and by ``flwr run``."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsuite.engines.processes import World
from tests.strangers.apps import (
    LEGACY,
    MODS,
    PRIVATE,
    SIMULATED,
    TOLERANCES,
    TWO_PHASES,
    UNRELIABLE,
    Flowers,
    StrangerApp,
    difference,
    simulated,
    summary,
)

ROOT = Path(__file__).parents[2]
BY_FLOWER = json.loads((Path(__file__).parent / "by_flower.json").read_text())
"""What each app left behind under ``flwr run``; ``benchmarks/strangers.py`` writes it."""

SEEDED = tuple(app for app in SIMULATED if app.seeds)


def named(app: StrangerApp) -> str:
    return app.name


@pytest.mark.parametrize("app", SEEDED, ids=named)
def test_an_unchanged_app_leaves_what_it_left_under_flwr_run(
    app: StrangerApp, tmp_path: Path
) -> None:
    """But for the rounding of another machine; a slow test compares the bits."""
    app.skip_unless_installed()
    left = simulated(app, tmp_path / "here")
    assert difference(summary(left), BY_FLOWER[app.name]) < 0.01


def test_nested_config_is_overridden_and_each_wrapper_of_privacy_trains(
    tmp_path: Path,
) -> None:
    """Clipping is the same at either end, and so is the noise, which the server draws."""
    none, server, client, adaptive, local = (
        simulated(PRIVATE, tmp_path / side, run_config={"privacy": {"side": side}})
        for side in ("none", "server", "client", "adaptive", "local")
    )
    assert difference(server, client) == 0
    norms = {
        float(np.linalg.norm(left["final_model.npz"]["weight"]))
        for left in (none, server, adaptive, local)
    }
    assert len(norms) == 4
    assert all(1 < norm < 20 for norm in norms)


def final_bits(left: dict[str, Any]) -> list[bytes]:
    return [array.tobytes() for array in left["final_model.pt"].values()]


def test_a_seed_gives_an_app_that_seeds_nothing_the_same_bits(tmp_path: Path) -> None:
    first, second, third, other = (
        final_bits(simulated(UNRELIABLE, tmp_path / str(number), seed=seed))
        for number, seed in enumerate((1, 1, 1, 2))
    )
    assert first == second == third != other


@pytest.mark.slow
@pytest.mark.parametrize(
    "app",
    [
        pytest.param(app, marks=[pytest.mark.smoke] if app in (PRIVATE, TWO_PHASES) else [])
        for app in SIMULATED
    ],
    ids=named,
)
def test_two_workers_change_nothing(app: StrangerApp, tmp_path: Path) -> None:
    """Without a seed, unless the app draws without one."""
    app.skip_unless_installed()
    seed = None if app.seeds else 1
    one = simulated(app, tmp_path / "one", seed=seed)
    two = simulated(app, tmp_path / "two", seed=seed, workers=2)
    assert difference(one, two) <= TOLERANCES.get(app.name, 0)


@pytest.fixture(scope="module")
def flowers() -> Iterator[Flowers]:
    """Give Flower's own simulation."""
    with World("") as world:
        yield Flowers(world)


SAMPLE = (MODS, PRIVATE, LEGACY)


@pytest.mark.parametrize(
    "app",
    [
        pytest.param(app, marks=pytest.mark.slow if app in SAMPLE else pytest.mark.nightly)
        for app in SEEDED
    ],
    ids=named,
)
def test_an_unchanged_app_has_the_bits_of_flwr_run(
    app: StrangerApp, flowers: Flowers, tmp_path: Path
) -> None:
    app.skip_unless_installed()
    theirs = flowers.left_by(app)
    assert theirs
    ours = simulated(app, tmp_path / "here")
    assert difference(ours, theirs) <= TOLERANCES.get(app.name, 0)


def test_differences_are_seen() -> None:
    """In a number, a name, a shape, a type, a word."""
    left = {"model.npz": {"w": np.array([1.0, 2.0])}, "log.txt": "done"}
    assert difference(left, left) == 0
    for other in (
        {"model.npz": {"w": np.array([1.0, 2.5])}, "log.txt": "done"},
        {"model.npz": {"v": np.array([1.0, 2.0])}, "log.txt": "done"},
        {"model.npz": {"w": np.array([1.0])}, "log.txt": "done"},
        {"model.npz": {"w": np.array([1, 2])}, "log.txt": "done"},
        {"model.npz": {"w": np.array([1.0, 2.0])}, "log.txt": "failed"},
        {"model.npz": {"w": np.array([1.0, 2.0])}},
    ):
        assert difference(left, other) > 0.1
        assert difference(other, left) > 0.1


def test_the_page_has_the_table_of_the_runs() -> None:
    """And each app that seeds its draws was within its tolerance, unchanged."""
    text = (ROOT / "benchmarks" / "results" / "strangers.csv").read_text()
    page = (ROOT / "docs" / "how-to" / "simulate.md").read_text()
    rows = {row["app"]: row for row in csv.DictReader(text.splitlines())}
    assert set(rows) == {app.name for app in SIMULATED}
    for app in SIMULATED:
        row = rows[app.name]
        assert f"| {' | '.join(row.values())} |" in page
        assert row["lines changed"] == "0"
        if app.seeds:
            assert float(row["largest difference"]) <= TOLERANCES.get(app.name, 0)
