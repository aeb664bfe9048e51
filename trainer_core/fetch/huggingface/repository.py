"""Lists and fetches a repository of the HuggingFace Hub at a commit, through huggingface_hub.

URIs are ``hf://[datasets/|models/]owner/name[@revision][/path]``, as in huggingface_hub. Of a model, the files that
Trainer's initializer downloads are fetched, unless the URI has a path.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # loaded when it is used

from trainer_core.fetch.huggingface.download import LIBRARY, SCRATCH, FileDownloader, retry_transient
from trainer_core.fetch.huggingface.errors import convert_errors
from trainer_core.fetch.parallel import run_parallel
from trainer_core.fetch.settings import ENV_PREFIX, FetchSettings
from trainer_core.fetch.source import (
    CacheableSource,
    FetchError,
    FetchProgress,
    Snapshot,
    SourceFile,
    is_ignored,
    list_incomplete,
)

#: What Trainer's initializer downloads of a model: safe weights, configuration and tokenizer.
MODEL_PATTERNS = ("*.json", "*.safetensors", "*.model", "*.txt")
_KINDS = {"dataset": "datasets", "model": "models"}
_URI = re.compile(
    r"hf://(?:(?P<kind>models|datasets|spaces|kernels|buckets)/)?(?P<repo>[^/@]+/[^/@]+|[^/@]+(?=@|/?$))"
    # Revisions contain no slash, except for these two kinds that the Hub creates.
    r"(?:@(?P<revision>refs/(?:pr/\d+|convert/[^/@]+)|[^/@]+))?(?:/(?P<path>.+?))?/?"
)
_WORKERS = 8


@dataclass(frozen=True)
class HubLocation:
    """A repository, revision and path on the Hub."""

    #: ``dataset`` or ``model``.
    kind: str
    #: ``owner/name``.
    repo: str
    #: Branch, tag or commit.
    revision: str = constants.DEFAULT_REVISION
    #: A file or folder of the repository; empty for all files.
    path: str = ""

    @classmethod
    def parse(cls, uri: str, kind: str) -> HubLocation:
        match = _URI.fullmatch(uri)
        form = f"hf://owner/name, hf://owner/name@revision or hf://{_KINDS[kind]}/owner/name@revision/path"
        if match is None or match["kind"] not in (None, _KINDS[kind]):
            raise FetchError(f"{uri} does not name a {kind}; write {form}")
        try:
            validate_repo_id(match["repo"])
        except ValueError:
            raise FetchError(f"{uri}: {match['repo']!r} is not a valid name of a {kind}; write {form}") from None
        revision = unquote(match["revision"] or constants.DEFAULT_REVISION)
        return cls(kind, match["repo"], revision, match["path"] or "")


def create_source(settings: FetchSettings) -> HuggingFaceSource:
    location = HubLocation.parse(settings.uri, settings.role)
    # With the prefix if the request sets it for this source only.
    endpoint = os.environ.get(f"{ENV_PREFIX}HF_ENDPOINT") or os.environ.get("HF_ENDPOINT")
    return HuggingFaceSource(location, settings.ignore, settings.access_token, endpoint)


class HuggingFaceSource(CacheableSource):
    """A repository of the Hub."""

    def __init__(
        self, location: HubLocation, ignore: tuple[str, ...] = (), token: str | None = None, endpoint: str | None = None
    ) -> None:
        self._location = location
        self._ignore = tuple(f"{pattern}*" if pattern.endswith("/") else pattern for pattern in ignore)
        self._token = token or (None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else huggingface_hub.get_token())
        self._endpoint = (endpoint or constants.ENDPOINT).rstrip("/")

    @property
    def key(self) -> str:
        """Location and ignored patterns."""
        return repr((self._location, self._ignore))

    @property
    def is_offline(self) -> bool:
        """Whether ``HF_HUB_OFFLINE`` is set."""
        return bool(constants.HF_HUB_OFFLINE)

    def list_files(self) -> Snapshot:
        """List the files of the commit; offline, those in huggingface_hub's own cache."""
        commit, files = self._list_library_cache() if self.is_offline else self._list_commit()
        selected = tuple(file for file in files if self._is_selected(file.path))
        if not selected:
            patterns = (
                f"; of a model only {', '.join(MODEL_PATTERNS)} are fetched" if self._has_default_patterns else ""
            )
            raise FetchError(
                f"{self._name}: none of its {len(files)} files is selected{patterns}; check ignore_patterns, or name a "
                f"file or folder in the URI: hf://{self._location.repo}/path"
            )
        return Snapshot(f"hf://{_KINDS[self._location.kind]}/{self._location.repo}@{commit}", selected)

    def fetch_files(self, folder: Path, snapshot: Snapshot, progress: FetchProgress) -> None:
        """Download the missing files, several at a time; partial downloads are resumed."""
        location, commit = self._location, snapshot.identity.rpartition("@")[2]
        downloader = FileDownloader(location.kind, location.repo, commit, self._endpoint, self._token)
        missing = list_incomplete(folder, snapshot.files)
        progress.advance(snapshot.size - sum(file.size for file in missing), len(snapshot.files) - len(missing))
        stop = threading.Event()

        def download(file: SourceFile) -> None:
            try:
                downloader.download(folder, file, progress, stop)
            except BaseException:
                # The other downloads stop; the next try resumes them.
                stop.set()
                raise

        run_parallel(download, missing, _WORKERS)
        shutil.rmtree(folder / SCRATCH, ignore_errors=True)

    @property
    def _name(self) -> str:
        at = "" if self._location.revision == constants.DEFAULT_REVISION else f"@{self._location.revision}"
        return f"hf://{self._location.repo}{at}"

    @property
    def _has_default_patterns(self) -> bool:
        return self._location.kind == "model" and not self._location.path

    def _is_selected(self, path: str) -> bool:
        selected = self._location.path
        if path == selected:
            return True
        if not path.startswith(f"{selected}/" if selected else ""):
            return False
        matches = not self._has_default_patterns or any(
            fnmatch.fnmatchcase(path, pattern) for pattern in MODEL_PATTERNS
        )
        return matches and not is_ignored(path, self._ignore)

    @cached_property
    def _api(self) -> huggingface_hub.HfApi:
        return huggingface_hub.HfApi(endpoint=self._endpoint, token=self._token, library_name=LIBRARY)

    def _list_commit(self) -> tuple[str, list[SourceFile]]:
        kind, repo = self._location.kind, self._location.repo
        with convert_errors(self._name, self._endpoint, bool(self._token)):
            info = retry_transient(self._api.repo_info, repo, repo_type=kind, revision=self._location.revision)
            if getattr(info, "gated", False):
                # A gated repository can be listed by all users; check access before the first file is requested.
                self._api.auth_check(repo, repo_type=kind)
            commit = str(info.sha)
            entries = self._api.list_repo_tree(repo, recursive=True, revision=commit, repo_type=kind)
            files = [each for each in entries if isinstance(each, huggingface_hub.hf_api.RepoFile)]
            return commit, [
                SourceFile(each.path, each.size, each.lfs.sha256 if each.lfs else each.blob_id) for each in files
            ]

    def _list_library_cache(self) -> tuple[str, list[SourceFile]]:
        location = self._location
        try:
            folder = Path(
                huggingface_hub.snapshot_download(
                    location.repo,
                    repo_type=location.kind,
                    revision=location.revision,
                    allow_patterns=[location.path, f"{location.path}/*"] if location.path else None,
                    local_files_only=True,
                )
            )
        except OSError as error:
            raise FetchError(
                f"{self._name} was not fetched before, and HF_HUB_OFFLINE is set; unset it once, or fetch it into "
                f"{constants.HF_HUB_CACHE} with `hf download`"
            ) from error
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return folder.name, [_build_cached_file(path, folder) for path in paths]


def _build_cached_file(path: Path, folder: Path) -> SourceFile:
    # The library's cache has links to files that are named by their hash.
    tag = Path(os.readlink(path)).name if path.is_symlink() else ""  # noqa: PTH115 -- only its last part is needed
    return SourceFile(path.relative_to(folder).as_posix(), path.stat().st_size, tag)
