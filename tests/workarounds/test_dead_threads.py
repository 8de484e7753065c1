"""A program whose thread dies ends; it ends by itself otherwise."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """#!{python}
import sys, threading, time

def beat():
    if "dies" in sys.argv:
        raise OSError("status 500")

if __name__ == "__main__":
    threading.Thread(target=beat, name="heart").start()
    time.sleep(60 if "dies" in sys.argv else 0)
    sys.exit(len(sys.argv))
"""


@pytest.mark.parametrize(("word", "code"), [("dies", -signal.SIGTERM), ("lives", 2)])
def test_a_program_ends_with_its_thread(word: str, code: int, tmp_path: Path) -> None:
    program = tmp_path / "flower-program"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    command = [sys.executable, "-m", "fedsuite.workarounds.dead_threads", str(program)]
    ended = subprocess.run([*command, word], capture_output=True, text=True, check=False)
    assert ended.returncode == code
    told = "status 500\nthe thread heart died, so the program ends\n"
    assert ended.stderr.endswith(told) == (word == "dies")
