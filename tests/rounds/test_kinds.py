"""Kinds: each comes about, outlives the events' file, and no client's words make one."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from fedsuite.callbacks.recorder import Recorder
from fedsuite.core.errors import NotFiniteError, RunError
from fedsuite.messages.array_records import to_record
from fedsuite.messages.records import ERROR, TRAIN
from fedsuite.results.writer import RunFolder
from fedsuite.rounds.events import RoundReport
from fedsuite.rounds.exchange import Exchange, Rejection, kind_of_error
from fedsuite.rounds.kinds import ABSENT, UNABLE, USED, Kind
from fedsuite.rounds.report import PhaseReport
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.strategies.drift.fedprox import FedProx
from fedsuite.strategies.fair.fedeba_plus import FedEBAPlus
from fedsuite.workarounds.sending import REFUSED
from tests.callbacks.reports import TIMES, a_state
from tests.helpers import (
    Change,
    MatrixProxClient,
    Tamper,
    TamperingGrid,
    Trace,
    for_client,
    mark,
    matrix_app,
    run,
    run_tampered,
    set_arrays,
    set_metrics,
    strategy_for,
)
from tests.rounds import secure_federation
from tests.rounds.secure_federation import flipped
from tests.rounds.test_membership import Attendance

NAN = set_arrays(weight=np.full((2, 2), np.nan, np.float32))


def kinds_of(trace: Trace) -> set[Kind]:
    phases = [phase for report in trace.reports for phase in report.phases]
    lists = [[*p.rejections, *p.bounded, *p.suspected] for p in phases]
    return {rejection.kind for found in lists for rejection in found}


def changed(change: Change, layout: str = "single", client: int = 1) -> set[Kind]:
    return kinds_of(run_tampered(layout, for_client(client, layout, change), 1))


def tampered(tamper: Tamper) -> set[Kind]:
    return kinds_of(run_tampered("single", tamper, 1))


def erring(code: int, words: str) -> set[Kind]:
    """Return the kinds of a round in which node 1 answers with an error of Flower's."""

    def tamper(replies: list[Message]) -> list[Message]:
        error = Message(Error(code, words), reply_to=replies[1])
        facts = replies[1].metadata
        mark(error, src_node_id=facts.src_node_id, group_id=facts.group_id)
        return [replies[0], error, replies[2]]

    return tampered(tamper)


def raising(error: Exception) -> set[Kind]:
    """Return the kinds of a round in which a client on a node of several raises."""

    def before(client_id: int) -> None:
        if client_id == 1:
            raise error

    return kinds_of(
        run(strategy_for("hosted"), TamperingGrid(matrix_app(before=before), 3))
    )


def dropped(content: RecordDict, prefix: str) -> None:
    for name in [name for name in content if name.startswith(prefix)]:
        del content[name]


def poisoned(change: Change) -> Trace:
    """Run 3 rounds: client 0 lies in the second, and most change their third reply."""
    rounds = 1

    def tamper(replies: list[Message]) -> Iterable[Message]:
        nonlocal rounds
        rounds += 1
        who, how = ((0,), set_arrays(weight=np.full((2, 2), 1e6, np.float32)))
        if rounds == 3:
            who, how = (1, 2), change
        for client in who:
            for_client(client, "hosted", how)(replies)
        return replies

    grid = TamperingGrid(matrix_app(), 3, tamper, rounds=(2, 3))
    return run(strategy_for("hosted", max_update_norm="off"), grid, 3)


def without_a_node() -> set[Kind]:
    grid = Attendance(matrix_app(), 3, [[0, 1, 2], [0, 1, 2], [0, 2]])
    return kinds_of(run(strategy_for("hosted"), grid, 2))


def with_a_round_of_two(**options: Any) -> set[Kind]:
    grid = TamperingGrid(matrix_app(), 2)
    return kinds_of(run(FedAvg(seed=0, min_available_nodes=2, **options), grid, 1))


def without_examples() -> set[Kind]:
    class Empty(FedEBAPlus):
        def exchange(self, exchange: Exchange) -> Any:
            return iter(())

    grid = TamperingGrid(matrix_app(), 3)
    return kinds_of(run(Empty(min_available_nodes=3), grid, 1))


