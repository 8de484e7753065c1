"""The watcher of ``deploy`` and the watchdog, over programs that do what a seed says."""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fedsuite.cli.command import main as command
from fedsuite.core.output import print_line
from fedsuite.deploy import programs
from fedsuite.deploy.folders import NodeFolder
from fedsuite.deploy.relay.policy import Policy, Shelter
from fedsuite.engines import watchdog
from fedsuite.engines.processes import World, stop_signals_raise
from tests.disasters import stand_ins
from tests.disasters.forked import Child, Schedule, comes, left_over, wrong_output
from tests.disasters.stand_ins import SIGNALS, events, lives, stat
from tests.engines.tiny_app import processes_of

NAMES = ("node", "helper")
KINDS = (
    *("exit", "exit", "chatty", "full", "gone", "deaf", "child", "litter"),
    *("kill-other", "kill-itself", "kill-watchdog", "stop-other", "stop-itself"),
    *("stop-watchdog", "watcher-pause", "watcher-term", "watcher-term-term"),
    *("watcher-kill", "watcher-int", "watcher-hup", "watcher-term-kill"),
)
WATCHDOG = Path(watchdog.__file__).read_text().replace("_S = 5.0", "_S = 1.0")
"""The file that runs, less patient."""

_PAUSES = (0.01,) * 8


def watch(schedule: Schedule, node: NodeFolder, folder: Path) -> None:
    """Be the watcher, with its waits cut short."""
    os.environ["TMPDIR"] = str(folder / "t")
    tempfile.tempdir = None
    (folder / "watchdog.py").write_text(WATCHDOG)
    vars(watchdog)["__file__"] = str(folder / "watchdog.py")

    def words(name: str) -> list[str]:
        return [sys.executable, "-I", "-S", stand_ins.__file__, name, str(folder)]

    stand_in = {
        "_RESTART_PAUSES_S": _PAUSES,
        "_LOOK_EVERY_S": 0.01,
        "_END_PATIENCE_S": 1.0,
        "is_full": lambda _: (folder / "full").exists(),
        "clock_trouble": lambda _: "",
        "supernode_command": lambda _, port: words("node"),
        "supernode_helper_command": lambda _, port: words("helper"),
    }
    vars(programs).update(stand_in)

    def own_folder() -> None:
        try:
            with stop_signals_raise(), World("fedsuite") as world:
                started = [world.start(name, words(name)) for name in NAMES]
                while True:
                    for program in started:
                        program.check_alive()
                    time.sleep(0.01)
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)

    policy = Policy(shelter=Shelter(shelter="none")) if schedule.world == "pair" else None
    with_policy = replace(node, policy=policy)
    watched: Callable[[], object] = lambda: programs.run_supernode(  # noqa: E731
        with_policy, None, print_line
    )
    command(own_folder if schedule.world == "own-folder" else watched)


def play(schedule: Schedule, template: Path, folder: Path) -> list[str]:
    """Play a schedule; return what was wrong."""
    place = folder / "site"
    shutil.copytree(template, place)
    node = NodeFolder.load(place)
    known = {path.name for path in place.iterdir()} | {"empty", "state", "flwr"}
    child = Child(folder / "log", lambda: watch(schedule, node, folder))

    def settled() -> bool:
        latest = {e[1]: e for e in events(folder) if e[0] in ("start", "settled")}
        return set(latest) == set(NAMES) and all(
            (e[0] == "settled" and lives(int(e[2]))) or stat(int(e[2]))[0] == "T"
            for e in latest.values()
        )

    def is_over() -> bool:
        if "is full: free some" in child.text:
            (folder / "full").unlink(missing_ok=True)
        return child.poll() is not None or settled()

    try:
        if not comes(is_over):
            return [f"stuck: it neither runs nor ends: {child.text[-300:]}"]
        if child.poll() is None:
            # A program may be ended before it can note its start, so nothing is counted.
            pids = {e[1]: int(e[2]) for e in events(folder) if e[0] == "start"}
            if schedule.world == "pair" and 0 < born(pids["helper"]) < born(pids["node"]):
                return ["restarts: of two that belong together the node alone"]
            os.kill(child.pid, SIGNALS.get(schedule.last, signal.SIGKILL))
            if not comes(lambda: child.poll() is not None):
                return ["stuck: it does not end by its signal"]
        fired = {e[-1] for e in events(folder) if e[0] == "fired"}
        if child.code == -signal.SIGKILL and fired & {"kill-watchdog", "stop-watchdog"}:
            # Nobody is left who could end them.
            for pid in [int(word.split()[0]) for word in processes_of(str(folder))]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(folder / "t")
            (folder / "t").mkdir()
        return [
            *wrong_end(schedule, child, folder),
            *wrong_output(child.text, 40 + 60 * len(events(folder))),
            *left_over(folder, ("start", "child")),
            *(
                f"left: {p.name} in the node's folder"
                for p in place.iterdir()
                if p.name not in known
            ),
        ]
    finally:
        child.kill()


def born(pid: int) -> int:
    """Return when a living process began, in ticks; 0 of one that is gone."""
    fields = stat(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def wrong_end(schedule: Schedule, child: Child, folder: Path) -> Iterator[str]:
    """Yield what is wrong with how a watcher ended, and with what it has started."""
    past = events(folder)
    fired = {kind for what, *_, kind in past if what == "fired"}
    signals = {schedule.last, *(w for kind in fired for w in kind.split("-")[1:])}
    own, last = schedule.world == "own-folder", child.text.splitlines()[-1:]
    lawful = {
        128 + number if own else 0 for word, number in SIGNALS.items() if word in signals
    }
    if len(signals & set(SIGNALS)) > 1 or "watcher-term-term" in fired:
        # The second one may come before the first one has the ending begun.
        lawful |= {128 + SIGNALS[word] for word in signals & set(SIGNALS)}
    if "kill" in signals:
        lawful.add(-signal.SIGKILL)
    says_why = bool(last) and last[0].startswith("fedsuite: error: ")
    gave_up = says_why and "in a row" in last[0]
    if child.code not in lawful and not (child.code == 1 and says_why):
        yield f"end: code {child.code} after {sorted(signals)}: {child.text[-300:]}"
    starts = {name: sum(e[:2] == ["start", name] for e in past) for name in NAMES}
    if child.code == 1 and not own and not gave_up:
        yield f"end: it gave up: {last}"
    if gave_up and max(starts.values()) <= len(_PAUSES):
        yield f"end: it gave up after {starts}"
    most = 1 if own else 1 + 2 * len(_PAUSES) + 9 * ("full" in fired)
    if max(starts.values()) > most:
        yield f"restarts: {starts}"
    if double := [e for e in past if e[0] == "double"]:
        yield f"double: {double[0][1]} ran twice at a time"
