"""Progress on a terminal: what stands at its bottom, and what is left of it at the end."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios

import pytest

from fedsuite.core.progress import counted, round_in, round_words


def test_a_line_on_a_round_is_read_back():
    assert round_in(f"{round_words(3, 120)}  training loss 0.5") == (3, 120)
    assert round_in("resuming after round 3 of 120") is None


def test_items_are_handed_on_untouched_where_nothing_is_drawn():
    items = iter([1, 2])
    assert counted(items, 2, "replies") is items


PROGRAM = """
import sys, threading, time
from fedsuite.core.progress import Work, counted, shown

with shown(), Work("rounds", 3) as rounds:
    for number in range(3):
        for _ in counted(range(4), 4, "replies"):
            time.sleep(0.15)
        print("line", number, "x" * 100)
        rounds.advance()
    print("threads", threading.active_count(), file=sys.stderr)
    time.sleep(float(sys.argv[1]))
print("end")
"""


def on_terminal(program, *arguments, interrupt_at=None, **environment):
    """Run a program on a terminal of 100 columns, and return all that came there."""
    parent, child = pty.openpty()
    termios.tcsetwinsize(child, (24, 100))
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=child,
        stdout=child,
        stderr=child,
        env={**os.environ, "TERM": "xterm", **environment},
    )
    os.close(child)
    came = b""
    while select.select([parent], [], [], 60)[0]:
        try:
            more = os.read(parent, 65536)
        except OSError:  # the terminal has no other end any more
            break
        if not more:
            break
        came += more
        if interrupt_at and interrupt_at in came:
            process.send_signal(signal.SIGINT)
            interrupt_at = None
    os.close(parent)
    process.wait()
    return came.decode()


def screen(text):
    """Return the lines that a terminal shows in the end."""
    shown = [""]
    row = 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if part == "\n":
            row += 1
            shown += [""] * (row >= len(shown))
        elif part == "\x1b[2K":
            shown[row] = ""
        elif part == "\x1b[1A":
            row -= 1
        elif not part.startswith("\x1b") and part != "\r":
            shown[row] += part
    return [line.rstrip() for line in shown if line.strip()]


def test_the_terminal_keeps_the_printed_lines_alone():
    text = on_terminal(PROGRAM, "0")
    assert "1 of 3" in text
    assert "of 4 replies" in text
    # A long line is not broken by us, and no thread draws.
    expected = [f"line {number} {'x' * 100}" for number in range(3)]
    assert screen(text) == [*expected, "threads 1", "end"]
    # A process that is killed must leave a cursor.
    assert "\x1b[?25l" not in text


def test_ctrl_c_leaves_a_clean_terminal():
    text = on_terminal(PROGRAM, "60", interrupt_at=b"threads 1")
    assert "3 of 3" in text
    assert not any("3 of 3" in line for line in screen(text))
    assert screen(text)[-1] == "KeyboardInterrupt"


@pytest.mark.parametrize(
    "environment", [{"TERM": "dumb"}, {"FEDSUITE_LOG": "json"}, {"JPY_PARENT_PID": "1"}]
)
def test_some_terminals_get_plain_lines(environment):
    text = on_terminal(PROGRAM, "0", **environment)
    assert "rounds" not in text
    assert "\x1b" not in text


def test_a_pipe_gets_plain_lines():
    command = [sys.executable, "-c", PROGRAM, "0"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = [f"line {number} {'x' * 100}" for number in range(3)]
    assert found.stdout.splitlines() == [*expected, "end"]
