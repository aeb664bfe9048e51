"""Runtimes of the container backend: ClusterTrainingRuntimes in YAML, from the configured sources.

Downloaded files are cached for a day. If a source cannot be reached, its cached files are used, however old they are.
The runtimes of this package are always available.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from trainer_core.backends.container import paths
from trainer_core.backends.container.engine import check_library
from trainer_core.backends.runtime_files import list_runtime_files, parse_runtimes, read_runtimes
from trainer_core.base.errors import RuntimeNotFoundError
from trainer_core.k8s.runtimes import get_name, parse_runtime
from trainer_core.model.runtimes import Runtime
from trainer_core.node import files

_log = logging.getLogger(__name__)
_PACKAGED = Path(__file__).parent / "runtimes"
_DAY_SECONDS = 86_400.0
#: A source that could not be reached is tried again after this time. Otherwise each submit would wait for it.
_RETRY_SECONDS = 300.0
#: Seconds to connect and to read.
_TIMEOUT = (3.0, 10.0)
_RETRIES = 2
#: Folder in the repository of Kubeflow Trainer; the default of ``github://`` sources.
_DEFAULT_FOLDER = "manifests/base/runtimes"
_GITHUB_API = "https://api.github.com/repos"


class RuntimeCatalog:
    """The runtimes that a request can name."""

    def __init__(self, sources: list[str]) -> None:
        self._sources = sources
        self._loaded: tuple[float, dict[str, dict[str, Any]]] | None = None

    def get(self, name: str) -> dict[str, Any]:
        known = self._load()
        if name not in known:
            raise RuntimeNotFoundError(
                f"runtime {name!r} does not exist on the container backend; use one of {', '.join(sorted(known))}, or "
                "add a source to runtime_source"
            )
        return known[name]

    def list(self) -> list[Runtime]:
        """Return all runtimes, in alphabetical order."""
        return [parse_runtime(raw) for _, raw in sorted(self._load().items())]

    def _load(self) -> dict[str, dict[str, Any]]:
        if self._loaded is None or time.monotonic() - self._loaded[0] > _RETRY_SECONDS:
            known: dict[str, dict[str, Any]] = {}
            for raw in self._read_sources():
                known.setdefault(get_name(raw), raw)
            self._loaded = time.monotonic(), known
        return self._loaded[1]

    def _read_sources(self) -> Iterator[dict[str, Any]]:
        for source in self._sources:
            if source.startswith(("github://", "http://", "https://")):
                for name, text in _CachedSource(source).read_texts():
                    yield from parse_runtimes(name, text, _validate_runtime)
            else:
                yield from _read_files(_parse_path(source))
        yield from _read_files(_PACKAGED)


class _CachedSource:
    """Files of a source on the network, cached on disk."""

    def __init__(self, source: str) -> None:
        self._source = source
        digest = hashlib.sha256(source.encode()).hexdigest()[:16]
        self._file = paths.runtime_cache() / f"{digest}.json"

    def read_texts(self) -> Iterator[tuple[str, str]]:
        now = time.time()
        is_old = now - self._cached.get("fetched", 0.0) > _DAY_SECONDS
        if is_old and now - self._cached.get("away", 0.0) > _RETRY_SECONDS:
            self._refresh(now)
        for name, text in self._cached.get("files", {}).items():
            yield f"{self._source} {name}", text

    def _refresh(self, now: float) -> None:
        try:
            self._save({"fetched": now, "files": _download(self._source)})
        except _DownloadError as error:
            fallback = "its cached files" if self._cached.get("files") else "the runtimes of this package"
            _log.warning("runtime source %s cannot be read (%s); %s are used", self._source, error, fallback)
            self._save({**self._cached, "away": now})

    @cached_property
    def _cached(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._file.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def _save(self, data: dict[str, Any]) -> None:
        self._cached = data
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.replace(self._file, json.dumps(data).encode())
        except OSError as error:
            _log.warning("runtime source %s is not cached: %s cannot be written: %s", self._source, self._file, error)


class _DownloadError(Exception):
    """The source cannot be read. The message is one line."""


def _download(source: str) -> dict[str, str]:
    check_library()
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    with requests.Session() as session:
        retry = Retry(total=_RETRIES, backoff_factor=0.3, status_forcelist=(502, 503, 504))
        for scheme in ("https://", "http://"):
            session.mount(scheme, HTTPAdapter(max_retries=retry))
        try:
            if source.startswith("github://"):
                return dict(_download_github_folder(session, source))
            return {"": _download_text(session, source)}
        except requests.ConnectionError as error:
            # Its text repeats the URL, the number of retries and the addresses of Python objects.
            address = error.request.url if error.request is not None else source
            raise _DownloadError(f"{urlsplit(address or source).netloc} cannot be reached") from error
        except (requests.RequestException, ValueError, KeyError, TypeError) as error:
            raise _DownloadError(" ".join(f"{type(error).__name__}: {error}".split())[:300]) from error


def _download_github_folder(session: Any, source: str) -> Iterator[tuple[str, str]]:
    owner, repository, *path = source.removeprefix("github://").strip("/").split("/")
    folder = "/".join(path) or _DEFAULT_FOLDER
    url = f"{_GITHUB_API}/{quote(owner)}/{quote(repository)}/contents/{quote(folder)}"
    response = session.get(url, timeout=_TIMEOUT)
    response.raise_for_status()
    entries = response.json()
    for entry in entries if isinstance(entries, list) else [entries]:
        if entry["type"] == "file" and entry["name"].endswith((".yaml", ".yml")):
            yield entry["name"], _download_text(session, entry["download_url"])


def _download_text(session: Any, url: str) -> str:
    response = session.get(url, timeout=_TIMEOUT)
    response.raise_for_status()
    return str(response.content.decode("utf-8"))


def _parse_path(source: str) -> Path:
    return Path(unquote(urlsplit(source).path)) if source.startswith("file://") else Path(source)


def _read_files(path: Path) -> Iterator[dict[str, Any]]:
    for file in list_runtime_files(path):
        yield from read_runtimes(file, _validate_runtime)


def _validate_runtime(raw: Mapping[str, Any]) -> dict[str, Any]:
    parse_runtime(raw)
    return dict(raw)
