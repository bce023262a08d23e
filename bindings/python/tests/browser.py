"""Drives headless Chromium over a pipe, by the DevTools protocol, for tests of pages."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ["chromium-headless-shell", "chromium"]
PATIENCE_S = 60


def chromium() -> str:
    """The browser; without it the tests fail, since `make setup` installs it."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found, f"no {' or '.join(NAMES)} here: run make setup"
    return found


class Page:
    """One tab. Calls fail if the page reports an error that nothing has taken."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command; returns its result. Events that come before are noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._writing, data) :]
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._reading, 1 << 16)
            assert more, "the browser has ended"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.errors.append(params["entry"]["text"])
            case "Page.javascriptDialogOpening":
                self.errors.append(f"a dialog: {params['message']}")
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])

    def value(self, expression: str) -> Any:
        """Returns the value of an expression, after its promise if it is one."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, (expression, answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        """Waits until an expression is true."""
        held = f"""new Promise((done) => {{
            const look = () => ({expression}) ? done(true) : setTimeout(look, 20);
            look();
            setTimeout(() => done(false), {PATIENCE_S * 1000});
        }})"""
        assert self.value(held), (expression, self.errors, self.value("document.body.innerText"))

    def open(self, url: str) -> None:
        """Goes to a page, and waits until it has drawn all."""
        self.call("Page.navigate", url=url)
        self.wait("location.href !== 'about:blank' && document.body?.dataset.done")

    def show(self, width: int, height: int, scheme: str = "light") -> None:
        """Sets the size of the window and the colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.value(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def press(self, key: str) -> None:
        """Presses a key, as a person does."""
        codes = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35}
        text = {"text": "\r"} if key == "Enter" else {}
        params = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown", **params, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **params)

    def click(self, element: str) -> None:
        """Clicks on the middle of an element, given as an expression."""
        self.value(f"({element}).scrollIntoView({{block: 'center'}})")
        box = self.value(f"(({element}).getBoundingClientRect()).toJSON()")
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, file: Path) -> None:
        """Writes the whole page as a PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def page() -> Iterator[Page]:
    """A tab of a browser of its own, which ends with it."""
    with tempfile.TemporaryDirectory() as profile:
        to_browser, of_browser = os.pipe(), os.pipe()
        # The browser reads commands from 3 and answers on 4.
        script = f'exec "$@" 3<&{to_browser[0]} 4>&{of_browser[1]}'
        words = [
            chromium(),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
        ]
        child = subprocess.Popen(
            ["bash", "-c", script, "bash", *words],
            pass_fds=[to_browser[0], of_browser[1]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser[0])
        os.close(of_browser[1])
        try:
            tab = Page(of_browser[0], to_browser[1])
            yield tab
            tab._session = None
            tab.call("Browser.close")
        finally:
            os.close(of_browser[0])
            os.close(to_browser[1])
            try:
                child.wait(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
