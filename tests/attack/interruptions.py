"""Interrupts a tree of processes that trains: a moment, a process and a deed are drawn, and four facts are checked.

1. The failure has the right cause, and is retried exactly if that can help.
2. Afterwards no process of the tree is alive.
3. Two trainings of one job never run at the same time.
4. The training that continues has the answer of an undisturbed one, bit for bit, from the step that was promised.

    python tests/attack/interruptions.py --seed 7 --draws 20 --backend container --only suspend

plays draws of a seed; without a seed a random one, which is printed. `make attack` plays them, too.
"""

from __future__ import annotations

import argparse
import atexit
import inspect
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("fakes", "local", "containers")]

import container_engine
import drawn_training as training
import psutil
from local_jobs import PATIENCE, supervisor_of, wait_until_dead
from own_engine import OwnEngine

from trainer_core import (
    Checkpoints,
    CustomTrainer,
    LocalProcessBackendConfig,
    Outcome,
    Owner,
    RuntimePatch,
    TrainerClient,
    TrainJobRef,
)
from trainer_core.backends.container import names
from trainer_core.backends.container.paths import lock_path
from trainer_core.base.errors import TrainerError
from trainer_core.definition.options import (
    ContainerPatch,
    JobSetSpecPatch,
    JobSetTemplatePatch,
    JobSpecPatch,
    JobTemplatePatch,
    PodSpecPatch,
    PodTemplatePatch,
    ReplicatedJobPatch,
    TrainingRuntimeSpecPatch,
)
from trainer_core.model.jobs import Category

#: Memory of the control group in which the kernel kills.
_MEMORY = 2**30
_GRACE = 60
#: Seconds until what a training that ignores SIGTERM is killed.
_SHORT_GRACE = 3

MOMENTS = ("start", "rendezvous", "collective", "between", "save", "end")
#: What the training does about SIGTERM, or about its name, that is not usual.
HABITS = ("plain", "title", "exits", "exits-before", "ignores", "default", "thread")
#: Deeds to one process.
KILLS, SIGNALS = ("kill", "terminate", "stop", "abort"), {"kill": 9, "terminate": 15, "abort": 6}
#: Deeds to all processes or to the job.
WHOLE = ("terminate-all", "stop-all", "suspend", "cancel", "memory", "memory-child")
#: Deeds to a container or to what the engine keeps of its job.
OF_CONTAINERS = ("paused-suspend", "paused-cancel", "prune")
#: Deeds that need an engine with control groups, whose containers have no torch.
LIMITED = ("paused-suspend", "paused-cancel", "memory", "memory-child")
RETRIED = (Category.INFRASTRUCTURE, Category.PREEMPTED, Category.NODE_LOST)


class LeftOutError(Exception):
    """The draw cannot be played on this machine; the message is the reason."""


@dataclass(frozen=True)
class Draw:
    """An interruption."""

    backend: str
    deed: str
    moment: str = "between"
    #: Process that a deed to one process reaches.
    target: str = ""
    #: Rank that comes to the moment.
    actor: int = 0
    habit: str = "plain"
    #: Who trains: two ranks of torchrun, or a child of the function.
    shape: str = "torchrun"
    #: Whether the child with an own environment has a session of its own, too.
    helper_session: bool = False
    #: Seconds for which processes are stopped.
    pause: float = 0.5

    def __str__(self) -> str:
        values = {name: value for name, value in asdict(self).items() if value not in ("", "plain", False)}
        if "stop" not in self.deed:
            del values["pause"]
        return " ".join(f"{name}={value}" for name, value in values.items())


