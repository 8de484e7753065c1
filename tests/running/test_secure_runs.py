"""Experiments whose server sees sums alone."""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.engines.local import run_local
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.array_records import to_arrays
from fedsuite.messages.records import EVALUATE, HELD, Arrays, Reply, Request
from fedsuite.messages.secure_sums import Part, Terms, decoded, words_of
from fedsuite.rounds.secure_rules import SECURE_VARIABLE
from fedsuite.running.node import node_experiment
from fedsuite.training.secure_client import SecureClient
from tests.effects.cases import FACTORED
from tests.small_runs import SMALL

BASE: Mapping[str, Any] = {**SMALL, "clients-per-round": 0, "num-rounds": 2}
OF_SUMS: Mapping[str, Any] = {"secure-aggregation": "masked", "num-clients": 4}

MOON: Mapping[str, Any] = {"method": "moon", "model": "mlp", "hidden-width": 8}


def trained(folder: Path, values: Mapping[str, Any]) -> Arrays:
    experiment = Experiment.from_values({**BASE, **values})
    return to_arrays(run_local(experiment, folder).result.arrays)


def rounds(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def same(one: Arrays, other: Arrays) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in other)


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedper"])
def test_a_run_is_that_of_plain_averages_but_for_rounding(
    method: str, tmp_path: Path
) -> None:
    wide = {"clipping-range": 4.0, "most-examples": 2000}
    around: dict[str, Any] = {"method": method, "num-clients": 4}
    plain = trained(tmp_path / "plain", around)
    masked = trained(tmp_path / "masked", {**OF_SUMS, **around, **wide})
    bare = {"secure-aggregation": "unmasked", "workers": 2}
    assert same(trained(tmp_path / "bare", {**around, **wide, **bare}), masked)
    assert max(float(np.abs(plain[n] - masked[n]).max()) for n in plain) < 1e-4
    row = rounds(tmp_path / "masked")[0]
    assert row["summed_clients"] == 4
    assert row["scaled_clients"] == 0
    assert "effective_clients" not in row
    assert not any("train_loss" in name for name in row)


OF_SUMMED: Mapping[str, Mapping[str, Any]] = {
    "scaffold": {"server-learning-rate": 0.5},
    "fednova": {"local-epochs": 2, "batch-size": 16, "max-share-ratio": "off"},
    "feddyn": {},
    "feddc": {},
    "fedmpr": {},
    "lg-fedavg": {"model": "mlp", "hidden-width": 8},
    "term": {"max-share-ratio": "off", "term-tilt": 2.0, "most-loss": 4.0},
    "qffl": {"max-share-ratio": "off", "qffl-q": 2.0, "most-loss": 4.0},
    "fedeba": {
        **{"max-share-ratio": "off", "effective-clients": 0.0},
        **{"temperature": 0.5, "most-loss": 4.0},
    },
}
"""Methods whose step follows from several sums, or from weights of the clients' own."""


Call = tuple[Arrays, Arrays, Mapping[str, Any], Part]
"""Of a client's words: what was sent, what was trained, the numbers, and the words."""


def exact_mean(calls: Sequence[Call], terms: Terms) -> Arrays:
    """Return what a method sums, in float64, by the weights of its paper."""
    rows = [int(numbers["num-examples"]) for _, _, numbers, _ in calls]
    weights = [float(n if terms.weight == "examples" else n > 0) for n in rows]
    divisor = 0.0
    for place, (sent, trained, numbers, _) in enumerate(calls):
        if terms.form == "per-step":
            steps = numbers["num-steps"]
            divisor += rows[place] * steps / sum(rows) ** 2
            weights[place] /= steps
        elif terms.form == "tilted":
            weights[place] *= math.exp(terms.rate * numbers[terms.loss])
        elif terms.form == "raised":
            loss = numbers[terms.loss] + 1e-10
            length = sum(
                float(np.square(np.subtract(trained[n], sent[n], dtype=float)).sum())
                for n in sent
            )
            weights[place] *= loss**terms.rate
            of_sent = terms.rate * length / (loss * numbers["learning-rate"])
            divisor += weights[place] * of_sent
    divisor = 1 / divisor if terms.form == "per-step" else divisor + sum(weights)
    means = {}
    for name, start in calls[0][0].items():
        moves = (
            np.subtract(trained[name], start, dtype=float) for _, trained, _, _ in calls
        )
        total = sum(w * move for w, move in zip(weights, moves, strict=True))
        means[name] = np.asarray(start, float) + total / divisor
    return means


