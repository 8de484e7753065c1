"""A poisoned round: the server goes back, names the liar, and the run learns."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

import fedsuite
from fedsuite.core.errors import RunError
from fedsuite.engines.local import LocalGrid
from fedsuite.messages.array_records import to_arrays, to_record
from fedsuite.messages.records import (
    ARRAYS,
    TRAIN,
)
from fedsuite.rounds.exchange import Rejection
from fedsuite.rounds.guard import BELIEVED
from fedsuite.rounds.kinds import Kind
from fedsuite.rounds.recovery import EXPLODED, FAR, PATIENCE, Kept, Recovery, _suspects
from fedsuite.rounds.report import PhaseReport
from fedsuite.rounds.validation import ClientReply
from tests.deploy.accidents import final_bits
from tests.helpers import Tamper, Trace, bits, digits_experiment, run_digits

LIAR = 2


def liar_once(lie: float, server_round: int = 2) -> Tamper:
    """Have a client send numbers of one size, of both signs, in one round."""
    rounds = 0

    def tamper(replies: list[Message]) -> list[Message]:
        nonlocal rounds
        rounds += 1
        if rounds == server_round:
            forge(replies[LIAR], lie)
        return replies

    return tamper


def forge(reply: Message, lie: float) -> None:
    [name] = [n for n in reply.content if n.endswith(ARRAYS)]
    signs = np.random.default_rng(0)
    lies = {
        n: (lie * signs.choice([-1, 1], array.shape)).astype(array.dtype)
        for n, array in to_arrays(reply.content[name]).items()
    }
    reply.content[name] = to_record(lies)


def poisoned(tamper: Tamper | None, **changes: Any) -> Trace:
    given = {"model": "mlp", "hidden_width": 16, "num_rounds": 6, "partitioner": "iid"}
    given |= {"local_steps": 20, "learning_rate": 0.1, "max_update_norm": "off"}
    return run_digits(digits_experiment(**given | changes), tamper=tamper)


def gained(trace: Trace) -> float:
    """Return by how much the last round's accuracy is above the first one's."""
    first, last = trace.reports[0].metrics, trace.reports[-1].metrics
    return last["accuracy_mean"] - first["accuracy_mean"]


@pytest.mark.parametrize("lie", [1e38, 1e6])
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"server_momentum": 0.5, "fedvarp": True},
        {"method": "scaffold"},
        {"method": "fedeba-plus"},  # Its probe fails, before anybody is asked to train.
    ],
    ids=["fedavg", "extras", "scaffold", "probe"],
)
def test_the_run_goes_back_names_the_liar_and_learns(
    lie: float, keys: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        trace = poisoned(liar_once(lie), **keys)
    [story] = [
        r.getMessage() for r in caplog.records if "takes its place" in r.getMessage()
    ]
    assert story.startswith(
        "round 3: 4 of 4 clients cannot train from the model that they got"
    )
    assert "that of round 1 takes its place. They are not to blame." in story
    assert f"client {LIAR}: its update was" in story and story.count("client ") == 1
    assert "\n" not in story
    assert trace.reports[2].metrics["went_back_to"] == 1
    assert [r.client_id for r in trace.reports[2].train.suspected] == [LIAR]
    assert bits(trace.arrays[2]) == bits(trace.arrays[0])
    assert gained(trace) > 0.05


def test_what_was_remembered_comes_back_too() -> None:
    """A velocity or an update of 1e37 would throw the model away once more."""
    trace = poisoned(liar_once(1e38), server_momentum=0.9, fedvarp=True)
    assert max(float(np.abs(a).max()) for a in trace.arrays[-1].values()) < 100


def test_an_honest_run_keeps_nothing_and_its_bits() -> None:
    trace = poisoned(None)
    assert not any("went_back_to" in report.metrics for report in trace.reports)
    assert not any(report.train.suspected for report in trace.reports)


def test_a_learning_rate_that_is_too_large_still_ends_the_run() -> None:
    with pytest.raises(RunError, match="in a row") as caught:
        poisoned(None, learning_rate=1e30, num_rounds=30)
    assert "lower learning-rate" in str(caught.value)


def report_of(failed: int, losses: list[float], longest: float = 1.0) -> PhaseReport:
    """Return a report of four clients, of which the last sent so many medians."""
    report = PhaseReport("train", num_asked=4)
    for client_id, loss in enumerate(losses, 4 - len(losses)):
        report.add(ClientReply(client_id, {}, {"loss": loss}, 1.0))
    report.annotate(3, norm_ratio=longest)
    reason = "client failed: the training loss is nan"
    report.rejections = [Rejection(3, k, Kind.NOT_FINITE, reason) for k in range(failed)]
    return report


def noted(*reports: PhaseReport) -> Recovery:
    """Return what is kept after some rounds; the first has losses of 2."""
    recovery = Recovery()
    for server_round, report in enumerate((report_of(0, [2.0] * 4), *reports)):
        recovery.begin(Kept(server_round, to_record({}), {}, {}))
        recovery.note(report)
    return recovery


SUSPECTED = report_of(0, [2.0] * 4, longest=1.01 * FAR)


@pytest.mark.parametrize(
    ("report", "back"),
    [
        (report_of(3, [1.0]), True),
        (report_of(2, [1.0, 1.0]), False),
        (report_of(1, [1.0, 1e9, 1e9]), True),
        (report_of(0, [1.0, 2.0, 90.0, 90.0]), False),
        (report_of(0, [2.0 * 0.99 * EXPLODED] * 4), False),
        (report_of(0, [2.0 * 1.01 * EXPLODED] * 4), True),
    ],
)
def test_most_must_fail(report: PhaseReport, back: bool) -> None:
    """A minority that claims to fail undoes no round."""
    assert noted(SUSPECTED).must_go_back(report) == back


def test_a_tiny_loss_that_grows_is_no_poison() -> None:
    """As where the first clients drawn know all of their rows already."""
    recovery = Recovery()
    recovery.begin(Kept(1, to_record({}), {}, {}))
    recovery.note(report_of(0, [1e-5] * 4, longest=9.0))
    assert recovery.kept is not None
    assert not recovery.must_go_back(report_of(0, [0.3] * 4))


@pytest.mark.parametrize("longest", [1.0, 0.99 * FAR])
def test_a_usual_step_keeps_nothing(longest: float) -> None:
    recovery = noted(report_of(0, [2.0] * 4, longest))
    assert recovery.kept is None and not recovery.must_go_back(report_of(4, []))


def test_it_goes_back_before_the_first_step_after_losses_were_fine() -> None:
    """Three liars' rounds in a row: the model of the last good one, and who was in it."""
    worse = [report_of(0, [loss] * 4, longest=8.0) for loss in (1.9, 2.1, 5.0)]
    recovery = noted(*worse)
    assert recovery.kept is not None and recovery.kept.server_round == 1
    kept, story = recovery.go_back(4, report_of(4, []), rest=10)
    assert kept.server_round == 1
    assert "client 3: its update was 8 medians long" in story
    assert recovery.kept is None and not recovery.must_go_back(report_of(4, []))


