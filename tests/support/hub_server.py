"""A hub on 127.0.0.1: serves folders through the few HTTP calls that huggingface_hub makes."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path
    ranges: list[str]  # Range headers of the GET requests
    break_after: dict[str, int]  # path: bytes after which the connection drops, once

    def log_message(self, *_: object) -> None:
        """Stay quiet."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if re.match(r"/api/datasets/[^/]+/[^/]+/revision/", path):
            return self._json({"id": "owner/name", "sha": COMMIT, "tags": [], "siblings": []})
        if re.match(r"/api/datasets/[^/]+/[^/]+/tree/", path):
            return self._json([self._entry(file) for file in self._all()])
        found = re.match(r"/datasets/[^/]+/[^/]+/resolve/[^/]+/(.*)", path)
        if found and (self.folder / found[1]).is_file():
            return self._file(self.folder / found[1], found[1])
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    def _all(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())

    def _entry(self, path: Path) -> dict[str, object]:
        content = path.read_bytes()
        entry = {
            "type": "file",
            "path": str(path.relative_to(self.folder)),
            "size": len(content),
            "oid": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(),
        }
        if path.suffix == ".arrow":
            digest = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 130}
        return entry

    def _json(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _file(self, path: Path, name: str) -> None:
        content = path.read_bytes()
        start = 0
        if asked := self.headers.get("Range"):
            self.ranges.append(asked)
            start = int(asked.removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        if name in self.break_after:
            self.wfile.write(content[: self.break_after.pop(name)])
            self.close_connection = True
            return
        self.wfile.write(content[start:])


@contextmanager
def serve(
    folder: Path, kind: type[Handler] = Handler, **state: object
) -> Iterator[tuple[str, type[Handler]]]:
    """Serve ``folder`` and yield the endpoint and the handler, which counts requests."""
    state = {"folder": folder, "ranges": [], "break_after": {}, **state}
    handler = type("Bound", (kind,), state)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", handler
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
