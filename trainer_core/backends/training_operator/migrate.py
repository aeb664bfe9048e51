"""Convert a PyTorchJob to a TrainJob and its runtime, for `trainjob migrate`. Pure functions.

Fields that TrainJobs have go into the TrainJob; further pod fields go into a TrainingRuntime of the same name.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer_core.backends.training_operator.parse import PYTORCH_JOBS
from trainer_core.base import naming, resources
from trainer_core.base.errors import InvalidRequestError
from trainer_core.k8s import labels, resources as kinds
from trainer_core.k8s.runtimes import ANCESTOR_LABEL, FRAMEWORK_LABEL, NODE, RESERVED_ENV, TRAINER
from trainer_core.model.request import MULTIKUEUE, VOLCANO_QUEUE

Raw = dict[str, Any]

_MAIN = "pytorch"
_PORT = "pytorchjob-port"
_STOCK = "torch-distributed"
_SPECS = "spec.pytorchReplicaSpecs"
_KUBECTL = "kubectl.kubernetes.io/last-applied-configuration"
#: Container fields that the TrainJob has, or that only the operator uses.
_TRAINER_FIELDS = ("name", "image", "command", "args", "env", "resources")
_PYTORCH_JOB = {"apiVersion": PYTORCH_JOBS.api_version, "kind": PYTORCH_JOBS.kind}
#: Exit codes after which the operator restarts a node with the restart policy ExitCode.
_RETRYABLE = [130, 137, 138, 143]
_POLICY = "spec.runPolicy"
_SCHEDULING = f"{_POLICY}.schedulingPolicy"


@dataclass(frozen=True)
class Note:
    """A difference between the PyTorchJob and the TrainJob; a field that is not lost works in another way."""

    path: str
    message: str
    lost: bool = True

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass
class Migration:
    """The result of a migration; no runtime if Trainer's ``torch-distributed`` is sufficient."""

    trainjob: Raw = field(default_factory=dict)
    runtime: Raw | None = None
    notes: list[Note] = field(default_factory=list)

    @property
    def lost(self) -> list[Note]:
        """Fields without an equivalent."""
        return [note for note in self.notes if note.lost]


def migrate_document(document: Any) -> Iterator[Migration]:
    """Convert the PyTorchJobs of a YAML document."""
    for job in iterate_pytorch_jobs(document):
        try:
            yield migrate_pytorch_job(job)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, InvalidRequestError):
                raise
            name = (job.get("metadata") or {}).get("name")
            raise InvalidRequestError(
                f"PyTorchJob {name!r} is not valid ({type(error).__name__}: {error}); "
                "check it with kubectl apply --dry-run=server"
            ) from error


def iterate_pytorch_jobs(document: Any) -> Iterator[Raw]:
    """Yield the PyTorchJobs of a YAML document: one, or the items of a List."""
    if not isinstance(document, Mapping):
        return
    if document.get("kind") in ("List", "PyTorchJobList"):
        for item in document.get("items") or ():
            yield from iterate_pytorch_jobs({**_PYTORCH_JOB, **item} if document["kind"] != "List" else item)
    elif (document.get("apiVersion"), document.get("kind")) == tuple(_PYTORCH_JOB.values()):
        yield dict(document)


def migrate_pytorch_job(job: Mapping[str, Any]) -> Migration:
    """Convert a PyTorchJob to a TrainJob."""
    spec, name = job.get("spec") or {}, (job.get("metadata") or {}).get("name") or ""
    replicas = {kind: one for kind, one in (spec.get("pytorchReplicaSpecs") or {}).items() if one}
    if not replicas:
        raise InvalidRequestError(f"PyTorchJob {name!r} has no {_SPECS}; add a Master or a Worker")
    kind = "Master" if "Master" in replicas else next(iter(replicas))
    pod: Raw = copy.deepcopy(dict(replicas[kind].get("template") or {}))
    main = _get_main_container(name, kind, pod)
    nodes = sum(int(replica.get("replicas", 1)) for replica in replicas.values())
    migration = Migration()
    trainer = _build_trainer(migration, spec, main, nodes, f"{_SPECS}.{kind}.template.spec.containers[{_MAIN}]")
    run_policy = convert_run_policy(spec, replicas[kind].get("restartPolicy"), nodes)
    migration.notes += run_policy.notes
    migration.notes += _compare_replicas(replicas, kind)
    migration.notes += _check_elastic_policy(spec, nodes)
    migration.notes += _check_name_length(name, nodes)
    if run_policy.runtime or run_policy.pod or run_policy.job or run_policy.template or _needs_runtime(main, pod):
        migration.runtime = _build_runtime(job, pod, main, run_policy, nodes)
    migration.trainjob = {
        "apiVersion": kinds.TRAINJOBS.api_version,
        "kind": kinds.TRAINJOBS.kind,
        "metadata": _build_metadata(job),
        "spec": {"runtimeRef": _build_runtime_ref(migration.runtime), "trainer": trainer, **run_policy.trainjob},
    }
    return migration


