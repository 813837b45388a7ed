"""A headless Chromium for tests of HTML pages."""

import fcntl
import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on PATH")
KEYS = {"Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


class Browser:
    """A headless Chromium, controlled by the DevTools protocol over two pipes."""

    def __init__(self, folder: Path) -> None:
        self.page = folder / "page.html"
        # The browser reads commands from descriptor 3 and answers on 4, so our own descriptors must be above these.
        (read_end, to), (answers, write_end) = os.pipe(), os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (read_end, write_end)]
        options = ["--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        options += ["--disable-background-networking", f"--user-data-dir={folder / 'profile'}"]
        self.process = subprocess.Popen(
            [str(CHROMIUM), *options, "about:blank"],
            pass_fds=(3, 4),
            preexec_fn=lambda: [os.dup2(end, number) for number, end in enumerate(ends, start=3)] and None,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.limit = threading.Timer(300, self.process.kill)  # so that a hanging browser fails the tests
        self.limit.daemon = True
        self.limit.start()
        for end in (read_end, write_end, *ends):
            os.close(end)
        self.to, self.answers = os.fdopen(to, "wb", buffering=0), os.fdopen(answers, "rb")
        self.sent, self.session = 0, None
        self.events: list[dict[str, Any]] = []
        target = next(t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def open(self, text: str, width: int = 1000, ready: str = "true") -> None:
        """Show a page from a file, and wait until an expression is true in it."""
        self.page.write_text(text, encoding="utf-8", newline="")
        self.ask("Page.navigate", url="about:blank")
        self.events.clear()
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.ask("Page.navigate", url=self.page.as_uri())
        self.wait("location.protocol === 'file:' && document.readyState === 'complete'")
        self.wait(ready)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self.sent += 1
        message = {"id": self.sent, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        self.to.write(json.dumps(message).encode() + b"\0")
        while True:
            heard = bytearray()
            while (byte := self.answers.read(1)) not in (b"\0", b""):
                heard += byte
            answer = json.loads(heard)
            if answer.get("id") == self.sent:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self.events.append(answer)

    def do(self, script: str) -> Any:
        """Evaluate an expression in the page and return its value."""
        answer = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, (script, answer)
        return answer["result"].get("value")

    def wait(self, script: str) -> None:
        end = time.monotonic() + 30
        while not self.do(script):
            assert time.monotonic() < end, script
            time.sleep(0.02)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def point_at(self, selector: str, x: float = 0.5, y: float = 0.5) -> None:
        """Move the mouse over an element, to the fractions x and y of its width and height."""
        box = self.do(
            f"(() => {{const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
            "const {left, top, width, height} = e.getBoundingClientRect(); return [left, top, width, height]})()"
        )
        at = {"x": box[0] + x * box[2], "y": box[1] + y * box[3]}
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", **at)

    def map(self, selector: str = "[open] .cells canvas") -> np.ndarray:
        """Return the alpha channel of a canvas, from 0 to 255."""
        self.wait(f"document.querySelector({selector!r}) !== null")
        width, height, pixels = self.do(
            f"(() => {{const {{width, height}} = document.querySelector({selector!r});"
            "const copy = new OffscreenCanvas(width, height).getContext('2d');"
            f"copy.drawImage(document.querySelector({selector!r}), 0, 0);"
            "return [width, height, [...copy.getImageData(0, 0, width, height).data]]})()"
        )
        return np.array(pixels).reshape(height, width, 4)[..., 3]

    def choose(self, selector: str, value: int) -> None:
        self.do(
            f"(() => {{const e = document.querySelector({selector!r}); e.value = {value};"
            "e.dispatchEvent(new Event('change'))})()"
        )

    def shares(self, selector: str) -> list[float]:
        return self.do(f"[...document.querySelectorAll({selector!r})].map((e) => +e.style.getPropertyValue('--share'))")

    def text(self, selector: str) -> str:
        return self.do(f"document.querySelector({selector!r}).textContent")

    def close(self) -> None:
        self.limit.cancel()
        self.process.kill()
        self.process.wait()
        self.to.close()
        self.answers.close()

    def check(self) -> None:
        """Check that the page requested only itself, and that no script failed or logged anything."""
        self.do("0")  # earlier exceptions have been reported once this is answered
        bad = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        assert [event for event in self.events if event["method"] in bad] == []
        urls = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        assert set(urls) == {self.page.as_uri()}
