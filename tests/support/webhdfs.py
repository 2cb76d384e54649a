"""A name node of HDFS on this machine that serves a folder by WebHDFS, as fsspec asks it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@contextmanager
def serving_webhdfs(root: Path) -> Iterator[str]:
    """The URL of a folder until the block ends."""

    class Node(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            below = unquote(asked.path.removeprefix("/webhdfs/v1")).strip("/")
            path, query = root / below, {
                name.lower(): values[0] for name, values in parse_qs(asked.query).items()}
            if not path.exists():
                self._json({"RemoteException": {"exception": "FileNotFoundException",
                                                "message": "none"}}, 404)
            elif query["op"] == "OPEN":
                start = int(query.get("offset", 0))
                data = path.read_bytes()[start:]
                self._send(200, data[:int(query.get("length", len(data)))])
            elif query["op"] == "LISTSTATUS":
                rows = [self._about(file) for file in sorted(path.iterdir())]
                self._json({"FileStatuses": {"FileStatus": rows}})
            else:
                self._json({"FileStatus": self._about(path, "")})

        @staticmethod
        def _about(path: Path, name: str | None = None) -> dict[str, Any]:
            about = path.stat()
            return {"pathSuffix": path.name if name is None else name, "length": about.st_size
                    if path.is_file() else 0, "type": "FILE" if path.is_file() else "DIRECTORY",
                    "modificationTime": int(about.st_mtime * 1000)}

        def _json(self, document: Any, status: int = 200) -> None:
            self._send(status, json.dumps(document).encode())

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Node)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"webhdfs://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
