"""Real processes of ``deploy`` under schedules, and whether the checker sees bugs."""

import pytest

from tests.disasters import forked, watched
from tests.disasters.forked import Schedule
from tests.disasters.planted import Bug, planted
from tests.disasters.processes import drawn, judge, shrunk

_WATCHER = "fedsuite.deploy.programs:_Restarted"
_RELAY = "fedsuite.deploy.relay.relay:Relay._reply"
_LEDGER = "fedsuite.deploy.relay.ledger:Ledger"


def _relayed(faults: dict[str, str], *messages: str) -> Schedule:
    return Schedule(0, "relay", "term", faults, messages)


_PAIR = Schedule(0, "pair", "term", {"node 1": "exit"})

SHOWN = [
    Schedule(0, "pair", "hup", {"node 1": "gone"}),
    Schedule(0, "pair", "term", {"node 1": "stop-other", "helper 1": "exit"}),
    _relayed({"ledger:request 1": "eio", "ended 2": "kill"}, "false", "honest", "honest"),
    _relayed({"ledger:request 1": "full", "ended 2": "kill"}, "twice", "honest", "honest"),
    _relayed({"send-task-heartbeat 1.1": "garbage"}, "honest"),
    _relayed({"acquire-task 1.1": "500"}, "honest", "honest"),
    _relayed({"started 0": "int"}, "honest"),
    _relayed({"ledger:sent 1": "kill"}, "honest", "honest"),
    _relayed({"pull-task-input 1.1": "cut-answer"}, "texts", "raises", "forbidden"),
]
"""What once failed, by its fewest faults."""

BUGS = {
    Bug(
        "the watcher forgets its programs when it ends",
        "fedsuite.deploy.programs:_supervised",
        "programs.close(_END_PATIENCE_S)",
        "programs._watchdog.dismiss()",
    ): Schedule(0, "pair", "term"),
    Bug(
        "what runs is started beside itself",
        f"{_WATCHER}._stop",
        "program.process.terminate()",
        "return",
    ): _PAIR,
    Bug(
        "of two that belong together one is started again",
        f"{_WATCHER}.watch",
        "self._one if name in self._one else {name}",
        "{name}",
    ): _PAIR,
    Bug(
        "it starts a program again without end",
        f"{_WATCHER}.watch",
        "self._restarts[name] = count + 1",
        "self._restarts[name] = min(count + 1, 7)",
    ): Schedule(0, "alone", "term", {"helper always": "exit"}),
    Bug(
        "the watchdog leaves the folder",
        "fedsuite.engines.watchdog:main",
        "shutil.rmtree(place, ignore_errors=True)",
        "pass",
    ): Schedule(0, "own-folder", "kill"),
    Bug(
        "the relay sends before it judges",
        _RELAY,
        "outcome = judged(",
        "task.push(Message(content, reply_to=task.message))\n    outcome = judged(",
    ): _relayed({}, "denied"),
    Bug(
        "the relay sends before the line is written",
        _RELAY,
        "identity = reply.object_id",
        "identity = task.push(reply)",
    ): _relayed({}, "honest"),
    Bug(
        "a line that failed stays",
        f"{_LEDGER}._write",
        "self._file.truncate(end)",
        "pass",
    ): _relayed(
        {"ledger:request 1": "eio", "ended 2": "kill"}, "false", "honest", "honest"
    ),
    Bug(
        "half a line is not cut off",
        f"{_LEDGER}.__init__",
        "os.truncate(path, path.stat().st_size - chain.torn)",
        "pass",
    ): _relayed({"ledger:refused 1": "torn"}, "denied", "honest"),
}
"""Each with a schedule that shows it."""


@pytest.mark.parametrize(
    "schedule",
    [drawn(0), _relayed({"push-messages 1.1": "cut-answer"}, "honest", "denied")],
    ids=lambda schedule: schedule.world,
)
def test_a_schedule_holds(schedule: Schedule) -> None:
    assert not judge(schedule)[0]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SHOWN, ids=lambda schedule: str(schedule.faults))
def test_what_once_failed_holds(schedule: Schedule) -> None:
    assert not judge(schedule)[0]


def test_a_schedule_shrinks_to_the_faults_that_it_needs() -> None:
    """The judge says what a place does; the others are left out."""

    def bad(schedule: Schedule) -> tuple[list[str], list[str]]:
        return ["left: a file"] if {"a 1", "b 1"} <= set(schedule.faults) else [], []

    schedule = Schedule(0, "pair", "term", {"a 1": "exit", "c 1": "exit", "b 1": "exit"})
    assert set(shrunk(schedule, "left: a process", bad).faults) == {"a 1", "b 1"}


@pytest.mark.nightly
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_seen(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = BUGS[bug]
    assert not judge(schedule)[0]
    monkeypatch.setattr(forked, "LONGEST_S", 60.0)
    if bug.where.startswith("fedsuite.engines.watchdog"):
        # It runs as a file.
        assert bug.text in watched.WATCHDOG
        changed = watched.WATCHDOG.replace(bug.text, bug.instead)
        monkeypatch.setattr(watched, "WATCHDOG", changed)
        assert judge(schedule)[0]
        return
    with planted(bug):
        assert judge(schedule)[0]
