"""Scheme → the module that fetches it, loaded on first use, and the sentence that names a missing extra."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from trainer_core.fetching.settings import Settings
from trainer_core.fetching.source import FetchError

if TYPE_CHECKING:
    from trainer_core.fetching.source import Source

__all__ = ["SCHEMES", "missing", "source"]

#: Module with a function ``source(settings)``, by scheme.
SCHEMES = {
    "file": "trainer_core.fetching.local",
    "hf": "trainer_core.fetching.huggingface",
    "s3": "trainer_core.fetching.s3",
}
#: Libraries beside the core's, and the extra that brings them.
_NEEDS = {"hf": (("huggingface_hub", "tenacity"), "huggingface"), "s3": (("botocore", "obstore"), "s3")}


def missing(scheme: str) -> str | None:
    """Say which extra a scheme needs here; None where all is installed. Loads nothing."""
    libraries, extra = _NEEDS.get(scheme, ((), ""))
    absent = [library for library in libraries if find_spec(library) is None]
    if not absent:
        return None
    return f"{scheme}:// needs {' and '.join(absent)}: pip install 'trainjob-workflows[{extra}]'"


def source(settings: Settings) -> Source:
    """Return the source of a URI.

    Raises:
        FetchError: Nothing here fetches its scheme, a library is missing, or the URI is not one of its kind.
    """
    if settings.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise FetchError(f"{settings.scheme}:// cannot be fetched here; {known} can")
    lacking = missing(settings.scheme)
    if lacking:
        raise FetchError(lacking)
    made: Source = import_module(SCHEMES[settings.scheme]).source(settings)
    return made