@pytest.mark.parametrize("method", OF_SUMMED)
def test_one_round_is_the_words_of_its_clients_and_within_its_stated_error(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Call] = []
    sums: list[tuple[Part, Terms, Arrays]] = []

    def told_words(
        sent: Arrays, own: Arrays, numbers: Mapping[str, Any], terms: Terms, stream: Any
    ) -> Part:
        part = words_of(sent, own, numbers, terms, stream)
        calls.append((dict(sent), {n: np.array(a) for n, a in own.items()}, numbers, part))
        return part

    def told_mean(sent: Arrays, total: Part, terms: Terms) -> Arrays:
        mean = decoded(sent, total, terms)
        sums.append((total, terms, mean))
        return mean

    monkeypatch.setattr("fedsuite.training.secure_client.words_of", told_words)
    monkeypatch.setattr("fedsuite.rounds.secure_sums.decoded", told_mean)
    around = {"method": method, "num-clients": 4, "num-rounds": 1, **OF_SUMMED[method]}
    wide = {"clipping-range": 2.0, "most-examples": 500}
    masked = trained(tmp_path / "masked", {**OF_SUMS, **around, **wide})
    ((total, terms, mean),) = sums
    bare = reduce(Part.plus, (part for *_, part in calls))
    assert np.array_equal(bare.head, total.head)
    assert np.array_equal(bare.body, total.body)
    exact = exact_mean(calls, terms)
    (row,) = rounds(tmp_path / "masked")
    assert row["scaled_clients"] == 0
    for name, array in mean.items():
        is_further = name.startswith(tuple(f"{r}/" for r in terms.records if r != HELD))
        stated = row["records_sum_error" if is_further else "sum_error"]
        off = float(np.abs(array - exact[name]).max())
        print(method, name, f"{off:.2g}, stated {stated:.2g}")
        assert off <= stated < 1e-6
    assert ("records_sum_error" in row) == (method in ("scaffold", "feddc"))
    # The plain run rounds its own mean to float32, and so does what a method does with it.
    around.pop("most-loss", None)
    if method in ("term", "qffl", "fedeba"):
        around["max-client-weight"] = 1.0
    plain = trained(tmp_path / "plain", around)
    off = max(float(np.abs(plain[n] - masked[n]).max()) for n in plain)
    ulp = max(float(np.spacing(np.abs(plain[n]).max())) for n in plain)
    print(method, f"{off:.2g} of the plain run, stated {row['sum_error']:.2g}, {ulp:.2g}")
    assert off <= row["sum_error"] + ulp


@pytest.mark.parametrize("method", OF_SUMMED)
def test_masks_change_no_bit_of_a_methods_run(method: str, tmp_path: Path) -> None:
    around = {"method": method, "num-rounds": 3, **OF_SUMMED[method]}
    of_sums = {**OF_SUMS, **around, "clipping-range": 2.0, "most-examples": 500}
    masked = trained(tmp_path / "masked", of_sums)
    bare = {**of_sums, "secure-aggregation": "unmasked"}
    assert same(trained(tmp_path / "bare", bare), masked)


def test_a_run_says_once_that_scores_are_in_the_clear_and_goes_on_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(client: SecureClient, request: Request) -> Reply:
        if request.message_type == EVALUATE:
            raise RunError("this site tells no scores")
        return whole(client, request)

    whole = SecureClient.answer
    monkeypatch.setattr(SecureClient, "answer", answer)
    with caplog.at_level(logging.WARNING):
        trained(tmp_path, OF_SUMS)
    said = [record.getMessage() for record in caplog.records]
    assert sum("each client's scores at evaluation" in line for line in said) == 1
    assert [row["summed_clients"] for row in rounds(tmp_path)] == [4, 4]
    assert [row["accuracy_clients"] for row in rounds(tmp_path)] == [0, 0]


