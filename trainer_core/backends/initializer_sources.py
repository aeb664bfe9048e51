"""Initializers of backends that fetch on this machine: what they support, and the environment of the fetch program."""

from __future__ import annotations

from trainer_core.base.errors import BackendUnavailableError, InvalidRequestError, UnsupportedError
from trainer_core.fetch import local_files, schemes
from trainer_core.model.request import InitializerSource

#: For schemes that only Kubernetes supports: the reason, and the alternative.
_KUBERNETES_ONLY = {
    "cache": "serves a table from nodes of a Kubernetes cluster; use the kubernetes backend, or the files of the table "
    "as s3://…",
    "pvc": "is a PersistentVolumeClaim of a Kubernetes cluster; use the kubernetes backend, or the folder as file:///…",
}


def check_source_supported(role: str, source: InitializerSource) -> None:
    """Check that a process outside Kubernetes can fetch a source. Pure."""
    scheme = _get_scheme(source)
    if scheme not in schemes.SOURCE_MODULES:
        supported = ", ".join(f"{each}://" for each in schemes.SOURCE_MODULES)
        reason = _KUBERNETES_ONLY.get(scheme, f"is not supported on this backend; use one of {supported}")
        raise UnsupportedError(f"initializer.{role}: {scheme}:// {reason}")


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
