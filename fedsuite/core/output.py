"""Standard output whose reader may stop reading, as ``| head`` does.

The work goes on when the reader stops; further output is lost.
"""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any


def print_line(line: str) -> None:
    """Print and flush one line, if somebody still reads."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        _discard(sys.stdout.fileno())


@contextlib.contextmanager
def outliving_readers() -> Iterator[None]:
    """Ignore a closed standard output inside the block."""
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
    """Discard all further output to a descriptor."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
