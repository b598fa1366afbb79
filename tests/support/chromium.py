"""A headless chromium driven over its DevTools pipe; no package beyond the standard library."""

import base64
import json
import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any


class Page:
    """One page in a browser of its own.

    Events (console, exceptions, requests) collect in ``events``; ``close`` ends the browser.
    """

    def __init__(self, folder: Path, *, width: int = 1280, height: int = 900) -> None:
        binary = shutil.which("chromium")
        assert binary, "chromium is not installed: `make test-browser` installs it"
        to_read, self._to_browser = os.pipe()
        self._from_browser, to_write = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        options += ["--no-first-run", "--disable-extensions", "--disable-background-networking"]
        options += [f"--user-data-dir={folder}", "--hide-scrollbars", "about:blank"]
        command = f"exec {shlex.join([binary, *options])} 3<&{to_read} 4>&{to_write}"
        self._process = subprocess.Popen(
            ["bash", "-c", command],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._number, self._rest = 0, b""
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self._wait_for_page()
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.resize(width, height)

    def _wait_for_page(self) -> str:
        for _ in range(100):
            found = self.send("Target.getTargets")["targetInfos"]
            pages = [target["targetId"] for target in found if target["type"] == "page"]
            if pages:
                return pages[0]
            time.sleep(0.1)
        raise TimeoutError("chromium opened no page within ten seconds")

    # -- the pipe -----------------------------------------------------------------------------

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a DevTools method and return its result."""
        self._number += 1
        message: dict[str, Any] = {
            "id": self._number,
            "method": method,
            "params": parameters,
        }
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._from_browser, 1 << 16)
            assert piece, "chromium closed its pipe"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    # -- what a person does -------------------------------------------------------------------

    def open(self, address: str) -> None:
        """Load an address afresh, forget earlier events, and wait until it is complete."""
        self.send("Page.navigate", url="about:blank")
        self.events.clear()
        self.send("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """Evaluate an expression in the page."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 20.0) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < end, f"not true within {seconds} s: {condition}"
            time.sleep(0.05)

    def text(self, selector: str) -> str:
        """The visible text of an element."""
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def box(self, selector: str) -> dict[str, float]:
        """Where an element is in the window, after scrolling to it."""
        quoted = json.dumps(selector)
        return self.run(
            f"(() => {{ const e = document.querySelector({quoted}); "
            "e.scrollIntoView({block: 'center', behavior: 'instant'}); "
            "const b = e.getBoundingClientRect(); "
            "return {x: b.x, y: b.y, width: b.width, height: b.height}; })()"
        )

    def hover(self, selector: str, across: float = 0.5, down: float = 0.5) -> None:
        """Move the mouse to a place inside an element, as shares of its size."""
        box = self.box(selector)
        x, y = box["x"] + across * box["width"], box["y"] + down * box["height"]
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """Press and release the left button on an element."""
        box = self.box(selector)
        place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def press(self, key: str, code: int) -> None:
        """Press and release a key in whatever has the focus."""
        for kind in ("rawKeyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
            )

    def focus(self, selector: str) -> None:
        """Give an element the focus."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")

    # -- how it looks -------------------------------------------------------------------------

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def media(self, kind: str = "", **features: str) -> None:
        """Emulate a medium such as "print", or features such as prefers_color_scheme="dark"."""
        pairs = [{"name": n.replace("_", "-"), "value": v} for n, v in features.items()]
        self.send("Emulation.setEmulatedMedia", media=kind, features=pairs)

    def picture(self, path: Path) -> bytes:
        """A picture of the whole page, written to ``path``."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        content = base64.b64decode(found["data"])
        path.write_bytes(content)
        return content

    def problems(self) -> list[str]:
        """Errors and warnings of the console, and uncaught exceptions, so far."""
        self.run("1")  # events sent before this answer have arrived
        found = []
        for event in self.events:
            method, details = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown" or method == "Log.entryAdded":
                found.append(json.dumps(details))
            elif method == "Runtime.consoleAPICalled":
                found.append(json.dumps(details["args"]))
        return found

    def requests(self) -> list[str]:
        """Addresses asked for so far, without those inside the page itself."""
        self.run("1")
        sent = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        addresses = [event["params"]["request"]["url"] for event in sent]
        return [address for address in addresses if not address.startswith("data:")]

    def close(self) -> None:
        """End the browser."""
        session, self._session = self._session, None
        if session is not None:
            self.send("Browser.close")
        self._process.wait(timeout=20)
        os.close(self._to_browser)
        os.close(self._from_browser)
