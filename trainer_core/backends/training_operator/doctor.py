"""What `trainjob doctor` finds out of a cluster that has the Training Operator."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from trainer_core.backends.training_operator import blueprints
from trainer_core.backends.training_operator.permissions import PERMISSIONS
from trainer_core.cluster import checkup, kinds, runtimes
from trainer_core.cluster.answers import ForbiddenError, NotInstalledError, NotThereError
from trainer_core.cluster.api import Api
from trainer_core.cluster.checkup import LIMITED, MISSING, OK, UNKNOWN, Check, Report
from trainer_core.cluster.raw import Raw
from trainer_core.configs import TrainingOperatorBackendConfig
from trainer_core.errors import TrainerError

__all__ = ["examine"]

_OPENAPI = f"/openapi/v3/apis/{kinds.PYTORCH_JOBS.api_version}"
_OPERATOR = "training operator"
#: Fields of a run policy, with what an operator that lacks them cannot do.
_SINCE = {"suspend": "1.7", "managedBy": "1.9"}


def examine(config: TrainingOperatorBackendConfig) -> Report:
    """Look at everything that the backend needs of a cluster. Creates nothing.

    Args:
        config: Which cluster, and where in it.
    """
    return checkup.examine(config, kinds.PYTORCH_JOBS, partial(_parts, config.runtimes_folder), PERMISSIONS)


def _parts(folder: Path | None, api: Api) -> Iterator[Check]:
    yield _operator(api)
    yield checkup.namespace(api)
    yield _runtimes(folder)


def _operator(api: Api) -> Check:
    """The operator serves the kind, and is young enough to suspend."""
    try:
        schema = api.read(_OPENAPI)["components"]["schemas"]
        policy = next(_policy(each) for each in schema.values() if _is_ours(each))
    except (NotThereError, NotInstalledError, StopIteration):
        return Check(_OPERATOR, MISSING, f"{kinds.PYTORCH_JOBS.api_version} has no PyTorchJob", "no job can be created")
    except ForbiddenError as error:
        return Check(_OPERATOR, UNKNOWN, str(error))
    except TrainerError as error:
        return Check(_OPERATOR, MISSING, str(error), "no job can be created")
    if "suspend" not in policy:
        cost = f"nothing can be suspended or cancelled, only deleted; install {_SINCE['suspend']} or later"
        return Check(_OPERATOR, LIMITED, f"serves PyTorchJob, older than {_SINCE['suspend']}", cost)
    young = "managedBy" in policy
    age = f"{_SINCE['managedBy']} or later" if young else f"{_SINCE['suspend']} or 1.8"
    return Check(_OPERATOR, OK, f"serves PyTorchJob, {age}")


def _is_ours(schema: Raw) -> bool:
    about = schema.get("x-kubernetes-group-version-kind") or ()
    return any(each.get("kind") == kinds.PYTORCH_JOBS.kind for each in about) and "properties" in schema


def _policy(schema: Raw) -> Raw:
    spec = schema["properties"].get("spec", {}).get("properties", {})
    found: Raw = spec.get("runPolicy", {}).get("properties", {})
    return found


def _runtimes(folder: Path | None) -> Check:
    try:
        names = [runtimes.name(raw) for raw in blueprints.list_all(folder)]
    except TrainerError as error:
        return Check("runtimes", MISSING, str(error), "runtimes of the folder cannot be used")
    return Check("runtimes", OK, ", ".join(names))
