"""A training on two pods of the cluster double, and ways to interrupt it, also inside a save at a chosen operation."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fake_cluster import Cluster
from fake_cluster.building import COMPLETION_INDEX
from fake_cluster.raw_client import RawClient

from trainer_core import Checkpoints, CustomTrainer, Owner, TrainerClient
from trainer_core.model.jobs import Outcome

#: Steps between two checkpoints.
INTERVAL = 5
_RANKS = 2
#: Seconds after an interruption until the ranks train again.
_PATIENCE = 240.0


def walk(folder: str, seconds: float) -> dict[str, Any]:
    """Walk at random until the step in the file `finish`; each rank writes its starts and steps into a file.

    While there is a file `strike-<rank>`, the next save of that rank stops before the operation with the number in it,
    until there is a file `release`.
    """
    import json
    import random
    import sys
    import threading
    import time
    from pathlib import Path

    from trainer_core import checkpoints

    place = Path(folder)
    store, dice, position, step = checkpoints(), random.Random(7), 0.0, 0  # noqa: S311
    if last := store.latest():
        state = json.loads((last.path / f"rank-{store.rank}.json").read_text())
        version, internal, gauss = state["dice"]
        dice.setstate((version, tuple(internal), gauss))
        position, step = state["position"], last.step
    strike, left = place / f"strike-{store.rank}", [0]

    def stop_at_operation(event: str, _: Any) -> None:
        counts = event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")
        if left[0] and counts and threading.current_thread() is threading.main_thread():
            left[0] -= 1
            if not left[0]:
                strike.rename(place / "struck")
                while not (place / "release").exists():
                    time.sleep(0.005)

    sys.addaudithook(stop_at_operation)
    with (place / f"trace-{store.rank}").open("a", buffering=1) as trace:
        print("from", step, file=trace)
        while not (place / "finish").exists() or step < int((place / "finish").read_text()):
            step += 1
            position += dice.gauss(0, 1)
            time.sleep(seconds)
            print(step, file=trace)
            if store.due(step):
                left[0] = int(strike.read_text()) if strike.exists() else 0
                with store.save(step) as part:
                    state = {"dice": dice.getstate(), "position": position}
                    (part / f"rank-{store.rank}.json").write_text(json.dumps(state))
                left[0] = 0
    return {"position": position, "steps": step}


def compute_position(steps: int) -> float:
    """Return where an undisturbed walk is."""
    dice, position = random.Random(7), 0.0  # noqa: S311
    for _ in range(steps):
        position += dice.gauss(0, 1)
    return position


@dataclass
class Training:
    """A training that an orchestrator retries until it is complete."""

    cluster: Cluster
    client: TrainerClient
    #: An empty folder for what the ranks write besides checkpoints.
    folder: Path
    attempts: list[Outcome] = field(default_factory=list)
    #: A line for each interruption after which the ranks did not train for four minutes.
    hangs: list[str] = field(default_factory=list)

    def run(self, interruptions: Sequence[tuple[str, bool]], chance: random.Random) -> list[str]:
        """Run it with interruptions, each with whether it strikes inside a save; return the violations."""
        self.folder.mkdir()
        last = "the start"
        with ThreadPoolExecutor(1) as orchestrator:
            ended = orchestrator.submit(self._retry)
            for kind, in_save in interruptions:
                self._wait_for_start(ended, chance.randint(1, 2 * INTERVAL), last)
                self._interrupt(ended, kind, in_save, chance)
                last = kind
            self._wait_for_start(ended, 1, last)
            self._write("finish", str(self._read_steps(0)[-1] + 10 * INTERVAL))
            outcome = ended.result()
        return [*self.hangs, *self._check_result(outcome), *self._check_starts()]

    def _retry(self) -> Outcome:
        owner = Owner(key=str(self.folder), slug="walk", generation="0")
        args = {"folder": str(self.folder), "seconds": 0.01}
        request = self.client.build_request(
            runtime="python",
            trainer=CustomTrainer(func=walk, func_args=args, num_nodes=_RANKS),
            options=[Checkpoints("pvc://checkpoints/of-walks", every_steps=INTERVAL)],
            owner=owner,
        )
        while not self.attempts or (self.attempts[-1].diagnosis and self.attempts[-1].diagnosis.retryable):
            self.attempts.append(self.client.wait(self.client.submit(request), timeout=600))
        return self.attempts[-1]

    def _interrupt(self, ended: Future[Outcome], kind: str, in_save: bool, chance: random.Random) -> None:
        rank = chance.randrange(_RANKS)
        if in_save:
            self._write(f"strike-{rank}", str(chance.randint(1, 6)))
            self.cluster.until(lambda: (self.folder / "struck").exists() or ended.done())
        where = " in a save" if in_save else ""
        for each in range(_RANKS):
            with (self.folder / f"trace-{each}").open("a") as trace:
                print(f"interrupted: {kind}{where}", file=trace)
        interrupt, _ = INTERRUPTIONS[kind]
        pods = [name for each in range(_RANKS) for name in self._find_pods(each)]
        # None where the restarts so far have just failed the attempt: its pods are being deleted.
        if len(pods) == _RANKS:
            interrupt(self.cluster, pods, rank)
        if in_save:
            (self.folder / "release").touch()

    def _find_pods(self, rank: int) -> list[str]:
        return [
            raw["metadata"]["name"]
            for raw in self.cluster.objects("pods")
            if raw["metadata"]["annotations"][COMPLETION_INDEX] == str(rank)
            and raw["status"]["phase"] == "Running"
            and "deletionTimestamp" not in raw["metadata"]
        ]

    def _wait_for_start(self, ended: Future[Outcome], least: int, last: str) -> None:
        """Wait until all ranks have done some steps since they were interrupted."""
        begin = time.monotonic()

        def is_running(rank: int) -> bool:
            steps = self._read_steps(rank)
            return len(steps) >= least

        self.cluster.until(lambda: all(map(is_running, range(_RANKS))) or ended.done())
        if (seconds := time.monotonic() - begin) > _PATIENCE:
            self.hangs.append(f"{last}: the ranks trained again after {seconds:.0f} s")
        for name in ("struck", "release"):
            (self.folder / name).unlink(missing_ok=True)

    def _check_result(self, outcome: Outcome) -> list[str]:
        result = outcome.result or {}
        if "steps" in result and result["position"] == compute_position(result["steps"]):
            return []
        reason = outcome.diagnosis.reason if outcome.diagnosis else ""
        return [f"the last of {len(self.attempts)} attempts is {outcome.status} ({reason}), its result {result}"]

    def _check_starts(self) -> list[str]:
        """Return the starts that did more steps twice than an interruption may cost."""
        violations, done, cost, line = [], 0, INTERVAL, ""
        for each in self._read_lines(0):
            word, *rest = each.split()
            if word == "interrupted:":
                cost, line = INTERRUPTIONS[rest[0]][1], each
            elif word == "from":
                begun = int(rest[0])
                if not done - cost <= begun <= done:
                    violations.append(f"{line}: continued from {begun}, {done} steps were done")
                done = begun
            else:
                done = int(word)
        return violations

    def _read_steps(self, rank: int) -> list[int]:
        """Return the steps since the last start, if it came after the last interruption."""
        lines = self._read_lines(rank)
        last = max((number for number, line in enumerate(lines) if not line.isdecimal()), default=None)
        return [] if last is None or not lines[last].startswith("from ") else list(map(int, lines[last + 1 :]))

    def _read_lines(self, rank: int) -> list[str]:
        path = self.folder / f"trace-{rank}"
        # The last line may be half written.
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def _write(self, name: str, text: str) -> None:
        new = self.folder / f"{name}.new"
        new.write_text(text)
        new.replace(self.folder / name)


def _kill_rank(cluster: Cluster, pods: list[str], rank: int) -> None:
    cluster.signal(pods[rank], signal.SIGKILL)


def _kill_all(cluster: Cluster, pods: list[str], rank: int) -> None:
    del rank
    for pod in pods:
        cluster.signal(pod, signal.SIGKILL)


def _terminate_rank(cluster: Cluster, pods: list[str], rank: int) -> None:
    cluster.signal(pods[rank], signal.SIGTERM)


def _delete_pod(cluster: Cluster, pods: list[str], rank: int) -> None:
    cluster.delete("pods", pods[rank])


def _evict_pod(cluster: Cluster, pods: list[str], rank: int) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pods[rank]}}
    with RawClient(cluster.url) as asker:
        status, answer = asker.ask("POST", f"/api/v1/namespaces/default/pods/{pods[rank]}/eviction", body)
    assert status == 201, answer


def _evict_one_after_the_other(cluster: Cluster, pods: list[str], rank: int) -> None:
    """Delete a pod with its grace, and evict the other one while the first is still terminating."""
    cluster.delete("pods", pods[rank], grace=30)
    _evict_pod(cluster, pods, 1 - rank)


#: What interrupts a rank, and the steps that may be done twice after it. A container that is killed is restarted in its
#: pod; a pod that is deleted without grace or evicted is replaced.
INTERRUPTIONS: dict[str, tuple[Callable[[Cluster, list[str], int], None], int]] = {
    "kill-rank": (_kill_rank, INTERVAL),
    "kill-all": (_kill_all, INTERVAL),
    "delete-pod": (_delete_pod, INTERVAL),
    "terminate-rank": (_terminate_rank, 0),
    "evict-pod": (_evict_pod, 0),
    "evict-one-after-the-other": (_evict_one_after_the_other, INTERVAL),
}