def _get_main_container(name: str, kind: str, pod: Raw) -> Raw:
    containers = (pod.get("spec") or {}).get("containers") or ()
    main: Raw | None = next((one for one in containers if one.get("name") == _MAIN), None)
    if main is None:
        raise InvalidRequestError(
            f"PyTorchJob {name!r}: {_SPECS}.{kind} has no container {_MAIN!r}; the operator requires one"
        )
    return main


def _build_trainer(migration: Migration, spec: Mapping[str, Any], main: Raw, nodes: int, path: str) -> Raw:
    launch = convert_command(main.get("command"), main.get("args"), nodes)
    migration.notes += [Note(f"{path}.command", text, lost=False) for text in launch.changed]
    migration.notes += [Note(f"{path}.command", text) for text in launch.lost]
    for entry in main.get("env") or ():
        if entry["name"] in RESERVED_ENV["torch"]:
            migration.notes.append(
                Note(f"{path}.env[{entry['name']}]", "Trainer sets this variable and refuses another value")
            )
    processes = 1 if launch.is_one_process else _get_processes_per_node(migration, spec, main)
    fields = {
        "image": main.get("image"),
        "command": launch.command,
        "args": launch.args,
        "env": [entry for entry in main.get("env") or () if entry["name"] not in RESERVED_ENV["torch"]],
        "numNodes": nodes,
        "numProcPerNode": processes,
        "resourcesPerNode": main.get("resources"),
    }
    return {name: value for name, value in fields.items() if value}


def _get_processes_per_node(migration: Migration, spec: Mapping[str, Any], main: Raw) -> int | None:
    """Return the processes per node; None for Trainer's default, one per GPU or else per CPU."""
    old = (spec.get("elasticPolicy") or {}).get("nProcPerNode")
    text = str(spec.get("nprocPerNode") or old or "auto")
    if text.isdecimal():
        return int(text)
    resources_per_node = main.get("resources") or {}
    amounts = {**(resources_per_node.get("requests") or {}), **(resources_per_node.get("limits") or {})}
    has_gpus = any("gpu" in name for name in amounts)
    if text == "cpu" and "cpu" in amounts:
        return max(1, int(resources.parse_quantity(amounts["cpu"])))
    if text == "cpu" or (text == "gpu" and not has_gpus):
        migration.notes.append(
            Note(
                "spec.nprocPerNode",
                f"the number of processes for {text!r} is unknown without resources; set numProcPerNode",
            )
        )
    return None


def _compare_replicas(replicas: Mapping[str, Any], kind: str) -> Iterator[Note]:
    """Yield the differences between replicas: all nodes of a TrainJob are equal."""
    reference = dict(_iterate_leaves(replicas[kind].get("template") or {}))
    for other, replica in replicas.items():
        leaves = dict(_iterate_leaves(replica.get("template") or {}))
        for path in sorted(key for key in reference.keys() | leaves.keys() if reference.get(key) != leaves.get(key)):
            message = f"differs from that of the {kind}; all nodes of a TrainJob are equal, and get that of the {kind}"
            yield Note(f"{_SPECS}.{other}.template.{path}", message)
        if replica.get("restartPolicy") != replicas[kind].get("restartPolicy"):
            yield Note(
                f"{_SPECS}.{other}.restartPolicy", f"differs from that of the {kind}; all nodes get that of the {kind}"
            )


