"""Initializers of backends that fetch on this machine: what they support, and the environment of the fetch program."""

from __future__ import annotations

from trainer_core.base.errors import BackendUnavailableError, InvalidRequestError
from trainer_core.fetch import local_files, schemes
from trainer_core.model.request import InitializerSource
from trainer_core.model.storage_schemes import check_scheme

SCHEMES = tuple(schemes.SOURCE_MODULES)


def check_source_supported(role: str, source: InitializerSource) -> None:
    """Check that a process outside Kubernetes can fetch a source. Pure."""
    check_scheme(role, source.storage_uri, SCHEMES, "on this backend")


def check_source_available(role: str, source: InitializerSource) -> None:
    """Check that this machine can fetch a source, before a job is created."""
    missing_extra = schemes.find_missing_extra(_get_scheme(source))
    if missing_extra:
        raise BackendUnavailableError(f"initializer.{role}: {missing_extra}; no job was created", transient=False)
    problem = local_files.find_local_problem(source.storage_uri) if _get_scheme(source) == "file" else None
    if problem:
        raise InvalidRequestError(f"initializer.{role}.storage_uri: {problem}")


def get_fetch_variables(role: str, source: InitializerSource) -> dict[str, str]:
    """Return the variables that `trainer_core.fetch.settings.FetchSettings.from_env` reads, except for secrets."""
    return {
        "STORAGE_URI": source.storage_uri,
        "ROLE": role,
        "LINK": "1" if source.link else "",
        "IGNORE_PATTERNS": ",".join(source.ignore_patterns or ()),
        **source.env,
    }


def _get_scheme(source: InitializerSource) -> str:
    return source.storage_uri.partition("://")[0]
