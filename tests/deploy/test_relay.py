"""The relay without Flower's processes: what is pushed, noted and kept, and when."""

import http.client
import socket
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedsuite.core.errors import ConfigError, RunError
from fedsuite.deploy.folders import NODES, NodeFolder, init_federation
from fedsuite.deploy.programs import supernode_helper_command
from fedsuite.deploy.relay import launcher, shelter
from fedsuite.deploy.relay import relay as relays
from fedsuite.deploy.relay.judge import FAILED
from fedsuite.deploy.relay.ledger import Ledger, read_chain
from fedsuite.deploy.relay.policy import Apps, Leave, Limits, Policy, Shelter, default_text
from fedsuite.workarounds import node_tasks
from fedsuite.workarounds.identity import flower_identity
from fedsuite.workarounds.node_tasks import UnreadableError

HASH = "b" * 64


@pytest.fixture
def node(tmp_path: Path) -> NodeFolder:
    init_federation(tmp_path / "f", ["127.0.0.1"], ["a"], policy=default_text())
    return NodeFolder.load(tmp_path / "f" / NODES / "a")


def question() -> Message:
    arrays = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"lr": 0.1})})
    with flower_identity(77):
        message = Message(content, 1, "train", group_id="4")
    message.metadata.__dict__["_message_id"] = "m" * 64
    return message


def answer(**numbers: Any) -> RecordDict:
    arrays = ArrayRecord({"w": Array(np.ones(2, np.float32))})
    metrics = MetricRecord({"num-examples": 50, "loss": 0.5, **numbers})
    return RecordDict({"arrays": arrays, "metrics": metrics})


class FakeTask:
    """A SuperNode's task in this process; ``events`` is the order of what happened."""

    run_id = "77"
    app = (HASH, "example/app", "1.0")

    def __init__(self, fails: str = "") -> None:
        self.message = question()
        self.question = self.message.content
        self.events: list[str] = []
        self.pushed: list[Message] = []
        self.fails = fails
        self.kept: object = "nothing"

    def pull(self) -> None:
        self._do("pull")

    def push(self, reply: Message) -> str:
        self._do("push")
        self.pushed.append(reply)
        return "pushed"

    def end(self, calls: object) -> None:
        self.kept = calls
        self._do("end")

    def _do(self, step: str) -> None:
        self.events.append(step)
        if step == self.fails:
            raise ConnectionError(step)


class FakeCalls:
    """What an app pushed."""

    output = "the task's output"

    def __init__(self, content: RecordDict | Exception | None, words: str = "") -> None:
        self.content, self.words = content, words

    def reply(self) -> RecordDict | None:
        if isinstance(self.content, Exception):
            raise self.content
        return self.content

    def error(self) -> str:
        return self.words

    num_refused = 0

    def answer(self, path: str, body: bytes) -> bytes | None:
        return None

    def close(self) -> None:
        pass


class FakeStarted:
    def __init__(self, *_: object) -> None:
        self.ended = False
        self.line, self.app = socket.socketpair()

    def wait(self) -> None:
        pass

    def begin(self) -> None:
        pass

    def end(self) -> None:
        self.ended = True
        self.line.close()
        self.app.close()

    def is_alive(self) -> bool:
        return True


def run(
    node: NodeFolder,
    monkeypatch: pytest.MonkeyPatch,
    content: RecordDict | Exception | None,
    policy: Policy | None = None,
    task: FakeTask | None = None,
    words: str = "",
    started: type["FakeStarted"] | None = None,
) -> tuple[FakeTask, list[dict[str, Any]]]:
    calls = FakeCalls(content, words)
    monkeypatch.setattr(relays, "Started", started or FakeStarted)
    monkeypatch.setattr(relays, "AppCalls", lambda *_: calls)
    task = task or FakeTask()
    path = node.path / "ledger.jsonl"
    with Ledger(path) as ledger:
        relay = relays.Relay(node, policy or Policy(), ledger, None, {})  # type: ignore[arg-type]
        relay.answer(task)  # type: ignore[arg-type]
        relay.close()
    return task, list(read_chain(path).lines)


