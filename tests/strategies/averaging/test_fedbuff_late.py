"""FedBuff with real delays: bad, late and repeated replies, and the first exchange."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from flwr.app import Error, Message

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.experiment.experiment import Experiment
from fedsuite.messages.array_records import to_record
from fedsuite.messages.records import ARRAYS, METRICS
from fedsuite.rounds import outstanding
from fedsuite.strategies import FedAvg, FedBuff
from fedsuite.workarounds.prompt_grid import PromptGrid
from tests.helpers import TamperingGrid, Trace, mark, matrix_app, run, zeros

Spoil = Callable[[Message], Message]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outstanding, "_POLL_SECONDS", 0.0)


class LateGrid(TamperingGrid):
    """A grid whose node 1001 answers after so many pulls, badly while that is wanted.

    Parameters
    ----------
    spoil
        Makes a bad reply of a good one.
    bad
        Nodes whose replies are spoilt.
    pulls
        Pulls before node 1001 answers; others answer at once.
    times
        How many replies of each bad node are spoilt.
    """

    def __init__(
        self, spoil: Spoil, bad: Iterable[int] = (1001,), pulls: int = 3, times: int = 99
    ) -> None:
        super().__init__(matrix_app(), 3)
        self._spoil, self._bad = spoil, dict.fromkeys(bad, times)
        self._waits = pulls
        self._looks: dict[str, int] = {}

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        there = []
        for key in message_ids:
            self._looks[key] = self._looks.get(key, 0) + 1
            late = self._replies[key].metadata.src_node_id == 1001
            if self._looks[key] > self._waits * late:
                there.append(key)
        return [reply for key in there for reply in self._sent_back(key)]

    def _sent_back(self, key: str) -> list[Message]:
        [reply] = super().pull_messages([key])
        node_id = reply.metadata.src_node_id
        if not self._bad.get(node_id, 0):
            return [reply]
        self._bad[node_id] -= 1
        return [self._spoil(reply)]


def with_content(change: Callable[[Any], None]) -> Spoil:
    def spoil(reply: Message) -> Message:
        change(reply.content)
        return reply

    return spoil


def failed(reply: Message) -> Message:
    facts = {name: getattr(reply.metadata, name) for name in ("group_id", "src_node_id")}
    error = Message(Error(2, "full disk"), reply_to=reply)
    facts["reply_to_message_id"] = reply.metadata.reply_to_message_id
    return mark(error, **facts)


def lost(reply: Message) -> Message:
    """The SuperLink is node 1, knows no group, and answers for the dead."""
    return mark(failed(reply), src_node_id=1, group_id="")


def diverged(content: Any) -> None:
    content[METRICS]["loss"] = float("nan")
    array = next(iter(content[ARRAYS].values())).numpy().copy()
    array[:] = float("nan")
    content[ARRAYS] = to_record({"weight": array})


def no_arrays(content: Any) -> None:
    del content[ARRAYS]


BAD: dict[str, tuple[Spoil, str]] = {
    "error": (failed, "full disk"),
    "lost-node": (lost, "full disk"),
    "diverged": (with_content(diverged), "NaN or infinity"),
    "no-arrays": (with_content(no_arrays), "arrays"),
    "other-round": (lambda reply: mark(reply, group_id="9.9"), "another round"),
}


def asynchronous(**options: Any) -> FedBuff:
    return FedBuff(fedbuff_delays="real", fedbuff_share=0.67, **options)


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_told_in_the_round_in_which_it_comes(kind: str) -> None:
    spoil, words = BAD[kind]
    trace = run(asynchronous(), LateGrid(spoil, times=1), 6)
    reasons = {
        t.server_round: [r.reason for r in t.train.rejections] for t in trace.reports
    }
    [came] = [r for r, found in reasons.items() if found]
    assert came > 1, "the question was of round 1"
    assert any(words in reason for reason in reasons[came])
    report = trace.reports[came - 1]
    assert report.metrics["replies_rejected"] == len(reasons[came])
    assert {r.server_round for r in report.train.rejections} == {came}
    if kind != "other-round":
        [rejection] = report.train.rejections
        assert rejection.client_id == 1001
        assert report.train.num_asked == 3, "two whose replies count, and the bad one"


def test_late_clients_that_cannot_train_are_evidence_for_the_way_back() -> None:
    strategy = asynchronous()
    trace = run(strategy, LateGrid(with_content(diverged), times=1), 6)
    found = [strategy.recovery.who_cannot_train(t.train) for t in trace.reports]
    assert sorted(found) == [0, 0, 0, 0, 0, 1] and found[0] == 0


@pytest.mark.parametrize("real", [True, False])
def test_a_reply_that_comes_twice_counts_once_and_is_told(real: bool) -> None:
    class Twice(LateGrid):
        def _sent_back(self, key: str) -> list[Message]:
            [reply] = super()._sent_back(key)
            return [reply] * (2 if reply.metadata.src_node_id == 1000 else 1)

    inner = Twice(lambda reply: reply, pulls=0)
    grid: Any = inner if real else PromptGrid(inner)
    strategy = asynchronous() if real else FedAvg()
    trace = run(strategy, grid, 2)
    once = run(asynchronous() if real else FedAvg(), LateGrid(failed, bad=(), pulls=0), 2)
    assert trace.weights == once.weights
    for report, plain in zip(trace.reports, once.reports, strict=True):
        assert report.train.rows == plain.train.rows
        assert report.train.num_asked == plain.train.num_asked
        [told] = report.train.rejections
        assert (told.client_id, told.reason) == (1000, "a second reply to one request")


def test_a_reply_that_comes_twice_closes_no_round() -> None:
    """Two of three replies close it: node 1000's, and a later one of another node."""

    class Slow(LateGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            replies = super().pull_messages(message_ids)
            return replies + [r for r in replies if r.metadata.src_node_id == 1000]

        def _sent_back(self, key: str) -> list[Message]:
            first = self._replies[key].metadata.src_node_id == 1000
            return super()._sent_back(key) if first or self._looks[key] > 2 else []

    trace = run(asynchronous(), Slow(failed, bad=(), pulls=9), 1)
    rows = [row["client"] for row in trace.reports[0].train.rows]
    assert rows == [1000, 1002]


def test_an_error_is_no_reply_that_closes_a_round() -> None:
    """Node 1000 fails at once; the round waits for the late one in its place."""
    trace = run(asynchronous(), LateGrid(failed, bad=(1000,)), 1)
    rows = [row["client"] for row in trace.reports[0].train.rows]
    assert rows == [1001, 1002]


def test_a_reply_to_nothing_is_passed_over() -> None:
    class Stray(LateGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            found = super().pull_messages(message_ids)
            return found + [mark(failed(r), reply_to_message_id="who?") for r in found]

    trace = run(asynchronous(), Stray(failed, bad=(), pulls=0), 2)
    assert [len(t.train.rows) for t in trace.reports] == [2, 2]
    assert not any(t.train.rejections for t in trace.reports)


# The first exchange


@pytest.mark.parametrize("late", [0, 3])
@pytest.mark.parametrize("bad", [(1000,), (1001,), (1000, 1002)])
def test_malformed_first_replies_of_some_do_not_end_the_run(
    bad: tuple[int, ...], late: int
) -> None:
    """Node 1001 is the late one: what it has is not known when the first round closes."""
    strategy = asynchronous(quorum=1, max_failed_rounds=9)
    trace = run(strategy, LateGrid(with_content(no_arrays), bad, pulls=late), 6)
    rows = {row["client"] for t in trace.reports for row in t.train.rows}
    assert rows == {1000, 1001, 1002} - set(bad)


@pytest.mark.parametrize("late", [0, 3])
def test_malformed_first_replies_of_all_end_the_run(late: int) -> None:
    everybody = (1000, 1001, 1002)
    grid = LateGrid(with_content(no_arrays), everybody, pulls=late)
    with pytest.raises(RunError, match=r"FedBuff: .*arrays") as caught:
        run(asynchronous(quorum=1, max_failed_rounds=9), grid, 9)
    assert "\n" not in str(caught.value)


def test_one_good_reply_settles_it() -> None:
    """Clients that break later, one after the other, end no run."""
    grid = LateGrid(with_content(no_arrays), (), pulls=3)
    strategy = asynchronous(quorum=1, max_failed_rounds=9)

    class Breaking(Trace):
        def on_round_end(self, *args: Any) -> None:
            super().on_round_end(*args)
            grid._bad = dict.fromkeys((1000, 1001, 1002), 99)

    breaking = Breaking()
    trace = run(strategy, grid, 5, zeros(), [breaking])
    assert len(trace.reports) == 5


@pytest.mark.parametrize("share", [0.62, 0.64])
def test_rules_and_quorums_are_of_the_replies_that_close_a_round(share: float) -> None:
    """Of four clients in training, three replies are enough for a median, two are not."""
    enough = round(share * 4) >= 3
    for keys in ({"aggregator": "median"}, {"quorum": 3}):
        values = {"method": "fedbuff", "num-clients": 4, "fedbuff-share": share, **keys}
        if enough:
            Experiment.from_values(values)
        else:
            with pytest.raises(ConfigError, match=r"key (aggregator|quorum) = .*2"):
                Experiment.from_values(values)


def test_the_constructor_knows_them_too() -> None:
    FedBuff(fedbuff_share=0.8, clients_per_round=4, aggregator="median")
    with pytest.raises(ValueError, match="there are 2"):
        FedBuff(fedbuff_share=0.5, clients_per_round=4, aggregator="median")
