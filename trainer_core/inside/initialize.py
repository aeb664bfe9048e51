"""Fetches one source before training: the program of an initializer step.

Everything comes by environment variable (``TRAINJOB_INITIALIZE_…``). What is fetched lies in a cache under a name
made from its content, appears there whole or not at all, and is linked into the job's workspace.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["fetch", "local_path", "main"]


def local_path(uri: str) -> Path:
    """Return the path that a ``file://`` URI names.

    Raises:
        ValueError: It names another host, or no absolute path.
    """
    parts = urlsplit(uri)
    path = Path(unquote(parts.path))
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not path.is_absolute():
        raise ValueError(f"{uri!r} is not a local path: write file:// and an absolute path, as in file:///data/digits")
    return path


def fetch(source: Path, cache: Path, ignore: list[str], link: bool) -> tuple[Path, bool]:
    """Bring a file or folder into the cache, unless it is there.

    Args:
        source: The file or folder.
        cache: The cache folder.
        ignore: Glob patterns, matched against the path inside the source and against the bare file name.
        link: Make links to the source's files instead of copies.

    Returns:
        Where it lies, and whether it had to be fetched.
    """
    files = _listing(source, ignore)
    target = cache / _digest(source, files, link)
    if target.exists():
        return target, False
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".fetch-", dir=str(cache)))
    try:
        for relative in files:
            _take(source / relative if source.is_dir() else source, temporary / relative, link)
        try:
            os.rename(str(temporary), str(target))
        except OSError:
            # Another job fetched the same content meanwhile; a non-empty folder is never replaced.
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(str(temporary), ignore_errors=True)
    return target, True


def main() -> int:
    """Do what the environment says; 0 when the data is in place."""
    # Whatever is made here is for this user only, also the folders in between.
    os.umask(0o077)
    env = os.environ
    uri, role = env["TRAINJOB_INITIALIZE_URI"], env["TRAINJOB_INITIALIZE_ROLE"]
    ignore = [p for p in env.get("TRAINJOB_INITIALIZE_IGNORE", "").split("\n") if p]
    source = local_path(uri)
    if not source.exists():
        print(f"{role}: {source} does not exist; check storage_uri", file=sys.stderr)
        return 1
    where, fetched = fetch(
        source, Path(env["TRAINJOB_INITIALIZE_CACHE"]), ignore, bool(env.get("TRAINJOB_INITIALIZE_LINK"))
    )
    _point(Path(env["TRAINJOB_INITIALIZE_TARGET"]), where)
    print(f"{role}: {uri} {'fetched into' if fetched else 'found in'} {where}", flush=True)
    return 0


def _listing(source: Path, ignore: list[str]) -> list[str]:
    if source.is_file():
        return [source.name]
    found = []
    seen = {os.path.realpath(str(source))}
    for folder, folders, names in os.walk(str(source), followlinks=True):
        # A link may lead back up; each folder is walked once.
        real = {name: os.path.realpath(os.path.join(folder, name)) for name in sorted(folders)}
        folders[:] = [name for name in real if real[name] not in seen]
        seen.update(real.values())
        for name in names:
            relative = os.path.relpath(os.path.join(folder, name), str(source))
            if not any(fnmatch.fnmatch(relative, p) or fnmatch.fnmatch(name, p) for p in ignore):
                found.append(relative)
    return sorted(found)


def _digest(source: Path, files: list[str], link: bool) -> str:
    """Name the content by what a change would alter: paths, sizes and times, as rsync and make judge it."""
    digest = hashlib.sha256(f"{source}\0{link}".encode())
    for relative in files:
        facts = (source / relative if source.is_dir() else source).stat()
        digest.update(f"\0{relative}\0{facts.st_size}\0{facts.st_mtime_ns}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]


def _take(source: Path, target: Path, link: bool) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if link:
        os.symlink(str(source.resolve()), str(target))
        return
    shutil.copyfile(str(source), str(target))
    # Read-only: what lies in the cache is shared by every job that asks for the same source.
    os.chmod(str(target), stat.S_IRUSR)


def _point(link: Path, where: Path) -> None:
    """Let the workspace's name lead to the cached folder; a step that is run again finds its own link."""
    if link.is_symlink():
        link.unlink()
    os.symlink(str(where), str(link))


if __name__ == "__main__":
    sys.exit(main())
