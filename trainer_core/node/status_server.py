"""Progress without code: a server in global rank 0 that speaks the status protocol of Kubeflow Trainer (KEP-2779).

transformers, the callback of `lightning_callback` and others report to it, as they do in a cluster with the gate
TrainJobStatus. A report becomes a progress line, and is passed on to Trainer's own server where there is one.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from . import beats, env, files, progress, trainer_status
from .trainer_status import CA_CERT, KEPT, NAMES, TOKEN, URL

if TYPE_CHECKING:
    import socket

_API = "/apis/trainer.kubeflow.org/"
_MAX_BODY = 65_536
_MAX_HEADERS = 16_384
#: Seconds for one request, and most clients at a time: the oldest makes room, as its request should be complete.
_PATIENCE = 2.0
_MAX_CLIENTS = 32
#: Seconds of rest for each one at work: a client that floods the server takes little time from the training.
_REST = 20.0
#: Seconds after a connection that could not be accepted.
_PAUSE = 0.05
#: The module by which a function reports itself, another copy than that of this package.
_PROGRESS = "trainer_core.node.progress"
#: Seconds between two reads of the bars of tqdm.
_BARS = 5.0
#: Seconds to pass the last report on, after the function has returned.
_LAST_REPORT = 5.0
_REASONS = {
    200: "OK",
    403: "Forbidden",
    404: "NotFound",
    413: "RequestEntityTooLarge",
    422: "Invalid",
    500: "InternalError",
}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


class StatusServer:
    """Listens on 127.0.0.1 while the training function runs, and sets the variables by which libraries find it.

    Not on other ranks, and not if the user has set a URL or ``TRAINJOB_STATUS_SERVER=0``. Never raises.
    """

    def __init__(self, folder: Path) -> None:
        self._token_path = folder / "status-token"
        self._token = b""
        self._path = ""
        self._total: float = 0
        #: The bar that was shown last, by the time of its begin, and its step; steps of bars before it; the job's bar.
        self._bar: tuple[float, float] = (0, 0)
        self._done: float = 0
        self._outer: float | None = None
        self._is_used = False
        self._before: dict[str, str | None] = {}
        self._socket: socket.socket | None = None
        self._ended = threading.Event()
        self._server: threading.Thread
        self._reports: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._forwarder = threading.Thread(target=self._forward, daemon=True)

    def __enter__(self) -> None:
        url = os.environ.get(URL, "")
        is_users = url and _API not in url
        if not (env.rank() or os.environ.get(env.STATUS_SERVER) == "0" or is_users):
            with contextlib.suppress(Exception):  # Without a server the training runs as well.
                self._start()

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            with contextlib.suppress(Exception):
                self._stop(self._socket)

    def _start(self) -> None:
        import socket  # Takes time.

        self._token = os.urandom(32).hex().encode()
        files.replace(self._token_path, self._token)
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        listener.setblocking(False)
        self._path = urlsplit(trainer_status.get(URL)).path
        if self._path:
            self._forwarder.start()
        else:
            job = os.environ.get(env.NAME) or "trainjob"
            self._path = f"{_API}v1alpha1/namespaces/default/trainjobs/{job}/status"
        kept = {KEPT + name: trainer_status.get(name) for name in NAMES}
        changed = (*NAMES, *kept, "no_proxy", "NO_PROXY")
        self._socket, self._before = listener, {name: os.environ.get(name) for name in changed}
        os.environ.update(kept)
        os.environ[URL] = f"http://127.0.0.1:{listener.getsockname()[1]}{self._path}"
        os.environ[TOKEN] = str(self._token_path)
        os.environ.pop(CA_CERT, None)
        # urllib reads one of the two variables: the hosts of the other must not be lost.
        for name, other in (("no_proxy", "NO_PROXY"), ("NO_PROXY", "no_proxy")):
            hosts = self._before.get(name) or self._before.get(other) or ""
            os.environ[name] = hosts if hosts == "*" else f"{hosts},127.0.0.1".lstrip(",")
        sys.meta_path.append(_LightningFinder)
        self._server = threading.Thread(target=self._serve, args=[listener], daemon=True)
        self._server.start()

    def _stop(self, listener: socket.socket) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):  # The training, or the thread, has closed it.
            listener.shutdown(2)
        self._token_path.unlink(missing_ok=True)
        sys.meta_path.remove(_LightningFinder)
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        # Its last answer: a daemon thread that prints while Python exits can abort the process.
        self._server.join(2 * _PATIENCE)
        if self._forwarder.is_alive():
            self._reports.put(b"")
            self._forwarder.join(_LAST_REPORT)

    def _serve(self, listener: socket.socket) -> None:
        """Answer all clients at once: one that sends nothing delays no other."""
        import selectors  # Takes time.

        ends: dict[socket.socket, float] = {}
        bars = time.monotonic() + _BARS
        with listener, selectors.PollSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)

            def accept() -> None:
                connection, _ = listener.accept()
                answer = self._answer(connection)
                next(answer)
                selector.register(connection, selectors.EVENT_READ, answer)
                ends[connection] = time.monotonic() + _PATIENCE

            def close(connection: socket.socket) -> None:
                selector.unregister(connection)
                connection.close()
                del ends[connection]

            while not self._ended.is_set():
                ready = selector.select(max(0.0, min([bars, *ends.values()]) - time.monotonic()))
                begun = time.thread_time()
                for key, _ in ready:
                    with contextlib.suppress(Exception):  # A client breaks off, or its request is complete.
                        if key.data is None:
                            accept()
                        else:
                            key.data.send(key.fileobj.recv(_MAX_BODY))  # type: ignore[union-attr]
                        continue
                    if key.data is None:
                        self._ended.wait(_PAUSE)  # No descriptor is free, or the training has closed this one.
                    else:
                        close(key.fileobj)  # type: ignore[arg-type]
                now = time.monotonic()
                late = [connection for connection, end in ends.items() if now >= end]
                for connection in late or list(ends)[:-_MAX_CLIENTS]:
                    close(connection)
                if now >= bars:
                    bars = now + _BARS
                    with contextlib.suppress(Exception):  # Another thread changes bars meanwhile.
                        self._show_bar()
                time.sleep(_REST * (time.thread_time() - begun))
            for connection in ends:
                connection.close()

    def _answer(self, connection: socket.socket) -> Generator[None, bytes, None]:
        """Answer a request, of which a part is sent in at a time; an empty one is its end."""
        data = chunk = yield
        while chunk and b"\r\n\r\n" not in data and len(data) < _MAX_HEADERS:
            chunk = yield
            data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        request, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        code = self._check_head(request, headers)
        if code == 200:
            length = int(headers.get("content-length", "0"))
            while chunk and len(body) < length:
                chunk = yield
                body += chunk
            code = self._accept(body[:length])
        failure = {"status": "Failure", "message": _REASONS[code], "reason": _REASONS[code], "code": code}
        text = body[:length] if code == 200 else json.dumps(failure).encode()
        lines = [f"HTTP/1.1 {code} {_REASONS[code]}", "Content-Type: application/json", "Connection: close"]
        # A client that does not read has sent the token, and is the training, or its answer is short.
        connection.settimeout(_PATIENCE)
        connection.sendall("\r\n".join([*lines, f"Content-Length: {len(text)}\r\n\r\n"]).encode() + text)
        connection.shutdown(1)
        # A client that still sends would lose the answer.
        while (yield):
            pass

    def _check_head(self, request: str, headers: Mapping[str, str]) -> int:
        import hmac  # Takes time.

        length = headers.get("content-length", "0")
        if request.split(" ")[:2] != ["POST", self._path]:
            return 404
        if not hmac.compare_digest(headers.get("authorization", "").encode(), b"Bearer " + self._token):
            return 403
        if not length.isdecimal():
            return 422
        return 413 if int(length) > _MAX_BODY else 200

    def _accept(self, body: bytes) -> int:
        """Show what a request has sent and pass it on; return the code of the answer."""
        try:
            status = json.loads(body).get("trainerStatus")
            if status is not None and not _is_valid(status):
                return 422
        except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
            return 422
        try:
            if status is not None:
                self._show(status)
                if self._forwarder.is_alive():
                    self._reports.put(body)
        except Exception:  # noqa: BLE001 -- The function may have closed stdout.
            return 500
        return 200

    def _show(self, status: Mapping[str, Any]) -> None:
        metrics = {each["name"]: _parse_number(each["value"]) for each in status.get("metrics") or ()}
        percent, step = status.get("progressPercentage"), metrics.pop("current_step", None)
        self._total = metrics.pop("total_steps", None) or self._total
        total = self._total if self._total > 0 else None
        if step is None and percent is not None:
            # The first and the last report of transformers have no step.
            total = total or 100
            step = round(percent * total / 100)
        self._is_used = True
        beats.beat()
        self._print(step, total, metrics)

    def _show_bar(self) -> None:
        """Show the outermost bar of tqdm, unless the training or a library reports. Bars of bytes are downloads.

        Only a bar with another one inside is that of the job: one alone may be inside an epoch, and counts steps.
        """
        tqdm = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
        bars = [bar for bar in getattr(tqdm, "_instances", ()) if bar.total and bar.unit != "B"]
        if not bars or self._is_used or sys.modules.get(_PROGRESS, progress) is not progress:
            return
        outermost = min(bars, key=lambda bar: abs(bar.pos))
        begun, step = outermost.start_t, outermost.n
        self._outer = begun if len(bars) > 1 else self._outer
        if self._outer not in (None, begun) or (begun, step) == self._bar:
            return
        self._done += self._bar[1] if self._bar[0] != begun else 0
        self._bar = (begun, step)
        self._print(*((step, outermost.total) if self._outer else (self._done + step, None)))

    @staticmethod
    def _print(step: float | None, total: float | None, metrics: Mapping[str, Any] | None = None) -> None:
        # The function may have imported another copy of this package. What it reports itself comes first.
        module = sys.modules.get(_PROGRESS, progress)
        if not getattr(module, "is_called", False):
            module._reporter.report(step, total, metrics)

    def _forward(self) -> None:
        """Pass the newest report on, until an empty one comes."""
        bodies = [b"-"]
        while b"" not in bodies:
            bodies = [self._reports.get(), *(self._reports.get() for _ in range(self._reports.qsize()))]
            for body in [*filter(None, bodies)][-1:]:
                with contextlib.suppress(Exception):  # The server may be away.
                    trainer_status.send(body)


def _parse_number(text: str) -> float | int | None:
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    return int(number) if number == int(number) and "." not in text else number


def _is_valid(status: Mapping[str, Any]) -> bool:
    """Return whether Trainer would accept a status, by the schema of its CRD."""
    percent, remaining = status.get("progressPercentage") or 0, status.get("estimatedRemainingSeconds") or 0
    metrics = status.get("metrics") or []
    texts = [each[key] for each in metrics for key in ("name", "value")]
    return (
        _TIME.fullmatch(status["lastUpdatedTime"]) is not None
        and (type(percent), type(remaining)) == (int, int)
        and 0 <= percent <= 100
        and remaining >= 0
        and len(metrics) <= 256
        and all(isinstance(text, str) and 0 < len(text) <= 64 for text in texts)
    )


class _LightningFinder:
    """Finds a distribution that exists in memory only: its entry points give Lightning a callback."""

    @staticmethod
    def find_spec(*_: object) -> None:
        return None

    @staticmethod
    def find_distributions(context: Any = None) -> list[Any]:
        frame: Any = sys._getframe(1)  # What lists all distributions, such as a freeze, does not get it.
        while frame is not None and frame.f_code.co_name != "entry_points":
            frame = frame.f_back
        if getattr(context, "name", None) or frame is None:
            return []
        from importlib.metadata import Distribution  # Takes time.

        groups = ("lightning.pytorch.callbacks_factory", "pytorch_lightning.callbacks_factory")
        points = "".join(f"[{group}]\ntrainjob = {__package__}.lightning_callback:create\n" for group in groups)
        texts = {"METADATA": "Name: trainjob-node\nVersion: 0\n", "entry_points.txt": points}
        methods = {"read_text": lambda _, name: texts.get(name), "locate_file": lambda _, path: Path(path)}
        return [type("_Distribution", (Distribution,), methods)()]
