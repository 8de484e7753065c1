"""Standard output whose reader may go, as ``| head`` does: what comes then is lost.

Nobody who stops reading wants the work to fail, or to stop halfway through what it writes.
"""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any


def print_line(line: str) -> None:
    """Print one line at once; nothing happens where nobody reads any more."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        _discard(sys.stdout.fileno())


@contextlib.contextmanager
def outliving_readers() -> Iterator[None]:
    """Let the process print inside the block, whether or not somebody still reads it."""
    if sys.stdout is not sys.__stdout__ or not isinstance(sys.stdout, io.TextIOWrapper):
        # Somebody else's, such as a notebook's.
        yield
        return
    usual = sys.stdout
    output = io.TextIOWrapper(
        io.BufferedWriter(_Output(usual.fileno(), "w", closefd=False)),
        encoding=usual.encoding,
        errors=usual.errors,
        line_buffering=usual.line_buffering,
    )
    with output, contextlib.redirect_stdout(output):
        yield


class _Output(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            _discard(self.fileno())
            return memoryview(data).nbytes


def _discard(descriptor: int) -> None:
    """Let what is written to a descriptor go nowhere from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
