"""The whole audit, by its command."""

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from fedsuite.core.errors import ConfigError
from fedsuite.engines.trained.membership import RowScores
from fedsuite.sweeps.privacy import MODEL, REPLY, audit_privacy, membership
from tests.small_runs import SMALL


def written(folder: Path, keys: Mapping[str, object]) -> Path:
    file = folder / "e.toml"
    file.write_text(tomli_w.dumps({**SMALL, **keys}))
    return file


def rows_of(folder: Path) -> dict[tuple[str, str], dict[str, str]]:
    with (folder / "privacy.csv").open(newline="") as file:
        return {(row["by"], row["what"]): row for row in csv.DictReader(file)}


def test_scores_of_runs_meet_by_their_rows() -> None:
    stream = np.random.default_rng(0)
    runs = []
    for seed in range(5):
        rows = np.random.default_rng(seed).permutation(200)
        members = rows[:100]
        scores = stream.normal(size=200) + 4.0 * np.isin(rows, members)
        missing = np.full(200, np.nan)
        runs.append(RowScores(rows, np.isin(rows, members), scores, missing))
    attacks = membership(runs)
    assert {model for model, _ in attacks} == {MODEL}
    assert all(attack.area.value > 0.95 for attack in attacks.values())


@pytest.mark.parametrize(
    ("canaries", "shadows", "keys", "reason"),
    [
        (0, 0, {}, "nothing is left to audit"),
        (5, 0, {}, "nothing is left to audit. Canaries are left out: without noise at the"),
        (1, 8, {"dp-noise-multiplier": 1.0}, "--canaries 1, --shadows 8: expected 2"),
        (0, 3, {}, "--canaries 0, --shadows 3: expected 2 canaries and 4 shadows"),
        (
            5,
            8,
            {"method": "standalone", "clients-per-round": 0},
            "ends without one model for all",
        ),
    ],
)
def test_what_is_refused_before_anything_starts(
    canaries: int, shadows: int, keys: dict[str, object], reason: str, tmp_path: Path
) -> None:
    file = written(tmp_path, keys)
    with pytest.raises(ConfigError, match=reason) as caught:
        audit_privacy(
            file,
            {},
            tmp_path / "out",
            canaries=canaries,
            shadows=shadows,
            workers=1,
            overwrite=False,
        )
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_audit_and_its_second_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = {"dp-noise-multiplier": 1.0, "clients-per-round": 0}
    file = written(tmp_path, noise)

    def audit(*, overwrite: bool) -> str:
        audit_privacy(
            file,
            {},
            tmp_path / "out",
            canaries=8,
            shadows=4,
            workers=1,
            overwrite=overwrite,
        )
        return capsys.readouterr().out

    first = audit(overwrite=False)
    assert "4 runs: 4 to start" in first
    assert "Canaries show an epsilon of" in first
    files = first.rpartition("table and page: ")[2].split()
    assert [word.rpartition("out/")[1:] for word in files] == [
        ("out/", "privacy.csv,"),
        ("out/", "privacy.html"),
    ]
    rows = rows_of(tmp_path / "out")
    assert rows["canaries, final model", "epsilon at delta 1e-05"]["beside"][:5] == "4.377"
    assert {by for by, what in rows if what == "AUC"} == {
        f"{model}, {how}" for model in (MODEL, REPLY) for how in ("loss threshold", "LiRA")
    }
    page = (tmp_path / "out" / "privacy.html").read_text()
    for words in (
        "Cosines of directions: final model",
        "Rows that were trained on are told",
    ):
        assert words in page
    again = audit(overwrite=True)
    assert "4 runs: 4 finished before" in again
    after = rows_of(tmp_path / "out")
    members = [key for key in rows if not key[0].startswith(("canaries", "directions"))]
    assert {key: rows[key] for key in members} == {key: after[key] for key in members}