def beyond_float64() -> set[Kind]:
    """Each reply is finite, and the step of the server's is not."""

    def tamper(replies: list[Message]) -> list[Message]:
        for reply in replies:
            set_arrays(weight=np.full((2, 2), 1.7e308))(reply.content, "")
        return replies

    grid = TamperingGrid(matrix_app(), 3, tamper)
    initial = to_record({"weight": np.zeros((2, 2))})
    return kinds_of(run(strategy_for("single"), grid, 1, initial))


def with_a_void_sum() -> set[Kind]:
    """Return the kinds of a round whose words do not add up."""

    def tamper(stage: str, client_id: int, record: ArrayRecord) -> None:
        if stage == TRAIN and client_id == 1:
            flipped(record, "body", 17)

    outcome = secure_federation.run(tamper=tamper)
    return {rejection.kind for rejection in outcome.strategy.reports[TRAIN].rejections}


RAISED = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
HANDLER = "No train function registered with name 'default'"
PRODUCED: dict[Kind, Callable[[], set[Kind]]] = {
    Kind.NOT_CONNECTED: without_a_node,
    Kind.NOT_SENT: lambda: erring(REFUSED, "too large"),
    Kind.LATE: lambda: tampered(lambda replies: replies[:2]),
    Kind.NODE_FAILED: lambda: erring(ErrorCode.NODE_UNAVAILABLE, "KeyError: gone"),
    Kind.NO_HANDLER: lambda: erring(RAISED, f"ValueError: {HANDLER}"),
    Kind.OTHER_WIRE: lambda: erring(RAISED, "KeyError: 'fitins.parameters'"),
    Kind.CLIENT_FAILED: lambda: raising(OSError("KeyError: nan")),
    Kind.CLIENT_ERROR: lambda: raising(KeyError("nan")),
    Kind.STALE: lambda: tampered(lambda r: [*r, mark(r.pop(), group_id="9.9")]),
    Kind.UNASKED: lambda: tampered(lambda r: [*r, mark(r.pop(), src_node_id=77)]),
    Kind.DUPLICATE: lambda: tampered(lambda replies: [*replies, replies[0]]),
    Kind.INCOMPLETE: lambda: changed(dropped, "shared-node", 2),
    Kind.MISSING: lambda: changed(set_metrics(num_examples=None)),
    Kind.WRONG_ARRAYS: lambda: changed(set_arrays(weight=np.zeros(3, np.float32))),
    Kind.WRONG_METRICS: lambda: changed(set_metrics(num_examples=-1.0)),
    Kind.NOT_FINITE: lambda: changed(NAN),
    Kind.BOUNDED: lambda: changed(set_metrics(num_examples=1e15)),
    Kind.SUSPECTED: lambda: kinds_of(poisoned(NAN)),
    Kind.QUORUM: lambda: with_a_round_of_two(quorum=3),
    Kind.TOO_FEW: lambda: with_a_round_of_two(aggregator="median"),
    Kind.NOT_SUMMED: with_a_void_sum,
    Kind.NO_EXAMPLES: without_examples,
    Kind.NO_TRAINING: lambda: kinds_of(poisoned(NAN)),
    Kind.MODEL_NOT_FINITE: beyond_float64,
}


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("kind", Kind)
def test_each_kind_comes_about(kind: Kind) -> None:
    found = PRODUCED[kind]()
    assert kind in found
    # Beside it there is what follows from it alone.
    follows = {Kind.LATE, Kind.NOT_FINITE, Kind.SUSPECTED, Kind.BOUNDED, Kind.NO_TRAINING}
    assert found <= {kind} | follows


def test_a_client_says_by_class_that_its_training_is_not_finite() -> None:
    assert raising(NotFiniteError("the loss is high")) == {Kind.NOT_FINITE}


