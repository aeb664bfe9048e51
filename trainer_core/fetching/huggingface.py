"""hf://: a model or dataset of the HuggingFace Hub at a commit, through huggingface_hub.

``hf://[datasets/|models/]owner/name[@revision][/path]``, as huggingface_hub writes it. A model brings the files that
Trainer's initializer brings (specs.md A11), unless the URI names a path in it.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import os
import re
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import huggingface_hub
import tenacity
from huggingface_hub import constants
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # their names are loaded when they are used
    build_hf_headers,
    validate_repo_id,
)

from trainer_core.fetching import huggingface_errors as errors
from trainer_core.fetching.memory import RememberedSource
from trainer_core.fetching.settings import Settings
from trainer_core.fetching.source import FetchError, File, Report, Snapshot, is_ignored, mark_whole, remaining

__all__ = ["HuggingFaceSource", "Place", "source"]

#: What Trainer's initializer takes of a model: weights without code, and what belongs to them.
MODEL_PATTERNS = ("*.json", "*.safetensors", "*.model", "*.txt")
_KINDS = {"dataset": "datasets", "model": "models"}
_URI = re.compile(
    r"hf://(?:(?P<kind>models|datasets|spaces|kernels|buckets)/)?(?P<repo>[^/@]+(?:/[^/@]+)?)"
    # Names of revisions have no slash, but for these two families of the Hub's own.
    r"(?:@(?P<revision>refs/(?:pr/\d+|convert/[^/@]+)|[^/@]+))?(?:/(?P<path>.+?))?/?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_WORKERS = 8
_SCRATCH = ".huggingface"
_BLOCK = 2**20
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Place:
    """What a URI names.

    Attributes:
        kind: ``dataset`` or ``model``.
        repo: ``owner/name``.
        revision: Branch, tag or commit.
        path: A file or folder in it; empty for all of it.
    """

    kind: str
    repo: str
    revision: str = constants.DEFAULT_REVISION
    path: str = ""

    @classmethod
    def of(cls, uri: str, kind: str) -> Place:
        """Read a URI.

        Raises:
            FetchError: It names no repository of this kind.
        """
        match = _URI.fullmatch(uri)
        form = f"hf://owner/name, hf://owner/name@revision or hf://{_KINDS[kind]}/owner/name@revision/path"
        if match is None or match["kind"] not in (None, _KINDS[kind]):
            raise FetchError(f"{uri} names no {kind}; write {form}")
        try:
            validate_repo_id(match["repo"])
        except ValueError:
            raise FetchError(f"{uri}: {match['repo']!r} is no name of a {kind}; write {form}") from None
        revision = unquote(match["revision"] or constants.DEFAULT_REVISION)
        return cls(kind, match["repo"], revision, match["path"] or "")


def source(settings: Settings) -> HuggingFaceSource:
    """Return the source that a ``hf://`` URI names.

    Raises:
        FetchError: It names no repository.
    """
    place = Place.of(settings.uri, settings.role)
    return HuggingFaceSource(place, settings.ignore, settings.access_token, os.environ.get("HF_ENDPOINT"))


class HuggingFaceSource(RememberedSource):
    """A repository of the Hub.

    Args:
        place: Which.
        ignore: Glob patterns of files to leave out, matched against the path and the bare file name.
        token: None for what huggingface_hub finds: ``HF_TOKEN``, or who is logged in.
        endpoint: URL of the Hub or a mirror; None for the Hub. (The library itself reads it once, when it is imported.)
    """

    def __init__(
        self, place: Place, ignore: tuple[str, ...] = (), token: str | None = None, endpoint: str | None = None
    ) -> None:
        self._place = place
        self._ignore = tuple(f"{pattern}*" if pattern.endswith("/") else pattern for pattern in ignore)
        self._token = token or None
        self._endpoint = (endpoint or constants.ENDPOINT).rstrip("/")

    @property
    def key(self) -> str:
        """The repository, its revision, and what is taken of it."""
        return repr((self._endpoint, self._place, self._ignore))

    @property
    def is_offline(self) -> bool:
        """Whether ``HF_HUB_OFFLINE`` is set."""
        return bool(constants.HF_HUB_OFFLINE)

    def look(self) -> Snapshot:
        """Ask for the commit and its files; offline, look into the library's own cache."""
        commit, files = self._cached() if self.is_offline else self._patiently(self._listed)
        wanted = tuple(file for file in files if self._wants(file.path))
        if not wanted:
            patterns = f"; of a model only {', '.join(MODEL_PATTERNS)} are taken" if self._takes_some else ""
            raise FetchError(
                f"{self._name}: none of its {len(files)} files is wanted{patterns}; see ignore_patterns, or name a "
                f"file or folder of it in the URI: hf://{self._place.repo}/path"
            )
        return Snapshot(f"hf://{_KINDS[self._place.kind]}/{self._place.repo}@{commit}", wanted)

    def fill(self, folder: Path, snapshot: Snapshot, report: Report) -> None:
        """Download what is missing, several files at a time; those begun go on where they were."""
        commit = snapshot.identity.rpartition("@")[2]
        missing = remaining(folder, snapshot.files)
        report.advance(snapshot.size - sum(file.size for file in missing), len(snapshot.files) - len(missing))
        stop = threading.Event()
        with ThreadPoolExecutor(_WORKERS, thread_name_prefix="fetch") as pool:
            tasks = [pool.submit(self._bring, folder, commit, file, report, stop) for file in missing]
            done, _ = wait(tasks, return_when=FIRST_EXCEPTION)
            failed = next((task for task in done if task.exception()), None)
            if failed is not None:
                # What the others have is kept for the next try.
                stop.set()
                pool.shutdown(cancel_futures=True)
                failed.result()
        shutil.rmtree(folder / _SCRATCH, ignore_errors=True)

    @property
    def _name(self) -> str:
        at = "" if self._place.revision == constants.DEFAULT_REVISION else f"@{self._place.revision}"
        return f"{self._place.kind} {self._place.repo}{at}"

    @property
    def _takes_some(self) -> bool:
        return self._place.kind == "model" and not self._place.path

    def _wants(self, path: str) -> bool:
        named = self._place.path
        if path == named:
            return True
        if not path.startswith(f"{named}/" if named else ""):
            return False
        taken = not self._takes_some or any(fnmatch.fnmatchcase(path, pattern) for pattern in MODEL_PATTERNS)
        return taken and not is_ignored(path, self._ignore)

    @cached_property
    def _api(self) -> huggingface_hub.HfApi:
        return huggingface_hub.HfApi(endpoint=self._endpoint, token=self._token, library_name="trainjob-workflows")

    def _listed(self) -> tuple[str, list[File]]:
        kind, repo = self._place.kind, self._place.repo
        info = self._api.repo_info(repo, repo_type=kind, revision=self._place.revision)
        if getattr(info, "gated", False):
            # Everybody may list a gated repository. Better refused now than at the first file.
            self._api.auth_check(repo, repo_type=kind)
        commit = str(info.sha)
        entries = self._api.list_repo_tree(repo, recursive=True, revision=commit, repo_type=kind)
        return commit, [_file(entry) for entry in entries if isinstance(entry, huggingface_hub.hf_api.RepoFile)]

    def _cached(self) -> tuple[str, list[File]]:
        place = self._place
        try:
            folder = Path(
                huggingface_hub.snapshot_download(
                    place.repo,
                    repo_type=place.kind,
                    revision=place.revision,
                    allow_patterns=[place.path, f"{place.path}/*"] if place.path else None,
                    local_files_only=True,
                )
            )
        except OSError as error:
            raise FetchError(
                f"{self._name} was not fetched before and HF_HUB_OFFLINE is set; unset it once, or fetch it into "
                f"{constants.HF_HUB_CACHE} with `hf download`"
            ) from error
        found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return folder.name, [_cached_file(path, folder) for path in found]

    def _bring(self, folder: Path, commit: str, file: File, report: Report, stop: threading.Event) -> None:
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        cached = huggingface_hub.try_to_load_from_cache(
            self._place.repo, file.path, revision=commit, repo_type=self._place.kind
        )
        if isinstance(cached, str):
            target.unlink(missing_ok=True)
            shutil.copyfile(cached, target)
            report.advance(file.size)
        elif self.is_offline:
            raise FetchError(f"{self._name}: {file.path} is not in {constants.HF_HUB_CACHE} and HF_HUB_OFFLINE is set")
        elif _is_large(file) and self._patiently(self._is_xet, commit, file):
            self._patiently(self._download_xet, folder, commit, file, report)
        else:
            self._download(target, commit, file, report, stop)
        _check(target, file, self._name)
        mark_whole(target)
        report.advance(0, 1)

    def _download(self, target: Path, commit: str, file: File, report: Report, stop: threading.Event) -> None:
        with closing(_Told(target, report, stop)) as begun:
            report.advance(begun.tell())
            if begun.tell() > file.size:
                begun.truncate()
            self._patiently(self._go_on, begun, commit, file)

    def _go_on(self, begun: _Told, commit: str, file: File) -> None:
        headers = build_hf_headers(token=self._token, library_name="trainjob-workflows")
        # Compressed, a body could not be gone on with.
        headers["Accept-Encoding"] = "identity"
        begun.flush()
        http_get(
            self._url(commit, file), begun, resume_size=begun.tell(), headers=headers, expected_size=file.size or None
        )

    def _is_xet(self, commit: str, file: File) -> bool:
        """Whether the library has a faster way to a file than HTTP; it is that of most large files."""
        if constants.HF_HUB_DISABLE_XET or find_spec("hf_xet") is None:
            return False
        found = huggingface_hub.get_hf_file_metadata(
            self._url(commit, file), token=self._token, endpoint=self._endpoint
        )
        return found.xet_file_data is not None

    def _download_xet(self, folder: Path, commit: str, file: File, report: Report) -> None:
        scratch = folder / _SCRATCH
        kept: dict[str, Any] = {"local_dir": scratch, "token": self._token, "endpoint": self._endpoint}
        if "tqdm_class" in signature(huggingface_hub.hf_hub_download).parameters:
            kept["tqdm_class"] = _bar(report)
        fetched = huggingface_hub.hf_hub_download(
            self._place.repo, file.path, repo_type=self._place.kind, revision=commit, **kept
        )
        Path(fetched).replace(folder / file.path)

    def _url(self, commit: str, file: File) -> str:
        place = self._place
        return huggingface_hub.hf_hub_url(
            place.repo, file.path, repo_type=place.kind, revision=commit, endpoint=self._endpoint
        )

    def _patiently(self, ask: Callable[..., _Result], *arguments: Any) -> _Result:
        """Ask the Hub; a few times, where it may only be busy.

        Raises:
            FetchError: It does not give what it is asked for.
        """
        patience = tenacity.Retrying(
            retry=tenacity.retry_if_exception(errors.is_passing),
            stop=tenacity.stop_after_attempt(4),
            wait=tenacity.wait_random_exponential(multiplier=0.5, max=10),
            reraise=True,
        )
        try:
            return patience(ask, *arguments)
        except errors.FOREIGN as error:
            raise errors.explained(error, self._name, self._endpoint, bool(self._token)) from error