#: Each fault of issue 43 that a tree can show, by its number there.
FAULTS = {
    "1 a rank is killed in a collective": Draw("local", "kill", "collective", "rank-1"),
    "1 a rank is killed at the rendezvous": Draw("local", "kill", "rendezvous", "rank-0", actor=1),
    "1 a rank is killed at the end": Draw("local", "kill", "end", "rank-1", actor=1),
    "2 a rank has no memory": Draw("local", "memory", "between", actor=1),
    "2 a child of a rank has no memory": Draw("local", "memory-child", "between"),
    "2 a worker aborts": Draw("local", "abort", "between", "worker-0"),
    "5 sys.exit(0) upon SIGTERM, after checkpoints()": Draw("local", "suspend", "between", habit="exits"),
    "5 sys.exit(0) upon SIGTERM, before checkpoints()": Draw("local", "suspend", "between", habit="exits-before"),
    "9 a child and titles, cancelled": Draw("local", "cancel", "save", habit="title", helper_session=True),
    "9 a child and titles, no supervisor": Draw("local", "kill", "between", "supervisor", 0, "title", "torchrun", True),
    "10 a child that trains is suspended": Draw("local", "suspend", "between", shape="child"),
    "11 SIGTERM to all": Draw("local", "terminate-all", "between"),
    "11 a worker inherits a handler": Draw("local", "suspend", "save", habit="exits", shape="child"),
    "12 SIGTERM is ignored": Draw("local", "suspend", "between", habit="ignores"),
    "12 SIGTERM has its default": Draw("local", "suspend", "between", habit="default"),
    "12 checkpoints() in a thread": Draw("local", "suspend", "between", habit="thread"),
    "13 the record of a training is pruned": Draw("container", "prune", "between"),
    "14 a paused container is suspended": Draw("container", "paused-suspend", "between", shape="child"),
    "14 a paused container is cancelled": Draw("container", "paused-cancel", "between", shape="child"),
}
FAULTS |= {
    f"{name}, in a container": replace(
        draw, backend="container", **({"shape": "child", "actor": 0} if draw.deed in LIMITED else {})
    )
    for name, draw in FAULTS.items()
    if draw.backend == "local"
}


def make_draw(chance: random.Random, backend: str) -> Draw:
    """Return an interruption at random."""
    deed = chance.choice([*KILLS, *WHOLE, *(OF_CONTAINERS if backend == "container" else ())])
    shape = "child" if backend == "container" and deed in LIMITED else chance.choice(["torchrun", "child"])
    moment = chance.choice(MOMENTS if shape == "torchrun" else ("start", "between", "save", "end"))
    targets = ["supervisor", "node", "trainer-0", "helper"]
    if shape == "torchrun":
        targets = ["supervisor", "node", "rank-0", "rank-1", "helper"]
        targets += ["torchrun"] if backend == "container" else []
        targets += [] if moment == "start" else ["worker-0", "worker-1"]
    target = chance.choice(targets) if deed in KILLS else ""
    if deed == "abort":
        # Of the others a crash is what it is: no kernel sends it.
        target = chance.choice([each for each in targets if each.startswith(("rank", "worker", "trainer"))])
    has_habit = deed in ("suspend", "cancel", "terminate-all") or (deed, target) == ("terminate", "supervisor")
    habit = chance.choice(HABITS if has_habit else ("plain", "plain", "title"))
    return Draw(
        backend,
        deed,
        moment,
        target,
        chance.randrange(2) if shape == "torchrun" else 0,
        habit,
        shape,
        chance.random() < 0.5,
        chance.choice([0.5, 2.0]),
    )


def list_faults(backend: str) -> list[Draw]:
    """Return the faults of the issue on a backend."""
    return [draw for draw in FAULTS.values() if draw.backend == backend]