@pytest.mark.parametrize("kind", Kind)
def test_a_kind_outlives_the_events_file(kind: Kind, tmp_path: Path) -> None:
    told = Rejection(1, 0, kind, "in words")
    report = PhaseReport("train")
    (report.bounded if kind in USED else report.rejections).append(told)
    folder = RunFolder.create(tmp_path / "run", {}, {})
    whole = RoundReport(1, 1, report, None, {}, {}, *TIMES)
    Recorder(folder).on_round_end(a_state(), whole)
    [event] = map(json.loads, (folder.path / "events.jsonl").read_text().splitlines())
    assert Kind(event["cause"]) is kind
    assert not (ABSENT & UNABLE) and not (USED & (ABSENT | UNABLE))


# No client's words


def saying(words: str, error: str = "") -> Change:
    """Return a change of an entry to a failure in a client's words."""

    def change(content: RecordDict, prefix: str) -> None:
        content[prefix + ERROR] = ConfigRecord({"reason": words, "error": error})

    return change


@pytest.mark.parametrize(
    ("change", "back"),
    [
        (saying("stack overflow in reader"), False),
        (saying("KeyError: nan", "KeyError"), False),
        (saying("OSError: inf: no such file", "OSError"), False),
        (set_metrics(num_examples=-1.0), False),
        (saying("the loss is high", NotFiniteError.__name__), True),
        (saying("math range error", "OverflowError"), True),
        (NAN, True),
        (set_metrics(loss=float("inf")), True),
    ],
)
def test_the_model_goes_back_by_kind_alone(change: Change, back: bool) -> None:
    last = poisoned(change).reports[-1]
    assert last.metrics.get("went_back_to") == (1 if back else None)


TRACEBACK = (
    "<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'ray::ClientAppActor.run() "
    '(pid=1)\n  File "app.py", line 5, in run\n{error}\n\nThe above exception was the '
    "direct cause of the following exception:\n...'>"
)


@pytest.mark.parametrize(
    ("reason", "kind", "raised"),
    [
        ("KeyError: 'x'", Kind.CLIENT_ERROR, "KeyError"),
        ("<class 'KeyError'>:<''x''>", Kind.CLIENT_ERROR, "KeyError"),
        ("<class 'app.Own'>:<'KeyError: nan'>", Kind.CLIENT_FAILED, "Own"),
        ("<class 'app.f.<locals>.Own'>:<'x'>", Kind.CLIENT_FAILED, "Own"),
        ("OSError: KeyError: nan", Kind.CLIENT_FAILED, "OSError"),
        ("no space left: TypeError", Kind.CLIENT_FAILED, ""),
        ("NotFiniteError: client 1", Kind.NOT_FINITE, "NotFiniteError"),
        ("", Kind.CLIENT_FAILED, ""),
        (f"ValueError: {HANDLER}", Kind.NO_HANDLER, ""),
        (f"<class 'ValueError'>:<'{HANDLER}'>", Kind.NO_HANDLER, ""),
        (TRACEBACK.format(error=f"ValueError: {HANDLER}"), Kind.NO_HANDLER, ""),
        (TRACEBACK.format(error="KeyError: 'fitins.config'"), Kind.OTHER_WIRE, ""),
        (f"OSError: {HANDLER}", Kind.CLIENT_FAILED, "OSError"),
    ],
)
def test_the_class_of_what_an_app_raised(reason: str, kind: Kind, raised: str) -> None:
    assert kind_of_error(Error(RAISED, reason), "message") == (kind, raised)
    lost = Error(ErrorCode.NODE_UNAVAILABLE, reason)
    assert kind_of_error(lost, "message") == (Kind.NODE_FAILED, "")


@pytest.mark.parametrize(
    ("error", "ends"), [(OSError("KeyError: nan"), False), (KeyError("x"), True)]
)
def test_a_run_ends_by_kind_alone(error: Exception, ends: bool) -> None:
    calls = 0

    def before(client_id: int) -> None:
        nonlocal calls
        calls += 1
        if calls <= 3:
            raise error

    grid = TamperingGrid(matrix_app(MatrixProxClient, before=before), 3)
    strategy = FedProx(min_available_nodes=3, connect_timeout=5.0)
    if ends:
        with pytest.raises(RunError, match="all clients failed"):
            run(strategy, grid, 2)
        return
    assert len(run(strategy, grid, 2).reports[1].train.rows) == 3
