"""SuperLink and run, common to the Ray and the deployment engine.

The engines use Flower's own commands (``flower-superlink``, ``flwr run``, ``flwr ls``) and
nothing private, so that they run what a user of Flower runs.
"""

import contextlib
import http.client
import re
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedsuite.core.errors import RunError
from fedsuite.core.progress import ROUNDS, Work, redraw, round_in
from fedsuite.core.reading import parsed
from fedsuite.engines.processes import (
    PortTakenError,
    Program,
    World,
    executable,
    follow,
    stop_signals_raise,
)
from fedsuite.workarounds.flower_release import flower_release

OnLine = Callable[[str], None]

_HTTP_SINCE = (1, 40)

CONNECTION = "fedsuite"
"""Name by which Flower's commands know the SuperLink."""

_ATTEMPTS = 3
_RETURN_PATIENCE_S = 30.0
_NOISE = re.compile(
    r"Since flwr 1\.32|To change federation size|flwr federation simulation-config"
    r"|FutureWarning: Tip: In future versions of Ray|^\s*warnings\.warn\($"
    r"|Starting logstream for run_id|Manually terminating ClientAppActor|^INFO :$"
    r"|Starting Flower Simulation|Federation `@|Start `flwr-serverapp` process"
    r"|^Successfully installed \S+ to "
)
"""Lines that Flower and Ray always print, and that nobody can act on."""

_STOPPED = "finished:stopped"
_STARTED = re.compile(r"Successfully started run (\d+)")


class NoAnswerError(RunError):
    """A SuperLink that answers no command."""


class StoppedThereError(RunError):
    """A run that somebody has stopped by ``flwr stop``."""


@dataclass(frozen=True)
class SuperLink:
    """A running SuperLink: its process and its addresses."""

    program: Program
    control_address: str
    fleet_address: str


@dataclass(frozen=True)
class Outcome:
    """Status of a run from ``flwr ls``."""

    status: str
    details: str

    @property
    def finished(self) -> bool:
        """Whether the run has ended, well or badly."""
        return self.status.startswith("finished")

    @property
    def completed(self) -> bool:
        """Whether the run has ended well."""
        return self.status == "finished:completed"


def flower_version() -> tuple[int, int]:
    """Return major and minor version of the installed Flower."""
    major, minor = flower_release().split(".")[:2]
    return int(major), int(minor)


def fleet_is_grpc() -> bool:
    """Whether SuperNodes speak gRPC to the SuperLink (flwr 1.39) and not HTTP (later)."""
    return flower_version() < _HTTP_SINCE


def in_world(drive: Callable[[World], None], make: Callable[[], World] = World) -> None:
    """Call ``drive`` with a private world, again with a fresh world if a port was taken.

    No process outlives the call, even at SIGTERM or Ctrl-C.

    Parameters
    ----------
    drive
        What to do in the world.
    make
        Returns a fresh world.
    """
    with stop_signals_raise():
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(PortTakenError), make() as world:
                drive(world)
                return
    raise RunError(f"no free port on 127.0.0.1 after {_ATTEMPTS} tries")


def start_superlink(world: World, options: Sequence[str]) -> SuperLink:
    """Start a SuperLink on loopback and wait until it answers.

    Parameters
    ----------
    world
        Where to start it.
    options
        More options of ``flower-superlink``.

    Raises
    ------
    PortTakenError
        If another program has taken its port meanwhile.
    RunError
        If it ends for another reason, or does not answer after two minutes.
    """
    port = world.reserve_port()
    control = fleet = f"127.0.0.1:{port}"
    command = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
    if fleet_is_grpc():
        fleet = f"127.0.0.1:{world.reserve_port()}"
        command += ["--fleet-api-address", fleet]
    program = world.start("superlink", [*command, *options])
    # The log too, because another program that holds the port might be healthy.
    with Work("starting the SuperLink"):
        program.wait_until(
            lambda: (
                "running on" in program.text
                and answers(http.client.HTTPConnection("127.0.0.1", port, timeout=1.0))
            )
        )
    return SuperLink(program, control, fleet)


def answers(connection: http.client.HTTPConnection) -> bool:
    """Return whether a SuperLink answers; not by urllib, which would ask a proxy."""
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def run_app(
    world: World,
    app: Path,
    superlink: SuperLink,
    options: Sequence[str],
    on_line: OnLine,
    while_waiting: Callable[[], None] = lambda: None,
) -> None:
    """Submit an app, hand on its log, and return when the run has completed.

    Parameters
    ----------
    world
        Where the SuperLink runs.
    app
        The app's folder.
    superlink
        The SuperLink to submit it to.
    options
        More options of ``flwr run``.
    on_line
        Function that takes each line of the log, without colours.
    while_waiting
        Called about twenty times a second; may raise to end the run.

    Raises
    ------
    RunError
        If the run did not start or did not complete; the message has the cause.
    """
    connect(world, superlink)

    def check() -> None:
        superlink.program.check_alive()
        while_waiting()

    follow_run(world, app, on_line, check, options)


