"""The pod of this step, as the API server has it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer_core.client import TrainerClient

#: KFP sets these in the pod of every task.
_POD, _POD_UID = "KFP_POD_NAME", "KFP_POD_UID"
#: The kubelet writes it into every pod that has a service account.
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
#: Argo's name for the container of a task.
_MAIN = "main"


def is_kfp_pod() -> bool:
    """Whether this process runs in the pod of a KFP task."""
    return bool(os.environ.get(_POD) and os.environ.get(_POD_UID))


def find_step_pod(client: TrainerClient) -> dict[str, Any] | None:
    """Return the pod of this step; None outside KFP, and where the client reaches another cluster."""
    if not is_kfp_pod():
        return None
    namespace = None  # That of the client.
    with suppress(OSError):
        namespace = _NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    return client.get_pod(os.environ[_POD], os.environ[_POD_UID], namespace)


def extract_claims(pod: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the volume claims that the step mounts, KFP's workspace among them, in the form of a TaskConfig."""
    spec = (pod or {}).get("spec") or {}
    volumes = [volume for volume in spec.get("volumes") or () if "persistentVolumeClaim" in volume]
    names = {volume["name"] for volume in volumes}
    main: dict[str, Any] = next((each for each in spec.get("containers") or () if each["name"] == _MAIN), {})
    mounts = [mount for mount in main.get("volumeMounts") or () if mount["name"] in names]
    mounted = {mount["name"] for mount in mounts}
    return {"volumes": [volume for volume in volumes if volume["name"] in mounted], "volumeMounts": mounts}