def _iterate_leaves(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _iterate_leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(data, list) and data and all(isinstance(one, Mapping) and "name" in one for one in data):
        for one in data:
            yield from _iterate_leaves(
                {key: value for key, value in one.items() if key != "name"}, f"{path}[{one['name']}]"
            )
    else:
        yield path, data


def _check_elastic_policy(spec: Mapping[str, Any], nodes: int) -> Iterator[Note]:
    for key in spec.get("elasticPolicy") or {}:
        if key != "nProcPerNode":
            message = f"TrainJobs are not elastic: the TrainJob has {nodes} nodes and torchrun's default rendezvous"
            yield Note(f"spec.elasticPolicy.{key}", message)


def _check_name_length(name: str, nodes: int) -> Iterator[Note]:
    pod = f"{name}-{NODE}-0-{nodes - 1}-xxxxx"
    if len(pod) > naming.MAX_LABEL_LENGTH:
        limit = naming.MAX_LABEL_LENGTH
        message = f"its pods would be named {pod}, longer than {limit} characters; choose a shorter name"
        yield Note("metadata.name", message)


def _needs_runtime(main: Raw, pod: Raw) -> bool:
    """Return whether the pods have fields that a TrainJob cannot express."""
    spec = pod.get("spec") or {}
    others = [key for key in spec if key not in ("containers", "restartPolicy")]
    metadata = {key: value for key, value in (pod.get("metadata") or {}).items() if key in ("labels", "annotations")}
    return bool(_get_runtime_fields(main) or others or any(metadata.values()) or len(spec["containers"]) > 1)


def _get_runtime_fields(main: Raw) -> Raw:
    """Return the container fields that a TrainJob cannot express."""
    rest = {key: value for key, value in main.items() if key not in _TRAINER_FIELDS}
    # Trainer uses its own port.
    ports = [port for port in rest.pop("ports", None) or () if port.get("name") != _PORT]
    return {**rest, "ports": ports} if ports else rest


def _build_runtime(job: Mapping[str, Any], pod: Raw, main: Raw, run_policy: RunPolicy, nodes: int) -> Raw:
    spec = {key: value for key, value in pod["spec"].items() if key != "restartPolicy"}
    node = {"name": NODE, "image": main.get("image"), **_get_runtime_fields(main)}
    spec["containers"] = [node if one.get("name") == _MAIN else one for one in spec["containers"]]
    metadata = {key: pod["metadata"][key] for key in ("labels", "annotations") if (pod.get("metadata") or {}).get(key)}
    pod_template = _build_template(metadata, {**spec, **run_policy.pod})
    job_template = _build_template({"labels": {ANCESTOR_LABEL: TRAINER}}, {**run_policy.job, "template": pod_template})
    jobset_template = _build_template(
        run_policy.template, {"replicatedJobs": [{"name": NODE, "template": job_template}]}
    )
    name = {key: job["metadata"][key] for key in ("name", "namespace") if job["metadata"].get(key)}
    return {
        "apiVersion": kinds.TRAINING_RUNTIMES.api_version,
        "kind": kinds.TRAINING_RUNTIMES.kind,
        "metadata": {**name, "labels": {FRAMEWORK_LABEL: "torch"}},
        "spec": {"mlPolicy": {"numNodes": nodes, "torch": {}}, **run_policy.runtime, "template": jobset_template},
    }


def _build_template(metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> Raw:
    return {"metadata": metadata, "spec": spec} if metadata else {"spec": spec}


def _build_runtime_ref(runtime: Raw | None) -> Raw:
    kind = (runtime or {}).get("kind", kinds.CLUSTER_TRAINING_RUNTIMES.kind)
    name = runtime["metadata"]["name"] if runtime else _STOCK
    return {"apiGroup": kinds.TRAINJOBS.group, "kind": kind, "name": name}


def _build_metadata(job: Mapping[str, Any]) -> Raw:
    """Return the metadata that a user wrote, without that of servers and this package."""
    metadata = job.get("metadata") or {}
    fields = {
        "name": metadata.get("name"),
        "namespace": metadata.get("namespace"),
        "labels": _remove_managed_keys(metadata.get("labels") or {}),
        "annotations": _remove_managed_keys(metadata.get("annotations") or {}),
    }
    return {key: value for key, value in fields.items() if value}


def _remove_managed_keys(texts: Mapping[str, str]) -> dict[str, str]:
    managed = (_KUBECTL, labels.MANAGED_BY)
    return {key: text for key, text in texts.items() if key not in managed and not key.startswith(labels.PREFIX)}


@dataclass
class RunPolicy:
    """Where Trainer, JobSet and Job express the run policy of a PyTorchJob.

    Attributes:
        trainjob: Fields of the TrainJob spec.
        runtime: Fields of the runtime spec.
        template: Metadata of the runtime's template.
        job: Fields of the Job spec in the runtime.
        pod: Fields of the pod spec in the runtime.
    """

    trainjob: dict[str, Any] = field(default_factory=dict)
    runtime: dict[str, Any] = field(default_factory=dict)
    template: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    pod: dict[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def add_note(self, path: str, message: str, lost: bool = True) -> None:
        self.notes.append(Note(path, message, lost))


def convert_run_policy(spec: Mapping[str, Any], restart: str | None, nodes: int) -> RunPolicy:
    """Convert ``runPolicy`` and the restart policy of a PyTorchJob."""
    run_policy, policy = RunPolicy(), spec.get("runPolicy") or {}
    for name in ("activeDeadlineSeconds", "suspend"):
        if policy.get(name):
            run_policy.trainjob[name] = policy[name]
    if policy.get("managedBy") == MULTIKUEUE:
        run_policy.trainjob["managedBy"] = MULTIKUEUE
    _convert_cleanup(run_policy, policy)
    _convert_restarts(run_policy, restart or "OnFailure", policy.get("backoffLimit"))
    _convert_scheduling(run_policy, policy.get("schedulingPolicy") or {}, nodes)
    return run_policy


def _convert_cleanup(run_policy: RunPolicy, policy: Mapping[str, Any]) -> None:
    if policy.get("ttlSecondsAfterFinished") is not None:
        text = "TrainJobs have no TTL; delete the job, or submit it with the option DeleteAfter and run `trainjob reap`"
        run_policy.add_note(f"{_POLICY}.ttlSecondsAfterFinished", text)
    if policy.get("cleanPodPolicy") == "All":
        run_policy.add_note(
            f"{_POLICY}.cleanPodPolicy", "finished pods are kept until their TrainJob is deleted; delete it"
        )


def _convert_restarts(run_policy: RunPolicy, restart: str, limit: int | None) -> None:
    path = "spec.pytorchReplicaSpecs.*.restartPolicy"
    if limit is not None:
        run_policy.job["backoffLimit"] = limit
        run_policy.add_note(f"{_POLICY}.backoffLimit", "now limits the restarts of the runtime's Job", lost=False)
    if restart == "Never":
        run_policy.pod["restartPolicy"] = "Never"
        run_policy.job["backoffLimit"] = 0
    elif restart == "ExitCode":
        run_policy.pod["restartPolicy"] = "Never"
        codes = {"containerName": "node", "operator": "NotIn", "values": list(_RETRYABLE)}
        run_policy.job["podFailurePolicy"] = {"rules": [{"action": "FailJob", "onExitCodes": codes}]}
        run_policy.add_note(path, "ExitCode is now a podFailurePolicy of the runtime's Job", lost=False)
    elif restart == "Always":
        run_policy.add_note(path, "Always is now OnFailure: a successful container is not restarted")
    if limit is None and restart != "Never":
        text = f"{restart} without a backoffLimit means unlimited restarts on the operator and six on Trainer"
        run_policy.add_note(path, text, lost=False)


def _convert_scheduling(run_policy: RunPolicy, policy: Mapping[str, Any], nodes: int) -> None:
    queue, timeout = policy.get("queue"), policy.get("scheduleTimeoutSeconds")
    if queue:
        run_policy.runtime["podGroupPolicy"] = {"volcano": {}}
        run_policy.template["annotations"] = {VOLCANO_QUEUE: queue}
        text = "is converted to a Volcano queue; for Kueue, set the label kueue.x-k8s.io/queue-name"
        run_policy.add_note(f"{_SCHEDULING}.queue", text, lost=False)
    elif timeout:
        run_policy.runtime["podGroupPolicy"] = {"coscheduling": {"scheduleTimeoutSeconds": timeout}}
    elif policy:
        run_policy.runtime["podGroupPolicy"] = {"coscheduling": {}}
    if queue and timeout:
        run_policy.add_note(f"{_SCHEDULING}.scheduleTimeoutSeconds", "Volcano has no scheduling timeout")
    if policy.get("priorityClass"):
        run_policy.pod["priorityClassName"] = policy["priorityClass"]
    if policy.get("minAvailable") not in (None, nodes):
        text = f"all {nodes} nodes start together; a smaller number is not supported"
        run_policy.add_note(f"{_SCHEDULING}.minAvailable", text)
    if policy.get("minResources"):
        run_policy.add_note(f"{_SCHEDULING}.minResources", "is now the sum of the resources of the nodes")


_PYTHON = re.compile(r"(.*/)?python[0-9.]*")
_TORCHRUN = re.compile(r"(.*/)?torchrun")
_MODULES = ("torch.distributed.run", "torch.distributed.launch")
#: Flags of the interpreter that torchrun cannot pass on; torchrun already runs python -u.
_FLAGS = re.compile(r"-[BEIOPRSbdisquvx]+")
#: Variables of the operator, and their equivalents of Trainer for one process per node.
_NAMES = {
    "MASTER_ADDR": "PET_MASTER_ADDR",
    "MASTER_PORT": "PET_MASTER_PORT",
    "RANK": "PET_NODE_RANK",
    "WORLD_SIZE": "PET_NNODES",
}
_KUBERNETES_REFERENCE = re.compile(rf"\$\(({'|'.join(_NAMES)})\)")
_SHELL_REFERENCE = re.compile(rf"\$({'|'.join(_NAMES)})\b|\$\{{({'|'.join(_NAMES)})\}}")
_OLD = "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
_WRAPPED = f"torchrun now starts the program and sets {_OLD} as the operator did"
_RENAMED = f"{_OLD} are now PET_NODE_RANK, PET_NNODES, PET_MASTER_ADDR and PET_MASTER_PORT"
_ELASTIC = re.compile(r"PET_RDZV_\w+|PET_MAX_RESTARTS")


@dataclass(frozen=True)
class ConvertedCommand:
    """Command of a container on Trainer."""

    command: list[str] | None
    args: list[str] | None
    #: Whether it starts one process per node, whatever the number of processes in the job.
    is_one_process: bool = False
    #: What works in another way, one line each.
    changed: tuple[str, ...] = ()
    #: What no longer works, one line each.
    lost: tuple[str, ...] = ()


def convert_command(command: Sequence[str] | None, args: Sequence[str] | None, nodes: int) -> ConvertedCommand:
    if not command:
        return _convert_entry_point(args, nodes)
    words = [*command, *(args or ())]
    starts_torchrun = any(_names_torchrun(word) for word in words)
    renamed = [_rename_variables(word, shell=starts_torchrun) for word in words]
    changed = (_RENAMED,) if renamed != words else ()
    lost = tuple(f"{name} is not set by Trainer" for word in words for name in _ELASTIC.findall(word))
    if starts_torchrun:
        split = len(command)
        return ConvertedCommand(renamed[:split], renamed[split:] if args is not None else None, False, changed, lost)
    wrapped = _wrap_in_torchrun(renamed)
    # By convention, the command is the program alone.
    return ConvertedCommand(wrapped[:1], wrapped[1:], True, (_WRAPPED, *changed), lost)


def _convert_entry_point(args: Sequence[str] | None, nodes: int) -> ConvertedCommand:
    text = f"Trainer does not set {_OLD} for the image's entry point; set command: [torchrun] and the script in args"
    kept = None if args is None else list(args)
    return ConvertedCommand(None, kept, lost=(text,)) if nodes > 1 else ConvertedCommand(None, kept, changed=(text,))


def _names_torchrun(word: str) -> bool:
    """Return whether a word of a command is torchrun, or the text of a shell that names it."""
    if " " in word:
        return "torchrun" in word or "torch.distributed" in word
    return word in _MODULES or _TORCHRUN.fullmatch(word) is not None


def _rename_variables(word: str, shell: bool) -> str:
    word = _KUBERNETES_REFERENCE.sub(lambda match: f"$({_NAMES[match[1]]})", word)
    return _SHELL_REFERENCE.sub(lambda match: f"${{{_NAMES[match[1] or match[2]]}}}", word) if shell else word


def _wrap_in_torchrun(words: Sequence[str]) -> list[str]:
    """Return the torchrun command: a Python script or module directly, any other program with --no-python."""
    if _PYTHON.fullmatch(words[0]):
        rest = list(words[1:])
        while rest and _FLAGS.fullmatch(rest[0]):
            rest.pop(0)
        if rest and (rest[0] == "-m" or not rest[0].startswith("-")):
            return ["torchrun", *rest]
    return ["torchrun", "--no-python", *words]