@dataclass
class Scene:
    """A training to interrupt, its pipes, and what the test knows of its processes."""

    draw: Draw
    folder: Path
    client: TrainerClient
    fields: dict[str, Any] = field(default_factory=dict)
    is_limited: bool = False
    ref: TrainJobRef | None = None
    #: Ids by role, as the processes themselves see them.
    told: dict[str, int] = field(default_factory=dict)
    seen: dict[int, psutil.Process] = field(default_factory=dict)

    def prepare(self) -> None:
        for name in ("alive", "training-0", "training-1"):
            (self.folder / name).touch(mode=0o666)
        for name in ("events", "go"):
            os.mkfifo(self.folder / name)
        # Both ends of each, so that none waits for the other.
        self._events, self._go = (os.open(self.folder / name, os.O_RDWR | os.O_NONBLOCK) for name in ("events", "go"))

    def close(self) -> None:
        os.close(self._events)
        os.close(self._go)

    def submit(self) -> TrainJobRef:
        """Submit the training, or what follows it: the owner and all arguments stay the same."""
        draw = self.draw
        plan = {
            "moment": draw.moment,
            "actor": draw.actor,
            "habit": draw.habit,
            "helper_session": draw.helper_session,
            "steps": training.STEPS,
            "step": {"start": 0, "rendezvous": 0, "end": 0, "save": training.SAVED_STEP}.get(
                draw.moment, training.MOMENT_STEP
            ),
        }
        arguments = {"scene": str(self.folder), "helper": training.HELPER, "plan": plan}
        result = self.folder / "result"
        if draw.shape == "child":
            lines = [
                "from __future__ import annotations",
                inspect.getsource(training.train),
                "import json, pathlib",
                f"value = json.dumps(train(**json.loads({json.dumps(arguments)!r})))",
                f"pathlib.Path({str(result)!r}).write_text(value)",
            ]
            program = self.folder / "program.py"
            program.write_text("\n".join(lines))
            trainer = CustomTrainer(
                training.train_in_a_child,
                func_args={"program": str(program), "result": str(result)},
                resources_per_node={"memory": _MEMORY} if self.is_limited else None,
            )
        else:
            trainer = CustomTrainer(training.train, func_args=arguments, num_proc_per_node=2)
        grace = _SHORT_GRACE if draw.habit in ("ignores", "default", "thread", "exits", "exits-before") else _GRACE
        fields = dict(self.fields)
        request = self.client.build_request(
            runtime="python" if draw.shape == "child" else "torch-distributed",
            trainer=trainer,
            owner=Owner(key="drawn", slug="drawn", generation="0"),
            options=[Checkpoints(every_steps=training.EVERY_STEPS, grace=grace), *fields.pop("options", ())],
            **fields,
        )
        self.ref = self.client.submit(request)
        return self.ref

    def wait_for_moment(self) -> None:
        """Wait until the moment has come, and the ids of all processes of the tree are known."""
        wanted = {"moment", "rank-0", "helper"}
        wanted |= {"worker-0"} if self.draw.moment != "start" else set()
        if self.draw.shape == "torchrun":
            wanted |= {"rank-1"} if self.draw.moment == "start" else {"rank-1", "worker-1"}
        text, end = "", time.monotonic() + PATIENCE
        while not wanted <= self.told.keys():
            if select.select([self._events], [], [], 2)[0]:
                text += os.read(self._events, 2**16).decode()
                *lines, text = text.split("\n")
                self.told |= {name: int(value or 0) for name, value in (line.split(" ") for line in lines)}
            elif (outcome := self.client.observe(self.ref).outcome) or time.monotonic() > end:
                raise AssertionError(f"the moment did not come: {outcome.diagnosis if outcome else 'timeout'}")

    def go(self, deed: bytes = b"g") -> None:
        os.write(self._go, deed)

    def see(self) -> None:
        """Remember the processes of the tree, by their ids on this machine."""
        for root in self.find_roots().values():
            for process in [root, *root.children(recursive=True)]:
                self.seen[process.pid] = process

    def find_roots(self) -> dict[str, psutil.Process]:
        """Return the supervisor and, where it is no child of it, the first process of the node."""
        if self.draw.backend == "local":
            return {"supervisor": supervisor_of(self.folder / "state", self.ref.name)}
        roots = {}
        with suppress(psutil.NoSuchProcess, FileNotFoundError, IndexError):
            inode = f":{lock_path(self.ref.uid).stat().st_ino} "
            held = [line.split() for line in Path("/proc/locks").read_text().splitlines() if inode in line]
            roots["supervisor"] = psutil.Process(int(held[0][4]))
        engine = self.client.backend._engine
        for step in self.client.get_job(self.ref.name).steps:
            if step.pod_name and (pid := engine.inspect_container(step.pod_name)["State"].get("Pid")):
                roots["node"] = psutil.Process(pid)
        return roots

    def find(self, role: str) -> psutil.Process:
        """Return a process of the tree."""
        roots = self.find_roots()
        if role == "trainer-0":
            role = "rank-0"
        if role in roots:
            return roots[role]
        if role in self.told:
            return next(each for each in self.seen.values() if _get_own_pid(each.pid) == self.told[role])
        if role == "torchrun":
            return roots["node"].children()[0]
        node = int(self.client.get_job(self.ref.name).steps[0].pod_name.partition("-")[2])
        return psutil.Process(node)

    def is_training_alive(self) -> bool:
        """Return whether any process of the training lives: each holds the lock."""
        descriptor = os.open(self.folder / "alive", os.O_RDONLY)
        try:
            flock(descriptor, LOCK_EX | LOCK_NB)
            flock(descriptor, LOCK_UN)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def list_left(self, is_suspended: bool = False) -> list[str]:
        """Return what lives of the tree, after a time in which killed processes end; a suspended job is supervised."""
        mortal = [each for each in self.seen.values() if not (is_suspended and _supervises(each))]
        wait_until_dead(mortal, _DEATH_SECONDS)
        left = [_describe(each) for each in mortal if each.is_running() and not _is_zombie(each)]
        end = time.monotonic() + _DEATH_SECONDS
        while (is_alive := self.is_training_alive()) and time.monotonic() < end:
            time.sleep(0.05)
        return [f"{each} lives" for each in left] or ["a process of the training lives"] * is_alive

    def remove_left(self) -> None:
        """Kill what this draw has found to live, so that it does not outlive the attack."""
        for process in [*self.seen.values(), *psutil.process_iter()]:
            with suppress(psutil.Error):
                if process.pid in self.seen or str(self.folder) in process.cmdline():
                    process.kill()


