"""The shelter in which apps run: no network, no other process, and few files."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import fedsuite
from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Value
from fedsuite.deploy.folders import NodeFolder
from fedsuite.deploy.preloaded.superexec import PRELOADED
from fedsuite.deploy.relay import launcher
from fedsuite.deploy.relay.policy import Policy, words

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_SETTINGS = (
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"),
    *("/etc/localtime", "/sys/devices/system/cpu"),
)
_HOME = "/tmp"
"""A folder in memory, the shelter's own."""

_FOLDERS = ("FEDSUITE_DATA", "FEDSUITE_PUBLIC", "FEDSUITE_CACHE")
"""Variables of folders that an app reads."""

_TRIAL_S = 60.0
_READY_S = 300.0
"""Seconds in which a process loads what apps need; a busy machine takes a minute."""

HOW_TO = (
    "install it, as root: apt install bubblewrap; where the system forbids user "
    "namespaces (Ubuntu 23.10 and later), give bwrap an AppArmor profile that allows "
    "userns; or write shelter = 'none' in the policy, and apps reach all that this user "
    "may"
)
"""What an operator does about a shelter that does not work."""


class Started:
    """A process that is ready for a message.

    Parameters
    ----------
    command
        Its command line, with the place of the descriptor as ``{line}``.
    environment
        All that it sees of the environment.
    folder
        Working folder, outside a shelter.
    """

    def __init__(
        self, command: list[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        self._line, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [word.replace("{line}", str(theirs.fileno())) for word in command],
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def listener(self) -> socket.socket:
        """Return the socket on which the app's calls arrive; OSError if there is none."""
        self._line.settimeout(_READY_S)
        _, descriptors, _, _ = socket.recv_fds(self._line, 1, 1)
        if not descriptors:
            raise OSError("the app's process ended before it began")
        return socket.socket(fileno=descriptors[0])

    def begin(self) -> None:
        """Let the process take the message."""
        self._line.sendall(b"m")

    def end(self) -> None:
        """Kill the process, and all that it has started."""
        self._line.close()
        # Without a shelter its children outlive it.
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()


def app_command(
    policy: Policy, node: NodeFolder, environment: Mapping[str, str]
) -> list[str]:
    """Return the command of a ClientApp's process.

    Parameters
    ----------
    policy
        Rules of the shelter and of memory.
    node
        The node's folder, of which apps see the schema and what clients keep.
    environment
        The node's. Apps may write its folder of private models, ``FEDSUITE_STATE``, and
        read the code of its ``PYTHONPATH``.
    """
    script = str(Path(launcher.__file__).resolve())
    python = [
        sys.executable,
        "-P",
        script,
        "{line}",
        str(policy.limits.megabytes),
        *PRELOADED,
    ]
    if policy.shelter.shelter == "none":
        return python
    command = ["bwrap", "--unshare-all", "--new-session", "--die-with-parent"]
    command += ["--tmpfs", _HOME, "--proc", "/proc", "--dev", "/dev"]
    for place in (*_SYSTEM, *_SETTINGS):
        path = Path(place)
        if path.is_symlink() and place in _SYSTEM:
            command += ["--symlink", os.readlink(place), place]
        elif path.exists():
            command += ["--ro-bind", place, place]
    readable = [sys.prefix, sys.base_prefix, *_code(environment), script]
    for place in dict.fromkeys([*readable, *words(policy.shelter.read)]):
        command += ["--ro-bind", place, place]
        if node.path.is_relative_to(Path(place).resolve()):
            # Keys and ledger lie in what apps may read.
            command += ["--tmpfs", str(node.path)]
    if schema := node.config.get("schema"):
        command += ["--ro-bind", str(schema), str(schema)]
    for place in _state(environment):
        Path(place).mkdir(mode=0o700, parents=True, exist_ok=True)
    for place in dict.fromkeys([*_state(environment), *words(policy.shelter.write)]):
        command += ["--bind", place, place]
    for place in words(policy.shelter.devices):
        command += ["--dev-bind", place, place]
    return [*command, "--chdir", _HOME, *python]


def app_environment(policy: Policy, environment: Mapping[str, str]) -> dict[str, str]:
    """Return all of the environment that an app sees.

    Parameters
    ----------
    policy
        The site's rules.
    environment
        The node's: its folders, its code, and which GPUs it may use.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if name.startswith("FEDSUITE_") or name in ("PYTHONPATH", "CUDA_VISIBLE_DEVICES")
    }
    home = _HOME if policy.shelter.shelter == "bwrap" else environment.get("TMPDIR", _HOME)
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": home,
        "TMPDIR": home,
        "FLWR_HOME": f"{home}/flwr",
        "FLWR_TELEMETRY_ENABLED": "0",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS", "1"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def check_shelter(policy: Policy, node: NodeFolder, environment: Mapping[str, str]) -> None:
    """Try the policy's shelter; :class:`ConfigError` says what to do where it fails."""
    if policy.shelter.shelter == "none":
        return
    if sys.platform != "linux":
        raise ConfigError(
            "the shelter bwrap needs Linux: run the node in a container or machine of its "
            "own, and write shelter = 'none' in the policy"
        )
    named = [*words(policy.shelter.read), *words(policy.shelter.write)]
    if missing := [place for place in named if not Path(place).exists()]:
        raise ConfigError(f"shelter: {', '.join(missing)}: not there; take it out")
    if hidden := _hidden(policy, node.config, environment):
        places = ", ".join(f"{name} = {place}" for name, place in hidden.items())
        raise ConfigError(
            f"this node names {places}, which apps may not read: add the folder to "
            "shelter.read of the policy"
        )
    if shutil.which("bwrap") is None:
        raise ConfigError(f"the shelter bwrap is not installed: {HOW_TO}")
    command = app_command(policy, node, environment)
    # The same shelter, with a program that ends at once.
    shut_in = command[: command.index(sys.executable)]
    trial = [*shut_in, sys.executable, "-c", "import tempfile, flwr; tempfile.gettempdir()"]
    try:
        answer = subprocess.run(
            trial,
            env=app_environment(policy, environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TRIAL_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"the shelter bwrap does not end here: {HOW_TO}") from None
    if answer.returncode:
        last = answer.stderr.strip().split("\n")[-1]
        raise ConfigError(f"the shelter bwrap does not work here ({last}): {HOW_TO}")


def _hidden(
    policy: Policy, node_config: Mapping[str, Value], environment: Mapping[str, str]
) -> dict[str, str]:
    """Return files and folders that the node names and apps would not see."""
    places = {name: environment.get(name, "") for name in _FOLDERS}
    places |= {"data": str(node_config.get("data", ""))}
    seen = [*words(policy.shelter.read), *words(policy.shelter.write), *_state(environment)]
    roots = [Path(place).resolve() for place in seen]
    return {
        name: place
        for name, place in places.items()
        if place and not any(Path(place).resolve().is_relative_to(root) for root in roots)
    }


def _state(environment: Mapping[str, str]) -> list[str]:
    state = environment.get("FEDSUITE_STATE")
    return [state] if state else []


def _code(environment: Mapping[str, str]) -> list[str]:
    """Return the files and folders of code; of a fedsuite that is not installed its own."""
    package = Path(fedsuite.__file__).resolve().parent
    named = environment.get("PYTHONPATH", "").split(os.pathsep)
    folders = [Path(place) for place in named if place and Path(place).exists()]
    others = [str(place) for place in folders if place.resolve() != package.parent]
    installed = package.is_relative_to(sys.prefix)
    return others if installed else [*others, str(package)]
