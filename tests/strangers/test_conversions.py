"""Ten apps that strangers wrote and converted by the guides alone.

Each folder of ``converted`` has an app as it was, and the changes that put fedsuite's
FedAvg, and then another method, into it. ``conversions.csv`` has what came out, and
``docs/how-to/flower_apps.md`` shows it.
"""

import csv
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.strangers.apps import LORA

FOLDER = Path(__file__).parent / "converted"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "flower_apps.md"
BEFORE, FEDAVG, SECOND = "before", "fedavg", "second"
with (FOLDER / "conversions.csv").open(newline="") as file:
    CONVERSIONS: list[dict[str, str]] = [*csv.DictReader(file)]

Conversion = Mapping[str, str]


def changes(app: str, name: str) -> str:
    """Return lines removed and added."""
    lines = (FOLDER / app / f"{name}.patch").read_text().splitlines()
    counts = [
        sum(line.startswith(sign) and not line.startswith(3 * sign) for line in lines)
        for sign in ("-", "+")
    ]
    return "-{} +{}".format(*counts)


def converted(app: str, name: str, folder: Path) -> None:
    """Write an app as it was, or changed, into a new folder."""
    ignored = shutil.ignore_patterns("*.patch", "__pycache__")
    shutil.copytree(FOLDER / app, folder, ignore=ignored)
    if name != BEFORE:
        patch = FOLDER / app / f"{name}.patch"
        subprocess.run(["git", "apply", patch], cwd=folder, check=True)


def last(metric: str, printed: str) -> float:
    """Return a metric of the last round, from Flower's tables or what an app prints."""
    number = r"([\d.]+(?:e[+-]\d+)?)"
    of_legacy = rf"\(\d+, {number}\)\]}}"
    matches = re.findall(rf"(?<!\w){metric}'?:? '?{number}|{of_legacy}", printed)
    return float(max(matches[-1]))


def test_the_page_has_the_table() -> None:
    for row in CONVERSIONS:
        first = f"{changes(row['app'], FEDAVG)} | {row['before'] or '–'} | {row['fedavg']}"
        second = f"{row['second_method']}, {changes(row['app'], SECOND)} | {row['second']}"
        what = f"{row['style']} | {row['metric']}"
        line = f"| {what} | {first} | {second} | {row['stopped_by']} |"
        assert line in PAGE.read_text(), line


@pytest.mark.parametrize("row", CONVERSIONS, ids=lambda row: row["app"])
def test_the_changes_fit(row: Conversion, tmp_path: Path) -> None:
    for name in (BEFORE, FEDAVG, SECOND):
        converted(row["app"], name, tmp_path / name)
        sources = [path.read_text() for path in (tmp_path / name).rglob("*.py")]
        assert any("fedsuite" in text for text in sources) == (name != BEFORE)


@pytest.mark.slow
@pytest.mark.parametrize("name", [BEFORE, FEDAVG, SECOND])
@pytest.mark.parametrize("row", CONVERSIONS, ids=lambda row: row["app"])
def test_an_app_has_the_numbers_of_the_table(
    row: Conversion, name: str, tmp_path: Path
) -> None:
    if row["app"] == "hf-tiny":
        LORA.skip_unless_installed()
    if not row[name]:
        pytest.skip("Flower no longer starts it as it was")
    converted(row["app"], name, tmp_path / "app")
    nodes = ["--num-supernodes", "4"] if row["app"] == "legacy-scripts" else []
    command = [sys.executable, "-m", "fedsuite", "simulate", ".", "--seed", "0", *nodes]
    done = subprocess.run(
        command,
        cwd=tmp_path / "app",
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    assert last(row["metric"], done.stdout) == pytest.approx(float(row[name]), rel=2e-2)
