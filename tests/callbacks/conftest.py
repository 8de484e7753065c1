"""A run's folder for callbacks that write."""

from pathlib import Path

import pytest

from fedsuite.results.writer import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", {"seed": 0}, {"method": "fedavg"})
