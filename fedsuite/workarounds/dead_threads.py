"""Runs a program of Flower, and ends it when one of its threads dies.

    python -P -m fedsuite.workarounds.dead_threads BIN/flower-supernode --superlink ...

A SuperLink on a full disk answers with status 500. A SuperNode whose heartbeat meets that
sends no other, because its thread of heartbeats dies. A SuperNode whose look for messages
meets it signs off, because its main thread ends. In both cases the process lives on by its
other threads. The SuperLink takes the node for offline for ever, and a run waits for it in
vain. Once the program has ended, its watcher starts it again.

Seen in flwr 1.41 and 1.42. To delete when a SuperNode goes on, or ends, after any answer.
"""

import os
import runpy
import signal
import sys
import threading


def main(program: str, *words: str) -> None:
    """Become a console script, with its arguments."""
    threading.excepthook = _end
    sys.argv = [program, *words]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        others = set(threading.enumerate()) - {threading.main_thread()}
        if any(not thread.daemon for thread in others):
            _end_program("main thread")


def _end(death: threading.ExceptHookArgs) -> None:
    threading.__excepthook__(death)
    _end_program(death.thread.name if death.thread else "thread")


def _end_program(dead: str) -> None:
    print(f"the {dead} ended, so the program ends", file=sys.stderr, flush=True)
    # Flower's programs take it as a request, and sign off.
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(*sys.argv[1:])
