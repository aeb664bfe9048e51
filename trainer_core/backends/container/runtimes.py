"""Runtimes of the container backend: ClusterTrainingRuntimes as YAML, from the places that the configuration names.

What came over the network is kept on disk for a day. Where a place cannot be reached, what was kept before counts,
however old, and else the runtimes that come with this package.
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

from trainer_core.backends.container import places
from trainer_core.cluster import runtimes
from trainer_core.errors import RuntimeNotFoundError
from trainer_core.runtimes import Runtime

__all__ = ["Runtimes"]

_log = logging.getLogger(__name__)
_PACKAGED = Path(__file__).parent / "runtimes"
_DAY_SECONDS = 86_400.0
#: A place that could not be reached is not asked again at once: every submit would wait for it.
_AWAY_SECONDS = 300.0
_TIMEOUT = (3.0, 10.0)
_TRIES = 2
#: Where Trainer's repository keeps them, unless the source names another folder.
_IN_REPOSITORY = "manifests/base/runtimes"
_CONTENTS = "https://api.github.com/repos"
_KIND = "ClusterTrainingRuntime"


class Runtimes:
    """The runtimes that a request can name.

    Args:
        sources: Where from; of two with one name the first source's counts.
    """

    def __init__(self, sources: list[str]) -> None:
        self._sources = sources
        self._read: tuple[float, dict[str, dict[str, Any]]] | None = None

    def get(self, name: str) -> dict[str, Any]:
        """Return one runtime, as its file has it.

        Raises:
            RuntimeNotFoundError: There is none of that name; the message names those there are.
        """
        known = self._all()
        if name not in known:
            raise RuntimeNotFoundError(
                f"no runtime {name!r} on the container backend; there are {', '.join(sorted(known))}, or add a source "
                "to runtime_source"
            )
        return known[name]

    def list(self) -> list[Runtime]:
        """Return every runtime as the API reference knows it."""
        return [runtimes.runtime(raw) for _, raw in sorted(self._all().items())]

    def _all(self) -> dict[str, dict[str, Any]]:
        if self._read is None or time.monotonic() - self._read[0] > _AWAY_SECONDS:
            found: dict[str, dict[str, Any]] = {}
            for where, text in self._texts():
                for raw in _parsed(where, text):
                    found.setdefault(runtimes.name(raw), raw)
            self._read = time.monotonic(), found
        return self._read[1]

    def _texts(self) -> Iterator[tuple[str, str]]:
        for source in self._sources:
            if source.startswith(("github://", "http://", "https://")):
                yield from _Kept(source).texts()
            else:
                yield from _files(_path(source))
        yield from _files(_PACKAGED)


class _Kept:
    """What came over the network, and when."""

    def __init__(self, source: str) -> None:
        self._source = source
        digest = hashlib.sha256(source.encode()).hexdigest()[:16]
        self._file = places.home() / "runtimes" / f"{digest}.json"

    def texts(self) -> Iterator[tuple[str, str]]:
        now = time.time()
        if now - self._kept.get("fetched", 0.0) > _DAY_SECONDS and now - self._kept.get("away", 0.0) > _AWAY_SECONDS:
            self._fetch(now)
        for name, text in self._kept.get("texts", {}).items():
            yield f"{self._source} {name}", text

    def _fetch(self, now: float) -> None:
        try:
            self._keep({"fetched": now, "texts": _fetched(self._source)})
        except _AwayError as error:
            had = "those kept from before" if self._kept.get("texts") else "the runtimes that come with this package"
            _log.warning("%s cannot be read (%s); %s are used", self._source, error, had)
            self._keep({**self._kept, "away": now})

    @cached_property
    def _kept(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._file.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def _keep(self, data: dict[str, Any]) -> None:
        self._kept = data
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary = self._file.with_suffix(f".{time.monotonic_ns()}")
            temporary.write_text(json.dumps(data), encoding="utf-8")
            temporary.replace(self._file)
        except OSError as error:
            _log.warning("%s cannot be written, so that it is asked for each time: %s", self._file, error)


class _AwayError(Exception):
    """The source cannot be read; the message is one line."""


def _fetched(source: str) -> dict[str, str]:
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    with requests.Session() as session:
        retry = Retry(total=_TRIES, backoff_factor=0.3, status_forcelist=(502, 503, 504))
        for scheme in ("https://", "http://"):
            session.mount(scheme, HTTPAdapter(max_retries=retry))
        try:
            if source.startswith("github://"):
                return dict(_of_github(session, source))
            return {"": _text(session, source)}
        except (requests.RequestException, ValueError, KeyError, TypeError) as error:
            raise _AwayError(" ".join(f"{type(error).__name__}: {error}".split())[:300]) from error


def _of_github(session: Any, source: str) -> Iterator[tuple[str, str]]:
    owner, repository, *path = source.removeprefix("github://").strip("/").split("/")
    folder = "/".join(path) or _IN_REPOSITORY
    listing = session.get(f"{_CONTENTS}/{quote(owner)}/{quote(repository)}/contents/{quote(folder)}", timeout=_TIMEOUT)
    listing.raise_for_status()
    found = listing.json()
    for entry in found if isinstance(found, list) else [found]:
        if entry["type"] == "file" and entry["name"].endswith((".yaml", ".yml")):
            yield entry["name"], _text(session, entry["download_url"])


def _text(session: Any, url: str) -> str:
    answer = session.get(url, timeout=_TIMEOUT)
    answer.raise_for_status()
    return str(answer.content.decode("utf-8"))


def _path(source: str) -> Path:
    return Path(unquote(urlsplit(source).path)) if source.startswith("file://") else Path(source)


def _files(path: Path) -> Iterator[tuple[str, str]]:
    found = sorted(path.glob("*.y*ml")) if path.is_dir() else [path]
    for file in found:
        try:
            yield str(file), file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            _log.warning("runtimes of %s are left out: %s", file, error)


def _parsed(where: str, text: str) -> Iterator[dict[str, Any]]:
    """The runtimes of a file; what is none is passed over, what cannot be read is left out with a warning."""
    import yaml

    try:
        for raw in yaml.safe_load_all(text):
            if isinstance(raw, Mapping) and raw.get("kind") == _KIND:
                runtimes.runtime(raw)
                yield dict(raw)
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        _log.warning("runtimes of %s are left out: %s: %s", where, type(error).__name__, " ".join(str(error).split()))