@pytest.mark.parametrize(("rounds", "back"), [(PATIENCE - 1, False), (PATIENCE, True)])
def test_losses_above_the_first_are_borne_for_some_rounds(rounds: int, back: bool) -> None:
    above = report_of(0, [2.1] * 4)
    recovery = noted(SUSPECTED, *[above] * rounds)
    assert recovery.must_go_back(above) == back
    assert not noted(SUSPECTED, *[above] * rounds, SUSPECTED).must_go_back(above)


def test_what_was_kept_is_let_go_once_losses_are_fine_again() -> None:
    assert noted(SUSPECTED, report_of(0, [1.0] * 4)).kept is None


def test_who_is_suspected_sits_out_and_most_clients_never_do() -> None:
    recovery = noted(SUSPECTED)
    recovery.go_back(5, report_of(4, []), rest=10)
    assert recovery.awake(range(4), 15) == [0, 1, 2]
    assert recovery.awake(range(4), 16) == [0, 1, 2, 3]
    assert recovery.awake([2, 3], 15) == [2, 3]
    recovery.begin(Kept(20, to_record({}), {}, {}))
    recovery.note(SUSPECTED)
    recovery.go_back(21, report_of(4, []), rest=10)
    assert recovery.awake(range(4), 41) == [0, 1, 2]
    assert recovery.awake(range(4), 42) == [0, 1, 2, 3]
    again = noted(SUSPECTED)
    again.go_back(5, report_of(4, []), rest=0)
    assert again.awake(range(4), 6) == [0, 1, 2, 3]