#: Seconds for the end of killed processes on a busy machine.
_DEATH_SECONDS = 15


def _get_own_pid(pid: int) -> int:
    """Return the id by which a process knows itself, perhaps in a container."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1])
    return -1


def _is_zombie(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def _supervises(process: psutil.Process) -> bool:
    """Return whether a process is a supervisor or its guard."""
    with suppress(psutil.NoSuchProcess):
        return any(".supervisor" in word for word in process.cmdline())
    return False


def _describe(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return f"process {process.pid} ({' '.join(' '.join(process.cmdline()).split())[-90:]})"
    return f"process {process.pid}"


@contextmanager
def _open_scene(draw: Draw, folder: Path) -> Iterator[Scene]:
    for module in ["torch"] * (draw.shape == "torchrun") + ["setproctitle"] * (draw.habit == "title"):
        if find_spec(module) is None:
            raise LeftOutError(f"{module} is not installed")
    if draw.backend == "container" and container_engine._find_engine() is None:
        raise LeftOutError("no container engine of the tests answers, see CONTRIBUTING.md")
    if draw.backend == "local":
        scene = Scene(draw, folder, TrainerClient(LocalProcessBackendConfig(home=folder / "state")))
    else:
        limited = _start_limited_engine() if draw.deed in LIMITED else {}
        fields = _lend_packages(folder, draw)
        scene = Scene(draw, folder, container_engine.client(folder, **limited), fields, is_limited=bool(limited))
    scene.prepare()
    try:
        yield scene
    finally:
        for job in scene.client.list_jobs():
            with suppress(TrainerError):
                scene.client.delete_job(job.name)
        scene.remove_left()
        scene.close()


@cache
def _start_limited_engine() -> dict[str, Any]:
    """Start an engine with control groups, until this process ends; return the settings of its clients."""
    if os.geteuid() != 0 or shutil.which("podman") is None or not os.access("/sys/fs/cgroup/memory", os.W_OK):
        raise LeftOutError("an engine with control groups needs root, Podman and control groups of version 1")
    home = Path(tempfile.mkdtemp(prefix="trainjob-"))
    own = OwnEngine(home, CONTAINER_ENGINE_CGROUPS="enabled")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    atexit.register(own.end)
    own.prepare(TrainerClient(own.config).backend._engine)
    return {"container_host": own.config.container_host, "runtime_source": own.config.runtime_source}


def _lend_packages(folder: Path, draw: Draw) -> dict[str, Any]:
    """Return the fields with which containers see the scene and the packages of this machine."""
    volumes = [{"name": "scene", "hostPath": {"path": str(folder)}}]
    mounts, variables = [{"name": "scene", "mountPath": str(folder)}], []
    if draw.shape == "torchrun" or draw.habit == "title":
        volumes.append({"name": "packages", "hostPath": {"path": str(Path(find_spec("torch").origin).parents[1])}})
        mounts.append({"name": "packages", "mountPath": "/packages", "readOnly": True})
        variables.append({"name": "PYTHONPATH", "value": "/packages"})
    node = ContainerPatch(name="node", env=variables, volume_mounts=mounts)
    pod = PodTemplatePatch(spec=PodSpecPatch(volumes=volumes, containers=[node]))
    job = ReplicatedJobPatch(name="node", template=JobTemplatePatch(spec=JobSpecPatch(template=pod)))
    template = JobSetTemplatePatch(spec=JobSetSpecPatch(replicated_jobs=[job]))
    return {"options": [RuntimePatch(training_runtime_spec=TrainingRuntimeSpecPatch(template=template))]}


@contextmanager
def _little_memory(draw: Draw) -> Iterator[None]:
    """Run this process, and the jobs that it starts, in a control group with little memory."""
    if not draw.deed.startswith("memory") or draw.backend == "container":
        yield
        return
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    paths = {names: path for _, names, path in lines}
    is_v1 = "memory" in paths
    parent = Path(f"/sys/fs/cgroup/memory{paths['memory']}" if is_v1 else f"/sys/fs/cgroup{paths.get('', '')}")
    group = parent / f"trainjob-attack-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(_MEMORY))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        raise LeftOutError(f"no control group for memory can be made: {error.strerror}") from error
    try:
        yield
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (parent / "cgroup.procs").write_text(pid)
        group.rmdir()


def interrupt(draw: Draw, folder: Path) -> list[str]:
    """Play an interruption; return what did not hold."""
    with _little_memory(draw), _open_scene(draw, folder) as scene:
        scene.submit()
        try:
            scene.wait_for_moment()
        except AssertionError as error:
            return [str(error)]
        scene.see()
        last = _lose_record(scene) if draw.deed == "prune" else None
        violations = [] if last else _interrupt(scene)
        last = last or scene.client.wait(scene.ref, timeout=PATIENCE)
        with suppress(psutil.Error, OSError, KeyError):
            scene.see()
        violations += [f"after the end {each}" for each in scene.list_left()]
        return [*violations, *_check_answer(draw, last), *_list_overlaps(folder)]


def _lose_record(scene: Scene) -> Outcome:
    """Remove what the engine keeps of a training that runs; return the outcome of the next one, after its end."""
    client, engine = scene.client, scene.client.backend._engine
    for volume in engine.list_volumes(f"{names.NAMESPACE_LABEL}={scene.ref.namespace}"):
        engine.remove_volume(volume["Name"])
    with suppress(TrainerError):
        scene.submit()
        raise AssertionError("it was submitted again beside a training without a record")
    scene.go()
    end = time.monotonic() + PATIENCE
    while scene.is_training_alive() and time.monotonic() < end:
        time.sleep(0.05)
    wait_until_dead([*scene.seen.values()], _DEATH_SECONDS)
    scene.submit()
    return client.wait(scene.ref, timeout=PATIENCE)


def _interrupt(scene: Scene) -> list[str]:
    """Do the deed of a scene, and let the training continue; return what did not hold until then."""
    draw, violations = scene.draw, []
    outcome = _do(scene)
    if (how := _summarize(outcome)) not in (allowed := list_allowed(draw)):
        wanted = ", or ".join(" ".join(map(str, each)) for each in allowed)
        reason = outcome.diagnosis if outcome else ""
        violations.append(f"it ended as {' '.join(map(str, how))}, expected {wanted}: {reason}")
    left = [] if outcome is None or outcome.succeeded else scene.list_left()
    violations += [f"after the interruption {each}" for each in left]
    if outcome is None:
        left = scene.list_left(is_suspended=True)
        violations += [f"while it is suspended {each}" for each in left]
        scene.client.resume(scene.ref)
    elif not outcome.succeeded:
        scene.submit()
    return violations


def _do(scene: Scene) -> Outcome | None:
    """Do the deed of a scene; return the outcome of the job, None for a suspended one."""
    draw, client, ref = scene.draw, scene.client, scene.ref
    if draw.deed in ("stop", "stop-all"):
        stopped = [*scene.seen.values()] if draw.deed == "stop-all" else [scene.find(draw.target)]
        _send([*stopped], signal.SIGSTOP)
        scene.go()
        time.sleep(draw.pause)
        _send(stopped, signal.SIGCONT)
    elif draw.deed == "terminate-all":
        _send([*scene.seen.values()], signal.SIGTERM)
        scene.go()
    elif draw.deed in SIGNALS:
        _send([scene.find(draw.target)], SIGNALS[draw.deed])
        scene.go()
    elif draw.deed.startswith("memory"):
        scene.go(b"c" if draw.deed == "memory-child" else b"m")
    else:
        if draw.deed.startswith("paused"):
            for step in client.get_job(ref.name).steps:
                client.backend._engine._api.pause(step.pod_name)
        verb: Callable[..., Any] = client.cancel if draw.deed.endswith("cancel") else client.suspend
        verb(ref)
        if draw.moment == "start":
            scene.go()  # There is no handler for SIGTERM yet.
        if verb == client.suspend:
            return _wait_for_suspension(client, ref)
    return client.wait(ref, timeout=PATIENCE)


def _wait_for_suspension(client: TrainerClient, ref: TrainJobRef) -> Outcome | None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        observation = client.observe(ref)
        if observation.outcome or observation.status == "Suspended":
            return observation.outcome
        time.sleep(0.05)
    raise AssertionError("the job is not suspended")


def _send(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _summarize(outcome: Outcome | None) -> tuple[Any, ...]:
    if outcome is None or outcome.diagnosis is None:
        return (outcome.status if outcome else "Suspended",)
    return outcome.status, outcome.diagnosis.category.value, outcome.diagnosis.retryable


COMPLETE, SUSPENDED = ("Complete",), ("Suspended",)


def list_allowed(draw: Draw) -> list[tuple[Any, ...]]:
    """Return how the interrupted job may end: status, category, and whether a retry may help."""
    infrastructure, preempted, lost = (("Failed", each.value, True) for each in RETRIED)
    final = {each: ("Failed", each.value, False) for each in Category}
    # Where the training is over before it has noticed.
    returns = [COMPLETE] if draw.moment == "end" and draw.habit in ("plain", "title") else []
    verb, role = draw.deed.removeprefix("paused-"), draw.target.partition("-")[0]
    of_verbs = {
        "stop": [COMPLETE],
        "stop-all": [COMPLETE],
        "suspend": [SUSPENDED, *returns],
        "cancel": [final[Category.DELETED]],
        "memory": [final[Category.OUT_OF_MEMORY]],
        "memory-child": [final[Category.OUT_OF_MEMORY]],
        "terminate-all": [infrastructure, preempted, *returns],
        "abort": [final[Category.USER_CODE]],
        "prune": [COMPLETE],
    }
    of_kills = {"helper": [COMPLETE], "supervisor": [infrastructure, lost]}
    of_terms = {"helper": [COMPLETE], "supervisor": [infrastructure, *returns], "worker": [COMPLETE, infrastructure]}
    if role == "supervisor" and draw.backend == "container" and draw.deed in ("kill", "terminate"):
        return [COMPLETE]  # Another supervisor follows.
    if draw.deed == "kill":
        return of_kills.get(role, [infrastructure])
    if draw.deed == "terminate":
        return of_terms.get(role, [infrastructure, preempted, *returns])
    return of_verbs[verb]


def _check_answer(draw: Draw, last: Outcome) -> Iterator[str]:
    """Yield what is wrong with the answer of the last training, or with the step from which it continued."""
    expected = training.compute_answer(1 if draw.shape == "child" else 2)
    result = last.result if last.succeeded and isinstance(last.result, dict) else {}
    if result.get("answer") != expected:
        yield f"the last training is {last.status} with {last.result}, expected {expected}: {last.diagnosis}"
        return
    least = get_least_step(draw)
    if result["from"] < least and result["from"] > 0:
        yield f"it continued from step {result['from']}, expected at least {least}"
    if result["from"] == 0 and least and not _has_completed(draw):
        yield f"it began again at step 0, expected at least {least}"


def _has_completed(draw: Draw) -> bool:
    """Return whether the interrupted training may end by itself."""
    return COMPLETE in list_allowed(draw)


def get_least_step(draw: Draw) -> int:
    """Return the step from which the training must continue: of the last save, or of the stop where it can save."""
    if draw.moment in ("start", "rendezvous"):
        return 0
    reached = {"save": training.SAVED_STEP, "end": training.STEPS}.get(draw.moment, training.MOMENT_STEP)
    is_told = draw.deed in ("suspend", "terminate-all") or (
        draw.deed == "terminate" and draw.target.startswith(("supervisor", "node", "torchrun", "rank", "trainer"))
    )
    saves = draw.habit in ("plain", "title") and is_told
    if saves:
        return reached
    return reached - training.EVERY_STEPS if draw.moment == "save" else reached - reached % training.EVERY_STEPS


def _list_overlaps(folder: Path) -> list[str]:
    path = folder / "overlaps"
    return [f"two trainings at a time: {line}" for line in path.read_text().splitlines()] if path.exists() else []


def play(draws: list[Draw], folder: Path, show: Callable[[str], None] | None = None) -> list[str]:
    """Play draws, each in a folder of its own; return a line for each violation, and print what is left out."""
    violations = []
    for number, draw in enumerate(draws):
        place = folder / f"draw-{number}"
        place.mkdir(mode=0o777)
        began = time.monotonic()
        try:
            found = interrupt(draw, place)
        except (AssertionError, TrainerError) as error:
            found = [f"it hangs, or cannot be asked: {error}"]
        except LeftOutError as reason:
            print(f"{draw}: left out: {reason}", flush=True)
            continue
        if show:
            show(f"{number} {draw}: {'; '.join(found) or 'ok'} ({time.monotonic() - began:.1f} s)")
        violations += [f"{draw}: {each}" for each in found]
    return violations


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--draws", type=int, default=20, help="the faults of the issue are the first ones")
    parser.add_argument("--backend", choices=["local", "container"], default="local")
    parser.add_argument("--first", type=int, default=0, help="number of the first draw to play")
    parser.add_argument("--only", default="", help="play those whose description has this text")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    chance = random.Random(arguments.seed)  # noqa: S311 -- a seed to repeat the choices
    drawn, end = list_faults(arguments.backend), arguments.first + arguments.draws
    drawn += [make_draw(chance, arguments.backend) for _ in range(end - len(drawn))]
    drawn = drawn[arguments.first : end]
    chosen = [draw for draw in drawn if arguments.only in str(draw)]
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        violations = play(chosen, Path(folder), lambda line: print(line, flush=True))
    print(f"{len(chosen)} draws, {len(violations)} violations", flush=True)
    return int(bool(violations))


if __name__ == "__main__":
    sys.exit(main())
