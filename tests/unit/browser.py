"""Drive a headless Chromium over its debugging pipe (Chrome DevTools Protocol), with nothing but the standard library."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""The browser's program; None where there is none."""


class Browser:
    """A browser with one page. profile: a folder for its files."""

    def __init__(self, profile: Path) -> None:
        there, self._sent = os.pipe()
        self._got, back = os.pipe()
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--disable-background-networking",
        ]
        # It reads commands from descriptor 3 and answers on 4; the shell puts our pipes there.
        line = f'exec "$0" "$@" 3<&{there} 4>&{back}'
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                line,
                str(CHROMIUM),
                *options,
                "--remote-debugging-pipe",
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            pass_fds=(there, back),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there)
        os.close(back)
        self._number, self._rest, self._session = 0, b"", ""
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next((found["targetId"] for found in targets if found["type"] == "page"), None)
        page = page or self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(30)
        os.close(self._sent)
        os.close(self._got)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command. Raises RuntimeError for an error of the browser, EOFError where it has ended."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params} | (
            {"sessionId": self._session} if self._session else {}
        )
        os.write(self._sent, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") != self._number:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, address: str, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Load a page and wait for it."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        for place in ("about:blank", address):  # to another section of the same page it would not load anew
            self.events.clear()
            self.call("Page.navigate", url=place)
            while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
                self.events.append(self._read())

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for. Raises RuntimeError for an exception."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"])
        return found["result"].get("value")

    def move(self, x: float, y: float) -> None:
        """Move the mouse to a place in the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x: float, y: float) -> None:
        """Click on a place in the window."""
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path: Path, top: float = 0, height: float | None = None) -> None:
        """Save a part of the page, from `top` on, as PNG; by default all of it."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": top, "width": size["width"], "height": height or size["height"] - top, "scale": 1}
        data = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._got, 1 << 20)
            if not part:
                raise EOFError("the browser has ended")
            self._rest += part
        line, self._rest = self._rest.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer
