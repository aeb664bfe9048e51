"""Attacks on the promises of the documentation. Each plays a number of rounds and returns the violations it saw.

Every random choice comes from the `random.Random` of the scenario, so that a seed repeats the choices. How processes
interleave is not repeated: that is what the rounds are for.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import checkpointed_walk as walk
import interrupted_pods as pods
import interruptions
import psutil
import search_chaos
from k8s_scene import a_client, a_request, a_stage
from local_jobs import PATIENCE, processes_of, supervisor_of, wait_until_dead
from local_submitter import submit

from trainer_core import CustomTrainer, Labels, LocalProcessBackendConfig, Name, TrainerClient
from trainer_core.base.errors import BackendUnavailableError, TrainerError
from trainer_core.base.text import MAX_MESSAGE
from trainer_core.base.yaml_documents import parse_yaml
from trainer_core.cli.app import run as run_command
from trainer_core.definition.initializers import initializer_from_dict
from trainer_core.definition.request_builder import build_request_data, parse_options
from trainer_core.model.backend_names import OWN_BACKENDS
from trainer_core.model.config import config_from_dict
from trainer_core.model.request import Owner, TrainJobRequest

ROOT = Path(__file__).parents[2]
CANARY = "Hunter2Canary"


@dataclass(frozen=True)
class Scenario:
    """An attack."""

    name: str
    #: What must hold.
    promise: str
    #: Number of rounds of `make attack`.
    rounds: int
    #: Number of rounds of `make test-all`; 0 where a test of its own plays some.
    short: int
    #: Plays a number of rounds in an empty folder; returns a line for each violation.
    play: Callable[[int, random.Random, Path], list[str]]


def waits(gate: str) -> str:
    from pathlib import Path

    print("it runs", flush=True)
    return Path(gate).read_text()


def returns() -> int:
    return 1


def _make_client(home: Path) -> TrainerClient:
    return TrainerClient(LocalProcessBackendConfig(home=home))


def _build(client: TrainerClient, name: str, func: Any = returns, **args: Any) -> TrainJobRequest:
    return client.build_request(runtime="python", trainer=CustomTrainer(func, func_args=args), options=[Name(name)])


@contextmanager
def _running_job(folder: Path, name: str) -> Iterator[tuple[TrainerClient, Any]]:
    """Yield a client and the ref of a job that waits; end the job afterwards."""
    client = _make_client(folder / "state")
    gate = folder / f"{name}.gate"
    os.mkfifo(gate)
    ref = client.submit(_build(client, name, waits, gate=str(gate)))
    try:
        next(line for line in client.get_job_logs(name, follow=True) if line == "it runs")
        yield client, ref
    finally:
        client.delete_job(ref)


def kill_submitters(rounds: int, chance: random.Random, folder: Path) -> list[str]:
    """Kill the submitter at a random instant; submit again; each function runs exactly once."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["trainer_core.client", "trainer_core.backends.local.backend", "yaml"])
    home, runs = folder / "state", folder / "runs"
    runs.mkdir()
    client = _make_client(home)
    duration = 1.0
    for number in range(rounds):
        submitter = processes.Process(target=submit, args=(home, runs, f"job{number}"))
        begin = time.monotonic()
        submitter.start()
        if number > 1:
            # Not an assumption about speed: a submitter that is done earlier, or later, is another valid round.
            submitter.join(chance.uniform(0, duration))
            submitter.kill()
        submitter.join(PATIENCE)
        duration = time.monotonic() - begin if number == 1 else duration
        submitter = processes.Process(target=submit, args=(home, runs, f"job{number}"))
        submitter.start()
        submitter.join(PATIENCE)
    violations = []
    for number in range(rounds):
        outcome = client.wait(client.get_job_ref(f"job{number}"), timeout=PATIENCE)
        count = len((runs / f"job{number}").read_text().splitlines())
        if count != 1 or not outcome.succeeded:
            violations.append(f"job{number} ran {count} times and is {outcome.status}")
    if len(client.list_jobs()) != rounds:
        violations.append(f"{len(client.list_jobs())} jobs for {rounds} owners")
    return violations


