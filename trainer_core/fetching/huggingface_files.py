"""The files of a repository of the HuggingFace Hub: downloaded one by one, gone on with, checked."""

from __future__ import annotations

import hashlib
import io
import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

import huggingface_hub
import tenacity
from huggingface_hub import constants
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # loaded when it is used

from trainer_core.fetching import huggingface_errors as errors
from trainer_core.fetching.source import FetchError, File, Report, mark_whole

__all__ = ["LIBRARY", "SCRATCH", "Repository", "patiently"]

#: How the Hub knows us.
LIBRARY = "trainjob-workflows"
#: Where the library works inside the folder that is filled.
SCRATCH = ".huggingface"
_BLOCK = 2**20
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Repository:
    """A repository at a commit, for one reader.

    Attributes:
        kind: ``dataset`` or ``model``.
        name: ``owner/name``.
        commit: The commit.
        endpoint: URL of the Hub or a mirror.
        token: None for what huggingface_hub finds.
    """

    kind: str
    name: str
    commit: str
    endpoint: str
    token: str | None = field(default=None, repr=False)

    def bring(self, folder: Path, file: File, report: Report, stop: threading.Event) -> None:
        """Make a file whole, from the library's own cache or the Hub.

        Args:
            folder: Where it belongs; may hold a part of it.
            file: Which.
            report: Told of its bytes.
            stop: Once set, nothing more is taken.

        Raises:
            FetchError: It cannot be had, or came damaged.
        """
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        if self._is_cached(target, file):
            report.advance(file.size)
        elif constants.HF_HUB_OFFLINE:
            raise FetchError(f"{self._what}: {file.path} is not in {constants.HF_HUB_CACHE} and HF_HUB_OFFLINE is set")
        else:
            with errors.explained(self._what, self.endpoint, bool(self.token)):
                self._download(folder, file, report, stop)
            if not _is_right(target, file):
                target.unlink()
                raise FetchError(
                    f"{self._what}: {file.path} came damaged: it has another hash than listed", retryable=True
                )
        mark_whole(target)
        report.advance(0, 1)

    def _is_cached(self, target: Path, file: File) -> bool:
        """Take a file from the library's cache, where it is and is right."""
        cached = huggingface_hub.try_to_load_from_cache(self.name, file.path, revision=self.commit, repo_type=self.kind)
        if not isinstance(cached, str) or not _is_right(Path(cached), file):
            return False
        target.unlink(missing_ok=True)
        shutil.copyfile(cached, target)
        return True

    @property
    def _what(self) -> str:
        return f"hf://{self.name}"

    def _download(self, folder: Path, file: File, report: Report, stop: threading.Event) -> None:
        if _is_large(file) and self._is_xet(file):
            self._download_xet(folder, file, report)
            return
        with closing(_Told(folder / file.path, report, stop)) as begun:
            report.advance(begun.tell())
            if begun.tell() > file.size:
                begun.truncate()
            patiently(self._go_on, begun, file)

    def _go_on(self, begun: _Told, file: File) -> None:
        headers = build_hf_headers(token=self.token, library_name=LIBRARY)
        # Compressed, a body could not be gone on with.
        headers["Accept-Encoding"] = "identity"
        begun.flush()
        http_get(self._url(file), begun, resume_size=begun.tell(), headers=headers, expected_size=file.size or None)

    def _is_xet(self, file: File) -> bool:
        """Whether the library has a faster way to a file than HTTP; it is that of most large files."""
        if constants.HF_HUB_DISABLE_XET or find_spec("hf_xet") is None:
            return False
        ask = huggingface_hub.get_hf_file_metadata
        return patiently(ask, self._url(file), token=self.token, endpoint=self.endpoint).xet_file_data is not None

    def _download_xet(self, folder: Path, file: File, report: Report) -> None:
        # The library needs to know the file by its own means: it has no public way to hand it over.
        kept: dict[str, Any] = {"local_dir": folder / SCRATCH, "token": self.token, "endpoint": self.endpoint}
        if "tqdm_class" in signature(huggingface_hub.hf_hub_download).parameters:
            kept["tqdm_class"] = _bar(report)
        fetched = huggingface_hub.hf_hub_download(
            self.name, file.path, repo_type=self.kind, revision=self.commit, **kept
        )
        Path(fetched).replace(folder / file.path)

    def _url(self, file: File) -> str:
        return huggingface_hub.hf_hub_url(
            self.name, file.path, repo_type=self.kind, revision=self.commit, endpoint=self.endpoint
        )


def patiently(ask: Callable[..., _Result], *arguments: Any, **more: Any) -> _Result:
    """Ask the Hub; a few times, where it may only be away for a moment."""
    patience = tenacity.Retrying(
        retry=tenacity.retry_if_exception(errors.is_away),
        stop=tenacity.stop_after_attempt(4),
        wait=tenacity.wait_random_exponential(multiplier=0.5, max=10),
        reraise=True,
    )
    return patience(ask, *arguments, **more)


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


def _is_large(file: File) -> bool:
    """Whether git keeps only a pointer to it: the Hub then names it by another hash."""
    return len(file.tag) == hashlib.sha256().digest_size * 2


def _is_right(path: Path, file: File) -> bool:
    """Whether a file is the one that was listed, by git's hash of it, or for large files by their own."""
    size = path.stat().st_size
    digest = hashlib.sha256() if _is_large(file) else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as content:
        while block := content.read(_BLOCK):
            digest.update(block)
    return size == file.size and file.tag in ("", digest.hexdigest())
