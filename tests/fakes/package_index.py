"""Package indexes on loopback, with the pages of PEP 503 and wheels that are made here."""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *args: Any, user: str | None, **more: Any) -> None:
        self._expected = user and "Basic " + base64.b64encode(user.encode()).decode()
        super().__init__(*args, **more)

    def send_head(self) -> Any:
        if self._expected in (None, self.headers["Authorization"]):
            return super().send_head()
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Basic")
        self.end_headers()
        return None

    def log_message(self, *_: object) -> None:
        pass


class PackageIndex:
    """An index whose packages are modules of the same name with a VALUE."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder / "simple"
        self._folder.mkdir(parents=True, exist_ok=True)
        self.url = url

    def add(self, name: str, version: str, value: str, requires: Sequence[str] = ()) -> str:
        """Add a wheel and return its hash."""
        info = f"{name}-{version}.dist-info"
        needed = "".join(f"Requires-Dist: {each}\n" for each in requires)
        files = {
            f"{name}.py": f"VALUE = {value!r}\n",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{each},,\n" for each in [*files, f"{info}/RECORD"])
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        path = folder / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            for each, text in {**files, f"{info}/RECORD": record}.items():
                wheel.writestr(zipfile.ZipInfo(each), text)
        links = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in folder.glob("*.whl")}
        page = "".join(f'<a href="{each}#sha256={digest}">{each}</a>\n' for each, digest in sorted(links.items()))
        (folder / "index.html").write_text(page)
        return f"sha256:{links[path.name]}"


@contextmanager
def serve_index(folder: Path, user: str | None = None) -> Iterator[PackageIndex]:
    """Serve an empty index for the time of the block; `user`: the ``name:password`` that it asks for."""
    handler = functools.partial(_Handler, directory=folder, user=user)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield PackageIndex(folder, f"http://127.0.0.1:{server.server_port}/simple")
        finally:
            server.shutdown()
            thread.join()
