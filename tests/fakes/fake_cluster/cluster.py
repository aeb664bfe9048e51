"""A cluster in this process: its own thread and event loop, and what a test does to it."""

from __future__ import annotations

import asyncio
import copy
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from fake_cluster import clock, crds, metadata_rules, runai_schema
from fake_cluster.admission import Admission
from fake_cluster.controller import Controllers
from fake_cluster.faults import Faults
from fake_cluster.gate import TOKEN, Gate
from fake_cluster.job_scripts import Lives
from fake_cluster.jobs import BatchJobs
from fake_cluster.jobsets import JobSets
from fake_cluster.kubelet import NODE, Kubelet
from fake_cluster.podlog import Log, Logs, lines_of
from fake_cluster.pytorch import PyTorchJobs
from fake_cluster.recorder import Recorder
from fake_cluster.resource_kinds import NAMESPACES, ResourceKinds
from fake_cluster.runai import Workloads
from fake_cluster.runtimes import READY_MADE
from fake_cluster.schema import Schemas
from fake_cluster.server import Request, Server
from fake_cluster.store import Backup, Store
from fake_cluster.trainer import Trainer
from trainer_core.backends.runai.parse import DISTRIBUTED_WORKLOADS, TRAINING_WORKLOADS
from trainer_core.backends.training_operator.parse import PYTORCH_JOBS
from trainer_core.k8s import informer
from trainer_core.k8s.resources import CLUSTER_TRAINING_RUNTIMES, CRDS, JOBS, JOBSETS, PODS, TRAINJOBS, ApiResource

if TYPE_CHECKING:
    from kubernetes.client import Configuration

_T = TypeVar("_T")
_LOOK = 0.01
#: Seconds after which the garbage collector notices something: controllers have noticed it before.
_COLLECTS_AFTER = 0.02
_NAMESPACES = ("default", "kube-system", "kubeflow-system")
#: The machine; no pod is scheduled on it while it is cordoned (``spec.unschedulable``).
_NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}, "spec": {}}


