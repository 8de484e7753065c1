"""Planned drop-outs and stragglers: who fails, what it costs, and that 0 changes no bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsuite
from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.rng import numpy_stream
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.records import EVALUATE, PROBE, TRAIN, TRANSFER, Reply, Request
from fedsuite.training.fault_plan import FaultPlan, PlannedClient
from fedsuite.training.store import MemoryStore
from tests.helpers import bits, digits_experiment, final_bits, run_digits

DROP_OUT = "client failed: planned drop-out"
STRAGGLER = "client failed: planned straggler: its reply came after the deadline"


# The plan


def test_fate_is_one_draw_of_the_clients_stream() -> None:
    plan = FaultPlan(drop_out=0.3, straggler=0.2, seed=7)
    for server_round in range(1, 20):
        for client_id in range(5):
            draw = numpy_stream(7, "fault-plan", server_round, client_id).random()
            expected = ["drop-out", "straggler", "fine"][(draw >= 0.3) + (draw >= 0.5)]
            assert plan.fate(server_round, client_id) == expected


def test_shares_are_the_probabilities() -> None:
    plan = FaultPlan(drop_out=0.3, straggler=0.2, seed=1)
    fates = [plan.fate(r, c) for r in range(1, 101) for c in range(100)]
    # Four standard deviations of a share of 10,000 draws are below 0.02.
    assert fates.count("drop-out") / 10_000 == pytest.approx(0.3, abs=0.02)
    assert fates.count("straggler") / 10_000 == pytest.approx(0.2, abs=0.02)


@given(st.integers(0, 99), st.integers(1, 99), st.integers(0, 99))
def test_extremes(seed: int, server_round: int, client_id: int) -> None:
    def fate(*shares: float) -> str:
        return FaultPlan(drop_out=shares[0], straggler=shares[1], seed=seed).fate(
            server_round, client_id
        )

    assert fate(0.0, 0.0) == "fine"
    assert fate(1.0, 0.0) == "drop-out"
    assert fate(0.0, 1.0) == "straggler"


@given(st.integers(0, 99), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_adds_to_a_smaller_one(seed: int, one: float, other: float) -> None:
    few, many = (FaultPlan(drop_out=share, seed=seed) for share in sorted([one, other]))
    for client_id in range(20):
        if few.fate(3, client_id) == "drop-out":
            assert many.fate(3, client_id) == "drop-out"


@pytest.mark.parametrize("shares", [(-0.1, 0.0), (0.0, -0.1), (0.6, 0.5), (np.nan, 0.0)])
def test_impossible_shares(shares: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"at most 1 together|expected a number >= 0"):
        FaultPlan(drop_out=shares[0], straggler=shares[1])


def test_shares_above_1_together_are_refused_before_a_run() -> None:
    with pytest.raises(
        ConfigError, match=r"drop-out = 0\.6 cannot go with straggler = 0\.5"
    ) as caught:
        Experiment.from_values({"drop-out": 0.6, "straggler": 0.5})
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"key drop-out = 1\.5"):
        Experiment.from_values({"drop-out": 1.5})


# The client


class Working:
    """Counts what it was asked to do."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def answer(self, request: Request) -> Reply:
        self.done.append(request.message_type)
        return Reply(metrics={"num-examples": 1})


TYPES = (PROBE, TRAIN, TRANSFER, EVALUATE)


@pytest.mark.parametrize(
    ("shares", "answered", "done"),
    [
        ((0.0, 0.0), TYPES, TYPES),
        ((1.0, 0.0), (EVALUATE,), (EVALUATE,)),
        ((0.0, 1.0), (PROBE, EVALUATE), TYPES),
    ],
)
def test_what_a_failing_client_does_and_answers(
    shares: tuple[float, float], answered: tuple[str, ...], done: tuple[str, ...]
) -> None:
    working, heard = Working(), []
    client = PlannedClient(working, FaultPlan(drop_out=shares[0], straggler=shares[1]))
    for message_type in TYPES:
        try:
            client.answer(Request(message_type, 0))
            heard.append(message_type)
        except RunError as error:
            assert str(error).startswith("planned ")
    assert tuple(heard) == answered
    assert tuple(working.done) == done


# Runs

PLANNED: dict[str, Any] = {"num_clients": 4, "num_rounds": 4, "seed": 20}


def rejected(trace: Any) -> list[set[tuple[int, str]]]:
    return [{(r.client_id, r.reason) for r in x.train.rejections} for x in trace.reports]


