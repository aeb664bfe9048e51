"""PyTorchJob of the Training Operator → the TrainJob that does the same, and the runtime it needs. Pure.

What every run has of its own stands in the TrainJob; what else its pods need, in a TrainingRuntime beside it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainer_core import resources
from trainer_core.admin import policies
from trainer_core.admin.launching import launch
from trainer_core.admin.raw import API_VERSION
from trainer_core.cluster import kinds, marks
from trainer_core.cluster.runtimes import ANCESTOR, FRAMEWORK, NODE, RESERVED, TRAINER
from trainer_core.errors import InvalidRequestError

__all__ = ["Migration", "Note", "migrate", "pytorch_jobs"]

Raw = dict[str, Any]

_MAIN = "pytorch"
_PORT = "pytorchjob-port"
_STOCK = "torch-distributed"
_SPECS = "spec.pytorchReplicaSpecs"
_KUBECTL = "kubectl.kubernetes.io/last-applied-configuration"
#: What stands in the TrainJob, or was the operator's own.
_OF_THE_TRAINER = ("name", "image", "command", "args", "env", "resources")
_MAX_LABEL = 63


@dataclass(frozen=True)
class Note:
    """Something that is not as it was.

    Attributes:
        path: Where it stands in the PyTorchJob.
        message: What is different, and what to do.
        lost: It could not be carried over; otherwise it is done in another way.
    """

    path: str
    message: str
    lost: bool = True

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass
class Migration:
    """What becomes of a PyTorchJob.

    Attributes:
        trainjob: The TrainJob.
        runtime: The TrainingRuntime that it needs; None where Trainer's own ``torch-distributed`` is enough.
        notes: What is not as it was.
    """

    trainjob: Raw = field(default_factory=dict)
    runtime: Raw | None = None
    notes: list[Note] = field(default_factory=list)

    @property
    def lost(self) -> list[Note]:
        """What could not be carried over."""
        return [note for note in self.notes if note.lost]


def pytorch_jobs(document: Any) -> Iterator[Raw]:
    """Yield the PyTorchJobs of a YAML document: one, or those of a List."""
    if not isinstance(document, Mapping):
        return
    if document.get("kind") in ("List", "PyTorchJobList"):
        for item in document.get("items") or ():
            yield from pytorch_jobs({**_IS_ONE, **item} if document["kind"] != "List" else item)
    elif (document.get("apiVersion"), document.get("kind")) == tuple(_IS_ONE.values()):
        yield dict(document)


_IS_ONE = {"apiVersion": kinds.PYTORCH_JOBS.api_version, "kind": kinds.PYTORCH_JOBS.kind}


def migrate(job: Mapping[str, Any]) -> Migration:
    """Return what becomes of a PyTorchJob.

    Args:
        job: The PyTorchJob as it stands in YAML.

    Raises:
        InvalidRequestError: It has no nodes, or none of its containers is ``pytorch``.
    """
    spec, name = job.get("spec") or {}, (job.get("metadata") or {}).get("name") or ""
    replicas = {kind: one for kind, one in (spec.get("pytorchReplicaSpecs") or {}).items() if one}
    if not replicas:
        raise InvalidRequestError(f"PyTorchJob {name!r} has no {_SPECS}; a job needs a Master or a Worker")
    kind = "Master" if "Master" in replicas else next(iter(replicas))
    pod: Raw = copy.deepcopy(dict(replicas[kind].get("template") or {}))
    main = _main(name, kind, pod)
    nodes = sum(int(replica.get("replicas", 1)) for replica in replicas.values())
    found = Migration()
    trainer = _trainer(found, spec, main, nodes, f"{_SPECS}.{kind}.template.spec.containers[{_MAIN}]")
    life = policies.of(spec, replicas[kind].get("restartPolicy"), nodes)
    found.notes += [Note(*each) for each in life.notes]
    found.notes += _unlike(replicas, kind)
    found.notes += _elastic(spec, nodes)
    found.notes += _too_long(name, nodes)
    if life.runtime or life.pod or life.job or life.template or _says_more(main, pod):
        found.runtime = _runtime(job, pod, main, life, nodes)
    found.trainjob = {
        "apiVersion": kinds.TRAINJOBS.api_version,
        "kind": kinds.TRAINJOBS.kind,
        "metadata": _metadata(job),
        "spec": {"runtimeRef": _reference(found.runtime), "trainer": trainer, **life.trainjob},
    }
    return found


def _main(name: str, kind: str, pod: Raw) -> Raw:
    containers = (pod.get("spec") or {}).get("containers") or ()
    main: Raw | None = next((one for one in containers if one.get("name") == _MAIN), None)
    if main is None:
        raise InvalidRequestError(
            f"PyTorchJob {name!r}: {_SPECS}.{kind} has no container {_MAIN!r}, which the operator looks for"
        )
    return main


def _trainer(found: Migration, spec: Mapping[str, Any], main: Raw, nodes: int, path: str) -> Raw:
    started = launch(main.get("command"), main.get("args"), nodes)
    found.notes += [Note(f"{path}.command", text, lost=False) for text in started.changed]
    found.notes += [Note(f"{path}.command", text) for text in started.lost]
    for entry in main.get("env") or ():
        if entry["name"] in RESERVED["torch"]:
            found.notes.append(Note(f"{path}.env[{entry['name']}]", "Trainer sets it and takes no other value"))
    processes = 1 if started.is_one_process else _processes(found, spec, main)
    said = {
        "image": main.get("image"),
        "command": started.command,
        "args": started.args,
        "env": [entry for entry in main.get("env") or () if entry["name"] not in RESERVED["torch"]],
        "numNodes": nodes,
        "numProcPerNode": processes,
        "resourcesPerNode": main.get("resources"),
    }
    return {name: value for name, value in said.items() if value}


def _processes(found: Migration, spec: Mapping[str, Any], main: Raw) -> int | None:
    """How many processes torchrun starts on each node; None for Trainer's choice, one for each GPU or else CPU."""
    old = (spec.get("elasticPolicy") or {}).get("nProcPerNode")
    text = str(spec.get("nprocPerNode") or old or "auto")
    if text.isdecimal():
        return int(text)
    given = main.get("resources") or {}
    amounts = {**(given.get("requests") or {}), **(given.get("limits") or {})}
    has_gpus = any("gpu" in name for name in amounts)
    if text == "cpu" and "cpu" in amounts:
        return max(1, int(resources.parse_quantity(amounts["cpu"])))
    if text == "cpu" or (text == "gpu" and not has_gpus):
        found.notes.append(Note("spec.nprocPerNode", f"no resources say how many {text!r} is; give numProcPerNode"))
    return None


