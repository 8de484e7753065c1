"""Each line of FedAKD's frontier is what its table gives."""

import importlib.util
from collections.abc import Iterator
from statistics import fmean
from types import ModuleType

import pytest

from tests.results_pages.recomputed import SIMULATIONS, absent, interval, row, spread

PAGE = (SIMULATIONS / "fedakd" / "README.md").read_text()


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "frontier", SIMULATIONS / "fedakd" / "frontier.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def difference(values: list[float]) -> str:
    low, high = interval(values)
    return f"{fmean(values):+.2f} [{low:+.2f}, {high:+.2f}]"


def lines(problem: str) -> Iterator[str]:
    frontier = script()
    found, means = frontier.read(problem), frontier.means(problem)
    behind = frontier.dominated(means)
    for arm in sorted(found, key=lambda arm: -means[arm][0]):
        points = found[arm].values()
        cells = [arm, spread([p[0] for p in points]), spread([p[1] for p in points], 1)]
        if arm == "standalone" or arm.startswith("fedavg"):
            cells += ["", ""]
        else:
            cells += [difference(v) for v in frontier.minus_baseline(problem, arm)]
        yield row(*cells, "no" if arm in behind else "yes")


@pytest.mark.parametrize("problem", ["specialties", "digits"])
def test_the_table_follows_from_its_csv(problem: str) -> None:
    assert absent(PAGE, lines(problem)) == []


def test_an_arm_is_dominated_by_more_of_both() -> None:
    points = {"a": (2.0, 2.0), "b": (1.0, 1.0), "c": (3.0, 0.0), "d": (2.0, 1.0)}
    assert script().dominated(points) == {"b"}
