"""Early stop and best model, on reports made by hand."""

import json
from collections.abc import Sequence

import pytest
from safetensors.numpy import load_file

from fedsuite.callbacks import RoundReport
from fedsuite.callbacks.best_model import BestModel
from fedsuite.callbacks.early_stop import Best, EarlyStop, higher_is_better
from fedsuite.core.errors import ConfigError
from fedsuite.engines.local import LocalGrid
from fedsuite.results.writer import RunFolder
from tests.callbacks.reports import NO_TIME, a_report, a_state
from tests.helpers import matrix_app, run, strategy_for, zeros


@pytest.mark.parametrize(
    ("metric", "higher"),
    [
        ("accuracy_mean", True),
        ("accuracy_worst10", True),
        ("evaluate_loss", False),
        ("accuracy_variance", False),
        ("bytes_up", False),
        ("replies_rejected", False),
    ],
)
def test_direction_of_metrics(metric: str, higher: bool) -> None:
    assert higher_is_better(metric) is higher


def stopped_after(values: Sequence[float | None], metric: str, patience: int = 2) -> int:
    """Return the round after which a run with these values stops; 0 is never."""
    stop, state = EarlyStop(metric, patience), a_state()
    for server_round, value in enumerate(values, start=1):
        report = RoundReport(server_round, 9, None, None, {}, {}, *NO_TIME)
        if value is not None:
            report = a_report(server_round, **{metric: value})
        stop.on_round_end(state, report)
        if state.stop_reason is not None:
            return server_round
    return 0


def test_early_stop_where_higher_is_better() -> None:
    assert stopped_after([0.1, 0.2, 0.2, 0.3, 0.3, 0.1, 0.4], "score") == 6
    assert stopped_after([0.1, 0.2, 0.3, 0.4], "score") == 0


def test_early_stop_where_lower_is_better() -> None:
    assert stopped_after([3.0, 2.0, 2.5, 1.0, 1.0, 1.5], "my_loss") == 6
    assert stopped_after([0.1, 0.2, 0.3], "my_loss") == 3


def test_rounds_without_the_metric_do_not_count() -> None:
    assert stopped_after([0.5, None, None, None, 0.4, None, 0.3], "score") == 7


def test_value_that_is_no_number_is_no_improvement() -> None:
    nan = float("nan")
    assert stopped_after([nan, 0.1, 0.2, 0.3], "score") == 0
    assert stopped_after([0.1, nan, nan], "score") == 3


def test_reason_names_metric_value_and_round() -> None:
    stop, state = EarlyStop("score", 1), a_state()
    for server_round, value in ((3, 0.25), (4, 0.2)):
        stop.on_round_end(state, a_report(server_round, score=value))
    assert state.stop_reason == "score has not improved on 0.25 since round 3"


def test_memory_survives_a_resume() -> None:
    first, second = EarlyStop("score", 3), EarlyStop("score", 3)
    for server_round, value in enumerate([0.5, 0.4, 0.3], start=1):
        first.on_round_end(a_state(), a_report(server_round, score=value))
    second.recall(json.loads(json.dumps(first.remember())))
    state = a_state()
    second.on_round_end(state, a_report(4, score=0.45))
    assert state.stop_reason == "score has not improved on 0.5 since round 1"


def test_run_ends_after_the_round_that_stops_it() -> None:
    """Losses stay the same from round 2 on, in which the model is at the mean."""
    stop = EarlyStop("train_loss", 2)
    trace = run(strategy_for("single"), LocalGrid(matrix_app(), 3), 9, zeros(), [stop])
    assert [report.server_round for report in trace.reports] == [1, 2, 3, 4]


def test_best_follows_the_best() -> None:
    best = Best("score")
    values = [0.2, 0.1, 0.3, 0.3]
    found = [best.improved(a_report(r, score=v)) for r, v in enumerate(values, start=1)]
    assert found == [True, False, True, False]
    assert best.improved(RoundReport(5, 9, None, None, {}, {}, *NO_TIME)) is None
    assert (best.value, best.server_round) == (0.3, 3)


