"""The container of a step: a fresh file system for each try, and the program as a process in it."""

from __future__ import annotations

import functools
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import TracebackType

_ENTER = Path(__file__).with_name("enter_container.py")
_REPOSITORY = Path(__file__).parents[3]
#: Fresh folders of a step: those that KFP mounts, and where the container's user may write in the image.
_FRESH = ("/tmp", "/gcs", "/s3", "/minio", "/oci", "/.local", "/.cache", "/.config", "/kfp-launcher")
#: Seconds that a step may take to close its output after its program has ended: a busy machine ends processes slowly.
CLOSES_WITHIN = 120.0


@dataclass(frozen=True)
class ProgramEnd:
    """How a program has ended."""

    code: int
    #: Whether SIGTERM was sent to it.
    terminated: bool = False
    #: Whether a process it has left still holds its output: on KFP the step never ends.
    output_left_open: bool = False


@dataclass
class Container:
    """The file system and the process of one try. A context manager: with its end all of its processes end."""

    #: For the try's files; must not exist.
    folder: Path
    #: Variables, with the image's.
    environment: Mapping[str, str]
    #: Folders of this machine by path in the container.
    mounts: Mapping[str, Path] = field(default_factory=dict)
    on_line: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        self.output = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._kill_at: float | None = None
        self._unread = b""
        self._folders = {path: self.folder / "files" / path.lstrip("/") for path in _FRESH}
        for path in (*self._folders.values(), self.folder / "root"):
            path.mkdir(parents=True)

    def __enter__(self) -> Container:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def host_path(self, path: str) -> Path:
        """Return where a path of the container is on this machine."""
        known = {**self._folders, **self.mounts}
        wanted = PurePosixPath(path)
        fitting = [each for each in known if wanted.is_relative_to(each)]
        if not fitting:
            return Path(path)
        nearest = max(fitting, key=len)
        return known[nearest] / wanted.relative_to(nearest)

    def follow(self, path: Path) -> Path:
        """Return what a link in the container leads to, on this machine."""
        if path.is_symlink() and path.readlink().is_absolute():
            return self.host_path(str(path.readlink()))
        return path

    def run(self, command: Sequence[str], waits_for_output: bool) -> ProgramEnd:
        read, write = os.pipe()
        specification = self.folder / "specification.json"
        specification.write_text(json.dumps(self._specify(command, write)), encoding="utf-8")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_ENTER), str(specification)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[write],
        )
        os.close(write)
        try:
            return self._follow(read, waits_for_output)
        finally:
            os.close(read)
            self._kill()

    def terminate(self, kill_after: float) -> None:
        """Send SIGTERM to the program's group, and SIGKILL to all processes soon after."""
        if self._process is not None and self._kill_at is None:
            self._process.send_signal(signal.SIGTERM)
            self._kill_at = time.monotonic() + kill_after

    def _specify(self, command: Sequence[str], status: int) -> dict[str, object]:
        needed = [path.absolute() for path in (_REPOSITORY, Path(sys.prefix), Path(sys.base_prefix))]
        lost = [path for path in needed if self.host_path(str(path)) != path]
        mounts = {**{str(path): path for path in lost}, **self.mounts}
        return {
            "root": str(self.folder / "root"),
            "hidden": sorted({PurePosixPath(path).parts[1] for path in _FRESH}),
            "fresh": {path: str(source) for path, source in self._folders.items()},
            "mounts": {path: str(source) for path, source in mounts.items()},
            "directory": "/tmp",
            "status": status,
            "command": list(command),
            "environment": {**self._base_environment(), **self.environment},
        }

    def _base_environment(self) -> dict[str, str]:
        """Return what the image stands for: this interpreter, and the packages of this repository."""
        path = f"{Path(sys.executable).parent}:{os.defpath}"
        return {"PATH": path, "HOME": "/", "PYTHONPATH": str(_REPOSITORY)}

    def _follow(self, status: int, waits_for_output: bool) -> ProgramEnd:
        """Read the output until the program has ended, and its output if the step waits for that."""
        assert self._process is not None
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        code: int | None = None
        give_up: float | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            selector.register(status, selectors.EVENT_READ)
            while selector.get_map():
                events = selector.select(self._patience(give_up))
                ready = [key.fd for key, _ in events]
                for descriptor in sorted(ready, key=lambda each: each == status):
                    data = os.read(descriptor, 65_536)
                    if not data:
                        selector.unregister(descriptor)
                    elif descriptor == status:
                        code = int(data)
                        give_up = time.monotonic() + (CLOSES_WITHIN if waits_for_output else 0)
                    else:
                        self._read(data)
                if code is not None and output not in selector.get_map():
                    break
                if self._kill_at is not None and time.monotonic() >= self._kill_at:
                    self._kill()
                    break
                if not events and give_up is not None and time.monotonic() >= give_up:
                    return self._end(code, left_open=waits_for_output)
        return self._end(code, left_open=False)

    def _end(self, code: int | None, left_open: bool) -> ProgramEnd:
        if self._unread:
            self._read(b"\n")
        return ProgramEnd(-signal.SIGKILL if code is None else code, self._kill_at is not None, left_open)

    def _patience(self, give_up: float | None) -> float | None:
        ends = [each for each in (give_up, self._kill_at) if each is not None]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _read(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            self.output += f"{text}\n"
            self.on_line(text)

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdout:
                self._process.stdout.close()


@functools.cache
def unsupported() -> str:
    """Return why steps cannot run on this machine; empty where they can."""
    if sys.platform != "linux":
        return "steps of the KFP double run in Linux namespaces"
    with (
        tempfile.TemporaryDirectory() as folder,
        Container(Path(folder) / "container", {}) as container,
    ):
        end = container.run(["true"], waits_for_output=True)
    return "" if end.code == 0 else f"the kernel refuses namespaces to this user: {container.output.strip()[-200:]}"
