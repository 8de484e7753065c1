"""One of Flower's programs, with its imports done before Flower starts it.

    python -P begun.py PIPE PROGRAM MODULE ...

This process imports the modules, takes the program's arguments from a pipe, and becomes the
program. It runs by its path and imports nothing of fedsuite, because the program must
import the code that a run brings.
"""

import gc
import importlib
import os
import runpy
import sys
from contextlib import suppress


def main(pipe: str, program: str, *modules: str) -> None:
    """Import modules, wait for arguments, one a line, and run the program with them."""
    # The collector would look again and again through what stays.
    gc.disable()
    for module in modules:
        # The program says itself what it lacks.
        with suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()
    gc.enable()
    with open(pipe, encoding="utf-8") as told:
        words = told.read().splitlines()
    os.unlink(pipe)
    sys.argv = [program, *words]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