def test_it_survives_a_restart() -> None:
    recovery, other = noted(SUSPECTED), Recovery()
    other.restore(recovery.state())
    assert other.state() == recovery.state()
    assert other.must_go_back(report_of(4, []))
    recovery.go_back(5, report_of(4, []), rest=10)
    other.restore(recovery.state())
    assert other.state() == recovery.state()
    assert other.awake(range(4), 15) == [0, 1, 2]


@pytest.mark.parametrize("strength", [4.95, 0.99 * BELIEVED, 20.0, 95.0])
def test_a_liar_of_every_round_ends_no_run(strength: float) -> None:
    """Its sign is turned and its length believed: the honest are sent back, and learn."""
    keys = {"num_clients": 5, "attack": "sign-flip", "attackers": 0.2, "num_rounds": 25}
    keys |= {"attack_strength": strength, "max_update_norm": "auto", "seed": 1}
    trace = poisoned(None, **keys)
    backs = [report for report in trace.reports if "went_back_to" in report.metrics]
    named = {r.client_id for report in trace.reports for r in report.train.suspected}
    assert len(trace.reports) == 25 and len(named) <= 1
    assert all(report.metrics["round_failed"] for report in backs)
    for back in backs:
        after = trace.reports[back.server_round : back.server_round + 20]
        assert not any(named & set(report.train.weights()) for report in after)
    if strength < 5:
        assert backs and gained(trace) > 0.5


@pytest.mark.parametrize(
    "keys",
    [{"server-momentum": 0.5, "fedvarp": True}, {"method": "scaffold"}],
    ids=["extras", "scaffold"],
)
def test_a_run_that_stops_behind_a_doubtful_step_ends_with_the_same_bits(
    keys: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round 2 is poisoned. What came before it is in the checkpoint alone."""
    honest = LocalGrid.send_and_receive

    def lying(grid: LocalGrid, messages: Any, **options: Any) -> list[Message]:
        replies = list(honest(grid, messages, **options))
        asked = {(r.metadata.message_type, r.metadata.group_id[:2]) for r in replies}
        if asked == {(TRAIN, "2.")}:
            forge(replies[LIAR], 1e6)
        return replies

    monkeypatch.setattr(LocalGrid, "send_and_receive", lying)
    monkeypatch.setattr("fedsuite.engines.local.CLIENTS_PER_MESSAGE", 1)
    values = {"model": "mlp", "hidden-width": 16, "partitioner": "iid", "num-clients": 4}
    values |= {"local-steps": 20, "learning-rate": 0.1, "max-update-norm": "off"}
    values |= {"output-dir": str(tmp_path), "workers": 1, "report": False, **keys}
    whole = fedsuite.run({**values, "num-rounds": 5, "run-name": "whole"})
    assert [row.get("went_back_to") for row in whole.rounds] == [None, None, 1, None, None]
    fedsuite.run({**values, "num-rounds": 2, "run-name": "stopped"})
    resumed = fedsuite.resume(tmp_path / "stopped", num_rounds=5)
    assert final_bits(resumed) == final_bits(whole)
    suspected = [
        [event for event in run.events() if event["kind"] == "suspected-reply"]
        for run in (resumed, whole)
    ]
    assert suspected[0] == suspected[1] != []


def test_who_was_suspected_is_far_from_the_others_and_near_the_longest() -> None:
    report = PhaseReport("train")
    for client, ratio in enumerate((1.0, 3.1, 0.5, 9.0)):
        report.add(ClientReply(client, {}, {}, 1.0))
        report.annotate(client, norm_ratio=ratio)
    assert _suspects(report) == {3: "its update was 9 medians long"}
    report.annotate(1, norm_ratio=4.6)
    assert set(_suspects(report)) == {1, 3}
    for client in range(4):
        report.annotate(client, norm_ratio=2.9)
    assert _suspects(report) == {}
