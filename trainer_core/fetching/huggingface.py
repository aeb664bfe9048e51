"""hf://: a model or dataset of the HuggingFace Hub at a commit, through huggingface_hub.

``hf://[datasets/|models/]owner/name[@revision][/path]``, as huggingface_hub writes it. A model brings the files that
Trainer's initializer brings (specs.md A11), unless the URI names a path in it.
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

from trainer_core.fetching import huggingface_errors as errors
from trainer_core.fetching import parallel
from trainer_core.fetching.huggingface_files import LIBRARY, SCRATCH, Repository, patiently
from trainer_core.fetching.memory import RememberedSource
from trainer_core.fetching.settings import PREFIX, Settings
from trainer_core.fetching.source import FetchError, File, Report, Snapshot, is_ignored, remaining

__all__ = ["HuggingFaceSource", "Place", "source"]

#: What Trainer's initializer takes of a model: weights without code, and what belongs to them.
MODEL_PATTERNS = ("*.json", "*.safetensors", "*.model", "*.txt")
_KINDS = {"dataset": "datasets", "model": "models"}
_URI = re.compile(
    r"hf://(?:(?P<kind>models|datasets|spaces|kernels|buckets)/)?(?P<repo>[^/@]+/[^/@]+|[^/@]+(?=@|/?$))"
    # Names of revisions have no slash, but for these two families of the Hub's own.
    r"(?:@(?P<revision>refs/(?:pr/\d+|convert/[^/@]+)|[^/@]+))?(?:/(?P<path>.+?))?/?"
)
_WORKERS = 8


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
    # With the prefix where a request names it for this one source.
    endpoint = os.environ.get(f"{PREFIX}HF_ENDPOINT") or os.environ.get("HF_ENDPOINT")
    return HuggingFaceSource(place, settings.ignore, settings.access_token, endpoint)


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
        self._token = token or (None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else huggingface_hub.get_token())
        self._endpoint = (endpoint or constants.ENDPOINT).rstrip("/")

    @property
    def key(self) -> str:
        """The repository, its revision, and what is taken of it."""
        return repr((self._place, self._ignore))

    @property
    def is_offline(self) -> bool:
        """Whether ``HF_HUB_OFFLINE`` is set."""
        return bool(constants.HF_HUB_OFFLINE)

    def look(self) -> Snapshot:
        """Ask for the commit and its files; offline, look into the library's own cache."""
        commit, files = self._cached() if self.is_offline else self._listed()
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
        repository = self._at(snapshot.identity.rpartition("@")[2])
        missing = remaining(folder, snapshot.files)
        report.advance(snapshot.size - sum(file.size for file in missing), len(snapshot.files) - len(missing))
        stop = threading.Event()

        def bring(file: File) -> None:
            try:
                repository.bring(folder, file, report, stop)
            except BaseException:
                # What the others have so far is kept for the next try.
                stop.set()
                raise

        parallel.each(bring, missing, _WORKERS)
        shutil.rmtree(folder / SCRATCH, ignore_errors=True)

    def _at(self, commit: str) -> Repository:
        return Repository(self._place.kind, self._place.repo, commit, self._endpoint, self._token)

    @property
    def _name(self) -> str:
        at = "" if self._place.revision == constants.DEFAULT_REVISION else f"@{self._place.revision}"
        return f"hf://{self._place.repo}{at}"

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
        return huggingface_hub.HfApi(endpoint=self._endpoint, token=self._token, library_name=LIBRARY)

    def _listed(self) -> tuple[str, list[File]]:
        kind, repo = self._place.kind, self._place.repo
        with errors.explained(self._name, self._endpoint, bool(self._token)):
            info = patiently(self._api.repo_info, repo, repo_type=kind, revision=self._place.revision)
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


def _file(entry: huggingface_hub.hf_api.RepoFile) -> File:
    return File(entry.path, entry.size, entry.lfs.sha256 if entry.lfs else entry.blob_id)


def _cached_file(path: Path, folder: Path) -> File:
    # The library's cache links to files that are named by their hash.
    tag = Path(os.readlink(path)).name if path.is_symlink() else ""  # noqa: PTH115 -- its last part is all we want
    return File(path.relative_to(folder).as_posix(), path.stat().st_size, tag)
