"""Runs a program of Flower, and ends it when one of its threads dies.

    python -P -m fedsuite.workarounds.dead_threads flower-supernode --superlink ...

A SuperNode sends heartbeats from a thread of their own. An answer of status 500, as a
SuperLink on a full disk gives, ends that thread. The SuperNode goes on without heartbeats, so
the SuperLink takes it for offline for ever, and a run waits for it in vain. Once the program
has ended, its watcher starts it again.

Seen in flwr 1.41.0. To delete when heartbeats go on after any answer.
"""

import os
import runpy
import signal
import sys
import threading

from fedsuite.engines.processes import executable


def main(program: str, *words: str) -> None:
    """Become a console script of this environment, with its arguments."""
    threading.excepthook = _end
    sys.argv = [executable(program), *words]
    runpy.run_path(sys.argv[0], run_name="__main__")


def _end(death: threading.ExceptHookArgs) -> None:
    threading.__excepthook__(death)
    name = death.thread.name if death.thread else "that has ended"
    print(f"the thread {name} died, so the program ends", file=sys.stderr, flush=True)
    # Flower's programs take it as a request, and sign off.
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(*sys.argv[1:])