def test_momentum_of_the_server_goes_with_sums(tmp_path: Path) -> None:
    around: dict[str, Any] = {"server-momentum": 0.5, "num-clients": 3}
    plain = trained(tmp_path / "plain", around)
    masked = trained(tmp_path / "masked", {**OF_SUMS, **around, "clipping-range": 4.0})
    assert max(float(np.abs(plain[n] - masked[n]).max()) for n in plain) < 1e-4


def test_a_run_of_many_clients_masks_with_neighbours_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsuite.messages.secure_sums.MOST_PAIRED", 5)
    monkeypatch.setattr("fedsuite.messages.secure_sums.PER_DOUBLING", 1)
    many = {**OF_SUMS, "num-clients": 9, "num-rounds": 3, "drop-out": 0.1}
    masked = trained(tmp_path / "a", many)
    assert same(trained(tmp_path / "b", {**many, "secure-aggregation": "unmasked"}), masked)
    summed = [row.get("summed_clients") for row in rounds(tmp_path / "a")]
    assert summed == [row.get("summed_clients") for row in rounds(tmp_path / "b")]
    assert any(summed)
    assert rounds(tmp_path / "a")[-1]["sum_neighbours"] == 4
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["neighbours_in_sums"] == 4


def test_drop_outs_leave_the_sum_of_the_others_and_void_rounds_go_on(
    tmp_path: Path,
) -> None:
    lossy = {"num-rounds": 8, "drop-out": 0.15, "straggler": 0.1, "max-failed-rounds": 8}
    masked = trained(tmp_path / "a", {**OF_SUMS, **lossy})
    bare = trained(tmp_path / "b", {**OF_SUMS, **lossy, "secure-aggregation": "unmasked"})
    assert same(masked, bare)
    summed = [row.get("summed_clients") for row in rounds(tmp_path / "a")]
    assert {3, None} <= set(summed)
    assert summed == [row.get("summed_clients") for row in rounds(tmp_path / "b")]


def test_a_resumed_run_ends_as_the_whole_one(tmp_path: Path) -> None:
    kept = {**OF_SUMS, **MOON, "checkpoint-every": 1}
    whole = trained(tmp_path / "whole", {**kept, "num-rounds": 3})
    trained(tmp_path / "halves", {**kept, "num-rounds": 1})
    resumed = trained(tmp_path / "halves", {**kept, "num-rounds": 3, "resume": True})
    assert same(resumed, whole)


def test_secrets_are_never_in_the_versioned_store(tmp_path: Path) -> None:
    trained(tmp_path / "run", {**OF_SUMS, **MOON, "checkpoint-every": 1})
    stored = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert any(path.suffix == ".safetensors" for path in stored)
    assert not any(b"PRIVATE KEY" in path.read_bytes() for path in stored)


@pytest.mark.parametrize(
    "beside",
    [{}, {"personal-atoms": True}, {"coefficient-period": 2, "num-rounds": 3}],
    ids=" ".join,
)
def test_decomposition_goes_with_sums(beside: dict[str, Any], tmp_path: Path) -> None:
    around: dict[str, Any] = {**FACTORED, **beside, "num-clients": 3}
    plain = trained(tmp_path / "plain", around)
    masked = trained(tmp_path / "masked", {**OF_SUMS, **around, "clipping-range": 8.0})
    assert max(float(np.abs(plain[n] - masked[n]).max()) for n in plain) < 1e-3


def test_a_node_may_demand_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    demand: dict[str, Any] = {"secure-aggregation": "masked"}
    node_experiment({"secure-aggregation": "masked"}, demand)
    for value in ("off", "unmasked"):
        with pytest.raises(ConfigError, match="this node trains under masks alone"):
            node_experiment({"secure-aggregation": value}, demand)
    with pytest.raises(ConfigError, match="expected 'masked', or leave it out"):
        node_experiment({}, {"secure-aggregation": "maskd"})
    node_experiment({}, {})
    monkeypatch.setenv(SECURE_VARIABLE, "masked")
    with pytest.raises(ConfigError, match="under masks alone"):
        node_experiment({}, {})
