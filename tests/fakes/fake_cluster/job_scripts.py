"""Scripted lives of jobs, in place of processes: chosen by name or annotation, moved on by a test or by themselves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fake_cluster.actor import Actor
from fake_cluster.building import COMPLETION_INDEX
from fake_cluster.history import Change, Record
from fake_cluster.pod_scripts import POD_LIVES, Moves
from fake_cluster.podlog import Logs
from fake_cluster.pytorch_pods import JOB_NAME, REPLICA_INDEX, REPLICA_TYPE
from fake_cluster.recorder import Recorder
from fake_cluster.resource_kinds import stored_as
from fake_cluster.store import Store
from trainer_core.backends.runai.parse import DISTRIBUTED_WORKLOADS, TRAINING_WORKLOADS
from trainer_core.backends.training_operator.parse import PYTORCH_JOBS
from trainer_core.k8s.resources import PODS, TRAINJOBS

#: On a TrainJob: names of lives, separated by commas.
ANNOTATION = "fake-cluster/life"
PROCESS = "process"
_JOBSET_UID, _STEP = "jobset.sigs.k8s.io/jobset-uid", "jobset.sigs.k8s.io/replicatedjob-name"
#: Lives of a job that have no pods, or continue without them.
JOB_LIVES = ("quota", "small-quota", "rejected-children", "deadline", "kueue")
_JOB_LABELS = ("jobset.sigs.k8s.io/jobset-name", "batch.kubernetes.io/job-name", JOB_NAME, "trainjob-workflows/job")
#: Kinds of jobs that an annotation can choose the life of.
_JOBS = (TRAINJOBS, PYTORCH_JOBS, TRAINING_WORKLOADS, DISTRIBUTED_WORKLOADS)
#: What the pod that takes the place of one does, where nothing else is said.
_THEN = {"preempted": "complete", "evicted": "complete", "node-lost": "complete"}
_QUOTA = (
    'Error creating: pods "{name}-0-x2x9k" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, '
    "used: requests.nvidia.com/gpu={used}, limited: requests.nvidia.com/gpu={limit}"
)
_REJECTED = (
    'admission webhook "vjobset.kb.io" denied the request: spec.replicatedJobs[0].template.spec.template.spec.volumes: '
    "no such volume"
)
_KUEUE_PATCH = {
    "manager": "kueue.x-k8s.io/manager",
    "time": "2026-01-01T00:00:00Z",  # the webhook's stamp: a patch without one counts as changed
    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": []}}},
}


class Lives:
    """The lives of a cluster's jobs."""

    def __init__(self, store: Store, recorder: Recorder, logs: Logs, delay: float | None = 0.02) -> None:
        #: Seconds between two moves of lives that advance by themselves; None where only `tick` moves them.
        self.delay = delay
        #: Ends a TrainJob whose deadline is over.
        self.on_deadline: Callable[[Record], None] = lambda _: None
        self._store = store
        self._recorder = recorder
        self._logs = logs
        self._chosen: dict[str, tuple[str, ...]] = {}
        self._pods: Counter[tuple[str, str]] = Counter()
        self._lived: dict[str, str | None] = {}
        self._moves: list[Moves] = []
        self._tasks: set[asyncio.Task[None]] = set()
        store.listeners.append(self._on_change)

    def set(self, job: str, *lives: str) -> None:
        """Choose the life of a job, before it is created.

        Args:
            job: Name of the TrainJob, or of a separate Job; ``*`` for every one.
            *lives: For pods: the first pod of each node lives the first, the pod that takes its place the second …,
                the last one for all further ones. ``process`` for a real process.

        Raises:
            LookupError: There is no such life.
        """
        for life in lives:
            if life not in (*POD_LIVES, *JOB_LIVES, PROCESS):
                raise LookupError(f"no life {life!r}: there are {', '.join([*POD_LIVES, *JOB_LIVES, PROCESS])}")
        self._chosen[job] = lives

    def forget(self, job: str) -> None:
        """Let a job live as any other from here on: its quota is raised, its children are taken."""
        self._chosen.pop(job, None)

    def has(self, job: str, namespace: str, life: str) -> bool:
        """Whether a job lives such a life."""
        return life in self._of(job, namespace)

    def tick(self) -> int:
        """Make the next move of each life; return how many are not over yet."""
        over = object()
        self._moves = [moves for moves in self._moves if next(moves, over) is not over]
        return len(self._moves)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def is_scripted(self, pod: Record) -> bool:
        """Whether a pod is played rather than run."""
        return self._lived.get(pod.metadata["uid"]) not in (None, PROCESS)

    def quota(self, job: Record) -> str | None:
        """Return why the pods of a Job cannot be created, if they cannot."""
        owner = _job_of(job) or job.key[1]
        for life, used, limit in (("quota", 8, 8), ("small-quota", 0, 4)):
            if self.has(owner, job.key[0], life):
                return _QUOTA.format(name=job.key[1], used=used, limit=limit)
        return None

    def refusal(self, trainjob: Record) -> str | None:
        """Return why the JobSet of a TrainJob cannot be created, if it cannot."""
        return _REJECTED if self.has(trainjob.key[1], trainjob.key[0], "rejected-children") else None

    def _of(self, job: str, namespace: str) -> tuple[str, ...]:
        found = next((one for kind in _JOBS if (one := self._store.find(kind, namespace, job))), None)
        annotation = (found.metadata.get("annotations") or {}).get(ANNOTATION) if found else None
        chosen = self._chosen.get(job, self._chosen.get("*", ()))
        return tuple(annotation.split(",")) if annotation else chosen

    def _life_of(self, pod: Record) -> str | None:
        """Return what a pod lives, by its job and by how many pods were in its place before."""
        job = _job_of(pod)
        lives = _of_pods(self._of(job, pod.key[0])) if job else ()
        if not lives:
            return None
        before = self._pods[_place(pod)]
        if before < len(lives):
            return lives[before]
        return _THEN.get(lives[-1], lives[-1])

    def _on_change(self, change: Change) -> None:
        if change.type == "ADDED" and change.stored_as == stored_as(PODS):
            self._begin_pod(change.new)
        if change.type == "ADDED" and change.stored_as == stored_as(TRAINJOBS):
            namespace, name = change.new.key
            for life, moves in (("kueue", self._kueue), ("deadline", self._deadline)):
                if self.has(name, namespace, life):
                    self._begin(moves(change.new))

    def _begin_pod(self, pod: Record) -> None:
        life = self._lived[pod.metadata["uid"]] = self._life_of(pod)
        self._pods[_place(pod)] += 1
        if life is not None and life != PROCESS:
            actor = Actor(self._store, self._recorder, self._logs, pod)
            self._begin(_while_there(actor, POD_LIVES[life](actor)))

    def _kueue(self, job: Record) -> Moves:
        """A TrainJob that waits for its turn, and gets it."""
        self._store.change(TRAINJOBS, *job.key, lambda raw: raw["spec"].update(suspend=True))
        yield
        yield
        self.admit(*job.key)

    def admit(self, namespace: str, name: str) -> None:
        """Do what Kueue does when a TrainJob may run: add its patch, and resume it."""

        def admit(raw: dict[str, Any]) -> None:
            raw["spec"].setdefault("runtimePatches", []).append(dict(_KUEUE_PATCH))
            raw["spec"]["suspend"] = False

        if self._store.change(TRAINJOBS, namespace, name, admit) is None:
            self._store.change(
                PYTORCH_JOBS, namespace, name, lambda raw: raw["spec"]["runPolicy"].update(suspend=False)
            )

    def _deadline(self, job: Record) -> Moves:
        """A TrainJob that runs for too long."""
        yield
        for _ in range(4):
            yield
        if found := self._store.find(TRAINJOBS, *job.key):
            self.on_deadline(found)

    def _begin(self, moves: Moves) -> None:
        if self.delay is None:
            self._moves.append(moves)
            return
        task = asyncio.get_running_loop().create_task(self._go_on(moves, self.delay))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _go_on(self, moves: Moves, delay: float) -> None:
        await asyncio.sleep(0)
        for _ in moves:
            await asyncio.sleep(delay)