def kill_supervisors(rounds: int, chance: random.Random, folder: Path) -> list[str]:
    """Kill the supervisor, its process group, or one node of a running job: the job fails and no process remains."""
    violations = []
    for number in range(rounds):
        with _running_job(folder, f"job{number}") as (client, ref):
            found = processes_of(ref.uid)
            supervisor = supervisor_of(folder / "state", ref.name)
            target = chance.choice(["supervisor", "group", "node"])
            if target == "group":
                os.killpg(os.getpgid(supervisor.pid), signal.SIGKILL)
            else:
                (supervisor if target == "supervisor" else chance.choice(found)).kill()
            outcome = client.wait(ref, timeout=PATIENCE)
            retryable = outcome.diagnosis is not None and outcome.diagnosis.retryable
            if outcome.succeeded or not retryable:
                violations.append(f"{target} killed: the job is {outcome.status}, retryable {retryable}")
            if not wait_until_dead(found):
                violations.append(f"{target} killed: processes remain")
    return violations


def interrupt_trainings(rounds: int, chance: random.Random, folder: Path) -> list[str]:
    """Interrupt a training of two ranks at random instants; its last attempt has the result of an undisturbed one."""
    client = _make_client(folder / "state")
    expected = client.wait(walk.submit(client, Owner(key="undisturbed"), seconds=0), timeout=PATIENCE).result["place"]
    kinds = [walk.kill_rank, walk.kill_all, walk.kill_supervisor, walk.terminate_rank]
    violations = []
    for training in range(0, rounds, len(kinds)):
        owner, finish = Owner(key=f"training-{training}", generation="0"), folder / f"finish-{training}"
        chance.shuffle(kinds)
        before: tuple[Any, Path] | None = None
        for number, interrupt in enumerate([*kinds[: rounds - training], None]):
            what = interrupt.__name__ if interrupt else "the last attempt"
            if interrupt is None:
                finish.touch()
            trace = folder / f"trace-{training}-{number}"
            ref = walk.submit(client, owner, finish=str(finish), trace=str(trace))
            if interrupt:
                walk.wait_for_step(client, ref, least=chance.randint(1, 60) + 60 * number)
                time.sleep(chance.random() / 50)
                interrupt(client, ref, chance)
            outcome = client.wait(ref, timeout=PATIENCE)
            if interrupt and not (outcome.diagnosis and outcome.diagnosis.retryable):
                violations.append(f"{what}: the job is {outcome.status}, and no retry follows")
            if interrupt is None and (outcome.result or {}).get("place") != expected:
                violations.append(f"{what}: the job is {outcome.status}, and its result differs")
            if before:
                # Read only now: after a kill of the supervisor the ranks train until its guard or a retry ends them.
                done = max(map(int, before[1].read_text().split()))
                least = done if before[0] is walk.terminate_rank else done - walk.INTERVAL
                if not max(0, least) <= (outcome.resumed_from or 0) <= done:
                    violations.append(f"{what}: continued from {outcome.resumed_from}, expected {least} to {done}")
            before = (interrupt, trace)
    left = [*(folder / "state" / "checkpoints").glob("*/*/.part-*")]
    return [*violations, *(f"{path} remains" for path in left)]


def interrupt_pods(rounds: int, chance: random.Random, folder: Path) -> list[str]:
    """Interrupt a training on two pods, half of the time inside a save; after the retries its result is the same."""
    violations = []
    with a_stage(grace=60.0) as (cluster, client):
        kinds = [(kind, in_save) for kind in pods.INTERRUPTIONS for in_save in (True, False)]
        for training in range(0, rounds, len(kinds)):
            chance.shuffle(kinds)
            drawn = kinds[: rounds - training]
            violations += pods.Training(cluster, client, folder / f"training-{training}").run(drawn, chance)
        left = [path for path in cluster.claims_folder().rglob("*") if path.name.startswith((".part-", ".gone-"))]
    return [*violations, *(f"{path} remains" for path in left)]


def interrupt_trees(rounds: int, chance: random.Random, folder: Path, backend: str = "local") -> list[str]:
    """Interrupt trees of processes: the faults that a tree has shown before, then others at random."""
    known = interruptions.list_faults(backend)
    draws = [chance.choice([chance.choice(known), interruptions.make_draw(chance, backend)]) for _ in range(rounds)]
    return interruptions.play(draws, folder)


def interrupt_containers(rounds: int, chance: random.Random, folder: Path) -> list[str]:
    """Interrupt trees of processes in containers."""
    return interrupt_trees(rounds, chance, folder, "container")


