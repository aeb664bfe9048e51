"""What `trainjob doctor` finds out of a cluster: what works, what does not, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainer_core.backends.kubernetes import versions
from trainer_core.backends.kubernetes.permissions import PERMISSIONS
from trainer_core.cluster import checkup, kinds, runtimes
from trainer_core.cluster.answers import ForbiddenError, NotInstalledError, NotThereError
from trainer_core.cluster.api import Api
from trainer_core.cluster.checkup import LIMITED, MISSING, OK, UNKNOWN, Check, Report
from trainer_core.configs import KubernetesBackendConfig
from trainer_core.errors import TrainerError

__all__ = ["examine"]

#: What a person who knows the rules has to say of a runtime.
Judge = Callable[[Mapping[str, Any]], Sequence[object]]

_OPENAPI = f"/openapi/v3/apis/{kinds.TRAINJOBS.api_version}"
_TRAINER_NAMESPACE = "kubeflow-system"
_TRAINER_FACTS = "kubeflow-trainer-public"


def examine(config: KubernetesBackendConfig, judge: Judge) -> Report:
    """Look at everything that the backend needs of a cluster. Creates nothing.

    Args:
        config: Which cluster, and where in it.
        judge: Says what is wrong with a runtime.
    """

    def parts(api: Api) -> Iterator[Check]:
        yield _trainer(api)
        yield checkup.group(api, "jobset", kinds.JOBSETS.group, "TrainJobs get no pods; install it")
        yield _kueue(api)
        yield checkup.namespace(api)
        yield from _runtimes(api, judge)

    return checkup.examine(config, kinds.TRAINJOBS, parts, PERMISSIONS)


def _trainer(api: Api) -> Check:
    try:
        server = _server(api)
    except TrainerError as error:
        return Check("trainer", MISSING, str(error))
    known = server.override
    if known is None:
        return Check("trainer", LIMITED, "serves TrainJob, but no field that changes a runtime", "options are refused")
    found = f"Trainer {_trainer_version(api) or _guess(server)}, changes runtimes by {known}"
    old = known != "runtimePatches"
    return Check("trainer", LIMITED if old else OK, found, "some options are refused" if old else "")


def _server(api: Api) -> versions.Server:
    try:
        return versions.server_of_openapi(api.read(_OPENAPI))
    except (NotThereError, NotInstalledError, ForbiddenError):
        crd = api.get(kinds.CRDS, f"{kinds.TRAINJOBS.plural}.{kinds.TRAINJOBS.group}")
        return versions.server_of_crd(crd)


def _trainer_version(api: Api) -> str | None:
    """What Trainer tells everybody of itself, where it is installed in the usual place."""
    try:
        facts = api.get(kinds.CONFIG_MAPS, _TRAINER_FACTS, namespace=_TRAINER_NAMESPACE)
    except TrainerError:
        return None
    version = (facts.get("data") or {}).get("kubeflow_trainer_version")
    return str(version) if version else None


def _guess(server: versions.Server) -> str:
    if server.override == "runtimePatches":
        return "2.3 or later" if server.termination_grace_period else "2.2"
    return "2.1" if server.override == "podTemplateOverrides" else "2.0"


def _kueue(api: Api) -> Check:
    found = checkup.group(api, "kueue", "kueue.x-k8s.io", "")
    # Who asks for no queue does not miss it.
    return Check("kueue", OK, "not installed; QueueName has no effect") if found.state == MISSING else found


def _runtimes(api: Api, judge: Judge) -> Iterator[Check]:
    try:
        found = _runtimes_by_name(api)
    except TrainerError as error:
        yield Check("runtimes", UNKNOWN, str(error))
        return
    if not found:
        yield Check("runtimes", MISSING, "there is none", "a TrainJob needs one; ask an administrator")
    for name, raw in sorted(found.items()):
        wrong = [str(finding) for finding in judge(raw)]
        yield Check(f"runtime {name}", LIMITED if wrong else OK, _offer(raw), "; ".join(wrong))


def _runtimes_by_name(api: Api) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for kind in (kinds.CLUSTER_TRAINING_RUNTIMES, kinds.TRAINING_RUNTIMES):
        # Items of a list do not say what they are.
        same = {"apiVersion": kind.api_version, "kind": kind.kind}
        found.update({runtimes.name(raw): {**same, **raw} for raw in api.list(kind)})
    return found


def _offer(raw: Mapping[str, Any]) -> str:
    trainer = runtimes.runtime(raw).trainer
    device = "" if trainer.device == "Unknown" else f", {trainer.device_count} {trainer.device}"
    nodes = "1 node" if trainer.num_nodes == 1 else f"{trainer.num_nodes} nodes"
    return f"{trainer.framework}, {nodes}{device}, {trainer.image}"
