"""Commands and watching of Flower's programs on a federation's folders.

SuperLink and SuperNode run in process isolation, each beside a SuperExec that starts
ServerApps or ClientApps. A run goes on when a killed SuperLink comes back with its
database. The two programs of a machine share a secret, because other programs may reach the
port too.
"""

import contextlib
import http.client
import json
import os
import shlex
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsuite.core.errors import ConfigError, RunError, one_line
from fedsuite.core.files import atomic_write
from fedsuite.core.own_process import with_fedsuite
from fedsuite.core.reading import parsed, read_bytes
from fedsuite.core.text import read_text
from fedsuite.deploy import relay
from fedsuite.deploy.clocks import clock_trouble
from fedsuite.deploy.endings import is_full
from fedsuite.deploy.folders import (
    AUTHORITY,
    NODE_KEY,
    POLICY,
    PROXY,
    RUNS,
    SECRET,
    SERVER,
    SERVER_KEY,
    NodeFolder,
    SuperLinkFolder,
)
from fedsuite.deploy.preloaded import superexec
from fedsuite.deploy.relay.shelter import check_shelter
from fedsuite.deploy.reverse_proxy import check_listening, proxy_command
from fedsuite.deploy.validity import check_node, check_superlink, server_trouble
from fedsuite.engines.deployment import node_config_text
from fedsuite.engines.flower import CONNECTION, answers, fleet_is_grpc, unframed
from fedsuite.engines.ports import LOOPBACK, chosen_port
from fedsuite.engines.processes import (
    Program,
    Programs,
    executable,
    flower_environment,
    stop_signals_raise,
)
from fedsuite.messages.records import NODE_KEY_VARIABLE
from fedsuite.results.layout import FEDERATION_VARIABLE
from fedsuite.workarounds import dead_threads
from fedsuite.workarounds.state_database import fold, refuse_newer

REGISTERED = "registered.json"
TAKEN_OUT = "taken_out.json"
"""Numbers of nodes that were taken out, with their names: an older database has them."""
BEGUN = "registering.json"
"""The key whose registration was begun, and the numbers that were there before."""
DATABASE = "state.db"

_UNREGISTERED = "unregistered"

_LOOK_EVERY_S = 0.2
_END_PATIENCE_S = 20.0
_RESTART_PAUSES_S = (2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0)
"""A SuperLink takes a dead node for alive, and refuses its return, for up to a minute."""
_FORGIVEN_AFTER_S = 600.0
_LAST_LINES = "its last lines say why"


def superlink_command(
    folder: SuperLinkFolder, bind: str = LOOPBACK, *, opens: bool = False
) -> list[str]:
    """Return the command of the SuperLink, which listens on an address.

    ``opens`` makes the Control API listen there too, if the Fleet API has its own port.
    """
    path = folder.path
    command = [
        "flower-superlink",
        *("--host", control_host(bind, opens=opens), "--port", str(folder.port)),
        *("--ssl-ca-certfile", str(path / AUTHORITY)),
        *("--ssl-certfile", str(path / SERVER), "--ssl-keyfile", str(path / SERVER_KEY)),
        "--enable-supernode-auth",
        *("--database", str(path / DATABASE)),
        *("--isolation", "process"),
        *("--superexec-auth-secret-file", str(path / SECRET)),
    ]
    if fleet_is_grpc():
        command += ["--fleet-api-address", f"{bind}:{folder.fleet_port}"]
    return command


def control_host(bind: str, *, opens: bool) -> str:
    """Return the Control API's host; see :func:`superlink_command`."""
    return LOOPBACK if fleet_is_grpc() and not opens else bind


def superlink_helper_command(folder: SuperLinkFolder) -> list[str]:
    """Return the command of the SuperExec beside the SuperLink."""
    return [
        "flower-superexec",
        *("--runtime-api-address", f"{LOOPBACK}:{folder.port}"),
        *("--root-certificates", str(folder.path / AUTHORITY)),
        *("--superexec-auth-secret-file", str(folder.path / SECRET)),
    ]