def race_cancels(rounds: int, chance: random.Random, folder: Path) -> list[str]:
    """Cancel a job while others suspend and resume it: once the cancel has returned, the job is Failed for good."""
    violations = []
    for number in range(rounds):
        with _running_job(folder, f"job{number}") as (client, ref):
            verbs = [client.suspend, client.resume, client.resume, client.suspend]
            chance.shuffle(verbs)
            start = threading.Barrier(len(verbs) + 1)

            def ask(verb: Any, start: threading.Barrier = start, ref: Any = ref) -> None:
                start.wait()
                with suppress(TrainerError):
                    verb(ref)

            with ThreadPoolExecutor(len(verbs) + 1) as threads:
                list(threads.map(ask, [client.cancel, *verbs]))
            outcome = client.observe(ref).outcome
            category = outcome.diagnosis.category.value if outcome and outcome.diagnosis else None
            if outcome is None or outcome.succeeded or (outcome.diagnosis and outcome.diagnosis.retryable):
                violations.append(f"{ref.name} is {outcome.status if outcome else 'not ended'} ({category})")
    return violations


def race_owners(rounds: int, chance: random.Random, folder: Path) -> list[str]:
    """Three clients submit the job of one owner to a cluster where a fifth of the requests fail: one TrainJob each."""
    del folder
    violations = []
    with a_stage() as (cluster, first):
        clients = [first, a_client(cluster), a_client(cluster)]
        cluster.faults.at_random(0.2, seed=chance.randrange(10**6))

        def send(client: Any, request: Any) -> str:
            for _ in range(20):
                with suppress(BackendUnavailableError):
                    return str(client.submit(request).uid)
            return "unavailable"

        for number in range(rounds):
            request = a_request(f"job{number}", owner=Owner(key=f"owner{number}").model_dump())
            with ThreadPoolExecutor(3) as threads:
                uids = set(threads.map(send, clients, [request] * 3))
            if len(uids) != 1 or "unavailable" in uids:
                violations.append(f"owner{number} has {len(uids)} jobs: {', '.join(sorted(uids))}")
        cluster.faults.clear()
        if len(first.list_jobs()) != rounds:
            violations.append(f"{len(first.list_jobs())} TrainJobs for {rounds} owners")
    return violations


def _list_hostile_texts() -> list[Any]:
    odd = ["", " ", "\0", "\x1b[31m", "a\nb", "\ud800", "../x", "-", "{", "{{ x }}", "x" * 2000, "é" * 500, "1e999"]
    uris = ["hf://a/b", "cache://a/b", "s3://a/b", "file:///a", "pvc://a/b", "http://u:p@h/x", "http://[::1", "s3://["]
    words = ["a:b", "json:loads", "local", "kubernetes", "python", "9" * 5000, "nan", "1Gi", "true", "2020-13-45"]
    yaml = ["[" * 3000, "&a [*a]", "x: !!timestamp x", "- - -", "? [a]\n: b", "!!python/object:os.system {}"]
    return [*odd, *uris, *words, *yaml]


def _draw(chance: random.Random, depth: int = 0) -> Any:
    """Return a hostile value."""
    kind = chance.random()
    texts = _list_hostile_texts()
    if kind < 0.45:
        return chance.choice(texts)
    if kind < 0.7 or depth > 3:
        numbers = [0, 1, -1, 2**31, 10**400, 10**5000, 0.5, 1e308, float("nan"), float("inf")]
        return chance.choice([None, True, False, *numbers, b"x", object(), {"x"}, (1, 2)])
    if kind < 0.75:
        value: list[Any] = ["x"]
        for _ in range(40):
            value = [value, value]
        return value
    if kind < 0.88:
        return [_draw(chance, depth + 1) for _ in range(chance.randrange(4))]
    keys = [*texts, "storage_uri", "name", "key", "func", "image", "config", "env", "version", 1]
    return {chance.choice(keys): _draw(chance, depth + 1) for _ in range(chance.randrange(4))}


def _draw_definition(chance: random.Random) -> dict[str, Any]:
    trainer = {"func": "json:loads", "packaging": "reference", "image": "x"}
    fields = ["func_args", "num_nodes", "env", "resources_per_node", "packages_to_install", "pip_index_urls", "config"]
    parts = {
        "trainer": {**trainer, **{name: _draw(chance) for name in chance.sample(fields, 2)}},
        "initializer": {chance.choice(["dataset", "model"]): _draw(chance)},
        "options": [{chance.choice(["Labels", "RuntimePatch", "OnBackend", "Checkpoints", "Tracking"]): _draw(chance)}],
    }
    return {name: chance.choice([value, _draw(chance)]) for name, value in parts.items() if chance.random() < 0.7}


