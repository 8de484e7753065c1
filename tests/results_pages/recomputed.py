"""How the results pages print numbers, and which printed lines are not in a page."""

import importlib.util
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from types import ModuleType

from scipy import stats

SIMULATIONS = Path(__file__).parents[2] / "simulations"


def figure_script(name: str) -> ModuleType:
    """Return simulations/NAME/figure.py as a module."""
    path = SIMULATIONS / name / "figure.py"
    spec = importlib.util.spec_from_file_location(f"figure_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return mean and sample standard deviation, such as ``85.12 ± 0.78``."""
    return f"{fmean(values):.{digits}f} ± {stdev(values):.{digits}f}"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % t interval of the mean."""
    half = stats.t.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5
    return fmean(values) - half, fmean(values) + half


def difference(values: Sequence[float], digits: int = 2) -> str:
    """Return mean, 95 % t interval and seeds: ``+2.0 [-0.5, +4.5] (1.0, 2.0, 3.0)``."""
    low, high = interval(values)
    seeds = ", ".join(f"{value:.{digits}f}" for value in values)
    return f"{fmean(values):+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}] ({seeds})"


def verdict(values: Sequence[float], placebo: Sequence[float]) -> str:
    """Say whether a difference is seen, by the pages' rule.

    Its 95 % t interval over at least five seeds must exclude 0 and the placebo's spread,
    the largest absolute value of as many differences. With less nothing is shown.
    """
    if len(values) < 5 or len(placebo) < 5:
        return "not shown"
    low, high = interval(values)
    limit = max(map(abs, placebo))
    return "seen" if low > limit or high < -limit else "not seen"


def row(*cells: str) -> str:
    """Return a line of a Markdown table."""
    return "| " + "".join(f"{cell} | " if cell else "| " for cell in cells).rstrip()


def absent(page: str, expected: Iterable[str]) -> list[str]:
    """Return what a page does not say, wherever its lines break."""
    text = re.sub(r"\s+", " ", page)
    return [line for line in expected if re.sub(r"\s+", " ", line) not in text]
