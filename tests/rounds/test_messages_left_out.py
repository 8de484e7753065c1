"""Messages that a subclass or an app's own loop leaves out: their clients are not asked."""

import inspect
from collections.abc import Iterable
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower

from fedsuite.engines.local import LocalGrid
from fedsuite.strategies.averaging.fedavg import FedAvg
from fedsuite.workarounds.identity import flower_identity
from fedsuite.workarounds.packed_grid import PackedGrid
from fedsuite.workarounds.prompt_grid import PromptGrid
from tests.helpers import COUNTS, VALUES, TamperingGrid, matrix_app, run, zeros


class First(FedAvg):
    """Asks the first few alone, as Flower's users write it."""

    few = 1

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = super().configure_train(server_round, arrays, config, grid)
        return (message for message in list(messages)[: self.few])

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return list(super().configure_evaluate(server_round, arrays, config, grid))[:1]


def test_who_is_left_out_has_not_failed() -> None:
    trace = run(First(), TamperingGrid(matrix_app(), 3), 12)
    asked = []
    for report in trace.reports:
        assert report.train and report.evaluate
        for phase in (report.train, report.evaluate):
            assert (phase.num_asked, phase.rejections) == (1, [])
        [row] = report.train.rows
        asked.append(row["client"])
    # The first few are not always the same.
    assert set(asked) == {1000, 1001, 1002}


def test_a_round_that_asks_nobody_is_no_failed_round() -> None:
    strategy = First(max_failed_rounds=1)
    strategy.few = 0
    trace = run(strategy, TamperingGrid(matrix_app(), 3), 2)
    assert trace.weights == [0.0, 0.0]
    assert not any("round_failed" in r.method_metrics for r in trace.reports)


def test_an_apps_own_loop_may_leave_messages_out() -> None:
    strategy = FedAvg()
    with flower_identity():
        grid, arrays = TamperingGrid(matrix_app(), 3), zeros()
        asked = list(strategy.configure_train(1, arrays, ConfigRecord(), grid))[:2]
        new, _ = strategy.aggregate_train(1, grid.send_and_receive(asked))
    report = strategy.reports["train"]
    assert (report.num_asked, report.rejections, len(report.rows)) == (2, [], 2)
    here = [m.metadata.dst_node_id - 1000 for m in asked]
    mean = sum(VALUES[k] * COUNTS[k] for k in here) / sum(COUNTS[k] for k in here)
    assert new is not None and new["weight"].numpy()[0, 0] == pytest.approx(mean)


def test_a_message_that_the_way_lost_is_late_as_ever() -> None:
    """start() knows what it sent; a Grid that numbers fewer changes nothing in that."""

    class Losing(TamperingGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            return super().send_and_receive(list(messages)[1:], timeout=timeout)

    report = run(FedAvg(), Losing(matrix_app(), 3)).reports[0].train
    assert report and report.num_asked == 3
    assert [(r.client_id, r.kind) for r in report.rejections] == [(1000, "late")]


def test_messages_go_out_in_client_order() -> None:
    """So that replies are taken one at a time, and no bit depends on the shuffle."""
    grid = TamperingGrid(matrix_app(), 3)
    run(FedAvg(), grid, 3)
    nodes = [m.metadata.dst_node_id for m in grid.sent]
    assert nodes == [1000, 1001, 1002] * (len(nodes) // 3)


# start() as in later Flower


def test_should_stop_ends_the_run_after_its_round() -> None:
    heard: list[tuple[int, int]] = []

    def should_stop(server_round: int, result: Any) -> bool:
        heard.append((server_round, len(result.train_metrics_clientapp)))
        return server_round == 2

    with flower_identity():
        result = FedAvg().start(
            LocalGrid(matrix_app(), 3), zeros(), 5, should_stop=should_stop
        )
    assert heard == [(1, 1), (2, 2)]
    assert sorted(result.train_metrics_clientapp) == [1, 2]


CONTRACT = (
    *("start", "configure_train", "aggregate_train"),
    *("configure_evaluate", "aggregate_evaluate", "summary"),
)


@pytest.mark.parametrize("name", CONTRACT)
def test_a_strategy_takes_what_flowers_takes(name: str) -> None:
    check_takes(getattr(FedAvg, name), getattr(flower.FedAvg, name))


@pytest.mark.parametrize("grid", [LocalGrid, PromptGrid, PackedGrid])
def test_a_grid_takes_what_flowers_takes(grid: type[Grid]) -> None:
    names = [n for n in vars(Grid) if not n.startswith("_") and callable(getattr(Grid, n))]
    assert len(names) >= 6
    for name in names:
        # tests/workarounds/test_signatures.py has the one whose argument 1.43 calls anew.
        if name != "pull_messages":
            check_takes(getattr(grid, name), getattr(Grid, name))


def check_takes(ours: Any, theirs: Any) -> None:
    """Check that each call of Flower's is one of ours: additions have defaults."""
    taken = inspect.signature(ours).parameters
    kinds = {parameter.kind for parameter in taken.values()}
    asked = inspect.signature(theirs).parameters
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        assert list(taken)[: len(asked)] == list(asked)
    for name, parameter in taken.items():
        if name in asked:
            assert parameter.default == asked[name].default
            keyword = inspect.Parameter.KEYWORD_ONLY
            assert parameter.kind is not keyword or asked[name].kind is keyword
        elif parameter.kind not in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        ):
            assert parameter.default is not inspect.Parameter.empty, name
