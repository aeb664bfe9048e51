"""Finds the source of a URI by its scheme; imports the scheme's module on first use."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from trainer_core.base.text import missing_extra
from trainer_core.fetch.settings import FetchSettings
from trainer_core.fetch.source import FetchError

if TYPE_CHECKING:
    from trainer_core.fetch.source import Source

#: Scheme → module with a function ``create_source(settings)``.
SOURCE_MODULES = {
    "file": "trainer_core.fetch.local_files",
    "hf": "trainer_core.fetch.huggingface.repository",
    "s3": "trainer_core.fetch.s3.bucket",
}
#: Scheme → the optional packages it needs, and the extra that installs them.
_REQUIREMENTS = {"hf": (("huggingface_hub",), "huggingface"), "s3": (("botocore", "obstore"), "s3")}


def find_missing_extra(scheme: str) -> str | None:
    """Return the message that names the extra to install for a scheme, if any. Imports none of the packages."""
    packages, extra = _REQUIREMENTS.get(scheme, ((), ""))
    missing = [package for package in packages if find_spec(package) is None]
    if not missing:
        return None
    return missing_extra(f"{scheme}://", missing, extra)


def create_source(settings: FetchSettings) -> Source:
    if settings.scheme not in SOURCE_MODULES:
        supported = ", ".join(f"{scheme}://" for scheme in SOURCE_MODULES)
        raise FetchError(f"{settings.scheme}:// cannot be fetched here; supported are {supported}")
    message = find_missing_extra(settings.scheme)
    if message:
        raise FetchError(message)
    source: Source = import_module(SOURCE_MODULES[settings.scheme]).create_source(settings)
    return source