def test_a_reply_is_noted_before_it_leaves(
    node: NodeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = FakeTask()
    before: list[int] = []
    push = task.push

    def noted(reply: Message) -> str:
        before.append(len(read_chain(node.path / "ledger.jsonl").lines))
        return push(reply)

    task.push = noted  # type: ignore[method-assign]
    task, lines = run(node, monkeypatch, answer(), task=task)
    assert before == [2]
    assert [line["event"] for line in lines] == ["started", "reply", "sent"]
    noted_line = lines[1]
    assert noted_line["reply"] == task.pushed[0].object_id
    assert (noted_line["run"], noted_line["round"], noted_line["bytes"]) == ("77", "4", 8)
    assert noted_line["norm"] == pytest.approx(2**0.5)
    metadata = task.pushed[0].metadata
    assert (metadata.message_type, metadata.group_id) == ("train", "4")
    assert task.kept is not None


@pytest.mark.parametrize("step", ["pull", "push"])
def test_a_crash_at_a_step_pushes_nothing_twice(
    node: NodeFolder, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    task = FakeTask(fails=step)
    with pytest.raises(ConnectionError):
        run(node, monkeypatch, answer(), task=task)
    assert task.events.count("push") <= 1
    assert task.events[-1] == "end"
    chain = read_chain(node.path / "ledger.jsonl")
    assert not chain.broken
    events = [line["event"] for line in chain.lines]
    assert events == (["started"] if step == "pull" else ["started", "reply"])


def test_what_the_ledger_cannot_hold_does_not_leave(
    node: NodeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = FakeTask()
    write = Ledger.write

    def full(self: Ledger, event: str, **content: object) -> None:
        if event == "reply":
            raise RunError("cannot write ledger.jsonl: No space left on device")
        write(self, event, **content)

    monkeypatch.setattr(Ledger, "write", full)
    with pytest.raises(RunError, match="No space left"):
        run(node, monkeypatch, answer(), task=task)
    assert task.events == ["pull", "end"]
    assert task.kept is None


def test_a_refusal_says_no_rule_unless_the_policy_does(
    node: NodeFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task, lines = run(node, monkeypatch, answer(patient=1.0))
    assert task.pushed[0].error.reason == "refused by the site's policy"
    assert lines[1]["rule"] == "leave.metrics"
    here = "relay: nothing has left, by policy.toml: leave.metrics: patient\n"
    assert capsys.readouterr().out == here
    assert task.kept is None
    told, _ = run(node, monkeypatch, answer(patient=1.0), Policy(leave=Leave(reason=True)))
    assert told.pushed[0].error.reason == "refused by the site's policy: leave.metrics"


def test_an_apps_error_keeps_its_words_here(
    node: NodeFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task, lines = run(node, monkeypatch, None, words="row 7: male")
    assert task.pushed[0].error.reason == FAILED
    assert "row 7" not in str(lines)
    assert "row 7: male" in capsys.readouterr().out
    task, lines = run(node, monkeypatch, UnreadableError("parts of the reply are missing"))
    assert lines[-2]["rule"] == "form"


@pytest.mark.parametrize(
    ("allow", "runs"),
    [
        ("*", True),
        (f"sha256:{HASH}", True),
        (f"sha256:{'c' * 64}", False),
        ("example/app", True),
        ("example/app==1.0", True),
        ("example/app==1.1", False),
        ("example/*", True),
        ("other/*, example/app==2*", False),
        ("", False),
    ],
)
def test_the_policy_says_which_apps_run(
    node: NodeFolder, monkeypatch: pytest.MonkeyPatch, allow: str, runs: bool
) -> None:
    task, lines = run(node, monkeypatch, answer(), Policy(apps=Apps(allow=allow)))
    assert task.pushed[0].has_error() != runs
    assert lines[1].get("rule") == (None if runs else "apps.allow")


def test_an_app_that_takes_too_long_is_ended(
    node: NodeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeCalls, "output", None)
    task, lines = run(node, monkeypatch, answer(), Policy(limits=Limits(seconds=0.05)))
    assert lines[1]["rule"] == "limits.seconds"
    assert task.pushed[0].has_error()


@pytest.mark.parametrize(("calls", "leaves"), [(19, True), (20, False), (60, False)])
def test_an_app_that_keeps_calling_what_it_may_not_is_ended(
    node: NodeFolder, monkeypatch: pytest.MonkeyPatch, calls: int, leaves: bool
) -> None:
    """Each such call is a line on the disk, which would fill it."""

    class Calling(FakeStarted):
        def begin(self) -> None:
            for _ in range(calls):
                line = http.client.HTTPConnection("relay", timeout=10)
                line.sock = launcher.call_over(self.app, 10)
                line.request("POST", "/v1/runtime/create-task", b"x")
                assert line.getresponse().status == 403
                line.close()

    monkeypatch.setattr(FakeCalls, "output", None if not leaves else "the output")
    task, lines = run(node, monkeypatch, answer(), started=Calling)
    assert task.pushed[0].has_error() != leaves
    assert sum(line["event"] == "request" for line in lines) == min(calls, 20)
    assert lines[-2].get("rule") == (None if leaves else "calls")


@pytest.mark.parametrize("length", ["-1", "\u00b2", "9" * 5000, "1e3"])
def test_a_call_of_an_odd_length_is_refused_and_the_next_one_answered(
    node: NodeFolder, monkeypatch: pytest.MonkeyPatch, length: str
) -> None:
    class Calling(FakeStarted):
        def begin(self) -> None:
            for size, status in ((length, b" 413 "), ("1", b" 403 ")):
                with launcher.call_over(self.app, 10) as line:
                    head = f"POST /v1/runtime/x HTTP/1.1\r\ncontent-length: {size}\r\n\r\nx"
                    line.sendall(head.encode("latin-1"))
                    assert status in line.recv(100)

    run(node, monkeypatch, answer(), started=Calling)


def test_a_bundle_that_is_not_what_its_hash_names_is_noted(
    node: NodeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = FakeTask()

    def pull() -> None:
        raise UnreadableError("the bundle is not the one that its hash names")

    task.pull = pull  # type: ignore[method-assign]
    with pytest.raises(UnreadableError):
        run(node, monkeypatch, answer(), task=task)
    lines = read_chain(node.path / "ledger.jsonl").lines
    assert (lines[1]["event"], lines[1]["rule"]) == ("refused", "form")
    assert not task.pushed


def test_a_node_with_a_policy_has_a_relay_and_no_superexec(node: NodeFolder) -> None:
    command = supernode_helper_command(node, 9094)
    assert "fedsuite.deploy.relay" in command
    assert not any("superexec" in word for word in command)


def test_code_that_a_policy_allows_is_the_nodes(node: NodeFolder) -> None:
    path = node.path / "policy.toml"
    path.write_text(path.read_text().replace('code = ""', 'code = "nets:Net"'))
    assert NodeFolder.load(node.path).config["allowed-code"] == "nets:Net"


def sheltered(**changes: Any) -> Policy:
    return Policy(shelter=Shelter(**changes))


def test_a_shelter_shows_no_key_even_where_its_folder_is_readable(node: NodeFolder) -> None:
    policy = sheltered(read=str(node.path.parent))
    command = shelter.app_command(
        policy, node, {"FEDSUITE_STATE": str(node.path / "state")}
    )
    words = " ".join(command)
    shown, hidden = f"--ro-bind {node.path.parent}", f"--tmpfs {node.path}"
    assert (
        words.index(shown) < words.index(hidden) < words.index(f"--bind {node.path}/state")
    )


@pytest.mark.parametrize(
    ("config", "environment", "read", "words"),
    [
        ({"data": "/srv/a"}, {}, "", "data = /srv/a"),
        ({}, {"FEDSUITE_DATA": "/srv/data"}, "", "FEDSUITE_DATA = /srv/data"),
        ({}, {}, "/srv/not-there", "not there"),
    ],
)
def test_what_apps_could_not_read_is_said_before_the_start(
    node: NodeFolder,
    config: Mapping[str, Any],
    environment: Mapping[str, str],
    read: str,
    words: str,
) -> None:

    with pytest.raises(ConfigError, match=words):
        shelter.check_shelter(
            sheltered(read=read), replace(node, config=config), environment
        )


def test_a_shelter_that_is_not_installed_is_named(
    node: NodeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr(shelter, "_TRIAL", "pass")
    with pytest.raises(ConfigError, match="apt install bubblewrap") as error:
        shelter.check_shelter(Policy(), node, {})
    assert "shelter = 'landlock' works here: write it; or" in str(error.value)
    shelter.check_shelter(sheltered(shelter="none"), node, {})


def test_an_apps_environment_holds_nothing_of_the_sites() -> None:
    seen = shelter.app_environment(
        Policy(),
        {"AWS_SECRET": "x", "FEDSUITE_DATA": "/d", "HOME": "/home/a", "PATH": "/p"},
    )
    assert "AWS_SECRET" not in seen
    assert seen["FEDSUITE_DATA"] == "/d"
    assert seen["HOME"] == "/tmp"


def test_landlock_that_does_not_work_is_told_with_its_last_line(
    node: NodeFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "landlock.py"
    broken.write_text("import sys; sys.exit('this kernel has no Landlock')")
    monkeypatch.setattr(shelter, "_LANDLOCK", str(broken))
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(ConfigError) as error:
        shelter.check_shelter(sheltered(shelter="landlock"), node, {})
    assert "landlock does not work here (this kernel has no Landlock)" in str(error.value)
    assert "Linux 5.13" in str(error.value)
    assert "works here: write it" not in str(error.value)


def test_a_shelter_that_shows_the_nodes_key_is_none(
    node: NodeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelter, "_shut_in", lambda *_: [])
    monkeypatch.setattr(shelter, "_TRIAL", shelter._TRIAL.replace(", flwr", ""))
    told = shelter.tried(sheltered(shelter="landlock"), node, {})
    assert told == "does not work here (apps read the node's key)"


def test_landlock_refuses_to_show_what_holds_the_nodes_folder(node: NodeFolder) -> None:
    policy = sheltered(shelter="landlock", read=str(node.path.parent))
    with pytest.raises(ConfigError, match="holds the node's folder"):
        shelter.check_shelter(policy, node, {})


def test_apps_under_landlock_share_no_folder(node: NodeFolder) -> None:
    """Each is forked into one of its own, and its parent's is not among what it writes."""
    command = shelter.app_command(sheltered(shelter="landlock", write="/w"), node, {})
    read, write, _ = command[command.index("forks") + 3 :][:3]
    assert write == "/w"
    assert "{home}" not in " ".join(command)
    assert str(node.path) not in read.split(",")


def test_a_process_whose_relay_died_while_it_loaded_ends_without_a_word() -> None:
    line, relay = socket.socketpair()
    relay.close()
    with line:
        assert not launcher._is_wanted(line)


def test_a_supernode_that_answers_no_claim_ends_the_relay_in_one_line(
    node: NodeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def claim(self) -> None:
            raise ValueError("status 500\nfor url")

    monkeypatch.setattr(relays, "Started", FakeStarted)
    with Ledger(node.path / "ledger.jsonl") as ledger:
        relay = relays.Relay(node, Policy(), ledger, Broken(), {})  # type: ignore[arg-type]
        with pytest.raises(RunError, match="takes no claim: ValueError") as caught:
            relay.serve()
        relay.close()
    assert "\n" not in str(caught.value)


def test_a_relay_ends_also_in_the_middle_of_a_look_at_its_app(tmp_path: Path) -> None:
    """A signal may come while the lock is held by which Python waits for a process."""
    words = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]
    app = shelter.Started(words, {}, tmp_path)
    with app.process._waitpid_lock:  # type: ignore[attr-defined]
        ending = threading.Thread(target=app.end, daemon=True)
        ending.start()
        ending.join(60)
        assert not ending.is_alive()
    assert not app.is_alive()
    assert not list(tmp_path.iterdir())


def test_a_heart_goes_on_after_any_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    beats = threading.Semaphore(0)

    def beat() -> bool:
        beats.release()
        raise ValueError("status 500")

    monkeypatch.setattr(node_tasks, "make_task_heartbeat_fn_http", lambda _: beat)
    task = node_tasks.NodeTask(None)  # type: ignore[arg-type]
    try:
        assert beats.acquire(timeout=60)
        assert beats.acquire(timeout=60)
        assert task._heart.is_running
    finally:
        task._heart.stop()
