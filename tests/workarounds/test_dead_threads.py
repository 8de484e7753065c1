"""A program whose thread or main thread is dead ends; it ends by itself otherwise."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """#!{python}
import sys, threading, time

def beat():
    if sys.argv[1] == "heart":
        raise OSError("status 500")

if __name__ == "__main__":
    threading.Thread(target=beat, name="heart").start()
    if sys.argv[1] != "none":
        threading.Thread(target=time.sleep, args=[60], name="server").start()
    if sys.argv[1] == "heart":
        time.sleep(60)
    sys.exit(3)
"""


@pytest.mark.parametrize(
    ("dead", "code"),
    [("heart", -signal.SIGTERM), ("main thread", -signal.SIGTERM), ("none", 3)],
)
def test_a_program_ends_with_its_threads(dead: str, code: int, tmp_path: Path) -> None:
    program = tmp_path / "flower-program"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    command = [sys.executable, "-m", "fedsuite.workarounds.dead_threads", str(program)]
    ended = subprocess.run([*command, dead], capture_output=True, text=True, check=False)
    assert ended.returncode == code
    told = f"the {dead} ended, so the program ends\n"
    assert ended.stderr.endswith(told) == (dead != "none")