def supernode_command(folder: NodeFolder, runtime_port: int) -> list[str]:
    """Return the command of a SuperNode, whose SuperExec uses a port of the loopback."""
    return [
        *(sys.executable, "-P", "-m", dead_threads.__name__),
        executable("flower-supernode"),
        *("--superlink", folder.superlink),
        *("--root-certificates", str(folder.path / AUTHORITY)),
        *("--auth-supernode-private-key", str(folder.path / NODE_KEY)),
        *("--host", LOOPBACK, "--port", str(runtime_port)),
        *("--isolation", "process"),
        *("--superexec-auth-secret-file", str(folder.path / SECRET)),
        *("--node-config", node_config_text(folder.config)),
    ]


def supernode_helper_command(folder: NodeFolder, runtime_port: int) -> list[str]:
    """Return the command beside a SuperNode: a relay where there is a policy."""
    if folder.policy is not None:
        return [
            sys.executable,
            "-P",
            "-m",
            relay.__name__,
            str(folder.path),
            str(runtime_port),
        ]
    return [
        *(preloaded_superexec() if folder.preload else ["flower-superexec"]),
        "--insecure",
        *("--runtime-api-address", f"{LOOPBACK}:{runtime_port}"),
        *("--superexec-auth-secret-file", str(folder.path / SECRET)),
    ]


def preloaded_superexec() -> list[str]:
    """Return the command of a SuperExec whose ClientApps start with torch loaded.

    Flower's own SuperExec is returned where forking is unsafe, as on macOS.
    """
    if sys.platform != "linux":
        return ["flower-superexec"]
    script = str(Path(superexec.__file__))
    return [sys.executable, "-P", script, "beside", executable("flower-superexec")]


def superlink_environment(folder: SuperLinkFolder) -> dict[str, str]:
    """Return the environment of the SuperLink's programs and commands."""
    return flower_environment(with_fedsuite(os.environ)) | {
        "FLWR_HOME": str(folder.path / "flwr"),
        "FEDSUITE_RUNS": os.environ.get("FEDSUITE_RUNS", str(folder.path / RUNS)),
        FEDERATION_VARIABLE: str(folder.path),
        "FEDSUITE_STATE": os.environ.get("FEDSUITE_STATE", str(folder.path / "state")),
    }


def supernode_environment(folder: NodeFolder) -> dict[str, str]:
    """Return the environment of a node, with private models in the node's folder."""
    return flower_environment(with_fedsuite(os.environ)) | {
        NODE_KEY_VARIABLE: str(folder.path / NODE_KEY),
        "FLWR_HOME": str(folder.path / "flwr"),
        "FEDSUITE_STATE": os.environ.get("FEDSUITE_STATE", str(folder.path / "state")),
    }


def write_connection(folder: SuperLinkFolder, host: str = LOOPBACK) -> None:
    """Write the SuperLink's address and certificate for Flower's commands."""
    home = folder.path / "flwr"
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        f'address = "{host}:{folder.port}"\n'
        f"root-certificates = {json.dumps(str(folder.path / AUTHORITY))}\n",
        encoding="utf-8",
    )


def is_healthy(folder: SuperLinkFolder) -> bool:
    """Return whether the folder's SuperLink answers on this machine."""
    trusted = ssl.create_default_context(cafile=str(folder.path / AUTHORITY))
    line = http.client.HTTPSConnection(LOOPBACK, folder.port, timeout=2.0, context=trusted)
    return answers(line)