def give_hostile_input(rounds: int, chance: random.Random, folder: Path) -> list[str]:  # noqa: C901  # one list of targets
    """Give hostile values to everything that takes input: a result, or quickly a documented error of one short line."""
    home = folder / "state"
    request = {"version": 1, "trainer": {"kind": "container", "image": "x"}}

    def build(definition: dict[str, Any]) -> Any:
        initializer = definition.pop("initializer", None)
        made = initializer_from_dict(initializer) if isinstance(initializer, dict) else initializer
        return build_request_data(backend=None, initializer=made, **definition)

    def parse(data: dict[str, Any]) -> Any:
        return TrainJobRequest.parse(data).to_json()

    def render(text: str) -> None:
        # An argument of a process has neither a NUL nor a lone surrogate of another kind.
        output = StringIO()
        with redirect_stdout(output), redirect_stderr(output):
            code = run_command(["--home", str(home), "render", "--image", text, "--name", text])
        if code not in (2, 3, 4, 5, 6):
            raise AssertionError(f"exit code {code}")
        raise ValueError(output.getvalue().strip())

    targets: list[Callable[[], Any]] = [
        lambda: build(_draw_definition(chance)),
        lambda: parse({**request, chance.choice(sorted(TrainJobRequest.model_fields)): _draw(chance)}),
        lambda: config_from_dict(chance.choice([*OWN_BACKENDS, _draw(chance)]), _draw(chance)),
        lambda: parse_options(_draw(chance)),
        lambda: initializer_from_dict(_draw(chance)),
        lambda: CustomTrainer(*[_draw(chance) for _ in range(2)]),
        lambda: parse_yaml(str(chance.choice(_list_hostile_texts()))),
        lambda: TrainJobRequest.from_json(str(chance.choice(_list_hostile_texts()))),
        lambda: render(str(chance.choice(_list_hostile_texts()))),
    ]
    violations = []
    for number in range(rounds):
        target = chance.randrange(len(targets))
        begin = time.process_time()
        try:
            targets[target]()
        except (ValueError, TrainerError) as error:
            text = str(error)
            if not text.strip() or len(text) > MAX_MESSAGE + len("trainjob: ") or not text.isprintable():
                violations.append(f"round {number}, target {target}: {text[:200]!r}")
        except Exception as error:  # noqa: BLE001  # every other error is a violation
            violations.append(f"round {number}, target {target}: {type(error).__name__}: {str(error)[:200]!r}")
        if time.process_time() - begin > 5:
            violations.append(f"round {number}, target {target} took {time.process_time() - begin:.0f} s of processor")
    if (home / "jobs").exists():
        violations.append("a job was created")
    return violations


def _list_leaking_requests(client: TrainerClient) -> list[tuple[str, Callable[[], Any]]]:
    """Return what a user may do with a secret, by the channel that it takes."""
    url = f"https://user:{CANARY}@127.0.0.1:9/simple"
    token_url = f"https://127.0.0.1:9/simple?token={CANARY}"
    source = {"storage_uri": "s3://bucket/x", "endpoint": "http://127.0.0.1:9", "access_key_id": CANARY}
    initializer = initializer_from_dict({"dataset": {**source, "secret_access_key": CANARY}})

    def train(**fields: Any) -> Any:
        return client.submit(
            client.build_request(
                runtime="python", trainer=CustomTrainer(returns, **fields), options=[Name("leak"), Labels({"a": "b"})]
            )
        )

    return [
        ("URL of a package", lambda: train(packages_to_install=[f"x @ {url}"])),
        ("package index", lambda: train(packages_to_install=["x"], pip_index_urls=[url])),
        (
            "token of a package index",
            lambda: train(packages_to_install=["x"], pip_index_urls=[token_url]),
        ),
        ("package index as a string", lambda: train(packages_to_install=["x"], pip_index_urls=url)),
        ("image", lambda: CustomTrainer(returns, image=5, env={"A": CANARY})),
        ("value of a variable", lambda: train(env={"A": CANARY + "\0"})),
        ("kubeconfig", lambda: config_from_dict("kubernetes", {"kube_config": f"token: {CANARY}"})),
        ("address of an engine", lambda: TrainerClient(config_from_dict("container", {"container_host": url}))),
        ("tracking URI", lambda: parse_options([{"Tracking": {"uri": url}}])),
        ("keys of S3", lambda: client.submit(client.build_request(initializer=initializer, options=[Name("leak")]))),
    ]