class Cluster:
    """An API server, and whatever plays the rest of a cluster. A context manager.

    Attributes:
        url: Where the server listens.
        faults: What goes wrong.
        tokens: Bearer tokens that are valid now.
    """

    def __init__(
        self,
        *,
        namespaces: Sequence[str] = (),
        port: int = 0,
        keep: int = 100_000,
        controllers: bool = True,
        trainer: str | None = "2.3",
        kueue: bool = False,
        backoff_limit: int | None = None,
        backoff: float = 0.05,
        grace: float = 1.0,
        delay: float | None = 0.02,
    ) -> None:
        self.url = ""
        self.faults = Faults()
        self._port = port
        self._gate = Gate()
        self._logs = Logs()
        self._registry = ResourceKinds()
        self._store = Store(self._registry, keep)
        self._server = Server(self._store, self._gate, self.faults, self._logs)
        self._store.listeners.append(self._logs.on_change)
        self._folder = tempfile.TemporaryDirectory(prefix="fake-cluster-", ignore_cleanup_errors=True)
        self._plays = controllers
        self._ahead = 0.0
        self._recorder = recorder = Recorder(self._store)
        self._kubelet = Kubelet(self._store, recorder, self._logs, Path(self._folder.name), backoff, grace)
        trainjobs, jobsets = Trainer(self._store, recorder), JobSets(self._store, recorder)
        jobs = BatchJobs(self._store, recorder, backoff_limit, backoff)
        pytorch_jobs = PyTorchJobs(self._store, recorder)
        self.lives = Lives(self._store, recorder, self._logs, delay)
        self.lives.on_deadline = trainjobs.end_by_deadline
        self._kubelet.is_ours = lambda pod: not self.lives.is_scripted(pod)
        trainjobs.refusal, jobs.quota = self.lives.refusal, self.lives.quota
        pytorch_jobs.quota = self.lives.quota
        reconcile = {
            TRAINJOBS: trainjobs.reconcile,
            JOBSETS: jobsets.reconcile,
            JOBS: jobs.reconcile,
            PYTORCH_JOBS: pytorch_jobs.reconcile,
        }
        workloads = Workloads(self._store, recorder)
        reconcile[TRAINING_WORKLOADS] = workloads.reconcile_training
        reconcile[DISTRIBUTED_WORKLOADS] = workloads.reconcile_distributed
        self._controllers = Controllers(self._store, reconcile)
        definitions = crds.definitions(trainer) if trainer else ()
        self._schemas = Schemas((*definitions, *runai_schema.DEFINITIONS) if trainer else ())
        self._admission = Admission(self._store, kueue)
        checks = (metadata_rules.check, self._schemas.check, self._admission.check)
        self._server.writer.checks.extend(checks)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake-cluster", daemon=True)
        for namespace in (*_NAMESPACES, *namespaces):
            self._store.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        for raw in (*definitions, *READY_MADE, _NODE):
            self._add(raw)

    def __enter__(self) -> Cluster:
        self._thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    async def _start(self) -> str:
        if self._plays:
            self._store.collect = partial(self._loop.call_later, _COLLECTS_AFTER)
            self._kubelet.start()
            self._controllers.start()
        return await self._server.start(self._port)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An informer would keep sending requests: to the next cluster, if that gets the same port.
        informer.stop_informers(self.url)
        try:
            asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        finally:
            self.advance(-self._ahead)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
            self._folder.cleanup()

    async def _stop(self) -> None:
        await self._server.stop()
        await self.lives.stop()
        try:
            await self._controllers.stop()
        finally:
            await self._kubelet.stop()

    # How to reach it.

    def configuration(self) -> Configuration:
        """Return a configuration of the ``kubernetes`` client, with a token."""
        from kubernetes.client import Configuration  # half a second: only for who asks

        configuration = Configuration(host=self.url)
        configuration.api_key["authorization"] = f"Bearer {self.token}"
        return configuration

    def kubeconfig(self, path: Path, namespace: str = "default") -> Path:
        """Write a kubeconfig with one context, ``fake``."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake", "namespace": namespace}}],
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "fake", "user": {"token": self.token}}],
        }
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        path.chmod(0o600)
        return path

    @property
    def token(self) -> str:
        return next(iter(self._gate.tokens), TOKEN)

    @property
    def tokens(self) -> set[str]:
        """Bearer tokens that are valid now; `set` them again to let others expire."""
        return self._gate.tokens

    @tokens.setter
    def tokens(self, tokens: Iterable[str]) -> None:
        self._gate.tokens = set(tokens)

    # What is in it.

    def claims_folder(self, namespace: str = "default") -> Path:
        """Return the folder that holds one folder for each volume claim of a namespace."""
        return Path(self._folder.name) / "claims" / namespace

    def load_stock_runtimes(self) -> list[str]:
        """Create the runtimes that come with Trainer; return their names."""
        runtimes = crds.stock_runtimes()
        for name, raw in runtimes.items():
            if self.get(CLUSTER_TRAINING_RUNTIMES, name):
                self.delete(CLUSTER_TRAINING_RUNTIMES, name)
            self.add(raw)
        return list(runtimes)

    def add(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object as an administrator would, past every check; its namespace is made if need be."""
        given = copy.deepcopy(dict(raw))
        return copy.deepcopy(self.call(lambda: self._add(given)))

    def _add(self, raw: dict[str, Any]) -> dict[str, Any]:
        kind = self._registry.of(raw)
        if kind == CRDS:
            if self._store.find(CRDS, None, raw["metadata"]["name"]):
                self._store.delete(CRDS, None, raw["metadata"]["name"])
            self._registry.define(raw)
            self._schemas.define(raw)
        if kind.namespaced:
            namespace = raw["metadata"].setdefault("namespace", "default")
            if not self._store.find(NAMESPACES, None, namespace):
                self._store.create(
                    NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
                )
        return self._store.create(kind, raw).raw

    def get(self, kind: ApiResource | str, name: str, namespace: str | None = "default") -> dict[str, Any] | None:
        asked = self._kind(kind)
        found = self.call(lambda: self._store.find(asked, namespace if asked.namespaced else None, name))
        return copy.deepcopy(found.raw) if found else None

    def objects(self, kind: ApiResource | str, namespace: str | None = None) -> list[dict[str, Any]]:
        """Return all objects of a kind, sorted by namespace and name."""
        asked = self._kind(kind)
        return self.call(lambda: [copy.deepcopy(record.raw) for record in self._store.listed(asked, namespace)])

    def update(
        self,
        kind: ApiResource | str,
        name: str,
        edit: Callable[[dict[str, Any]], None],
        namespace: str | None = "default",
    ) -> None:
        """Edit an object in place, including its status, without validation."""
        asked = self._kind(kind)
        place = namespace if asked.namespaced else None

        def apply() -> None:
            self._store.change(asked, place, name, edit)
            if self._registry.has_status(asked):
                self._store.change(asked, place, name, edit, "status")

        self.call(apply)

    def update_status(
        self, kind: ApiResource | str, name: str, status: Mapping[str, Any], namespace: str | None = "default"
    ) -> None:
        asked = self._kind(kind)

        def edit(raw: dict[str, Any]) -> None:
            raw["status"] = copy.deepcopy(dict(status))

        place = namespace if asked.namespaced else None
        self.call(lambda: self._store.change(asked, place, name, edit, "status"))

    def delete(
        self, kind: ApiResource | str, name: str, namespace: str | None = "default", **options: Any
    ) -> dict[str, Any]:
        """Delete an object at once, ``propagation="Foreground"`` as a client would; return it as it was last."""
        asked = self._kind(kind)
        place = namespace if asked.namespaced else None
        return copy.deepcopy(self.call(lambda: self._store.delete(asked, place, name, **{"grace": 0, **options})).raw)

    def signal(self, pod: str, number: int, namespace: str = "default") -> None:
        """Send a signal to the first process of each container of a pod, as a process on its node can."""
        self.call(lambda: self._kubelet.signal(self._store.get(PODS, namespace, pod).metadata["uid"], number))

    def _kind(self, kind: ApiResource | str) -> ApiResource:
        return self._registry.named(kind) if isinstance(kind, str) else kind

    # Logs of pods that no process runs.

    def write_log(self, pod: str, *lines: str, container: str | None = None, namespace: str = "default") -> None:
        """Add lines to the log of a container (its only one by default)."""

        def write() -> None:
            uid, name = self._container(pod, container, namespace)
            log = self._logs.current(uid, name) or self._logs.start(uid, name)
            for line in lines_of(lines):
                log.write(line)

        self.call(write)

    def start_log(
        self,
        pod: str,
        lines: Sequence[tuple[int, bytes]] | None = None,
        *,
        container: str | None = None,
        namespace: str = "default",
        ended: bool = False,
    ) -> None:
        """Begin the log of another run of a container: empty, or with lines (any sequence) of known times."""
        self.call(lambda: self._logs.start(*self._container(pod, container, namespace), Log(lines, ended)))

    def end_log(self, pod: str, *, container: str | None = None, namespace: str = "default") -> None:
        """End the log of a container, and with it the requests that follow it."""

        def end() -> None:
            if log := self._logs.current(*self._container(pod, container, namespace)):
                log.end()

        self.call(end)

    def _container(self, pod: str, container: str | None, namespace: str) -> tuple[str, str]:
        raw = self._store.get(PODS, namespace, pod).raw
        return raw["metadata"]["uid"], container or raw["spec"]["containers"][0]["name"]

    # What is done to it, and what it has seen.

    @property
    def requests(self) -> list[Request]:
        return list(self._server.requests)

    @property
    def counts(self) -> Counter[str]:
        """How many requests there were, by verb and plural: ``counts["list pods"]``."""
        return self._server.counts

    def tick(self) -> int:
        """Make the next move of each scripted life; return how many are not over yet. Needs ``delay=None``."""
        return self.call(self.lives.tick)

    def advance(self, seconds: float) -> None:
        """Set the clock of the cluster forward: of its objects, events, deadlines and of the Date of its responses."""
        self._ahead += seconds
        clock.advance(seconds)

    def event(
        self, pod: str, reason: str, message: str, component: str = "cluster-autoscaler", namespace: str = "default"
    ) -> None:
        """Record an event about a pod, as an autoscaler does; the same event again only counts."""
        self.call(lambda: self._recorder.record(self._store.get(PODS, namespace, pod).raw, reason, message, component))

    def admit(self, name: str, namespace: str = "default") -> None:
        """Let Kueue admit a TrainJob."""
        self.call(lambda: self.lives.admit(namespace, name))

    @property
    def images(self) -> dict[str, str]:
        """Python source of images' own programs, by a part of the image's name; change it."""
        return self._kubelet.images

    def forget_requests(self) -> None:
        """Count requests from here on."""
        self._server.requests.clear()
        self._server.counts.clear()

    @property
    def watches(self) -> int:
        return self.call(lambda: len(self._server.watches))

    def break_watches(self) -> None:
        self.call(self._server.watches.cut)

    def backup(self) -> Backup:
        """Return a backup of etcd."""
        return self.call(self._store.backup)

    def restore(self, backup: Backup) -> None:
        """Restore etcd from a backup and restart the API server: resourceVersions are lower than before."""

        def restore() -> None:
            self._store.restore(backup)
            self._server.watches.cut()

        self.call(restore)

    def compact(self) -> None:
        """Forget what has happened so far: an older resourceVersion or continue token is expired."""
        self.call(self._store.history.compact)

    def forbid(self, verb: str, resource: str, namespace: str | None = None) -> None:
        """Take a permission away: ``forbid("*", "jobsets")``, ``forbid("get", "pods/log")``."""
        self._gate.forbid(verb, resource, namespace)

    def allow(self, verb: str, resource: str, namespace: str | None = None) -> None:
        self._gate.allow(verb, resource, namespace)

    def until(self, condition: Callable[[], _T], patience: float = 300.0) -> _T:
        """Return what a condition returns as soon as that is true; it is polled."""
        end = time.monotonic() + patience
        while not (found := condition()):
            if time.monotonic() > end:
                raise TimeoutError(f"not within {patience:g} s: {condition}")
            time.sleep(_LOOK)
        return found

    def call(self, function: Callable[[], _T]) -> _T:
        """Run a function where all of this lives, and return what it returns."""
        if not self._thread.is_alive() or threading.current_thread() is self._thread:
            return function()

        async def run() -> _T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()
