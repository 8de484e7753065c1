"""The shelter in which apps run: no network, no other process, and few files."""

import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import fedsuite
from fedsuite.core.errors import ConfigError, RunError
from fedsuite.core.keys import Value
from fedsuite.deploy.folders import NODE_KEY, NodeFolder
from fedsuite.deploy.preloaded.superexec import PRELOADED
from fedsuite.deploy.relay import landlock, launcher
from fedsuite.deploy.relay.policy import Policy, words

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_SETTINGS = (
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"),
    *("/etc/localtime", "/sys/devices/system/cpu"),
)
_OWN = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat")
"""What a program reads of itself and of the machine, where there is one /proc for all."""

_PLAIN_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_LAUNCHER = str(Path(launcher.__file__).resolve())
_LANDLOCK = str(Path(landlock.__file__).resolve())

_HOME = "/tmp"
"""A folder in memory, the shelter's own."""

_FOLDERS = ("FEDSUITE_DATA", "FEDSUITE_PUBLIC", "FEDSUITE_CACHE")
"""Variables of folders that an app reads."""

_TRIAL_S = 60.0
_READY_S = 300.0
"""Seconds in which a process loads what apps need; a busy machine takes a minute."""

_TRIAL = """
import sys, tempfile, flwr
tempfile.gettempdir()
try:
    open(sys.argv[1]).close()
except OSError:
    sys.exit()
sys.exit("apps read the node's key")
"""
"""What runs in a shelter to try it."""

_OPEN = "or write shelter = 'none' in the policy, and apps reach all that this user may"

HOW_TO = {
    "bwrap": "install it, as root: apt install bubblewrap; where the system forbids user "
    "namespaces (Ubuntu 23.10 and later), give bwrap an AppArmor profile that allows "
    f"userns; {_OPEN}",
    "landlock": "it needs Linux 5.13 or later, with landlock among the words of "
    f"/sys/kernel/security/lsm (boot option lsm=); {_OPEN}",
}
"""What an operator does about a shelter that does not work."""

SHELTERS = tuple(HOW_TO)


