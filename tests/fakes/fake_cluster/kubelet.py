"""A kubelet: runs the containers of pods as real processes of this machine, and writes the status of the pods."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fake_cluster import images
from fake_cluster.history import Change, Record
from fake_cluster.pod_status import ContainerState, PodState, running, terminated, waiting
from fake_cluster.podlog import Log, Logs
from fake_cluster.process import Process, StartError
from fake_cluster.recorder import Recorder
from fake_cluster.resource_kinds import NODES, stored_as
from fake_cluster.sandbox import Network, Sandbox
from fake_cluster.store import Store
from fake_cluster.variables import ConfigError, command_line, environment
from trainer_core.k8s.resources import PODS

NODE = "node-a"
_CONFIG_RETRY = 0.05
_START_ERROR = 128
#: Grace of a pod whose processes have no handler for SIGTERM, in seconds.
_UNTOLD_GRACE = 1.0
_CORDONED = "0/1 nodes are available: 1 node(s) were unschedulable."


@dataclass
class _Pod:
    """A pod that runs here."""

    record: Record
    state: PodState
    root: Path
    stopping: bool = False
    processes: set[Process] = field(default_factory=set)

    @property
    def raw(self) -> dict[str, Any]:
        return self.record.raw


class Kubelet:
    """Runs the pods of Jobs. A pod without an owner was created by a test, which sets its status."""

    def __init__(
        self, store: Store, recorder: Recorder, logs: Logs, folder: Path, backoff: float, grace: float
    ) -> None:
        #: Entrypoints of images, for containers without a command: Python source by a part of the image's name.
        self.images: dict[str, str] = {}
        #: Seconds until a container is restarted for the second time; doubled each time. The first is at once.
        self.backoff = backoff
        #: Seconds between SIGTERM and SIGKILL, at most.
        self.grace = grace
        #: Whether a pod is run here; the others have a scripted life.
        self.is_ours: Callable[[Record], bool] = lambda _: True
        self._store = store
        self._recorder = recorder
        self._logs = logs
        self._folder = folder
        self._network = Network()
        self._pods: dict[str, _Pod] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._errors: list[BaseException] = []
        store.listeners.append(self._on_change)

    def start(self) -> None:
        """Run the existing pods. Must be called in the event loop."""
        self._store.graceful = True
        for record in self._store.listed(PODS):
            self._begin(record)

    async def stop(self) -> None:
        """Kill everything; raises what went wrong while running pods."""
        for pod in self._pods.values():
            pod.stopping = True
            _signal(pod, signal.SIGKILL)
        await asyncio.gather(*(process.wait() for pod in self._pods.values() for process in [*pod.processes]))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._errors:
            raise self._errors[0]

    def _on_change(self, change: Change) -> None:
        if change.stored_as != stored_as(PODS) or not self._store.graceful:
            return
        uid = change.new.metadata["uid"]
        if change.type == "ADDED":
            self._spawn(self._begin_soon(change.new))
        elif change.type == "DELETED":
            self._spawn(self._forget(uid))
        elif (
            change.new.metadata.get("deletionTimestamp")
            and change.old
            and "deletionTimestamp" not in change.old.metadata
        ):
            self._spawn(self._end(change.new))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._errors.append(error)

    async def _begin_soon(self, record: Record) -> None:
        self._begin(record)

    def _begin(self, record: Record) -> None:
        phase = (record.raw.get("status") or {}).get("phase", "Pending")
        owners = record.metadata.get("ownerReferences") or ()
        begun = (
            phase != "Pending"
            or not owners
            or record.raw["spec"].get("nodeName")
            or record.metadata["uid"] in self._pods
        )
        if begun or record.raw["spec"].get("schedulingGates") or not self.is_ours(record):
            return
        pod = _Pod(record, PodState(record.raw), self._folder / "pods" / record.metadata["uid"])
        self._pods[record.metadata["uid"]] = pod
        self._spawn(self._run(pod))

    async def _run(self, pod: _Pod) -> None:
        """Run a pod to its end."""
        while self._is_cordoned() and not pod.stopping:
            if pod.state.scheduled:
                pod.state.scheduled = False
                pod.state.set("PodScheduled", False, "Unschedulable", _CORDONED)
                self._write(pod)
                self._recorder.record_v1(pod.raw, "FailedScheduling", _CORDONED, "default-scheduler", "Scheduling")
            await asyncio.sleep(_CONFIG_RETRY)
        if pod.stopping:
            return
        pod.state.scheduled = True
        self._schedule(pod)
        for container in pod.raw["spec"].get("initContainers") or ():
            if not await self._run_container(pod, container):
                break
        else:
            runs = [self._spawn(self._run_main(pod, container)) for container in pod.raw["spec"]["containers"]]
            await asyncio.gather(*runs)
        if not pod.stopping:
            pod.state.ended = True
            self._write(pod)

    def _is_cordoned(self) -> bool:
        node = self._store.find(NODES, None, NODE)
        return node is not None and bool(node.raw["spec"].get("unschedulable"))

    def _schedule(self, pod: _Pod) -> None:
        namespace, name = pod.record.key
        found = self._store.change(PODS, namespace, name, lambda raw: raw["spec"].update(nodeName=NODE))
        pod.record = found or pod.record
        note = f"Successfully assigned {namespace}/{name} to {NODE}"
        self._recorder.record_v1(pod.raw, "Scheduled", note, "default-scheduler", "Binding")
        self._write(pod)

    async def _run_main(self, pod: _Pod, container: Mapping[str, Any]) -> None:
        await self._run_container(pod, container)

    async def _run_container(self, pod: _Pod, container: Mapping[str, Any]) -> bool:
        """Run a container, again and again if its pod says so; return whether it ended well."""
        state = pod.state.find(container["name"])
        policy = pod.raw["spec"].get("restartPolicy", "Always")
        while not pod.stopping:
            code = await self._run_once(pod, container, state)
            if pod.stopping:
                break
            self._write(pod)
            if code == 0 or policy == "Never":
                return code == 0
            await self._back_off(pod, state)
        return False

    async def _back_off(self, pod: _Pod, state: ContainerState) -> None:
        """Wait as long as it takes until a container may start again: not at all the first time."""
        if state.restarts:
            namespace, name = pod.record.key
            about = f"restarting failed container={state.name} pod={name}_{namespace}({pod.record.metadata['uid']})"
            nominal = min(10 * 2 ** (state.restarts - 1), 300)
            state.last, ended = {"terminated": state.state["terminated"]}, state.state
            state.state = waiting("CrashLoopBackOff", f"back-off {_duration(nominal)} {about}")
            self._write(pod)
            self._recorder.record(pod.raw, "BackOff", f"Back-off {about}", "kubelet")
            await asyncio.sleep(self.backoff * 2 ** (state.restarts - 1))
            state.state = ended
        state.restart()

    async def _run_once(self, pod: _Pod, container: Mapping[str, Any], state: ContainerState) -> int:
        sandbox = Sandbox(pod.root, self._folder / "claims", pod.raw, container)
        variables = await self._variables(pod, container, state)
        sandbox.prepare()
        folders = sandbox.mounted(variables)
        known = self._network.local(pod.record.metadata, variables)
        command, arguments = command_line(container, known)
        argv = [*command, *arguments] if command else [*images.program(self.images, container), *arguments]
        log = self._logs.start(pod.record.metadata["uid"], container["name"])
        try:
            process = await Process.start(argv, {**sandbox.environment(), **known, **folders}, sandbox.home, log)
        except StartError as error:
            log.end()
            state.state = terminated(_START_ERROR, reason="StartError", message=str(error))
            return _START_ERROR
        state.state = running()
        started = state.state["running"]["startedAt"]
        self._note_start(pod, container)
        code = await self._watch(pod, process, log)
        state.state = terminated(code, started, message=_message(sandbox, container, log, code))
        return code

    async def _variables(self, pod: _Pod, container: Mapping[str, Any], state: ContainerState) -> dict[str, str]:
        """Return the environment, as soon as everything that it refers to is there."""
        while True:
            try:
                return environment(self._store, pod.raw, container, NODE)
            except ConfigError as error:
                if state.state.get("waiting", {}).get("message") != str(error):
                    state.state = waiting("CreateContainerConfigError", str(error))
                    self._write(pod)
                    self._recorder.record(pod.raw, "Failed", f"Error: {error}", "kubelet")
                await asyncio.sleep(_CONFIG_RETRY)

    def _note_start(self, pod: _Pod, container: Mapping[str, Any]) -> None:
        if pod.state.find(container["name"]).restarts == 0:
            image = container.get("image", "")
            self._recorder.record(pod.raw, "Pulled", f'Container image "{image}" already present on machine', "kubelet")
        self._recorder.record(pod.raw, "Started", f"Started container {container['name']}", "kubelet")
        self._write(pod)

    async def _watch(self, pod: _Pod, process: Process, log: Log) -> int:
        pod.processes.add(process)
        if pod.stopping:
            process.signal(signal.SIGKILL)
        try:
            return await process.wait()
        finally:
            pod.processes.discard(process)
            log.end()

    async def _end(self, record: Record) -> None:
        """End a pod that is being deleted: SIGTERM, after the grace SIGKILL, and then it is gone."""
        pod = self._pods.get(record.metadata["uid"])
        if pod is None:
            self._store.finish(PODS, *record.key, record.metadata["uid"])
            return
        pod.stopping = True
        are_told = [process.signal_first(signal.SIGTERM) for process in pod.processes]
        patience = min(self.grace, float(pod.raw["spec"].get("terminationGracePeriodSeconds", 30)))
        if not any(are_told):
            # Nothing ends before SIGKILL. No test needs the whole grace for that.
            patience = min(patience, _UNTOLD_GRACE)
        end = asyncio.get_running_loop().time() + patience
        while pod.processes and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)
        _signal(pod, signal.SIGKILL)
        while pod.processes:
            await asyncio.sleep(0.01)
        pod.state.ended = True
        self._write(pod)
        self._store.finish(PODS, *record.key, record.metadata["uid"])

    def signal(self, uid: str, number: int) -> None:
        """Send a signal to the first process of each container of a pod."""
        for process in self._pods[uid].processes:
            process.signal_first(number)

    async def _forget(self, uid: str) -> None:
        """Clear away after a pod that is gone, whether it had ended or not."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            pod.stopping = True
            _signal(pod, signal.SIGKILL)
            await asyncio.gather(*(process.wait() for process in [*pod.processes]))
            shutil.rmtree(pod.root, ignore_errors=True)

    def _write(self, pod: _Pod) -> None:
        status = pod.state.render()
        uid = pod.record.metadata["uid"]
        found = self._store.find(PODS, *pod.record.key)
        if found is not None and found.metadata["uid"] == uid:
            kept = (found.raw.get("status") or {}).get("conditions") or ()
            foreign = [one for one in kept if one["type"] == "DisruptionTarget"]
            status["conditions"] = [*status["conditions"], *foreign]
            self._store.change(PODS, *pod.record.key, lambda raw: raw.update(status=status), "status")


def _signal(pod: _Pod, number: int) -> None:
    for process in pod.processes:
        process.signal(number)


def _message(sandbox: Sandbox, container: Mapping[str, Any], log: Log, code: int) -> str:
    message = sandbox.termination_message()
    if not message and code and container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
        return b"\n".join(line for _, line in log.lines[-80:])[-2048:].decode(errors="replace")
    return message


def _duration(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
