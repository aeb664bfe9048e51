"""One run of a local job, from its first step to its outcome; the supervisor's loop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from trainer_core.backends.local import environments, events, ports, processes, record
from trainer_core.backends.local.files import Home, JobFolder, read_json, write_json
from trainer_core.backends.local.left import fetched, last_progress, left_by, tail
from trainer_core.backends.local.record import Record, StepRecord, now_text
from trainer_core.diagnosis import Facts, StepFacts
from trainer_core.fetching.settings import PREFIX
from trainer_core.observation import COMPLETE, CREATED, FAILED, RUNNING, SUSPENDED
from trainer_core.outcome import Diagnosis, Outcome
from trainer_core.ref import TrainJobRef

__all__ = ["Run"]

_log = logging.getLogger(__name__)
_TERMINATE_SECONDS = 3.0


class _SuspendedError(Exception):
    """The run was ended to be started again later."""


class _FailedError(Exception):
    """The run failed; carries the facts."""

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self.facts = facts


class Run:
    """Carries out the plan of one job and keeps its record.

    Args:
        home: The state folder.
        folder: The job's folder; its record is from now on changed by this object only.
        secrets: What initializers were given as literal text, by ``role.ENV``.
    """

    def __init__(self, home: Home, folder: JobFolder, secrets: Mapping[str, str]) -> None:
        self._home = home
        self._folder = folder
        self._secrets = secrets
        self._record = Record.from_dict(read_json(folder.status))
        self._plan: dict[str, Any] = read_json(folder.plan)
        self._ref = TrainJobRef("local", str(home.path), self._record.name, self._record.uid)
        self._wish = asyncio.Event()
        self._interrupted = False

    @property
    def keep(self) -> tuple[int, float]:
        """How many finished jobs to keep, and for how many days."""
        keep = self._plan["keep_finished"]
        return keep["jobs"], keep["days"]

    @property
    def keep_environments(self) -> bool:
        """Whether to keep environments that no job needs any more."""
        return bool(self._plan["keep_environments"])

    async def to_the_end(self) -> None:
        """Run, suspend and resume as wished, until the job has ended and its outcome is recorded."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._wish.set)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._interrupt)
        self._event("Created", f"TrainJob {self._record.name} is created")
        while True:
            try:
                await self._until_wanted()
                await self._once()
            except _SuspendedError:
                continue
            except _FailedError as failed:
                self._end_failed(failed.facts)
            except OSError as error:
                self._end_failed(Facts(infrastructure_error=f"its supervisor could not go on: {error}"))
            else:
                self._end(COMPLETE, self._complete())
            return

    async def _until_wanted(self) -> None:
        """Wait while the job is to be suspended."""
        suspended = False
        while self._desires("suspend", self._plan["suspend"]):
            if not suspended:
                suspended = True
                for step in self._record.steps:
                    step.status, step.pid, step.exit_code = record.PENDING, None, None
                self._set_status(SUSPENDED)
                self._event("Suspended", "TrainJob is suspended")
            self._check_cancelled()
            await self._wish.wait()
            self._wish.clear()
        self._check_cancelled()
        if suspended:
            self._set_status(CREATED)
            self._event("Resumed", "TrainJob is resumed")

    async def _once(self) -> None:
        """Carry out the plan once, within the deadline, unless a wish ends it."""
        work = asyncio.create_task(self._steps())
        try:
            await self._until_done_or_wish(work)
        finally:
            work.cancel()
            # Whatever it ended of, its processes end with it.
            await asyncio.gather(work, return_exceptions=True)
            await self._end_processes()

    async def _until_done_or_wish(self, work: asyncio.Task[None]) -> None:
        loop = asyncio.get_running_loop()
        seconds: int | None = self._plan["active_deadline_seconds"]
        deadline = None if seconds is None else loop.time() + seconds
        while True:
            wish = asyncio.create_task(self._wish.wait())
            left = None if deadline is None else max(0.0, deadline - loop.time())
            waited: set[asyncio.Task[Any]] = {work, wish}
            done, _ = await asyncio.wait(waited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            wish.cancel()
            if work in done:
                await work
                return
            if not done:
                raise _FailedError(Facts(deadline_seconds=seconds))
            self._wish.clear()
            self._check_cancelled()
            if self._desires("suspend", False):
                raise _SuspendedError

    async def _steps(self) -> None:
        self._record.started = self._record.started or now_text()
        self._set_status(RUNNING)
        steps = self._plan["steps"]
        for step in steps:
            if step["kind"] == "initializer":
                await self._run_steps([step], os.environ, self._secrets_of(step))
        nodes = [step for step in steps if step["kind"] == "node"]
        if nodes:
            await self._build_environment(nodes[0]["name"])
            with ExitStack() as stack:
                port = stack.enter_context(ports.reserved(self._home.ports))
                await self._run_steps(nodes, os.environ, {"PET_MASTER_PORT": str(port)})

    def _secrets_of(self, step: dict[str, Any]) -> dict[str, str]:
        """What an initializer needs to know and nobody else: it is in the environment of its process only."""
        role = f"{step['env'][PREFIX + 'ROLE']}."
        given = ((key.removeprefix(role), value) for key, value in self._secrets.items() if key.startswith(role))
        return {PREFIX + name: value for name, value in given}

    async def _build_environment(self, step: str) -> None:
        """Make the job's environment; the installer writes into the log of the first node."""
        wanted = self._plan["environment"]
        if wanted is None:
            return
        marks = {processes.MARK: self._record.uid}
        with _open_log(self._folder.log(step)) as log:
            try:
                await asyncio.to_thread(environments.build, self._home.environments, wanted, log, marks)
            except environments.BuildFailedError as error:
                facts = StepFacts(step, log_tail=tail(self._folder.log(step)))
                raise _FailedError(Facts(steps=[facts], image_error=str(error))) from error

    async def _run_steps(self, steps: list[dict[str, Any]], base: Any, extra: dict[str, str]) -> None:
        """Run steps side by side; the first that fails ends the others and the run."""
        tasks = [asyncio.create_task(self._run_step(step, {**base, **step["env"], **extra})) for step in steps]
        try:
            _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            if pending:
                # Peers of a failed node often fail by themselves a moment later, with the better reason.
                await asyncio.wait(pending, timeout=0.5)
            failed = [error for task in tasks if task.done() and (error := task.exception())]
            for error in failed:
                if not isinstance(error, _StepFailedError):
                    raise error
            if failed:
                ordered = sorted((e for e in failed if isinstance(e, _StepFailedError)), key=lambda e: e.order)
                raise _FailedError(Facts(steps=[e.facts for e in ordered])) from failed[0]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_step(self, step: dict[str, Any], env: dict[str, str]) -> None:
        name = step["name"]
        state = self._record.step(name)
        command = [str(self._interpreter(step)), *step["command"][1:]]
        env = {**env, processes.MARK: self._record.uid, "TRAINJOB_NAME": self._record.name, "PYTHONUNBUFFERED": "1"}
        # What an earlier run of it left says nothing about this one.
        self._folder.termination(name).unlink(missing_ok=True)
        with _open_log(self._folder.log(name)) as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=env,
                cwd=self._folder.workspace,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._step_started(state, process.pid)
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            await _stop(process)
            self._step_ended(state, process.returncode)
            raise
        self._step_ended(state, code)
        if code != 0:
            raise _StepFailedError(self._facts(name, code), order=self._next_order())

    def _interpreter(self, step: dict[str, Any]) -> Path:
        wanted = self._plan["environment"] if step["kind"] == "node" else None
        return environments.interpreter(self._home.environments, wanted)

    def _next_order(self) -> int:
        return sum(step.status == record.STEP_FAILED for step in self._record.steps)

    def _facts(self, name: str, code: int) -> StepFacts:
        error = left_by(self._folder.termination(name)).get("error") or {}
        return StepFacts(
            name=name,
            exit_code=code,
            node=socket.gethostname(),
            error_type=error.get("type"),
            error_message=str(error.get("message", "")),
            traceback=error.get("traceback"),
            log_tail=tail(self._folder.log(name)),
        )

    def _step_started(self, state: StepRecord, pid: int) -> None:
        if state.started:
            state.restarts += 1
        state.status, state.pid, state.exit_code = record.RUNNING, pid, None
        state.started, state.finished = now_text(), None
        self._save()
        self._event("Started", f"{state.name} is started as process {pid}", state.name)

    def _step_ended(self, state: StepRecord, code: int | None) -> None:
        state.status = record.SUCCEEDED if code == 0 else record.STEP_FAILED
        state.exit_code, state.finished = code, now_text()
        self._save()
        self._event("Ended", f"{state.name} ended with exit code {code}", state.name)

    async def _end_processes(self) -> None:
        await asyncio.to_thread(processes.end_all, self._record.uid)

    def _complete(self) -> Outcome:
        nodes = [step["name"] for step in self._plan["steps"] if step["kind"] == "node"]
        left = left_by(self._folder.termination(nodes[0])) if nodes else {}
        seen = last_progress(self._folder.log(nodes[0])) if nodes else None
        metrics = dict(seen.metrics) if seen else {}
        return record.complete_outcome(self._now_finished(), self._ref, left, metrics, fetched(self._folder.workspace))

    def _now_finished(self) -> Record:
        self._record.finished = now_text()
        return self._record

    def _end_failed(self, facts: Facts) -> None:
        self._end(FAILED, record.failed_outcome(self._now_finished(), self._ref, facts))

    def _end(self, status: str, outcome: Outcome) -> None:
        self._folder.reserve.unlink(missing_ok=True)
        for step in self._record.steps:
            if step.status == record.RUNNING:
                step.status = record.STEP_FAILED
        self._event(
            status, str(outcome.diagnosis) if outcome.diagnosis else f"TrainJob {self._record.name} is complete"
        )
        self._record.outcome = outcome.to_dict()
        self._set_status(status)

    def _interrupt(self) -> None:
        self._interrupted = True
        self._wish.set()

    def _check_cancelled(self) -> None:
        if self._desires("cancel", False):
            because = self._desired().get("because")
            raise _FailedError(Facts(cancelled=True, given_up=Diagnosis(**because) if because else None))
        if self._interrupted:
            raise _FailedError(Facts(infrastructure_error="its supervisor was told to stop (the machine shuts down?)"))

    def _desires(self, wish: str, default: bool) -> bool:
        return bool(self._desired().get(wish, default))

    def _desired(self) -> dict[str, Any]:
        try:
            return dict(read_json(self._folder.desired))
        except (FileNotFoundError, ValueError):
            return {}

    def _set_status(self, status: str) -> None:
        self._record.status = status
        self._save()

    def _save(self) -> None:
        write_json(self._folder.status, self._record.to_dict())

    def _event(self, reason: str, message: str, step: str | None = None) -> None:
        events.append(self._folder.events, reason, message, step)


class _StepFailedError(Exception):
    """A step ended with an exit code other than 0."""

    def __init__(self, facts: StepFacts, order: int) -> None:
        super().__init__(facts.name)
        self.facts = facts
        self.order = order


def _open_log(path: Path) -> Any:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Let a step end by itself, then end it."""
    processes.signal_group(process.pid, signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), _TERMINATE_SECONDS)
    except asyncio.TimeoutError:
        processes.signal_group(process.pid, signal.SIGKILL)
        await process.wait()