class Started:
    """A process that is ready for a message.

    Parameters
    ----------
    command
        Its command line, with the descriptor as ``{line}`` and its folder as ``{home}``.
    environment
        All that it sees of the environment, with ``{home}`` too.
    folder
        Where its folder is made, which goes with it.

    Attributes
    ----------
    line
        Where the app's calls come in, each as a descriptor.
    """

    def __init__(
        self, command: list[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        self._home = tempfile.mkdtemp(dir=folder)
        self.line, theirs = socket.socketpair()
        with theirs:
            places = {"{line}": str(theirs.fileno()), "{home}": self._home}
            self.process = subprocess.Popen(
                [_filled(word, places) for word in command],
                env={name: _filled(word, places) for name, word in environment.items()},
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def wait(self) -> None:
        """Return when the process is ready; OSError if it has ended."""
        self.line.settimeout(_READY_S)
        if not self.line.recv(1):
            raise OSError("the app's process ended before it began")
        self.line.settimeout(None)

    def begin(self) -> None:
        """Let the process take the message."""
        self.line.sendall(b"m")

    def is_alive(self) -> bool:
        """Return whether the process has not ended."""
        return self.process.poll() is None

    def end(self) -> None:
        """Kill the process, and all that it has started."""
        self.line.close()
        # Without a shelter its children outlive it.
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        # Not by its wait(): the relay's end may come in the middle of one, under its lock.
        with suppress(ChildProcessError):
            os.waitpid(self.process.pid, 0)
            self.process.returncode = -9
        shutil.rmtree(self._home, ignore_errors=True)


class Forked(Started):
    """A copy of a process of :class:`Forks`, ready for a message."""

    def __init__(self, wishes: socket.socket, folder: Path) -> None:
        self._home = tempfile.mkdtemp(dir=folder)
        self.line, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(wishes, [self._home.encode()], [theirs.fileno()])
        number = wishes.recv(4)
        if not number:
            raise RunError("the process that forks apps has ended")
        # It waits for a letter, so its number is still its own.
        self._process = os.pidfd_open(struct.unpack("i", number)[0])

    def is_alive(self) -> bool:  # noqa: D102
        return not select.select([self._process], [], [], 0)[0]

    def end(self) -> None:  # noqa: D102
        self.line.close()
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, 9)
        select.select([self._process], [], [])
        os.close(self._process)
        shutil.rmtree(self._home, ignore_errors=True)


class Forks:
    """A process that has loaded what apps need, and forks one for each message.

    Parameters
    ----------
    command, environment
        As for :class:`Started`.
    folder
        Where apps' folders are made.
    """

    def __init__(
        self, command: list[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        self._folder = folder
        self._parent = Started(command, environment, folder)

    def start(self) -> Forked:
        """Return a process that is ready for a message."""
        return Forked(self._parent.line, self._folder)

    def end(self) -> None:
        """Kill the process; its copies end with it."""
        self._parent.end()


def _filled(word: str, places: Mapping[str, str]) -> str:
    for name, value in places.items():
        word = word.replace(name, value)
    return word


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
    words = ["{line}", str(policy.limits.megabytes)]
    shut_in = _shut_in(policy, node, environment)
    if policy.shelter.shelter == "landlock":
        # It shuts its copies in, each with a folder of its own.
        words = ["forks", *words, *_allowed(policy, node, environment)]
        shut_in = []
    return [*shut_in, sys.executable, "-P", _LAUNCHER, *words, *PRELOADED]


def _shut_in(policy: Policy, node: NodeFolder, environment: Mapping[str, str]) -> list[str]:
    """Return what stands before a command so that it runs in the shelter."""
    if policy.shelter.shelter == "landlock":
        read, write, devices = _allowed(policy, node, environment)
        lists = (read, f"{write},{{home}}", devices)
        return [sys.executable, "-I", "-S", _LANDLOCK, *lists]
    if policy.shelter.shelter == "none":
        return []
    command = ["bwrap", "--unshare-all", "--new-session", "--die-with-parent"]
    command += ["--tmpfs", _HOME, "--proc", "/proc", "--dev", "/dev"]
    for place in (*_SYSTEM, *_SETTINGS):
        path = Path(place)
        if path.is_symlink() and place in _SYSTEM:
            command += ["--symlink", os.readlink(place), place]
        elif path.exists():
            command += ["--ro-bind", place, place]
    readable, writable = _places(policy, node, environment)
    for place in readable:
        command += ["--ro-bind", place, place]
        if node.path.is_relative_to(Path(place).resolve()):
            # Keys and ledger lie in what apps may read.
            command += ["--tmpfs", str(node.path)]
    for place in writable:
        command += ["--bind", place, place]
    for place in words(policy.shelter.devices):
        command += ["--dev-bind", place, place]
    return [*command, "--chdir", _HOME]


def _places(
    policy: Policy, node: NodeFolder, environment: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Return what apps read beside the system, and what they write."""
    read = [sys.prefix, sys.base_prefix, *_code(environment), _LAUNCHER]
    read += words(policy.shelter.read)
    if schema := node.config.get("schema"):
        read.append(str(schema))
    for place in _state(environment):
        Path(place).mkdir(mode=0o700, parents=True, exist_ok=True)
    write = [*_state(environment), *words(policy.shelter.write)]
    return list(dict.fromkeys(read)), list(dict.fromkeys(write))


def _allowed(
    policy: Policy, node: NodeFolder, environment: Mapping[str, str]
) -> tuple[str, str, str]:
    """Return what Landlock lets apps read, write, and use as devices, with commas."""
    read, write = _places(policy, node, environment)
    devices = [*_PLAIN_DEVICES, *words(policy.shelter.devices)]
    read = [*_SYSTEM, *_SETTINGS, *_OWN, *read]
    return ",".join(read), ",".join(write), ",".join(devices)


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
    home = _HOME if policy.shelter.shelter == "bwrap" else "{home}"
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
    chosen = policy.shelter.shelter
    if chosen == "none":
        return
    if sys.platform != "linux":
        raise ConfigError(
            f"the shelter {chosen} needs Linux: run the node in a container or machine of "
            "its own, and write shelter = 'none' in the policy"
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
    above = [
        place
        for place in (*words(policy.shelter.read), *words(policy.shelter.write))
        if node.path.is_relative_to(Path(place).resolve())
    ]
    if above and chosen == "landlock":
        raise ConfigError(
            f"shelter: {', '.join(above)} holds the node's folder, whose keys landlock "
            "cannot hide in it: name the folders that apps need"
        )
    if trouble := tried(policy, node, environment):
        others = [
            name
            for name in SHELTERS
            if name != chosen and not tried(_with(policy, name), node, environment)
        ]
        works = "".join(f"shelter = '{name}' works here: write it; or " for name in others)
        raise ConfigError(f"the shelter {chosen} {trouble}: {works}{HOW_TO[chosen]}")


def tried(policy: Policy, node: NodeFolder, environment: Mapping[str, str]) -> str:
    """Return what is wrong with the policy's shelter here, from a try; "" if nothing is."""
    if policy.shelter.shelter == "bwrap" and shutil.which("bwrap") is None:
        return "is not installed"
    shut_in = _shut_in(policy, node, environment)
    with tempfile.TemporaryDirectory(dir=node.path) as home:
        places = {"{home}": home}
        seen = app_environment(policy, environment)
        key = str(node.path / NODE_KEY)
        try:
            answer = subprocess.run(
                [
                    *(_filled(word, places) for word in shut_in),
                    *(sys.executable, "-c", _TRIAL, key),
                ],
                env={name: _filled(word, places) for name, word in seen.items()},
                cwd=home,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TRIAL_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "does not end here"
    if not answer.returncode:
        return ""
    return f"does not work here ({answer.stderr.strip().splitlines()[-1]})"


def _with(policy: Policy, name: str) -> Policy:
    values = {**policy.shelter.values(), "shelter": name}
    named = {declared.argument: values[declared.name] for declared in policy.shelter.KEYS}
    return replace(policy, shelter=type(policy.shelter)(**named))


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
