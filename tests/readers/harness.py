"""Files of others for a reader, wounded by a seed, and what reading one may end in.

A target makes a whole input in a folder and reads it. Its inputs are that folder with one
to three wounds, always the same of a number. A reader returns, or raises an error of the
package, within bounds of processor time and memory.
"""

import random
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedsuite.core.errors import FedsuiteError, described, one_line
from tests.faults import hostile_folders as hostile
from tests.readers import wounds

MOST_SECONDS = 10.0
"""Of processor time; the slowest target takes a tenth."""

PATIENCE_S = 20
"""By the clock, for what waits."""

MOST_BYTES = 2**27
MOST_ADDRESSES = 2**32
"""Of address space, so that no input takes the machine's memory."""

CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Target:
    """A reader with an input that it accepts.

    Parameters
    ----------
    make
        Writes the input into a folder.
    read
        Reads it there.
    most_bytes
        Memory that an input may cost.
    """

    make: Callable[[Path], object]
    read: Callable[[Path], object]
    most_bytes: int = MOST_BYTES


def wounded(name: str, whole: Path, folder: Path, number: int) -> list[str]:
    """Make the input of a number out of a whole one; return what was done to it."""
    chance = random.Random(f"{name} {number}")
    shutil.copytree(whole, folder, symlinks=True)
    outside = folder.parent / "outside"
    outside.mkdir(exist_ok=True)
    done: list[str] = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        if not paths:
            break
        path = chance.choice(paths)
        if path.is_symlink() or path.stat().st_size > 10**7:
            continue
        wound = chance.choice(
            (
                *(hostile.missing, hostile.replaced, hostile.huge),
                *(hostile.torn, hostile.flipped, hostile.flipped, hostile.recoded),
                *wounds.of(path),
            )
        )
        # A wound of text does not fit every file, nor one that is wounded already.
        with suppress(Exception):
            wound(path, chance, outside)
            done.append(f"{wound.__name__} {path.relative_to(folder)}")
    return done


class TooLong(BaseException):
    """Reading does not end."""


@contextmanager
def _patience() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooLong

    before = [signal.signal(s, stop) for s in (signal.SIGALRM, signal.SIGPROF)]
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in zip((signal.SIGALRM, signal.SIGPROF), before, strict=True):
            signal.signal(number, handler)


@contextmanager
def _addresses() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _status("VmSize") + MOST_ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _status(name: str) -> int:
    """Return a number of bytes that Linux keeps of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def attempt(target: Target, folder: Path) -> str:
    """Read an input, and return what was wrong with it, empty where nothing was.

    Fails on anything but a value or one of fedsuite's errors, within the bounds.
    """
    # The high-water mark of memory begins anew.
    Path("/proc/self/clear_refs").write_text("5")
    before, started, words = _status("VmHWM"), time.process_time(), ""
    with _patience(), _addresses():
        try:
            target.read(folder)
        except FedsuiteError as error:
            words = described(error)
            assert "\n" not in words and words.isprintable(), words
            assert words == one_line(str(error), 4_000) and len(str(error)) < 2**20
    seconds, taken = time.process_time() - started, _status("VmHWM") - before
    assert seconds <= MOST_SECONDS, f"{seconds:.1f} s"
    assert taken <= target.most_bytes, f"{taken / 2**20:.0f} MiB"
    return words
