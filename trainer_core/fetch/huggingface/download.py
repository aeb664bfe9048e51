"""Downloads, resumes and verifies single files of a HuggingFace Hub repository."""

from __future__ import annotations

import hashlib
import io
import random
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # loaded when it is used

from trainer_core.fetch.huggingface import errors
from trainer_core.fetch.source import FetchError, FetchProgress, SourceFile, mark_complete

#: Name of this client in the User-Agent header.
LIBRARY = "trainjob-workflows"
#: Folder for temporary files of huggingface_hub, inside the target folder.
SCRATCH = ".huggingface"
_BLOCK = 2**20
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class FileDownloader:
    """Downloads files of one commit."""

    #: ``dataset`` or ``model``.
    kind: str
    #: ``owner/name``.
    name: str
    commit: str
    #: URL of the Hub or a mirror.
    endpoint: str
    #: Token; None for the one that huggingface_hub finds.
    token: str | None = field(default=None, repr=False)

    def download(self, folder: Path, file: SourceFile, progress: FetchProgress, stop: threading.Event) -> None:
        """Fetch a file from huggingface_hub's own cache or from the Hub, and verify it."""
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        if self._copy_from_library_cache(target, file):
            progress.advance(file.size)
        elif constants.HF_HUB_OFFLINE:
            raise FetchError(
                f"{self._uri}: {file.path} is not in {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is set; unset it once"
            )
        else:
            with errors.convert_errors(self._uri, self.endpoint, bool(self.token)):
                self._download(folder, file, progress, stop)
            if not _matches_hash(target, file):
                target.unlink()
                raise FetchError(
                    f"{self._uri}: {file.path} is damaged: its hash differs from the listed one; fetch it again",
                    retryable=True,
                )
        mark_complete(target)
        progress.advance(0, 1)

    def _copy_from_library_cache(self, target: Path, file: SourceFile) -> bool:
        """Copy a file from huggingface_hub's own cache if it is there and its hash is right."""
        cached = huggingface_hub.try_to_load_from_cache(self.name, file.path, revision=self.commit, repo_type=self.kind)
        if not isinstance(cached, str) or not _matches_hash(Path(cached), file):
            return False
        target.unlink(missing_ok=True)
        shutil.copyfile(cached, target)
        return True

    @property
    def _uri(self) -> str:
        return f"hf://{self.name}"

    def _download(self, folder: Path, file: SourceFile, progress: FetchProgress, stop: threading.Event) -> None:
        # Not by snapshot_download: huggingface_hub 2 deletes the part of a file whose download was interrupted, so a
        # killed initializer would fetch large weights from the beginning.
        if _is_large(file) and self._is_xet(file):
            self._download_xet(folder, file, progress)
            return
        with closing(_ProgressFile(folder / file.path, progress, stop)) as target:
            progress.advance(target.tell())
            if target.tell() > file.size:
                target.truncate()
            retry_transient(self._resume, target, file)

    def _resume(self, target: _ProgressFile, file: SourceFile) -> None:
        headers = build_hf_headers(token=self.token, library_name=LIBRARY)
        # A compressed body cannot be resumed.
        headers["Accept-Encoding"] = "identity"
        target.flush()
        http_get(self._url(file), target, resume_size=target.tell(), headers=headers, expected_size=file.size or None)

    def _is_xet(self, file: SourceFile) -> bool:
        """Whether the file is in Xet storage, which hf_xet downloads faster than HTTP; most large files are."""
        if constants.HF_HUB_DISABLE_XET or find_spec("hf_xet") is None:
            return False
        get_metadata = huggingface_hub.get_hf_file_metadata
        return (
            retry_transient(get_metadata, self._url(file), token=self.token, endpoint=self.endpoint).xet_file_data
            is not None
        )

    def _download_xet(self, folder: Path, file: SourceFile, progress: FetchProgress) -> None:
        # huggingface_hub has no public function that downloads from Xet storage to a given path.
        options: dict[str, Any] = {"local_dir": folder / SCRATCH, "token": self.token, "endpoint": self.endpoint}
        if "tqdm_class" in signature(huggingface_hub.hf_hub_download).parameters:
            options["tqdm_class"] = _build_bar_class(progress)
        fetched = huggingface_hub.hf_hub_download(
            self.name, file.path, repo_type=self.kind, revision=self.commit, **options
        )
        Path(fetched).replace(folder / file.path)

    def _url(self, file: SourceFile) -> str:
        return huggingface_hub.hf_hub_url(
            self.name, file.path, repo_type=self.kind, revision=self.commit, endpoint=self.endpoint
        )


def retry_transient(function: Callable[..., _Result], *arguments: Any, **keywords: Any) -> _Result:
    """Call a function of huggingface_hub; repeat the call if the Hub is unavailable, four times at most."""
    for pause in (0.5, 1.0, 2.0):
        try:
            return function(*arguments, **keywords)
        except Exception as error:
            if not errors.is_transient(error):
                raise
        # Random, because the downloads of many files fail at the same time.
        time.sleep(random.uniform(0, pause))  # noqa: S311 -- no secret
    return function(*arguments, **keywords)


class _StoppedError(Exception):
    """The download of another file has failed."""


class _ProgressFile(io.BufferedWriter):
    """File that reports the bytes written, and refuses further bytes once the stop event is set."""

    def __init__(self, path: Path, progress: FetchProgress, stop: threading.Event) -> None:
        super().__init__(io.FileIO(path, "a"))
        self._progress, self._stop = progress, stop

    def write(self, data: Any, /) -> int:
        if self._stop.is_set():
            raise _StoppedError
        written = super().write(data)
        self._progress.advance(written)
        return written

    def truncate(self, size: int | None = None, /) -> int:
        """Truncate to zero when huggingface_hub starts the download again, and take back the reported bytes."""
        before = self.seek(0, io.SEEK_END)
        size_after = super().truncate(0)
        self._progress.advance(-before)
        return size_after


def _build_bar_class(progress: FetchProgress) -> type[Any]:
    """Return a class that huggingface_hub uses in place of tqdm."""

    class Bar:
        def __init__(self, **_: Any) -> None:
            self.total = 0

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, n: float | None = 1) -> None:
            progress.advance(int(n or 0))

        def _ignore(self, *_: Any, **__: Any) -> None:
            """Ignore compressed bytes and calls that only matter on a terminal."""

        update_transfer = set_postfix_str = set_transfer_postfix_str = refresh = close = _ignore

    return Bar


def _is_large(file: SourceFile) -> bool:
    """Whether git stores only a pointer (LFS) to the file: its tag is then a SHA-256, not a git hash."""
    return len(file.tag) == hashlib.sha256().digest_size * 2


def _matches_hash(path: Path, file: SourceFile) -> bool:
    """Whether a file has the size and hash that were listed: git's blob hash, or SHA-256 for large files."""
    size = path.stat().st_size
    digest = hashlib.sha256() if _is_large(file) else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as content:
        while block := content.read(_BLOCK):
            digest.update(block)
    return size == file.size and file.tag in ("", digest.hexdigest())