def follow_run(
    world: World,
    app: Path,
    on_line: OnLine,
    while_waiting: Callable[[], None],
    options: Sequence[str] = (),
) -> None:
    """Submit an app to the SuperLink that Flower's commands know as :data:`CONNECTION`.

    Parameters
    ----------
    world, app, on_line, options
        As in :func:`run_app`.
    while_waiting
        Called about twenty times a second; may raise to end the run.

    Raises
    ------
    RunError
        If the run did not start or did not complete; the message has the cause.
    """
    submit = world.start("run", ["flwr", "run", str(app), CONNECTION, "--stream", *options])
    last: deque[str] = deque(maxlen=200)
    run_id = None

    def wait() -> None:
        while_waiting()
        redraw()

    with contextlib.ExitStack() as shown:
        rounds = shown.enter_context(Work("waiting for the first round"))
        for line in follow(submit, wait):
            run_id = run_id or started_run(line)
            if not _NOISE.search(line):
                last.append(line)
                on_line(line)
            if (progress := round_in(line)) and rounds.total is None:
                # The time until here says nothing about the pace.
                shown.close()
                rounds = shown.enter_context(Work(ROUNDS, progress[1], progress[0]))
            elif progress:
                rounds.show(progress[0])
    while_waiting()
    outcome = _ask_patiently(world, run_id, while_waiting) if run_id else None
    while outcome is not None and not outcome.finished:  # the log's connection broke
        while_waiting()
        time.sleep(1.0)
        outcome = _ask_patiently(world, run_id, while_waiting)
    if outcome is None or not outcome.completed:
        raise failure(outcome, last)


def started_run(line: str) -> str | None:
    """Return the number of the run in a line of ``flwr run``, if any."""
    match = _STARTED.search(line)
    return match[1] if match else None


def connect(world: World, superlink: SuperLink) -> None:
    """Write the configuration with the SuperLink's address for Flower's commands."""
    home = Path(world.environment["FLWR_HOME"])
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        f'address = "{superlink.control_address}"\ninsecure = true\n',
        encoding="utf-8",
    )


def _ask_patiently(
    world: World, run_id: str | None, while_waiting: Callable[[], None]
) -> Outcome | None:
    """Return a run's status; a SuperLink that was killed has some time to come back."""
    deadline = time.monotonic() + _RETURN_PATIENCE_S
    while True:
        try:
            return ask_outcome(world, run_id)
        except NoAnswerError:
            if time.monotonic() > deadline:
                raise
        while_waiting()
        time.sleep(1.0)


def ask_outcome(world: World, run_id: str | None = None) -> Outcome | None:
    """Return a run's status from the world's SuperLink, None for an unknown run.

    Parameters
    ----------
    run_id
        Flower's number of the run; None takes the newest.
    """
    answer = subprocess.run(
        [executable("flwr"), "ls", CONNECTION, "--format", "json"],
        cwd=world.neutral,
        env=world.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    return parse_outcome(answer.stdout.decode("utf-8", errors="replace"), run_id)


def parse_outcome(text: str, run_id: str | None = None) -> Outcome | None:
    """Return a run's status from the output of ``flwr ls --format json``, if it is there.

    Parameters
    ----------
    run_id
        Number of the run; None takes the newest.
    """
    try:
        answer = parsed(text)
        if words := answer.get("error-message"):
            last = [line for line in words.splitlines() if line.strip()][-1]
            raise NoAnswerError(f"flwr ls failed: {last.strip()}")
        for run in answer["runs"]:
            if run_id in (None, str(run.get("run-id"))):
                return Outcome(str(run["status"]), str(run.get("status-details", "")))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise RunError(
            f"cannot read the answer of flwr ls: {text.strip()[:200]!r}"
        ) from None
    return None


def failure(outcome: Outcome | None, log: Sequence[str]) -> RunError:
    """Return the error of a run that did not complete; see :func:`describe_failure`."""
    if outcome is not None and outcome.status == _STOPPED:
        return StoppedThereError("the run was stopped by `flwr stop`")
    return RunError(describe_failure(outcome, log))


def describe_failure(outcome: Outcome | None, log: Sequence[str]) -> str:
    """Return in one line why a run did not complete.

    Parameters
    ----------
    outcome
        Status of the run; None if never submitted.
    log
        The last lines of the log, in case the outcome gives no reason.
    """
    how = f"the run ended as {outcome.status}" if outcome else "flwr run refused the app"
    details = " ".join(outcome.details.split()) if outcome else ""
    cause = re.sub(r"^(Simulation|ServerApp) failed with exception: ", "", details)
    if cause in ("", "N/A"):
        cause = " | ".join(unframed(log)[-5:]) or "it left no log"
    return f"{how}: {cause}"


def unframed(lines: Iterable[str]) -> list[str]:
    """Return lines that hold words, without the frame that Flower draws around errors."""
    return [words for line in lines if (words := line.strip("│╭╰─╮╯ \t\r\n"))]
