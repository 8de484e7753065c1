"""Runs with mini-batches of one row, and with clients that have no more."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedsuite
from fedsuite.core.errors import RunError
from fedsuite.results.reader import load_run
from tests.data.site_files import write


class Normed(nn.Module):
    """A network that cannot train on one row."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.body = nn.Linear(torch.Size(input_shape).numel(), 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.norm(self.body(inputs.flatten(1)))
        outputs: torch.Tensor = self.head(torch.relu(hidden))
        return outputs


class Convolutional(nn.Module):
    """A network that cannot train on one row, and can be decomposed."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.body = nn.Conv2d(input_shape[0], 4, 8)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, num_classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.norm(self.body(inputs)).flatten(1)
        outputs: torch.Tensor = self.head(torch.relu(hidden))
        return outputs


NORMED = f"{__name__}:Normed"
PERSONAL_ATOMS = {
    "model": f"{__name__}:Convolutional",
    "decomposition": True,
    "personal-atoms": True,
    "refresh-epochs": 1,
}
NEEDS_PUBLIC = {"public-size": 33, "public-batch-size": 8}

SMALL: dict[str, Any] = {
    "model": NORMED,
    "num-clients": 10,
    "num-rounds": 2,
    # Clients of 143 and of 144 rows.
    "batch-size": 143,
    "local-epochs": 1,
    "report": False,
}


def run(folder: Path, **changes: Any) -> Any:
    keys = {name.replace("_", "-"): value for name, value in changes.items()}
    return fedsuite.run(SMALL | {"output-dir": str(folder), "run-name": "run"} | keys)


def lost(folder: Path) -> list[str]:
    events = load_run(folder / "run").events()
    return [event["reason"] for event in events if event["kind"] == "rejected-reply"]


@pytest.mark.parametrize(
    ("method", "keys"),
    [
        ("fedavg", {}),
        ("fedavg", {"loss": "focal", "momentum": 0.5}),
        ("fedprox", {}),
        ("fednova", {"local_epochs": 2}),
        ("scaffold", {}),
        ("per-fedavg", {}),
        ("pfedme", {}),
        ("fedem", {}),
        ("fedmpr", {}),
        ("apfl", {}),
        ("fedala", {"ala_rows": 0.01}),
        ("fedas", {}),
        ("fedakd", {}),
        ("fedproto", {}),
        ("fedmd-lf", NEEDS_PUBLIC),
        ("fedavg-ft", {}),
        ("focus", {}),
        ("fedavg", PERSONAL_ATOMS),
    ],
)
def test_a_last_row_alone_loses_no_reply(
    method: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    run(tmp_path, method=method, num_rounds=1, **keys)
    assert lost(tmp_path) == []


def test_a_network_that_trains_on_one_row_keeps_its_steps(tmp_path: Path) -> None:
    run(tmp_path, model="linear", num_rounds=1)
    steps = [
        row["num_steps"]
        for row in load_run(tmp_path / "run").clients()
        if row["phase"] == "train"
    ]
    assert sorted(steps) == [1] * 2 + [2] * 8


def test_mini_batches_of_one_row_end_the_run(tmp_path: Path) -> None:
    words = "no round trained.*batch-size = 1: the network cannot train"
    with pytest.raises(RunError, match=words):
        run(tmp_path, batch_size=1)


def test_a_batch_size_of_1_is_right_for_other_networks(tmp_path: Path) -> None:
    run(tmp_path, model="linear", batch_size=1, local_steps=2, num_rounds=1)
    assert lost(tmp_path) == []


def one_row_each(folder: Path, rows: dict[str, int]) -> dict[str, Any]:
    for name, count in rows.items():
        columns = {"a": [float(k) for k in range(count)], "label": [0, 1, 0, 1, 0][:count]}
        write(folder / "sites" / name / "train-0.parquet", columns)
        write(folder / "sites" / name / "test-0.parquet", columns)
    return {
        "dataset": "own-table",
        "sites": ", ".join(rows),
        "batch_size": 2,
        "site_dirs": str(folder / "sites"),
        "num_rounds": 1,
    }


def test_a_site_with_one_row_is_told_so_and_takes_no_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = one_row_each(tmp_path, {"one": 1, "two": 3})
    keys.pop("num_clients", None)
    with caplog.at_level(logging.WARNING):
        run(tmp_path, **keys)
    told = [r.getMessage() for r in caplog.records if "it takes no step" in r.getMessage()]
    assert len(told) == 1 and told[0].startswith("client 0 has one training row")
    assert lost(tmp_path) == []
    steps = {
        row["client"]: row["num_steps"]
        for row in load_run(tmp_path / "run").clients()
        if row["phase"] == "train"
    }
    assert steps == {"one": 0, "two": 1}


def few_rows(data_dir: Path | None, test_fraction: float) -> Any:
    from fedsuite.data import Split
    from fedsuite.data.site import SiteData

    features = torch.rand(7, 3)
    part = Split(features, torch.arange(7) % 2)
    return SiteData(part, part)


def test_clients_with_one_row_say_so_and_take_no_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    few = {"dataset": f"{__name__}:few_rows", "batch_size": 2, "num_rounds": 1}
    with caplog.at_level(logging.WARNING):
        run(tmp_path, num_clients=6, **few)
    told = [r.getMessage() for r in caplog.records if "it takes no step" in r.getMessage()]
    assert [words.split()[1] for words in told] == ["1", "2", "3", "4", "5"]
    assert lost(tmp_path) == []