class _StoppedError(Exception):
    """Another file could not be had."""


class _Told(io.BufferedWriter):
    """A file that tells how much of it there is, and takes nothing more once the fetch has failed."""

    def __init__(self, path: Path, report: Report, stop: threading.Event) -> None:
        super().__init__(io.FileIO(path, "a"))
        self._report, self._stop = report, stop

    def write(self, data: Any, /) -> int:
        if self._stop.is_set():
            raise _StoppedError
        written = super().write(data)
        self._report.advance(written)
        return written

    def truncate(self, size: int | None = None, /) -> int:
        """Called where all of it comes anew; what was told is taken back."""
        before = self.seek(0, io.SEEK_END)
        left = super().truncate(0)
        self._report.advance(-before)
        return left


def _bar(report: Report) -> type[Any]:
    """Return a class that the library takes for one of progress bars."""

    class Bar:
        def __init__(self, **_: Any) -> None:
            self.total = 0

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, n: float | None = 1) -> None:
            report.advance(int(n or 0))

        def _nothing(self, *_: Any, **__: Any) -> None:
            """Bytes on the wire, of which there are fewer, and what only a terminal shows."""

        update_transfer = set_postfix_str = set_transfer_postfix_str = refresh = close = _nothing

    return Bar


def _file(entry: huggingface_hub.hf_api.RepoFile) -> File:
    return File(entry.path, entry.size, entry.lfs.sha256 if entry.lfs else entry.blob_id)


def _is_large(file: File) -> bool:
    """Whether git keeps only a pointer to it: the Hub then names it by another hash."""
    return len(file.tag) == hashlib.sha256().digest_size * 2


def _cached_file(path: Path, folder: Path) -> File:
    # The library's cache links to files that are named by their hash.
    tag = Path(os.readlink(path)).name if path.is_symlink() else ""  # noqa: PTH115 -- its last part is all we want
    return File(path.relative_to(folder).as_posix(), path.stat().st_size, tag)


def _check(path: Path, file: File, name: str) -> None:
    """See that a file is the one that was listed, by git's hash of it, or for large files by their own."""
    size = path.stat().st_size
    digest = hashlib.sha256() if _is_large(file) else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as content:
        while block := content.read(_BLOCK):
            digest.update(block)
    if file.tag and digest.hexdigest() != file.tag:
        path.unlink()
        raise FetchError(f"{name}: {file.path} came damaged: its hash is not the one that is listed", retryable=True)
