"""A headless Chromium, driven through its own protocol over a pipe."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
"""Path of Chromium, None where there is none."""

_PATIENCE_S = 120.0
_KEYS = {"Tab": 9, "Enter": 13}


class Page:
    """A page of the browser, with what a person can do to it.

    Parameters
    ----------
    send, receive
        Descriptors of the pipes to and from the browser.
    """

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._unread = b""
        self._number = 0
        self._session: dict[str, str] = {}
        self.complaints: list[str] = []
        """Errors, and lines of the console, since the page was opened."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def open(self, file: Path) -> None:
        """Open a report, and wait until its first figures are drawn."""
        self.complaints.clear()
        self.call("Page.navigate", url=file.absolute().as_uri())
        self.wait("document.readyState === 'complete'")
        self.wait("document.documentElement.dataset.ready === 'yes'")

    def look(self, width: int, height: int = 900, scheme: str = "light") -> None:
        """Set the size of the window, and light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1},
            mobile=False,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def ask(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression: str, again: Callable[[], None] = lambda: None) -> None:
        """Wait until an expression holds, and do something again and again meanwhile."""
        deadline = time.monotonic() + _PATIENCE_S
        while not self.ask(expression):
            assert time.monotonic() < deadline, f"not in time: {expression}"
            again()
            time.sleep(0.05)

    def show(self, selector: str) -> tuple[float, float, float, float]:
        """Scroll to an element; return left, top, width and height of it in the window."""
        found = self.ask(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const r = e.getBoundingClientRect();"
            "return [r.left, r.top, r.width, r.height]; })()"
        )
        return tuple(found)

    def point(self, x: float, y: float) -> None:
        """Move the mouse, as a hand does, in two steps."""
        for place in (x - 1, x):
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=place, y=y)

    def click(self, selector: str) -> None:
        """Click the middle of an element."""
        left, top, width, height = self.show(selector)
        at: Mapping[str, Any] = {"x": left + width / 2, "y": top + height / 2}
        for kind in ("mousePressed", "mouseReleased"):
            button = {"button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, **at, **button)

    def press(self, key: str) -> None:
        """Press a key: ``Tab`` or ``Enter``."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            code = {"windowsVirtualKeyCode": _KEYS[key]}
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, **code, **text
            )

    def picture(self, file: Path, *, whole: bool = False) -> None:
        """Write what the window shows, or the whole page, as PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        os.write(self._send, json.dumps({**message, **self._session}).encode() + b"\0")
        while True:
            told = self._hear()
            self._note(told)
            if told.get("id") == self._number:
                assert "error" not in told, (method, told["error"])
                found: dict[str, Any] = told["result"]
                return found

    def _note(self, told: Mapping[str, Any]) -> None:
        match told.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(str(told["params"]["exceptionDetails"]))
            case "Runtime.consoleAPICalled":
                self.complaints.append(str(told["params"]["args"]))
            case "Log.entryAdded":
                self.complaints.append(str(told["params"]["entry"]["text"]))

    def _hear(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            assert select.select([self._receive], [], [], _PATIENCE_S)[0], "no answer"
            more = os.read(self._receive, 1 << 20)
            assert more, "the browser has ended"
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\0")
        heard: dict[str, Any] = json.loads(line)
        return heard


@contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """Start Chromium with a new profile, yield a page, and end it."""
    assert PROGRAM is not None
    pipes = [os.pipe(), os.pipe()]
    # Chromium reads its descriptor 3 and writes to 4: none of ours may be one of these.
    theirs, send = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in pipes[0])
    receive, answers = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in pipes[1])
    for end in (*pipes[0], *pipes[1]):
        os.close(end)

    def join() -> None:
        os.dup2(theirs, 3)
        os.dup2(answers, 4)

    command = [PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu"]
    command += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=False,
        preexec_fn=join,
    )
    os.close(theirs)
    os.close(answers)
    try:
        yield Page(send, receive)
    finally:
        process.terminate()
        process.wait()
        os.close(send)
        os.close(receive)
