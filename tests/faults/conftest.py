"""Counts the faults, and says at the end how many were tried and survived."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.runs import EXPERIMENTS, Outcome, outcome, start

_PROPERTY = "faults-survived"


@pytest.fixture
def survived(record_property: Callable[[str, object], None]) -> Callable[[], None]:
    """Note that one more fault was survived, with nothing lost."""
    return lambda: record_property(_PROPERTY, 1)


@pytest.fixture(scope="session")
def whole_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """What each undisturbed run leaves; made in this process, so that forks are warm."""
    output = tmp_path_factory.mktemp("whole")
    for name in EXPERIMENTS:
        start(name, output, name)
    return {name: outcome(output / name) for name in EXPERIMENTS}


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write the figures."""
    reports = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        if Path(report.fspath).parent.name == "faults"
    ]
    counted = sum(key == _PROPERTY for r in reports for key, _ in r.user_properties)
    if counted:
        failed = sum(report.failed for report in reports)
        terminalreporter.write_line(
            f"faults: {counted} survived with nothing lost, {failed} tests failed"
        )