def ask(folder: SuperLinkFolder, *words: str) -> str:
    """Return the output of a ``flwr`` command, or raise its last line."""
    if not (folder.path / "flwr" / "config.toml").exists():
        write_connection(folder)
    answer = subprocess.run(
        [executable("flwr"), *words],
        cwd=neutral_folder(folder.path),
        env=superlink_environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    failed = answer.returncode or '"error-message"' in answer.stdout
    if failed and (ended := _ended(folder)):
        raise RunError(ended)
    if answer.returncode:
        texts = unframed((answer.stderr + answer.stdout).split("\n"))
        last = texts[-1] if texts else "it printed nothing"
        raise RunError(f"flwr {' '.join(words[:2])} failed: {last}")
    return answer.stdout


def _ended(folder: SuperLinkFolder) -> str:
    """Return that a certificate has ended, which Flower calls no connection."""
    try:
        check_superlink(folder)
    except ConfigError as error:
        return str(error)
    return ""


def told(text: str, name: str) -> Any:
    """Return an entry of what a ``flwr`` command prints as JSON.

    Raises
    ------
    RunError
        With the last line of Flower's error, or where there is no such entry.
    """
    try:
        # Flower prints a line of text before some.
        answer = parsed(text[max(text.find("{"), 0) :])
        if words := answer.get("error-message"):
            raise RunError(unframed(words.split("\n"))[-1].rstrip("."))
        return answer[name]
    except (ValueError, LookupError, TypeError, AttributeError):
        raise RunError(f"flwr answered {one_line(text, 200)!r}, without {name}") from None


def entries_told(text: str, name: str) -> list[Mapping[str, Any]]:
    """Return the objects of a list, as by :func:`told`."""
    entries = told(text, name)
    if not isinstance(entries, list):
        raise RunError(f"flwr answered {one_line(entries, 200)!r} for {name}: no list")
    return [entry for entry in entries if isinstance(entry, dict)]


@dataclass(frozen=True)
class Registered:
    """Names of nodes that joined and left by :func:`register_nodes`."""

    added: list[str]
    removed: list[str]

    def __str__(self) -> str:
        words = {"registered now": self.added, "taken out": self.removed}
        return "; ".join(f"{word}: {', '.join(n)}" for word, n in words.items() if n)


def register_nodes(folder: SuperLinkFolder) -> Registered:
    """Let the SuperLink know the folder's keys, and no others that it had from here.

    Flower's list has no names, so a file keeps each node's number and key. A node whose
    number the SuperLink does not know, as after the loss of the database, is registered
    again. One that the folder does not have any more is taken out, one with another key
    too, before it is registered by that. It is taken out again where an older database
    came back, which lets it in. A registration that was cut off before its number was noted
    is known by the only number that was not there before.
    """
    listed = ask(folder, "supernode", "list", CONNECTION, "--format", "json")
    states = {
        str(node.get("node-id")): node.get("status")
        for node in entries_told(listed, "nodes")
    }
    keys = {name: _public_key(folder, name) for name in folder.nodes}
    numbers = {n: entry for n, entry in _entries(folder).items() if entry[0] in states}
    back = []
    for number, name in _read_texts(folder.path / TAKEN_OUT).items():
        if states.get(number, _UNREGISTERED) != _UNREGISTERED:
            _unregister(folder, number)
            back.append(name)
    removed = [name for name, (_, key) in numbers.items() if keys.get(name) != key]
    for name in removed:
        number, _ = numbers[name]
        taken_out = {**_read_texts(folder.path / TAKEN_OUT), number: name}
        _write_json(folder.path / TAKEN_OUT, taken_out)
        if states[number] != _UNREGISTERED:
            _unregister(folder, number)
        del numbers[name]
        _save(folder, numbers)
    added = [name for name in folder.nodes if name not in numbers]
    for name in added:
        key_file = str(folder.public_key(name))
        words = ("supernode", "register", key_file, CONNECTION, "--name", name)
        noted = {number for number, _ in numbers.values()}
        before = _read_texts(folder.path / BEGUN)
        if before.get("key") != keys[name]:
            before = {"key": keys[name], "numbers": " ".join({*states, *noted})}
            _write_json(folder.path / BEGUN, before)
        try:
            number = str(told(ask(folder, *words, "--format", "json"), "node-id"))
        except RunError as error:
            present = {n for n, state in states.items() if state != _UNREGISTERED}
            new = present - noted - set(before.get("numbers", "").split())
            if len(new) != 1:
                raise RunError(
                    f"{name}: {error}. Where the SuperLink has had this key before, "
                    f"`fedsuite deploy nodes {folder.path} --new-keys {name}` gives another"
                ) from None
            (number,) = new
        numbers[name] = number, keys[name]
        _save(folder, numbers)
        (folder.path / BEGUN).unlink(missing_ok=True)
    gone = dict.fromkeys((*back, *removed))
    return Registered(added, [name for name in gone if name not in keys])


def _unregister(folder: SuperLinkFolder, number: str) -> None:
    words = ("supernode", "unregister", number, CONNECTION, "--format", "json")
    told(ask(folder, *words), "success")


def node_numbers(folder: SuperLinkFolder) -> dict[str, str]:
    """Return Flower's number of each registered node, by name."""
    return {name: number for name, (number, _) in _entries(folder).items()}


def _public_key(folder: SuperLinkFolder, name: str) -> str:
    path = folder.public_key(name)
    try:
        return read_text(path).strip()
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {one_line(error)}") from error


def _save(folder: SuperLinkFolder, entries: Mapping[str, tuple[str, str]]) -> None:
    text = {name: {"node-id": n, "key": key} for name, (n, key) in entries.items()}
    _write_json(folder.path / REGISTERED, text)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    atomic_write(path, json.dumps(value, indent=1).encode())


def _read_texts(path: Path) -> dict[str, str]:
    """Return the texts of a file by name; nothing of a file that is broken or not there."""
    try:
        entries = parsed(read_bytes(path))
        return {n: text for n, text in entries.items() if isinstance(text, str)}
    except (OSError, ValueError, AttributeError):
        return {}


def _entries(folder: SuperLinkFolder) -> dict[str, tuple[str, str]]:
    """Return number and key of each registered node; nothing of a file that is broken."""
    try:
        entries = parsed(read_bytes(folder.path / REGISTERED))
        pairs = {name: (entry["node-id"], entry["key"]) for name, entry in entries.items()}
    except (OSError, ValueError, AttributeError, LookupError, TypeError):
        return {}
    return {n: pair for n, pair in pairs.items() if all(isinstance(x, str) for x in pair)}


def run_superlink(
    folder: SuperLinkFolder,
    write: Callable[[str], None],
    bind: str = LOOPBACK,
    *,
    opens: bool = False,
) -> None:
    """Run a SuperLink and its SuperExec until a signal comes.

    Parameters
    ----------
    write
        Takes lines of progress.
    bind, opens
        As for :func:`~fedsuite.deploy.reverse_proxy.check_listening`.

    Raises
    ------
    ConfigError
        If a certificate has ended, the Control API would be open without ``opens``, or a
        newer Flower has written the database.
    RunError
        If the SuperLink does not start, or a program ends by itself again and again.
    """
    open_api = check_listening(folder.port, folder.fleet_port, bind, opens)
    for warning in filter(None, (open_api, check_superlink(folder))):
        write(warning)
    database = folder.path / DATABASE
    refuse_newer(database)
    write_connection(folder)
    environment = superlink_environment(folder)
    host = control_host(bind, opens=opens)

    def why() -> str:
        return _ended(folder) or _LAST_LINES

    with ExitStack() as ending, _supervised(folder.path, environment, why) as programs:
        ending.callback(fold, database)
        link = programs.start("SuperLink", superlink_command(folder, bind, opens=opens))
        link.wait_until(lambda: is_healthy(folder))
        changes = str(register_nodes(folder))
        programs.start("SuperExec", superlink_helper_command(folder))
        write(
            f"SuperLink on {host}:{folder.port}, {len(folder.nodes)} nodes may join"
            + (f", {changes}" if changes else "")
        )
        if not opens and (folder.path / PROXY).exists():
            write(
                f"sites come in by port {folder.fleet_port}, through nginx: "
                + shlex.join(proxy_command(folder.path))
            )
        programs.watch(write)


def run_supernode(
    folder: NodeFolder, runtime_port: int | None, write: Callable[[str], None]
) -> None:
    """Run a SuperNode and its SuperExec until a signal comes; see :func:`run_superlink`.

    ``runtime_port`` is the port of the loopback by which the two know each other; None
    chooses a free one.
    """

    def trouble() -> str:
        return server_trouble(folder) or clock_trouble(folder)

    def why() -> str:
        return trouble() or f"{_LAST_LINES}, or the SuperLink's"

    for warning in filter(None, (check_node(folder), trouble())):
        write(warning)

    environment = supernode_environment(folder)
    helper = "SuperExec"
    if folder.policy is None:
        write(
            f"{folder.path} has no {POLICY}: any app may run here and let out anything; "
            f"`fedsuite deploy check-policy {folder.path} --write` writes a policy"
        )
    else:
        helper = "relay"
        check_shelter(folder.policy, folder, environment)
    names = ("SuperNode", helper) if folder.policy is not None else ()
    with (
        chosen_port(runtime_port, "--runtime-port") as port,
        # A SuperNode waits for ever for the answer of a relay that has died.
        _supervised(folder.path, environment, why, frozenset(names)) as programs,
    ):
        write(f"SuperNode {folder.name}: its own apps reach it on {LOOPBACK}:{port}")
        programs.start("SuperNode", supernode_command(folder, port))
        programs.start(helper, supernode_helper_command(folder, port))
        programs.watch(write)


def neutral_folder(path: Path) -> Path:
    """Return an empty working folder, in which no file shadows the app."""
    folder = path / "empty"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


class _Restarted(Programs):
    """Programs with this process's output that are started again; ``why`` tells why.

    Of ``one`` all are started again when one has ended.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        why: Callable[[], str],
        one: frozenset[str],
    ) -> None:
        super().__init__(neutral_folder(folder), environment)
        self._why = why
        self._one = one
        self._restarts: dict[str, int] = {}

    def watch(self, write: Callable[[str], None]) -> None:
        """Restart programs that have ended, each a limited number of times in a row.

        The other programs go on meanwhile, so a run survives the death of its SuperLink. On
        a full disk nothing is started, which would only end again.
        """
        while True:
            for program in list(self._programs):
                if program not in self._programs or program.process.poll() is None:
                    continue
                name, code = program.name, program.process.wait()
                how = signal.Signals(-code).name if code < 0 else f"code {code}"
                words = f"{name} ended ({how}): {self._why()}"
                if is_full(self.neutral.parent):
                    write(f"{words}; the disk of {self.neutral.parent} is full: free some")
                    self._restarts[name] = 0
                    while is_full(self.neutral.parent):
                        time.sleep(_LOOK_EVERY_S)
                # A line breaks more often per year than there are restarts.
                if time.monotonic() - program.started > _FORGIVEN_AFTER_S:
                    self._restarts[name] = 0
                count = self._restarts.get(name, 0)
                if count == len(_RESTART_PAUSES_S):
                    raise RunError(f"{words}, for the {count + 1}th time in a row")
                self._restarts[name] = count + 1
                write(f"{words}; started again")
                together = self._one if name in self._one else {name}
                again = [p for p in self._programs if p.name in together]
                # What they have to send may still go.
                time.sleep(_RESTART_PAUSES_S[count])
                for other in again:
                    self._stop(other)
                for other in again:
                    self._programs.remove(other)
                    self.start(other.name, other.command)
            time.sleep(_LOOK_EVERY_S)

    @staticmethod
    def _stop(program: Program) -> None:
        """End a program, which a SuperNode does by signing off."""
        program.process.terminate()
        try:
            program.process.wait(_END_PATIENCE_S)
        except subprocess.TimeoutExpired:
            program.process.kill()
            program.process.wait()


@contextlib.contextmanager
def _supervised(
    folder: Path,
    environment: Mapping[str, str],
    why: Callable[[], str] = lambda: _LAST_LINES,
    one: frozenset[str] = frozenset(),
) -> Iterator[_Restarted]:
    programs = _Restarted(folder, environment, why, one)
    with stop_signals_raise():
        try:
            yield programs
        except (KeyboardInterrupt, SystemExit):
            # A stop by a signal is no failure.
            pass
        finally:
            programs.close(_END_PATIENCE_S)
