"""Standard output and standard error that can no longer be written.

A reader goes, a disk is full, a terminal hangs up: the work goes on without output. What a
stream's encoding lacks is shown as a question mark.
"""

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from fedsuite.core.errors import printable


def print_line(line: str) -> None:
    """Print and flush one line, if it can be written, without control characters."""
    print_text(printable(line))


def print_text(text: str) -> None:
    """Print and flush lines that hold what a terminal acts on, such as colours."""
    try:
        try:
            print(text, flush=True)
        except UnicodeEncodeError as error:
            plain = text.encode(error.encoding, "replace").decode(error.encoding)
            print(plain, flush=True)
    except (OSError, ValueError):
        _discard(sys.stdout)


def is_terminal(stream: Any) -> bool:
    """Return whether a stream is an open terminal."""
    try:
        return bool(stream.isatty())
    except (AttributeError, OSError, ValueError):
        return False


@contextlib.contextmanager
def outliving_readers() -> Iterator[None]:
    """Ignore inside the block that standard output or standard error cannot be written."""
    _open_standard_descriptors()
    with contextlib.ExitStack() as stack:
        for name in ("stdout", "stderr"):
            usual = getattr(sys, name)
            if usual is None:
                # It was closed before the program began.
                stand_in: io.TextIOBase = stack.enter_context(open(os.devnull, "w"))
            elif usual is getattr(sys, f"__{name}__") and isinstance(
                usual, io.TextIOWrapper
            ):
                stand_in = _outliving(usual)
                stack.callback(stand_in.flush)
            else:
                # Somebody else's, such as a notebook's.
                continue
            stack.callback(setattr, sys, name, usual)
            setattr(sys, name, stand_in)
        yield


@contextlib.contextmanager
def outliving_terminal() -> Iterator[None]:
    """Go on inside the block when the terminal goes away, as ``nohup`` does.

    The program's own handler stays. Nothing happens outside the main thread, where Python
    allows no handlers.
    """
    number = getattr(signal, "SIGHUP", None)
    main = threading.current_thread() is threading.main_thread()
    if number is None or not main or signal.getsignal(number) is not signal.SIG_DFL:
        yield
        return
    signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, signal.SIG_DFL)


def _outliving(usual: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return a stream to the same descriptor whose failures are no errors.

    It is never closed, for a logger may hold it until the program ends.
    """
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(usual.fileno(), "w", closefd=False)),
        encoding=usual.encoding,
        errors="replace" if usual.errors == "strict" else usual.errors,
        line_buffering=usual.line_buffering,
    )


class _Output(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def _open_standard_descriptors() -> None:
    """Keep the numbers of closed standard streams from the next files that are opened.

    What a library prints would end in such a file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number, which is this one.
            opened = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(opened, True)


def _discard(stream: Any) -> None:
    """Discard what a stream holds, and all further output to its descriptor."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        descriptor = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