def plant_canaries(rounds: int, chance: random.Random, folder: Path) -> list[str]:
    """Give a secret by each channel, and look for it in messages, arguments of processes, logs and files of others."""
    client = _make_client(folder / "state")
    channels = _list_leaking_requests(client)
    violations = []
    for number in range(rounds):
        channel, use = channels[number % len(channels)] if rounds >= len(channels) else chance.choice(channels)
        seen = []
        try:
            ref = use()
        except (ValueError, TrainerError) as error:
            seen.append(("message", str(error)))
        else:
            if hasattr(ref, "uid"):
                seen += [("arguments", " ".join(_read_arguments(each))) for each in processes_of(ref.uid)]
                outcome = client.wait(ref, timeout=PATIENCE)
                steps = [step.name for step in client.get_job(ref.name).steps]
                seen += [("outcome", outcome.to_json())]
                seen += [(f"log of {step}", "".join(client.get_job_logs(ref, step))) for step in steps]
        for path in (folder / "state").rglob("*"):
            if path.is_file() and path.stat().st_mode & 0o077:
                seen.append((f"file {path.name}", path.read_bytes().decode("utf-8", "replace")))
        violations += [f"{channel}: in the {where}" for where, text in seen if CANARY in text]
        client.delete_job("leak")
    return violations


def _read_arguments(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def soak(rounds: int, chance: random.Random, folder: Path) -> list[str]:
    """Submit, end and delete jobs, three at a time: neither files nor processes nor memory remain."""
    client = _make_client(folder / "state")
    me = psutil.Process()
    memory: list[int] = []

    def live(number: int) -> str | None:
        name = f"job{number}"
        ref = client.submit(_build(client, name))
        if chance.random() < 0.2:
            client.cancel(ref)
        status = client.wait(ref, timeout=PATIENCE).status
        client.delete_job(ref)
        memory.append(me.memory_info().rss)
        return None if status in ("Complete", "Failed") else f"{name} is {status}"

    with ThreadPoolExecutor(3) as threads:
        violations = [each for each in threads.map(live, range(rounds)) if each]
    left = [path for name in ("jobs", "staging", "ports", "trash") for path in (folder / "state" / name).iterdir()]
    if left:
        violations.append(f"{len(left)} files remain, such as {left[0]}")
    half = len(memory) // 2
    if half >= 10 and max(memory[half:]) > 1.2 * max(memory[:half]):
        violations.append(f"memory grew from {max(memory[:half]) >> 20} to {max(memory[half:]) >> 20} MB")
    return violations


def kill_search_drivers(rounds: int, chance: random.Random, folder: Path) -> list[str]:
    """Kill the drivers of a search, one or two at a time."""
    return search_chaos.kill_drivers(folder, 2 + 2 * rounds, rounds, chance.randint(1, 2), chance)


def kill_drivers_of_a_kind(rounds: int, chance: random.Random, folder: Path) -> list[str]:
    """Kill drivers of searches with a grid, TPE, or a rule of early stop, one or two at a time."""
    violations = []
    for number in range(rounds):
        kind = chance.choice([each for each in search_chaos.KINDS if each != "random"])
        violations += search_chaos.kill_drivers(folder / str(number), 6, 2, chance.randint(1, 2), chance, kind)
    return violations


_NODE = """
import json, os, signal, subprocess, sys, tempfile
from pathlib import Path
from trainer_core.node import env
from trainer_core.node.attendant import Attendant

os.environ[env.BEATS], os.environ[env.STALLED] = tempfile.mkdtemp(), "{}"
attendant = Attendant(Path(os.environ[env.BEATS]), {"after": float(sys.argv[1])}, print)
rank = subprocess.Popen([sys.executable, "-c", sys.argv[2], *sys.argv[3:]])
while rank.poll() is None:
    if attendant.check():
        attendant.print_stacks()
        rank.kill()
        sys.exit(124)
    try:
        rank.wait(attendant.pause)
    except subprocess.TimeoutExpired:
        pass
sys.exit(rank.returncode)
"""
_RANK = """
import sys, time
from trainer_core.node import beats

beats.begin()
for pauses in map(int, sys.argv[1:]):
    beats.beat()
    for _ in range(pauses):  # Not one pause, which would be over after the time in which the process is stopped.
        time.sleep(0.01)
"""
#: Seconds without progress until a node is ended; its ranks report progress after ten waits for a processor at most.
_AFTER = 2.0


def keep_busy_nodes(rounds: int, chance: random.Random, folder: Path) -> list[str]:
    """Run nodes with an attendant beside busy processes, and stop all processes of each node for some time."""
    busy = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(4)]
    for each in busy:
        each.start()

    def live(number: int, seed: int) -> str | None:
        own = random.Random(seed)  # noqa: S311 -- a seed to repeat the choices
        pauses = [str(own.randint(1, 10)) for _ in range(100)]
        command = [sys.executable, "-c", _NODE, f"{_AFTER:g}", _RANK, *pauses]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
        node = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
        time.sleep(own.uniform(0, 5))
        with suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGSTOP)
            time.sleep(own.choice([0, 2 * _AFTER, 5 * _AFTER]))
            os.killpg(node.pid, signal.SIGCONT)
        output, _ = node.communicate(timeout=PATIENCE)
        return None if node.returncode == 0 else f"node {number} ended with {node.returncode}: {output[-300:]}"

    try:
        with ThreadPoolExecutor(8) as threads:
            seeds = [chance.randrange(2**32) for _ in range(rounds)]
            return [each for each in threads.map(live, range(rounds), seeds) if each]
    finally:
        for each in busy:
            each.kill()


