"""A headless Chromium, driven over its own pipe: no driver, no port, no library."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu"),
    *("--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--disable-extensions", "--window-size=1200,800", "--hide-scrollbars"),
)
_WAIT_S = 180.0


def find() -> str | None:
    """A Chromium on this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page.

    Attributes:
        requested: every address that the page asked for.
        problems: exceptions and errors on its console.
    """

    def __init__(self, program: str, profile: Path) -> None:
        commands, self._commands = os.pipe()
        self._replies, replies = os.pipe()
        # Chromium reads descriptor 3 and writes 4.
        script = f'exec "$0" "$@" 3<&{commands} 4>&{replies}'
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        flags = [*_FLAGS, *sandbox, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", script, program, *flags],
            pass_fds=(commands, replies),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(replies)
        self.requested: list[str] = []
        self.problems: list[str] = []
        self._held = b""
        self._count = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._commands)
        os.close(self._replies)
        self._process.kill()
        self._process.wait()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its result."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._read()
            if reply.get("id") == self._count:
                assert "error" not in reply, reply
                found: dict[str, Any] = reply["result"]
                return found
            self._note(reply)

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page; promises are waited for."""
        reply = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until an expression in the page is true, looked at in every frame."""
        self.evaluate(
            f"new Promise((done, fail) => {{ const end = performance.now() + {_WAIT_S * 1000};"
            f" const look = () => ({condition}) ? done(true) : performance.now() > end"
            f" ? fail(new Error('not in time')) : setTimeout(look, 10); look(); }})"
        )

    def open(self, url: str) -> None:
        """Load a page."""
        self.call("Page.navigate", url=url)
        self.until(f"document.readyState === 'complete' && location.href === {json.dumps(url)}")

    def screenshot(self, path: Path) -> None:
        """Write what the page looks like, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded":
            self.problems.append(params["entry"]["text"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._held:
            ready, _, _ = select.select([self._replies], [], [], _WAIT_S)
            part = os.read(self._replies, 1 << 16) if ready else b""
            assert part, f"the browser does not answer (status {self._process.poll()})"
            self._held += part
        message, _, self._held = self._held.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found
