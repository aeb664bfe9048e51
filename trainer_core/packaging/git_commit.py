"""Fetch a commit of a git repository, by its full id, once into a cache folder of this user."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainer_core.base.secrets import has_credentials, mask_credentials

_URI = re.compile(
    r"git\+(?P<url>(?:https|ssh|file)://\S+)@(?P<commit>[0-9a-f]{40})(?:#subdirectory=(?P<folder>[^\s#]+))?"
)
#: Seconds for the fetch of one commit.
_TIMEOUT = 300
#: Variables that a hook of git sets, and that would lead to the repository of the hook.
_OF_A_HOOK = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX")


@dataclass(frozen=True)
class GitCommit:
    """A commit of a repository."""

    url: str
    commit: str
    #: Folder in the repository; empty for the whole.
    folder: str = ""

    @property
    def name(self) -> str:
        return self.url.rstrip("/").rpartition("/")[2].removesuffix(".git") or "repository"


def parse_git_uri(uri: str) -> GitCommit:
    if has_credentials(uri):
        raise ValueError("code: the git URL contains a user or password; use git's credential helper")
    match = _URI.fullmatch(uri)
    folder = match["folder"] or "" if match else ""
    if match is None or ".." in folder.split("/") or folder.startswith("/"):
        raise ValueError(
            "code must be git+https://host/repository@<commit id of 40 digits>, optionally with #subdirectory=folder, "
            f"got {mask_credentials(uri)}; a branch or tag names other files tomorrow"
        )
    return GitCommit(match["url"], match["commit"], folder)


def fetch_commit(commit: GitCommit) -> Path:
    """Return the folder with the files of a commit, fetched unless that was done before."""
    place = _get_cache() / commit.commit / commit.name
    if not place.is_dir():
        _fetch(commit, place)
    folder = place / commit.folder
    if not folder.is_dir():
        raise ValueError(f"code: commit {commit.commit[:12]} of {commit.url} has no folder {commit.folder}")
    return folder


def _get_cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "trainjob-workflows" / "git"


def _fetch(commit: GitCommit, place: Path) -> None:
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".", dir=place.parent))
    except OSError as error:
        raise ValueError(f"code: {place.parent} cannot be written: {error.strerror}; set XDG_CACHE_HOME") from error
    try:
        _run_git(commit, temporary, "init", "--quiet")
        _run_git(commit, temporary, "fetch", "--quiet", "--depth=1", "--no-tags", commit.url, commit.commit)
        _run_git(commit, temporary, "checkout", "--quiet", "--detach", commit.commit)
        # Fails if another process has fetched it meanwhile.
        with suppress(OSError):
            temporary.rename(place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _run_git(commit: GitCommit, folder: Path, *arguments: str) -> None:
    env = {name: value for name, value in os.environ.items() if name not in _OF_A_HOOK}
    env |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "https:ssh:file", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", "-c", "core.hooksPath=/dev/null", *arguments],  # noqa: S607 -- found on PATH
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT,
            check=False,
        )
    except FileNotFoundError as error:
        raise ValueError(f"code: {commit.url} needs git, which is not installed; install it") from error
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"code: {commit.url} did not answer within {_TIMEOUT} seconds; check the URL") from error
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise ValueError(
            f"code: commit {commit.commit[:12]} of {commit.url} cannot be fetched: {mask_credentials(lines[-1])}"
        )
