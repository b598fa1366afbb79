"""A hub on 127.0.0.1 that takes uploads of models and serves them, for huggingface_hub itself."""

import base64
import json
import re
from pathlib import Path

from tests.support.hub_server import COMMIT, Handler


class ModelHub(Handler):
    """Models instead of data sets, and the three calls an upload makes."""

    created: list[dict[str, object]]

    def do_GET(self) -> None:
        self.path = self.path.replace("/api/models/", "/api/datasets/")
        if not self.path.startswith("/api/"):
            self.path = f"/datasets{self.path}"
        super().do_GET()

    def do_POST(self) -> None:
        content = self._body()
        path = self.path.split("?")[0]
        if path == "/api/repos/create":
            self.created.append(json.loads(content))
            return self._json(
                {"url": f"http://{self.headers['Host']}/owner/name", "name": "owner/name"}
            )
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if path.endswith("/preupload/main"):
            files = json.loads(content)["files"]
            modes = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files
            ]
            return self._json({"files": modes})
        assert re.fullmatch(r"/api/models/owner/name/commit/main", path), path
        for line in content.decode().splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                target = Path(self.folder) / entry["value"]["path"]
                target.write_bytes(base64.b64decode(entry["value"]["content"]))
        return self._json(
            {
                "commitUrl": f"http://{self.headers['Host']}/owner/name/commit/{COMMIT}",
                "commitOid": COMMIT,
            }
        )

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers["Content-Length"]))
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)
