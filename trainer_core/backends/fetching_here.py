"""What a backend that fetches on this machine can be asked for, and how the fetching program is told."""

from __future__ import annotations

from trainer_core.errors import BackendUnavailableError, InvalidRequestError, UnsupportedError
from trainer_core.fetching import local, schemes
from trainer_core.request import InitializerSource, TrainJobRequest

__all__ = ["check_here", "check_supported", "sources", "variables"]

#: Why not, and what to do, of the schemes that only a cluster can serve.
_CLUSTER_ONLY = {
    "cache": "serves a table from the nodes of a cluster; use the kubernetes backend, or give the table's files as s3://…",
    "pvc": "is a volume of a cluster; use the kubernetes backend, or give its folder as file:///…",
}


def sources(request: TrainJobRequest) -> list[tuple[str, InitializerSource]]:
    """Return what a request fetches, by role."""
    asked = request.initializer
    pairs = (("dataset", asked.dataset), ("model", asked.model)) if asked else ()
    return [(role, source) for role, source in pairs if source is not None]


def check_supported(role: str, source: InitializerSource) -> None:
    """Refuse what no machine could fetch for itself. Pure.

    Raises:
        UnsupportedError: Only a cluster has that.
    """
    scheme = _scheme(source)
    if scheme not in schemes.SCHEMES:
        known = ", ".join(f"{each}://" for each in schemes.SCHEMES)
        why = _CLUSTER_ONLY.get(scheme, f"cannot be fetched here; {known} can")
        raise UnsupportedError(f"initializer.{role}: {scheme}:// {why}")
    if source.secrets:
        raise UnsupportedError(
            f"initializer.{role}: {', '.join(source.secrets)} is a SecretRef, which only a cluster can look up; give "
            "the text itself, or leave it out to use the credentials of this machine"
        )


def check_here(role: str, source: InitializerSource) -> None:
    """Refuse what this machine lacks, before anything is created.

    Raises:
        BackendUnavailableError: An extra is not installed.
        InvalidRequestError: A file or folder is not there.
    """
    lacking = schemes.missing(_scheme(source))
    if lacking:
        unavailable = BackendUnavailableError(f"initializer.{role}: {lacking}; nothing was created")
        unavailable.transient = False
        raise unavailable
    absent = local.missing(source.storage_uri) if _scheme(source) == "file" else None
    if absent:
        raise InvalidRequestError(f"initializer.{role}.storage_uri: {absent}")


def variables(role: str, source: InitializerSource) -> dict[str, str]:
    """Return what `fetching.settings.Settings.from_env` reads, but for secrets."""
    return {
        "STORAGE_URI": source.storage_uri,
        "ROLE": role,
        "LINK": "1" if source.link else "",
        "IGNORE_PATTERNS": ",".join(source.ignore_patterns or ()),
        **source.env,
    }


def _scheme(source: InitializerSource) -> str:
    return source.storage_uri.partition("://")[0]