def _spin() -> None:
    while True:
        pass


SCENARIOS = (
    Scenario(
        "Eight nodes with the option Stalled at a time, beside four busy processes; all processes of a node stopped "
        "for up to five times its limit",
        "a node whose ranks report progress is not ended",
        200,
        2,
        keep_busy_nodes,
    ),
    Scenario(
        "Submitter killed at a random instant, then submitted again",
        "one job for each owner, which runs once",
        80,
        2,
        kill_submitters,
    ),
    Scenario(
        "Supervisor, its process group or a node killed",
        "the job fails as retryable, and no process remains",
        40,
        1,
        kill_supervisors,
    ),
    Scenario(
        "A training of two ranks: one or all killed, the supervisor killed, told to stop",
        f"a retry continues, with at most {walk.INTERVAL} steps done twice, none after SIGTERM; the result is the same",
        80,
        4,
        interrupt_trainings,
    ),
    *(
        Scenario(
            f"A tree of processes {where}, of torchrun or of a child that trains: one killed, one or all told to stop "
            "or stopped for a while, no memory, suspended, cancelled; at the rendezvous, in a collective, in a save, "
            "between or at the end",
            "the cause and whether it is retried are right, no process remains, two trainings never run at a time, the "
            "result is the same",
            rounds,
            0,
            play,
        )
        for where, rounds, play in (
            ("on this machine", 24, interrupt_trees),
            ("in a container", 16, interrupt_containers),
        )
    ),
    Scenario(
        "A training on two pods: one or all killed, a pod deleted, one or both evicted, told to stop; half of them "
        "inside a save",
        f"a restart or retry continues within two minutes, with at most {pods.INTERVAL} steps done twice, none after "
        "SIGTERM; the result is the same",
        100,
        4,
        interrupt_pods,
    ),
    Scenario(
        "Cancel at the same time as two suspends and two resumes",
        "once the cancel has returned, the job has failed and is not retried",
        40,
        2,
        race_cancels,
    ),
    Scenario(
        "Three clients submit for one owner; 20 % of the API requests fail",
        "one TrainJob for each owner",
        40,
        3,
        race_owners,
    ),
    Scenario(
        "A driver of a search killed, alone or one of two",
        "each trial runs once, with the parameters and the value of an undisturbed search, never more at a time than "
        "asked for",
        50,
        1,
        kill_search_drivers,
    ),
    Scenario(
        "Drivers of a search with a grid, TPE, ASHA, promotion or median stopping killed, alone or one of two",
        "the parameters are those of an undisturbed search, no run exists twice, each stop follows from the reports",
        24,
        1,
        kill_drivers_of_a_kind,
    ),
    Scenario(
        "Hostile values in everything that takes input",
        f"a result, or a documented error: one line of at most {MAX_MESSAGE} characters; no job is created",
        6_000,
        150,
        give_hostile_input,
    ),
    Scenario(
        "A secret given by each of ten channels",
        "it is in no message, argument, log or outcome, and in no file that others may read",
        80,
        10,
        plant_canaries,
    ),
    Scenario(
        "Soak: submit, sometimes cancel, wait, delete; three at a time",
        "no file remains, and memory does not grow",
        150,
        3,
        soak,
    ),
)