def _while_there(actor: Actor, moves: Moves) -> Moves:
    for _ in moves:
        yield
        if not actor.is_there:
            return


def _of_pods(lives: Sequence[str]) -> list[str]:
    """Return what the pods of a job live: around a life of the job, they just run or complete."""
    around = {**dict.fromkeys(JOB_LIVES, "complete"), "deadline": "runs"}
    return [around.get(life, life) for life in lives]


def _place(pod: Record) -> tuple[str, str]:
    """Return what a pod and the one that takes its place have in common."""
    owners: Sequence[Mapping[str, Any]] = pod.metadata.get("ownerReferences") or ({"uid": pod.metadata["uid"]},)
    labels, annotations = pod.metadata.get("labels") or {}, pod.metadata.get("annotations") or {}
    replica = "-".join(labels.get(label, "") for label in (_STEP, REPLICA_TYPE, REPLICA_INDEX))
    # A JobSet that restarts creates its Jobs again.
    return labels.get(_JOBSET_UID, owners[0]["uid"]), annotations.get(COMPLETION_INDEX, "") + replica


def _job_of(part: Record) -> str | None:
    """Return the name of the job that a pod, or a Job, is a part of."""
    labels = part.metadata.get("labels") or {}
    return next((labels[label] for label in _JOB_LABELS if label in labels), None)
