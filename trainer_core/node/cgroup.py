"""The control group of this process, version 2 or 1: its files, and whom the kernel killed in it for lack of memory."""

from __future__ import annotations

from pathlib import Path


class OomKills:
    """Counts the processes that the kernel kills in this control group for lack of memory, from now on."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._before = self._read()

    def count(self) -> int | None:
        """Return their number; None where the kernel does not tell."""
        now = self._read()
        return None if now is None or self._before is None else now - self._before

    def describe(self) -> dict[str, int]:
        """Return their number as a value of a termination record."""
        count = self.count()
        return {} if count is None else {"oom_kills": count}

    def _read(self) -> int | None:
        for controller, name in (("", "memory.events"), ("memory", "memory.oom_control")):
            if folder := find_cgroup(self._root, controller, name):
                words = read_words(folder / name)
                return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else None
        return None


def read_words(path: Path, separator: str | None = None) -> list[str]:
    """Return the words of a file; none if there is no such file."""
    return path.read_text(encoding="ascii", errors="replace").split(separator) if path.is_file() else []


def find_cgroup(root: Path, controller: str, name: str) -> Path | None:
    """Return the folder of a cgroup of this process that has a file. Version 2 is a controller without a name.

    A container may see its own cgroup at the root of the controller, and not under the path of ``/proc/self/cgroup``.
    """
    folder = root / "sys/fs/cgroup" / controller
    lines = (line.split(":", 2) for line in read_words(root / "proc/self/cgroup", "\n") if line)
    paths = [path.strip("/") for _, names, path in lines if controller in names.split(",")]
    return next((each for each in [*(folder / path for path in paths), folder] if (each / name).is_file()), None)