def _unlike(replicas: Mapping[str, Any], kind: str) -> Iterator[Note]:
    """All nodes of a TrainJob are alike."""
    mine = dict(_leaves(replicas[kind].get("template") or {}))
    for other, replica in replicas.items():
        theirs = dict(_leaves(replica.get("template") or {}))
        for path in sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)):
            message = f"differs from that of the {kind}, and all nodes of a TrainJob are alike: it is as there"
            yield Note(f"{_SPECS}.{other}.template.{path}", message)
        if replica.get("restartPolicy") != replicas[kind].get("restartPolicy"):
            yield Note(f"{_SPECS}.{other}.restartPolicy", f"differs from that of the {kind}: it is as there")


def _leaves(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(data, list) and data and all(isinstance(one, Mapping) and "name" in one for one in data):
        for one in data:
            yield from _leaves({key: value for key, value in one.items() if key != "name"}, f"{path}[{one['name']}]")
    else:
        yield path, data


def _elastic(spec: Mapping[str, Any], nodes: int) -> Iterator[Note]:
    for key in spec.get("elasticPolicy") or {}:
        if key != "nProcPerNode":
            message = f"nodes of a TrainJob do not come and go: it has {nodes}, and torchrun's own rendezvous"
            yield Note(f"spec.elasticPolicy.{key}", message)


def _too_long(name: str, nodes: int) -> Iterator[Note]:
    pod = f"{name}-{NODE}-0-{nodes - 1}-xxxxx"
    if len(pod) > _MAX_LABEL:
        message = f"its pods would be called {pod}, and {_MAX_LABEL} characters are allowed; choose a shorter name"
        yield Note("metadata.name", message)


def _says_more(main: Raw, pod: Raw) -> bool:
    """Whether a pod needs more than a TrainJob can say."""
    spec = pod.get("spec") or {}
    others = [key for key in spec if key not in ("containers", "restartPolicy")]
    metadata = {key: value for key, value in (pod.get("metadata") or {}).items() if key in ("labels", "annotations")}
    return bool(_rest(main) or others or any(metadata.values()) or len(spec["containers"]) > 1)


def _rest(main: Raw) -> Raw:
    """What a container says that a TrainJob cannot."""
    rest = {key: value for key, value in main.items() if key not in _OF_THE_TRAINER}
    # Trainer has a port of its own.
    ports = [port for port in rest.pop("ports", None) or () if port.get("name") != _PORT]
    return {**rest, **({"ports": ports} if ports else {})}


def _runtime(job: Mapping[str, Any], pod: Raw, main: Raw, life: policies.Life, nodes: int) -> Raw:
    spec = {key: value for key, value in pod["spec"].items() if key != "restartPolicy"}
    node = {"name": NODE, "image": main.get("image"), **_rest(main)}
    spec["containers"] = [node if one.get("name") == _MAIN else one for one in spec["containers"]]
    metadata = {key: pod["metadata"][key] for key in ("labels", "annotations") if (pod.get("metadata") or {}).get(key)}
    template = {**({"metadata": metadata} if metadata else {}), "spec": {**spec, **life.pod}}
    replicated = {
        "name": NODE,
        "template": {"metadata": {"labels": {ANCESTOR: TRAINER}}, "spec": {**life.job, "template": template}},
    }
    whole = {**({"metadata": life.template} if life.template else {}), "spec": {"replicatedJobs": [replicated]}}
    place = {key: job["metadata"][key] for key in ("name", "namespace") if job["metadata"].get(key)}
    return {
        "apiVersion": API_VERSION,
        "kind": kinds.TRAINING_RUNTIMES.kind,
        "metadata": {**place, "labels": {FRAMEWORK: "torch"}},
        "spec": {"mlPolicy": {"numNodes": nodes, "torch": {}}, **life.runtime, "template": whole},
    }


def _reference(runtime: Raw | None) -> Raw:
    kind = (runtime or {}).get("kind", kinds.CLUSTER_TRAINING_RUNTIMES.kind)
    name = runtime["metadata"]["name"] if runtime else _STOCK
    return {"apiGroup": kinds.TRAINJOBS.group, "kind": kind, "name": name}


def _metadata(job: Mapping[str, Any]) -> Raw:
    """What a person has written of it; the rest was the server's."""
    given = job.get("metadata") or {}
    said = {
        "name": given.get("name"),
        "namespace": given.get("namespace"),
        "labels": _of_people(given.get("labels") or {}),
        "annotations": _of_people(given.get("annotations") or {}),
    }
    return {key: value for key, value in said.items() if value}


def _of_people(texts: Mapping[str, str]) -> dict[str, str]:
    ours = (_KUBECTL, marks.MANAGED_BY)
    return {key: text for key, text in texts.items() if key not in ours and not key.startswith(marks.PREFIX)}
