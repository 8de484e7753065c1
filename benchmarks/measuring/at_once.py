"""Run two commands at once, and end when both have.

    python -m measuring.at_once COMMAND ... -- COMMAND ...

Two runs in one process each, side by side, show what a second core can bring at most: they
share caches, memory and clock, but not a single message.
"""

import signal
import subprocess
import sys
from collections.abc import Sequence

APART = "--"


def run_both(arguments: Sequence[str]) -> int:
    """Run the commands before and after ``--``; return the first code that is not 0."""
    middle = arguments.index(APART)
    commands = arguments[:middle], arguments[middle + 1 :]
    processes = [subprocess.Popen(command) for command in commands]
    try:
        codes = [process.wait() for process in processes]
    except BaseException:
        for process in processes:
            process.terminate()
        raise
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    # Whoever watches ends this one; it takes the two along.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(run_both(sys.argv[1:]))