def test_a_metric_that_no_round_has_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no metric 'acuracy' .*accuracy_mean"):
        EarlyStop("acuracy", 2).on_round_end(a_state(), a_report(1))


def test_best_model_is_the_one_of_the_best_round(folder: RunFolder) -> None:
    keeper = BestModel("score", folder)
    path = folder.path / "best-model.safetensors"
    for server_round, value in enumerate([0.1, 0.4, 0.3], start=1):
        keeper.on_round_end(a_state(server_round), a_report(server_round, score=value))
    assert load_file(path)["weight"].tolist() == [[2.0, 2.0], [2.0, 2.0]]
    again = BestModel("score", folder)
    again.recall(keeper.remember())
    again.on_round_end(a_state(4.0), a_report(4, score=0.35))
    assert load_file(path)["weight"][0, 0] == 2.0
    again.on_round_end(a_state(5.0), a_report(5, score=0.45))
    assert load_file(path)["weight"][0, 0] == 5.0


def chosen(honest: Sequence[Sequence[float]], lies: Sequence[float]) -> int:
    """Return the round that is best by the accuracies of honest clients and a liar."""
    best = Best("accuracy_mean")
    for server_round, (accuracies, lie) in enumerate(
        zip(honest, lies, strict=True), start=1
    ):
        best.improved(a_report(server_round, accuracies=(*accuracies, lie)))
    return best.server_round


RISING = [[0.5 + 0.02 * r + 0.05 * k for k in range(4)] for r in range(10)]


@pytest.mark.parametrize(
    "lies",
    [
        [1.0] * 10,
        [0.0] * 10,
        [1.0] * 3 + [0.0] * 7,
        [0.1 * (9 - r) for r in range(10)],
    ],
)
def test_one_of_five_does_not_choose_the_round(lies: list[float]) -> None:
    assert chosen(RISING, lies) == 10
    assert chosen([[-a + 1 for a in of] for of in RISING], lies) == 1


def test_of_three_clients_the_middle_gain_counts_of_two_the_mean() -> None:
    best = Best("accuracy_mean")
    best.improved(a_report(1, accuracies=(0.5, 0.5, 0.9)))
    assert best.improved(a_report(2, accuracies=(0.6, 0.6, 0.0))) is True
    assert best.improved(a_report(3, accuracies=(0.59, 0.59, 1.0))) is False
    two = Best("accuracy_mean")
    two.improved(a_report(1, accuracies=(0.5, 0.5)))
    assert two.improved(a_report(2, accuracies=(0.4, 0.7))) is True
    # What is no mean over clients is followed as it stands.
    worst = Best("accuracy_worst10")
    worst.improved(a_report(1, accuracies=(0.5, 0.5, 0.9)))
    assert worst.improved(a_report(2, accuracies=(0.6, 0.6, 0.0))) is False


def test_the_clients_numbers_survive_a_resume() -> None:
    first, second = EarlyStop("accuracy_mean", 1), EarlyStop("accuracy_mean", 1)
    first.on_round_end(a_state(), a_report(1, accuracies=(0.5, 0.5, 0.9)))
    second.recall(json.loads(json.dumps(first.remember())))
    state = a_state()
    second.on_round_end(state, a_report(2, accuracies=(0.6, 0.6, 0.0)))
    assert state.stop_reason is None


def test_a_metric_that_some_reply_has_is_not_misspelt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of five clients one has it: no mean, but no misspelt name either."""
    best = Best("evaluate_auc")
    for server_round in (1, 2):
        report = a_report(server_round, accuracies=[0.5] * 5)
        assert report.evaluate is not None
        report.evaluate.rows[0]["auc"] = 0.5
        assert best.improved(report) is None
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("round 1: evaluate_auc is not there to follow")
    # Only the first evaluation is judged.
    later = Best("evaluate_auc")
    first = a_report(1, accuracies=[0.5] * 2)
    assert first.evaluate is not None
    for row in first.evaluate.rows:
        row["auc"] = 0.5
    assert later.improved(first) is True
    assert later.improved(a_report(2, accuracies=[0.5] * 2)) is None
