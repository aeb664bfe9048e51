"""What `trainjob doctor` finds out of a cluster that Run:ai manages."""

from __future__ import annotations

from collections.abc import Iterator

from trainer_core.backends.runai import blueprints
from trainer_core.backends.runai.permissions import PERMISSIONS
from trainer_core.cluster import checkup, kinds
from trainer_core.cluster.api import Api
from trainer_core.cluster.checkup import LIMITED, OK, UNKNOWN, Check, Report
from trainer_core.configs import RunaiBackendConfig
from trainer_core.errors import TrainerError

__all__ = ["examine"]


def examine(config: RunaiBackendConfig) -> Report:
    """Look at everything that the backend needs of a cluster. Creates nothing.

    Args:
        config: Which cluster, and which project.
    """
    there = config.model_copy(update={"namespace": config.project_namespace})
    return checkup.examine(there, kinds.TRAINING_WORKLOADS, _parts, PERMISSIONS)


def _parts(api: Api) -> Iterator[Check]:
    yield checkup.group(api, "run:ai", kinds.TRAINING_WORKLOADS.group, "no workload can be created; install Run:ai")
    yield checkup.namespace(api)
    yield _templates(api, "templates of the project", api.connection.namespace)
    yield _templates(api, "templates for all projects", blueprints.GLOBAL_NAMESPACE)


def _templates(api: Api, what: str, namespace: str) -> Check:
    try:
        raws = [raw for raw in api.list(kinds.TRAINING_WORKLOADS, namespace=namespace) if blueprints.is_template(raw)]
    except TrainerError as error:
        return Check(what, UNKNOWN, str(error))
    wrong = list(_wrong(raws))
    names = ", ".join(sorted(raw["metadata"]["name"] for raw in raws)) or "none; built-in runtimes can be used"
    return Check(what, LIMITED if wrong else OK, names, "; ".join(wrong))


def _wrong(raws: list[dict[str, object]]) -> Iterator[str]:
    for raw in raws:
        try:
            blueprints.of_template(raw)
        except ValueError as error:
            yield str(error)
