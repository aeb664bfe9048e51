"""Files, folders and links of a checkpoint: a folder and a bucket give them back equal, or `list_tree` refuses them.

Contents, modes, empty folders and links inside are kept; times, owners and extended attributes are not.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import shutil
import stat
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from typing import TypeAlias

MANIFEST = "manifest.json"
_BLOCK = 2**20
#: Bytes of a path: with the URI of a checkpoint, a key of S3 has at most 1024.
_MAX_PATH = 700
#: Characters that keys of S3 cannot have, or not everywhere. Python reads bytes that are not UTF-8 as surrogates.
_NO_PATH = re.compile("[\0-\x1f\x7f\ud800-\udfff]")


class Entry(NamedTuple):
    """A file with its size and CRC-32, a folder, or a link with its target."""

    size: int = 0
    crc: int = 0
    #: As of `stat`. 0 in a manifest of version 2, which has only files.
    mode: int = 0
    target: str = ""

    @property
    def is_file(self) -> bool:
        return not (self.target or stat.S_ISDIR(self.mode))


#: What a checkpoint consists of, by relative path.
Tree: TypeAlias = "dict[str, Entry]"


def parse_tree(data: Mapping[str, Any]) -> Tree:
    return {name: Entry(*each) for name, each in data.items()}


def list_tree(folder: Path) -> Tree:
    """Return what is in a folder, links made relative; raise an error that names what a checkpoint cannot have."""
    tree, start = {}, len(os.path.join(folder, ""))
    for path in sorted(each.path for each in _walk(folder)):
        name, mode = path[start:], os.lstat(path).st_mode
        if _NO_PATH.search(name) or len(os.fsencode(name)) > _MAX_PATH:
            what = f"has a control character, more than {_MAX_PATH} bytes, or is not UTF-8"
            raise OSError(f"the path {name!r} {what}; rename it")
        if name == MANIFEST:
            raise OSError(f"{MANIFEST} is a file of the checkpoint itself; write yours into a subfolder")
        if stat.S_IFMT(mode) not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            raise OSError(f"{name!r} is a fifo, socket or device; remove it")
        tree[name] = Entry(mode=mode, target=_make_relative(Path(path), folder) if stat.S_ISLNK(mode) else "")
    files = [name for name, each in tree.items() if each.is_file]
    sums = dict(zip(files, checksum_all(folder, files)))  # noqa: B905 -- images may have Python 3.9
    return {name: Entry(*sums.get(name, (0, 0)), each.mode, each.target) for name, each in tree.items()}


def merge(tree: Tree, more: Tree) -> Tree:
    """Return what several ranks have written."""
    for name in tree.keys() & more.keys():
        if tree[name] != more[name] and (tree[name].is_file or more[name].is_file):
            raise OSError(f"two ranks wrote different files named {name}; put store.rank into the name")
    return {**more, **tree}


def find_change(folder: Path, tree: Tree, verify: bool) -> str | None:
    """Return the name of what differs in a folder; `verify`: the contents of files are compared, too."""
    for name, each in tree.items():
        path = folder / name
        if each.target:
            is_equal = path.is_symlink() and os.readlink(path) == each.target
        else:
            is_equal = path.stat().st_size == each.size if each.is_file else stat.S_ISDIR(path.stat().st_mode)
        if not is_equal:
            return name
    files = [name for name, each in tree.items() if each.is_file and verify]
    sums = zip(files, checksum_all(folder, files))  # noqa: B905 -- as above
    return next((name for name, actual in sums if actual != tree[name][:2]), None)


def check_closed(folder: Path) -> None:
    """Refuse a file that this process has open for writing: its end may be missing, and it may still change."""
    base, listed = f"{os.path.realpath(folder)}/", "/proc/self/fd"  # Only Linux has it.
    for number in os.listdir(listed) if os.path.isdir(listed) else ():
        try:
            path, links = os.readlink(f"{listed}/{number}"), os.fstat(int(number)).st_nlink
            mode = fcntl.fcntl(int(number), fcntl.F_GETFL) & os.O_ACCMODE
        except OSError:
            continue  # It was closed meanwhile.
        if path.startswith(base) and links and mode != os.O_RDONLY:
            raise OSError(f"{path[len(base) :]!r} is still open for writing; close it before the end of the block")


def remove(path: Path) -> None:
    """Delete a file, or a folder whatever the modes of its folders. What cannot be deleted stays."""
    with contextlib.suppress(NotADirectoryError, PermissionError):
        for each in _walk(path):
            if each.is_dir(follow_symlinks=False):
                os.chmod(each.path, 0o700)
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.unlink()


def checksum_all(folder: Path, names: list[str]) -> list[tuple[int, int]]:
    """Return size and CRC-32 of files, computed in parallel: zlib releases the interpreter lock."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(checksum, (folder / name for name in names)))


def checksum(path: Path) -> tuple[int, int]:
    size = crc = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            size, crc = size + len(block), zlib.crc32(block, crc)
    return size, crc


def sync_files(folder: Path) -> None:
    """Write the files in a folder to the disk, and its subfolders; the folder itself follows with the manifest."""
    for each in sorted(_walk(folder), key=lambda each: each.path, reverse=True):
        if each.is_file(follow_symlinks=False) or each.is_dir(follow_symlinks=False):
            sync(each.path)


def sync(path: str | Path) -> None:
    """Write a file or a folder to the disk. Another rank may have renamed its temporary file meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _walk(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield what is in a folder and its subfolders, each of them before what is in it; no link is followed."""
    folders = [os.fspath(folder)]
    while folders:
        with contextlib.suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for each in entries:
                yield each
                if each.is_dir(follow_symlinks=False):
                    folders.append(each.path)


def _make_relative(path: Path, folder: Path) -> str:
    """Return the target of a link, which is changed if it is absolute or leads through what is outside of a folder."""
    target, base = os.readlink(path), os.path.realpath(folder)

    def is_inside(target: str) -> bool:
        return f"{os.path.realpath(path.parent / target)}/".startswith(f"{base}/")

    if not (path.exists() and is_inside(target)):
        raise OSError(f"{str(path.relative_to(folder))!r} is a link to {target!r}, which is not in it; copy the file")
    if os.path.isabs(target) or not all(map(is_inside, itertools.accumulate(target.split("/"), os.path.join))):
        target = os.path.relpath(os.path.realpath(path), os.path.realpath(path.parent))
        path.unlink()
        path.symlink_to(target)
        sync(path.parent)
    return target
