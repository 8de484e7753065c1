"""A watched node whose relay kills somebody at a step of a message, by a plan.

    python -m tests.deploy.killed_node PLAN NODE_FOLDER PORT

The plan is JSON: pairs of a step and a victim, one for each message in turn. A pair is
taken off before its kill, so that what is started again goes on with the next. The relay of
the node is this file too, with the product's functions wrapped.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.supernode.runtime import run_clientapp

from fedsuite.core.files import atomic_write
from fedsuite.core.output import print_line
from fedsuite.deploy import programs
from fedsuite.deploy.folders import NodeFolder
from fedsuite.deploy.relay import ledger, relay, shelter
from fedsuite.workarounds import node_tasks
from tests.deploy.accidents import descendants

STEPS = ("claimed", "pulled", "begun", "taken", "noted", "half-pushed", "pushed", "told")
"""Steps of a message in their order, each just after what it names."""


class Kills:
    """Kills by a plan."""

    def __init__(self, plan: Path) -> None:
        self._plan = plan
        self._step = self._victim = ""
        self.app: Any = None

    def next_message(self) -> None:
        """Take the next pair off the plan."""
        left = json.loads(self._plan.read_text())
        self._step, self._victim = left.pop(0) if left else ("", "")
        atomic_write(self._plan, json.dumps(left).encode())

    def at(self, step: str) -> None:
        """Kill the victim, if this is its step."""
        if step != self._step:
            return
        self._step = ""
        print_line(f"killing the {self._victim} once a message is {step}")
        if self._victim == "app" and isinstance(self.app, shelter.Forked):
            signal.pidfd_send_signal(vars(self.app)["_process"], signal.SIGKILL)
            return
        for pid in self._pids():
            os.kill(pid, signal.SIGKILL)

    def _pids(self) -> list[int]:
        if self._victim == "relay":
            return [os.getpid()]
        if self._victim == "app":
            return [*descendants(self.app.process.pid), self.app.process.pid]
        watcher = Path(f"/proc/{os.getppid()}")
        others = (watcher / "task" / watcher.name / "children").read_text().split()
        words = [(pid, Path(f"/proc/{pid}/cmdline").read_text()) for pid in others]
        return [int(pid) for pid, text in words if "flower-supernode" in text]


def after(owner: Any, name: str, act: Callable[[Any], None]) -> None:
    """Have a function of an object or a module followed by an act on its answer."""
    plain = getattr(owner, name)

    def followed(*arguments: Any, **words: Any) -> Any:
        answer = plain(*arguments, **words)
        act((arguments, answer))
        return answer

    setattr(owner, name, followed)


def serve_and_kill(plan: str, node: str, port: str) -> None:
    """Run a relay that kills."""
    kills = Kills(Path(plan))

    def claimed(seen: Any) -> None:
        if seen[1] is not None:
            kills.next_message()
            kills.at("claimed")

    def begun(seen: Any) -> None:
        kills.app = seen[0][0]
        kills.at("begun")

    def noted(seen: Any) -> None:
        event = seen[0][1]
        steps = {ledger.REPLY: "noted", ledger.SENT: "told"}
        kills.at(steps.get(event, "no step"))

    after(node_tasks.Tasks, "claim", claimed)
    after(node_tasks.NodeTask, "pull", lambda _: kills.at("pulled"))
    after(shelter.Started, "begin", begun)
    after(node_tasks.AppCalls, "_push_messages", lambda _: kills.at("taken"))
    after(ledger.Ledger, "write", noted)
    after(node_tasks.NodeTask, "push", lambda _: kills.at("pushed"))
    half = vars(run_clientapp)["push_objects"]

    def half_pushed(*arguments: Any, **words: Any) -> None:
        kills.at("half-pushed")
        half(*arguments, **words)

    vars(run_clientapp)["push_objects"] = half_pushed
    relay.serve(node, port)


def watch(plan: str, node: str, port: str) -> None:
    """Run the command of a site whose relay kills."""
    # As many kills as steps are no sign of a node that cannot start.
    vars(programs)["_RESTART_PAUSES_S"] = (2.0,) * 60
    command = [sys.executable, "-P", __file__, "relay", plan, node]
    vars(programs)["supernode_helper_command"] = lambda _, port: [*command, str(port)]
    programs.run_supernode(NodeFolder.load(Path(node)), int(port), print_line)


if __name__ == "__main__":
    if sys.argv[1] == "relay":
        serve_and_kill(*sys.argv[2:])
    else:
        watch(*sys.argv[1:])