def test_a_run_loses_the_planned_replies_and_no_others() -> None:
    plan = FaultPlan(drop_out=0.3, straggler=0.3, seed=20)
    trace = run_digits(digits_experiment(drop_out=0.3, straggler=0.3, **PLANNED))
    reasons = {"drop-out": DROP_OUT, "straggler": STRAGGLER}
    expected = [
        {(c, reasons[fate]) for c in range(4) if (fate := plan.fate(r, c)) != "fine"}
        for r in range(1, 5)
    ]
    assert rejected(trace) == expected
    assert {reason for found in expected for _, reason in found} == set(reasons.values())
    for server_round, report in enumerate(trace.reports, start=1):
        fine = [c for c in range(4) if plan.fate(server_round, c) == "fine"]
        assert [row["client"] for row in report.train.rows] == fine
        assert [row["client"] for row in report.evaluate.rows] == [0, 1, 2, 3]
        assert not report.evaluate.rejections


def test_a_model_is_the_mean_of_those_who_answered() -> None:
    """As if the server had asked only them: the others' work changes nothing."""
    plan = FaultPlan(drop_out=0.3, straggler=0.3, seed=20)
    trace = run_digits(digits_experiment(drop_out=0.3, straggler=0.3, **PLANNED))

    def only_the_fine(replies: list[Any]) -> list[Any]:
        return [
            reply
            for index, reply in enumerate(replies)
            if plan.fate(int(reply.metadata.group_id.partition(".")[0]), index) == "fine"
        ]

    dropped = run_digits(digits_experiment(**PLANNED), tamper=only_the_fine)
    assert [bits(a) for a in trace.arrays] == [bits(a) for a in dropped.arrays]


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedeba-plus"])
def test_no_share_changes_no_bit(method: str) -> None:
    # A share so small that the plan is on, and nobody fails.
    planned = final_bits(method=method, drop_out=1e-300, straggler=1e-300)
    assert planned == final_bits(method=method) == final_bits(method=method, drop_out=0.0)


def test_a_stragglers_state_is_void() -> None:
    """Its control variate is that of the last round whose reply counted."""
    plan = FaultPlan(drop_out=0.0, straggler=0.5, seed=20)
    counted = {
        c: [r for r in range(1, 5) if plan.fate(r, c) == "fine"][-1:] for c in range(4)
    }
    store = MemoryStore()
    experiment = digits_experiment(method="scaffold", straggler=0.5, **PLANNED)
    trace = run_digits(experiment, store)
    assert trace.result is not None
    late = [(r, c) for r, found in enumerate(rejected(trace), 1) for c, _ in found]
    assert late
    for client_id, rounds in counted.items():
        for server_round in rounds:
            assert store.load(client_id, f"{server_round}.1")


def test_straggler_of_fedeba_plus_answers_the_probe() -> None:
    """What came in time counts: its gradient is part of the fair gradient."""
    late = run_digits(digits_experiment(method="fedeba-plus", straggler=0.3, **PLANNED))
    lost = run_digits(digits_experiment(method="fedeba-plus", drop_out=0.3, **PLANNED))
    reasons = [r.reason for x in late.reports for r in x.train.rejections]
    assert set(reasons) == {STRAGGLER}
    both = {r.reason for x in lost.reports for r in x.train.rejections}
    # Who is silent at the probe is not asked to train.
    assert both == {f"query.probe: {DROP_OUT}"}
    assert bits(late.arrays[-1]) != bits(lost.arrays[-1])


def test_rounds_in_which_all_fail_end_the_run_by_the_rule_of_the_quorum() -> None:
    with pytest.raises(RunError, match=r"3 rounds in a row .* planned drop-out"):
        run_digits(digits_experiment(drop_out=1.0, **PLANNED))


def run_on(folder: Path, engine: Any, nodes: int) -> tuple[bytes, str, str]:
    values = dict(digits_experiment(drop_out=0.3, straggler=0.3, **PLANNED).values)
    values |= {"output-dir": str(folder), "run-name": f"{engine}-{nodes}"}
    path = fedsuite.run(values, engine=engine, num_supernodes=nodes).path
    rows, events = (path / f"{name}.jsonl" for name in ("clients", "events"))
    return (path / "model.safetensors").read_bytes(), rows.read_text(), events.read_text()


def test_the_plan_does_not_depend_on_the_number_of_nodes(tmp_path: Path) -> None:
    whole = run_on(tmp_path, "local", 0)
    assert "planned drop-out" in whole[2]
    assert "planned straggler" in whole[2]
    assert run_on(tmp_path, "local", 1) == run_on(tmp_path, "local", 3) == whole


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ray", "deployment"])
def test_the_plan_does_not_depend_on_the_engine(engine: str, tmp_path: Path) -> None:
    assert run_on(tmp_path, engine, 2) == run_on(tmp_path, "local", 0)
