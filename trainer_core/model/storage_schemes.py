"""Schemes of the URIs of datasets and models: a backend names those that it has, and the others are refused. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from trainer_core.base.errors import UnsupportedError

#: Each scheme, and why a backend may not have it.
SCHEMES = {
    "file": "a cluster cannot read files of this machine",
    "hf": "",
    "s3": "",
    "cache": "the data cache is a feature of Kubeflow Trainer, for datasets",
    "pvc": "it is a PersistentVolumeClaim of a Kubernetes cluster",
}
_DATASETS_ONLY = ("cache",)


def check_scheme(
    role: str, uri: str, supported: Collection[str], where: str, reasons: Mapping[str, str] | None = None
) -> None:
    """Check that a backend has the scheme of a source. A template may become one of any scheme."""
    scheme = uri.partition("://")[0]
    known = [name for name in SCHEMES if name in supported and (role == "dataset" or name not in _DATASETS_ONLY)]
    if scheme in known or "{" in scheme:
        return
    reason = {**SCHEMES, **(reasons or {})}.get(scheme)
    names = ", ".join(f"{name}://" for name in known)
    raise UnsupportedError(
        f"initializer.{role}: {scheme}:// is not supported {where}{f': {reason}' if reason else ''}; use one of {names}"
    )
