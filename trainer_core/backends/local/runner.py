"""Runs a local job from its first step to its outcome. This is the main loop of the supervisor.

`LocalJobRunner.run` repeats this until the job has ended:

1. It waits while the job is suspended, then for its place in the queue of the host.
2. `_run_plan` runs the initializers, one after the other, and builds the environment of the packages.
3. All nodes run at the same time. A change of the desired state, the deadline, or a node that fails ends the others.
4. A suspended job begins again at 1, and so does one that its rules start again after a failure; otherwise the
   outcome is recorded.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import random
import signal
import socket
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from trainer_core.backends.local import environments, job_record, processes
from trainer_core.backends.local.artifacts import (
    list_fetched_uris,
    read_last_lines,
    read_last_progress,
)
from trainer_core.backends.local.job_queue import JobQueue, Ticket
from trainer_core.backends.local.job_record import JobRecord, StepRecord, make_ref, parse_cancellation, utc_timestamp
from trainer_core.backends.local.job_store import JobFolder, StateFolder, read_json, write_json
from trainer_core.backends.local.log_times import record_growth
from trainer_core.base.validation import format_duration
from trainer_core.fetch.settings import ENV_PREFIX
from trainer_core.lifecycle.diagnosis import Facts, StepFacts, is_consequence
from trainer_core.lifecycle.restart_policy import AttemptRestarts, count_restart
from trainer_core.model.jobs import (
    COMPLETE,
    CREATED,
    FAILED,
    RUNNING,
    SUSPENDED,
    Outcome,
    Progress,
    build_complete_outcome,
)
from trainer_core.model.resource_use import summarize_resource_use
from trainer_core.node import cgroup, env, exit_code, locks, resource_monitor
from trainer_core.node.attendant import Attendant
from trainer_core.node.termination import read_record

_log = logging.getLogger(__name__)
_TERMINATION_GRACE_SECONDS = 3.0
#: The other nodes usually fail shortly after the first one, and may have the better reason; longest time to wait for
#: the node that made those fail that have failed.
_PEER_FAILURE_SECONDS, _CAUSE_SECONDS = 0.5, 30.0
#: Below the range of ports that Linux uses for outgoing connections.
_FIRST_PORT, _LAST_PORT = 20_000, 32_000
_PORT_TRIES = 200
#: Reports of the use of resources that wait for the end of a line: those of almost three hours.
_MAX_WAITING_REPORTS = 1000
#: Seconds between two looks for processes whose parents have ended.
_ORPHANS_SECONDS = 0.1
#: Precision of the times of log lines.
_LOG_TIMES_SECONDS = 1.0
#: Pause before processes of an earlier start, which could not be killed, are looked for again.
_LEFT_PROCESSES_SECONDS = 1.0
_MARKING_PROGRAM = "trainer_core/node/exit_code.py"
_QUEUE_POLL_SECONDS, _MAX_QUEUE_POLL_SECONDS = 0.2, 2.0


class _SuspendedError(Exception):
    """The run was ended because the job is to be suspended."""


class _FailedError(Exception):
    """The run failed."""

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self.facts = facts


class _StepFailedError(Exception):
    """A step exited with a code other than 0."""

    def __init__(self, facts: StepFacts, order: int) -> None:
        super().__init__(facts.name)
        self.facts = facts
        self.order = order


class LocalJobRunner:
    """Executes the plan of one job and keeps its record up to date."""

    def __init__(self, state: StateFolder, folder: JobFolder, secrets: Mapping[str, str], ticket: Ticket) -> None:
        self._state = state
        self._folder = folder
        self._secrets = secrets
        self._record = JobRecord.from_dict(read_json(folder.status))
        self._plan: dict[str, Any] = read_json(folder.plan)
        self._ref = make_ref(state, self._record)
        self._queue = JobQueue(state.queue)
        self._ticket: Ticket | None = ticket
        self._desired_changed = asyncio.Event()
        self._interrupted = False
        self._grace = _TERMINATION_GRACE_SECONDS
        #: Processes of this run whose parents have ended, and that got SIGTERM.
        self._told: set[int] = set()
        #: When the restart that the record waits for begins, on the clock of the loop.
        self._restart_at = 0.0
        #: Sizes of the logs at the last restart: what is before them is of earlier starts.
        self._log_sizes: dict[str, int] = {}

    @property
    def retention(self) -> tuple[int, float]:
        """How many finished jobs to keep, and for how many days."""
        keep = self._plan["keep_finished"]
        return keep["jobs"], keep["days"]

    @property
    def keep_environments(self) -> bool:
        return bool(self._plan["keep_environments"])

    async def run(self) -> None:
        """Run, suspend and resume the job as desired, until it has ended and its outcome is recorded."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._desired_changed.set)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._interrupt)
        self._append_event("Created", f"TrainJob {self._record.name} is created")
        while True:
            try:
                await self._wait_while_suspended()
                await self._wait_for_restart()
                await self._wait_in_queue()
                await self._run_plan()
            except _SuspendedError:
                continue
            except (_FailedError, OSError) as error:
                lost = Facts(infrastructure_error=f"the supervisor failed: {error}")
                outcome = self._build_failed_outcome(error.facts if isinstance(error, _FailedError) else lost)
                if self._plan_restart(outcome):
                    continue
                self._finish(FAILED, outcome)
            else:
                self._finish(COMPLETE, self._build_outcome())
            finally:
                self._leave_queue()
            return

    async def _wait_while_suspended(self) -> None:
        suspended = False
        while self._is_desired("suspend", self._plan["suspend"]):
            if not suspended:
                suspended = True
                self._leave_queue()
                for step in self._record.steps:
                    step.status, step.pid, step.exit_code = job_record.PENDING, None, None
                self._set_status(SUSPENDED)
                self._append_event("Suspended", "TrainJob is suspended")
            self._check_cancelled()
            await self._desired_changed.wait()
            self._desired_changed.clear()
        self._check_cancelled()
        if suspended:
            if self._record.restarts is not None:  # The deadline counts from here.
                self._record.restarts["started_at"] = utc_timestamp()
            self._set_status(CREATED)
            self._append_event("Resumed", "TrainJob is resumed")

    def _plan_restart(self, outcome: Outcome) -> bool:
        """Record the end of a start; return whether another one follows in this job, by its rules."""
        following = outcome.restarts.following if outcome.restarts else None
        if following is None or self._interrupted:
            return False
        self._restart_at = asyncio.get_running_loop().time() + following.delay
        self._record.ended_start = outcome.to_dict()
        self._record.queued = f"started again in {following.delay:.0f} s: {outcome.diagnosis}"
        for step in self._record.steps:
            if step.status == job_record.RUNNING:
                step.status = job_record.STEP_FAILED
        self._set_status(CREATED)
        self._append_event("Restarting", f"TrainJob is {self._record.queued}")
        return True

    async def _wait_for_restart(self) -> None:
        """Wait for the time of the restart that follows the last start, if any, and add it to the history."""
        if self._record.ended_start is None:
            return
        loop = asyncio.get_running_loop()
        try:
            while (remaining := self._restart_at - loop.time()) > 0 or await self._has_processes():
                await self._wait_for_desired(remaining if remaining > 0 else _LEFT_PROCESSES_SECONDS)
                self._check_cancelled()
                if self._is_desired("suspend", False):
                    raise _SuspendedError
        finally:
            self._record.queued = None
        ended, attempt = Outcome.from_dict(self._record.ended_start), AttemptRestarts.parse(self._record.restarts)
        if attempt is not None:
            attempt = replace(attempt, earlier=count_restart(ended), started_at=utc_timestamp())
            self._record.restarts = attempt.to_dict()
        self._record.ended_start = self._record.finished = None
        for step in self._record.steps:
            step.status, step.pid, step.exit_code = job_record.PENDING, None, None
            self._log_sizes[step.name] = _get_size(self._folder.log_path(step.name))
            self._folder.allocate_termination(step.name)
        # Without it a supervisor that is killed would forget the restart, and the next attempt would repeat it.
        write_json(self._folder.status, self._record.to_dict(), durable=True)
        self._append_event("Restarted", f"TrainJob is started again after {ended.diagnosis}")

    async def _has_processes(self) -> bool:
        """Kill what the last start has left; return whether something is alive: a process may wait for its disk."""
        await asyncio.to_thread(processes.kill_job_processes, [self._record.uid])
        return any(processes.find_processes([self._record.uid]))

    async def _wait_in_queue(self) -> None:
        """Wait until fewer than ``max_parallel`` jobs are ahead. Without a limit, the job only counts for others."""
        self._ticket = self._ticket or self._queue.join()
        limit: int | None = self._plan.get("max_parallel")
        start_within: float | None = self._plan.get("start_within")
        loop = asyncio.get_running_loop()
        deadline = math.inf if start_within is None else loop.time() + start_within
        try:
            while limit is not None and (ahead := self._queue.count_ahead(self._ticket, limit)) >= limit:
                self._record_queued(ahead - limit, limit)
                remaining = deadline - loop.time()
                if start_within is not None and remaining <= 0:
                    late = f"it did not start within {format_duration(start_within)}: {self._record.queued}"
                    raise _FailedError(Facts(unschedulable=late, transient=True))
                # The next job checks often; those behind it, of which there may be hundreds, less often.
                poll = min(_MAX_QUEUE_POLL_SECONDS, _QUEUE_POLL_SECONDS * (ahead - limit + 1))
                await self._wait_for_desired(min(poll, remaining))
                self._check_cancelled()
                if self._is_desired("suspend", False):
                    raise _SuspendedError
        finally:
            self._record.queued = None

    def _record_queued(self, waiting: int, limit: int) -> None:
        before = "next to start" if waiting == 0 else f"{waiting} queued TrainJob{'s' * (waiting > 1)} ahead"
        queued = f"queued: {before}; at most {limit} run{'s' * (limit == 1)} at the same time (max_parallel={limit})"
        if self._record.queued is None:
            self._append_event("Queued", f"TrainJob is {queued}")
        if self._record.queued != queued:
            self._record.queued = queued
            self._save()

    async def _wait_for_desired(self, seconds: float) -> None:
        """Wait until the desired state changes, at most for some seconds."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._desired_changed.wait(), seconds)
        self._desired_changed.clear()

    def _leave_queue(self) -> None:
        if self._ticket is not None:
            self._ticket.release()
            self._ticket = None

    async def _run_plan(self) -> None:
        """Run all steps once, until they end, the deadline passes, or the desired state changes."""
        self._grace = _TERMINATION_GRACE_SECONDS
        self._told = set()
        steps = asyncio.create_task(self._run_all_steps())
        try:
            await self._wait_for_steps(steps)
        except _SuspendedError:
            steps.cancel()
            await asyncio.gather(steps, return_exceptions=True)
            # A function that returned within its grace is complete, and its result counts.
            if not all(step.status == job_record.SUCCEEDED for step in self._record.steps):
                raise
        finally:
            steps.cancel()
            # Whatever the reason, no process of this run may stay.
            await asyncio.gather(steps, return_exceptions=True)
            if not steps.cancelled() and steps.exception():
                await self._end_orphans(asyncio.get_running_loop().time() + self._get_stop_grace())
            await asyncio.to_thread(processes.kill_job_processes, [self._record.uid])

    async def _wait_for_steps(self, steps: asyncio.Task[None]) -> None:
        loop = asyncio.get_running_loop()
        seconds: int | None = self._plan["active_deadline_seconds"]
        attempt = AttemptRestarts.parse(self._record.restarts)
        left = attempt.seconds_left if attempt else seconds
        deadline = None if left is None else loop.time() + left
        while True:
            desired_changed = asyncio.create_task(self._desired_changed.wait())
            timeout = None if deadline is None else max(0.0, deadline - loop.time())
            tasks: set[asyncio.Task[Any]] = {steps, desired_changed}
            done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            desired_changed.cancel()
            if steps in done:
                await steps
                return
            # All nodes get SIGTERM, so that they can save a checkpoint; after the failure of one they cannot.
            self._grace = self._get_stop_grace()
            if not done:
                raise _FailedError(Facts(deadline_seconds=seconds))
            self._desired_changed.clear()
            self._check_cancelled()
            if self._is_desired("suspend", False):
                raise _SuspendedError
            self._grace = _TERMINATION_GRACE_SECONDS

    async def _run_all_steps(self) -> None:
        self._record.started = self._record.started or utc_timestamp()
        self._set_status(RUNNING)
        for step in self._plan["steps"]:
            if step["kind"] == "initializer":
                await self._run_steps([step], self._get_initializer_secrets(step))
        nodes = self._list_nodes()
        if nodes:
            await self._build_environment(nodes[0]["name"])
            with ExitStack() as stack:
                port = stack.enter_context(reserve_port(self._state.ports))
                await self._run_steps(nodes, {"PET_MASTER_PORT": str(port), **self._get_secrets("trainer.")})

    def _list_nodes(self) -> list[dict[str, Any]]:
        return [step for step in self._plan["steps"] if step["kind"] == "node"]

    def _get_initializer_secrets(self, step: dict[str, Any]) -> dict[str, str]:
        """Return the secrets of one initializer. They are only in the environment of its process."""
        role = f"{step['env'][ENV_PREFIX + 'ROLE']}."
        return {ENV_PREFIX + key: value for key, value in self._get_secrets(role).items()}

    def _get_secrets(self, prefix: str) -> dict[str, str]:
        return {key.removeprefix(prefix): value for key, value in self._secrets.items() if key.startswith(prefix)}

    async def _build_environment(self, step: str) -> None:
        """Build the job's environment. The installer writes to the log of the first node."""
        spec = self._plan["environment"]
        if spec is None:
            return
        log_path = self._folder.log_path(step)
        process_env = {env.UID: self._record.uid}
        with _open_log(log_path) as log:
            try:
                await asyncio.to_thread(
                    environments.build_environment, self._state.environments, spec, log, process_env
                )
            except environments.EnvironmentBuildError as error:
                facts = StepFacts(step, log_tail=read_last_lines(log_path))
                raise _FailedError(Facts(steps=[facts], image_error=str(error))) from error

    async def _run_steps(self, steps: list[dict[str, Any]], variables: dict[str, str]) -> None:
        """Run steps in parallel. The first step that fails ends the other steps and the run."""
        tasks = [asyncio.create_task(self._run_step(step, variables)) for step in steps]
        try:
            _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            if pending:
                _, pending = await asyncio.wait(pending, timeout=_PEER_FAILURE_SECONDS)
            late = asyncio.get_running_loop().time() + _CAUSE_SECONDS
            while pending and _is_cause_missing(tasks) and (left := late - asyncio.get_running_loop().time()) > 0:
                _, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            errors = _list_errors(tasks)
            for error in errors:
                if not isinstance(error, _StepFailedError):
                    raise error
            failures = sorted((e for e in errors if isinstance(e, _StepFailedError)), key=lambda e: e.order)
            if failures:
                raise _FailedError(Facts(steps=[failure.facts for failure in failures])) from failures[0]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_step(self, step: dict[str, Any], variables: dict[str, str]) -> None:
        name = step["name"]
        state = self._record.get_step(name)
        command = [str(self._get_interpreter(step)), *step["command"][1:]]
        job_variables = {env.UID: self._record.uid, env.NAME: self._record.name, "PYTHONUNBUFFERED": "1"}
        # An earlier run of the step, before the job was suspended, may have left a termination message.
        self._folder.allocate_termination(name)
        attendant, own = self._prepare_attendant(step)
        own[env.MARKS] = self._folder.marks_prefix(name)
        kills = cgroup.OomKills()
        with _open_log(self._folder.log_path(name)) as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                env={**os.environ, **step["env"], **variables, **job_variables, **own},
                cwd=self._folder.workspace,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=partial(processes.mark_process, self._record.uid),
            )
        self._record_step_start(state, process.pid)
        beside = [
            asyncio.create_task(self._report_resource_use(step, process.pid)),
            asyncio.create_task(self._record_log_times(name)),
        ]
        try:
            code = await self._wait_for_end(name, process, attendant)
        except asyncio.CancelledError:
            if attendant is not None and attendant.is_silent():
                await asyncio.to_thread(attendant.print_stacks)
            await self._terminate(process, self._grace)
            self._record_step_end(state, self._decide_code(step, process.returncode or 0, is_stopped=True))
            raise
        finally:
            for task in beside:
                task.cancel()
            # The last reports are in the log before the end of the step is recorded.
            await asyncio.gather(*beside, return_exceptions=True)
        code = self._decide_code(step, code)
        self._record_step_end(state, code)
        if code != 0:
            order = sum(each.status == job_record.STEP_FAILED for each in self._record.steps)
            is_out_of_memory = code == -signal.SIGKILL and bool(kills.count())
            raise _StepFailedError(self._collect_facts(name, code, is_out_of_memory), order)

    def _prepare_attendant(self, step: dict[str, Any]) -> tuple[Attendant | None, dict[str, str]]:
        """Return what notices that a node has stalled, and the variable for its ranks."""
        settings = step["env"].get(env.STALLED)
        if settings is None:
            return None, {}
        folder = Path(tempfile.mkdtemp(prefix=f"beats-{step['name']}-", dir=self._folder.path))
        write = partial(self._append_to_log, step["name"])
        return Attendant(folder, json.loads(settings), write), {env.BEATS: str(folder)}

    async def _wait_for_end(self, name: str, process: asyncio.subprocess.Process, attendant: Attendant | None) -> int:
        """Wait for the end of a node, and end it if it stalls; return its exit code."""
        while attendant is not None:
            with suppress(asyncio.TimeoutError):
                return await asyncio.wait_for(process.wait(), attendant.pause)
            if attendant.check():
                await asyncio.to_thread(attendant.print_stacks)
                attendant.report(self._folder.termination_path(name))
                await self._terminate(process, self._get_stop_grace())
                return attendant.code
        return await process.wait()

    async def _terminate(self, process: asyncio.subprocess.Process, grace: float) -> None:
        """Send SIGTERM to a step's process, whose checkpoint may need its workers, and SIGKILL after the grace.

        What it has left gets SIGTERM, too, and the rest of the grace: a child may train, and save.
        """
        end = asyncio.get_running_loop().time() + grace
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), grace)
        except asyncio.TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        await self._end_orphans(end)

    async def _end_orphans(self, end: float) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < end and await asyncio.to_thread(processes.terminate_orphans, self._record.uid, self._told):
            await asyncio.sleep(_ORPHANS_SECONDS)

    def _get_stop_grace(self) -> float:
        return self._plan.get("grace_seconds") or _TERMINATION_GRACE_SECONDS

    def _decide_code(self, step: dict[str, Any], code: int, is_stopped: bool = False) -> int:
        """Return 0 for a node exactly if its functions have returned."""
        name = step["name"]
        # The program of a node of an older version, which is resumed, leaves no marks.
        if step["kind"] != "node" or not (self._folder.code / _MARKING_PROGRAM).is_file():
            return code
        log, write = self._folder.termination_path(name), partial(self._append_to_log, name)
        return exit_code.decide(code, self._folder.marks_prefix(name), log, is_stopped, write)

    def _append_to_log(self, name: str, text: str) -> None:
        """Write lines to the log of a step, on lines of their own."""
        path = self._folder.log_path(name)
        with suppress(OSError), _open_log(path) as log:
            log.write(f"{'' if _ends_line(path) else chr(10)}{text}".encode())

    async def _record_log_times(self, step: str) -> None:
        """Record when the log of a step grows, until it is cancelled."""
        size, paths = 0, (self._folder.log_path(step), self._folder.log_times_path(step))
        try:
            while True:
                size = record_growth(*paths, size)
                await asyncio.sleep(_LOG_TIMES_SECONDS)
        finally:
            record_growth(*paths, size)

    async def _report_resource_use(self, step: dict[str, Any], pid: int) -> None:
        """Report the use of resources by a node in its log, until it is cancelled."""
        environ = {**os.environ, **step["env"]}
        interval = resource_monitor.get_interval(environ)
        if step["kind"] != "node" or not interval:
            return
        # Those of an unfinished line, such as a progress bar, wait for its end.
        waiting: deque[str] = deque(maxlen=_MAX_WAITING_REPORTS)
        monitor = resource_monitor.Monitor(
            processes.UsageReader(pid).read,
            resource_monitor.GpuQuery(environ, interval / 2),
            waiting.append,
            self._folder.termination_path(step["name"]),
        )
        log_path = self._folder.log_path(step["name"])
        try:
            while True:
                await asyncio.sleep(interval / 2)
                # In this thread: it takes a few milliseconds at most, and cannot write after the end of the step.
                monitor.sample()
                _append_lines(log_path, waiting)
        finally:
            monitor.close()
            _append_lines(log_path, waiting)

    def _get_interpreter(self, step: dict[str, Any]) -> Path:
        spec = self._plan["environment"] if step["kind"] == "node" else None
        return environments.get_interpreter(self._state.environments, spec)

    def _collect_facts(self, name: str, code: int, out_of_memory: bool) -> StepFacts:
        record = read_record(self._folder.termination_path(name))
        log_tail = read_last_lines(self._folder.log_path(name), self._log_sizes.get(name, 0))
        return StepFacts.from_record(
            name, record, exit_code=code, node=socket.gethostname(), log_tail=log_tail, out_of_memory=out_of_memory
        )

    def _read_node_records(self) -> list[dict[str, Any]]:
        return [read_record(self._folder.termination_path(step["name"])) for step in self._list_nodes()]

    def _record_step_start(self, state: StepRecord, pid: int) -> None:
        if state.started:
            state.restarts += 1
        state.status, state.pid, state.exit_code = job_record.RUNNING, pid, None
        state.started, state.finished = utc_timestamp(), None
        self._save()
        self._append_event("Started", f"{state.name} is started as process {pid}", state.name)

    def _record_step_end(self, state: StepRecord, code: int | None) -> None:
        state.status = job_record.SUCCEEDED if code == 0 else job_record.STEP_FAILED
        state.exit_code, state.finished = code, utc_timestamp()
        self._save()
        self._append_event("Ended", f"{state.name} ended with exit code {code}", state.name)

    def _build_outcome(self) -> Outcome:
        """Build the outcome of a job whose steps all succeeded."""
        nodes, records = self._list_nodes(), self._read_node_records()
        progress = self._read_last_progress() if nodes else None
        self._record.finished = utc_timestamp()
        restarts = AttemptRestarts.parse(self._record.restarts)
        return build_complete_outcome(
            self._ref,
            records[0] if records else {},
            started_at=self._record.started,
            finished_at=self._record.finished,
            last_progress=progress,
            fetched=list_fetched_uris(self._folder.workspace),
            resource_use=summarize_resource_use(records),
            restarts=restarts.earlier if restarts else None,
        )

    def _build_failed_outcome(self, facts: Facts) -> Outcome:
        self._record.finished = utc_timestamp()
        records = self._read_node_records()
        return job_record.failed_outcome(self._record, self._ref, facts, self._read_last_progress(), records)

    def _read_last_progress(self) -> Progress | None:
        return read_last_progress(self._folder.log_path("node-0"), self._log_sizes.get("node-0", 0))

    def _finish(self, status: str, outcome: Outcome) -> None:
        for step in self._record.steps:
            if step.status == job_record.RUNNING:
                step.status = job_record.STEP_FAILED
        message = str(outcome.diagnosis) if outcome.diagnosis else f"TrainJob {self._record.name} is complete"
        self._append_event(status, message)
        self._record.outcome = outcome.to_dict()
        self._record.ended_start = None
        # Before anybody sees the end: afterwards nothing of the job changes.
        self._leave_queue()
        self._record.status = status
        write_json(self._folder.status, self._record.to_dict(), durable=True, reserve=self._folder.reserve)
        self._folder.reserve.unlink(missing_ok=True)

    def _interrupt(self) -> None:
        self._interrupted = True
        self._desired_changed.set()

    def _check_cancelled(self) -> None:
        cancellation = parse_cancellation(self._folder.read_desired())
        if cancellation is not None:
            raise _FailedError(cancellation)
        if self._interrupted:
            raise _FailedError(
                Facts(
                    infrastructure_error="the supervisor received SIGTERM or SIGINT; the machine may be shutting down"
                )
            )

    def _is_desired(self, key: str, default: bool) -> bool:
        return bool(self._folder.read_desired().get(key, default))

    def _set_status(self, status: str) -> None:
        self._record.status = status
        self._save()

    def _save(self) -> None:
        with suppress(OSError):  # A full disk ends no training. The next change, or the end, is recorded with this one.
            write_json(self._folder.status, self._record.to_dict(), durable=True)

    def _append_event(self, reason: str, message: str, step: str | None = None) -> None:
        with suppress(OSError):
            job_record.append_event(self._folder.events, reason, message, step)


@contextmanager
def reserve_port(folder: Path) -> Iterator[int]:
    """Reserve a free TCP port for the rendezvous of a job's nodes until the end of the block.

    A port that the system reports as free can be in use a moment later. Therefore a lock file protects each port from
    other jobs, and binding to it checks that no other program uses it.
    """
    for port in random.sample(range(_FIRST_PORT, _LAST_PORT), _PORT_TRIES):
        path = folder / f"{port}.lock"
        lock = _lock_port(path)
        if lock is None:
            continue
        try:
            if _is_port_free(port):
                yield port
                return
        finally:
            # Removed while it is locked, so that no job removes the lock of another one.
            path.unlink(missing_ok=True)
            os.close(lock)
    raise OSError(f"none of {_PORT_TRIES} ports between {_FIRST_PORT} and {_LAST_PORT} is free")


def _lock_port(path: Path) -> int | None:
    """Return the descriptor of a locked file; None if another job has it, or is removing it."""
    try:
        lock = locks.acquire(path, 0)
    except BlockingIOError:
        return None
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(lock), path.stat()):
            return lock
    os.close(lock)
    return None


def _is_port_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _list_errors(tasks: Sequence[asyncio.Task[None]]) -> list[BaseException]:
    return [error for task in tasks if task.done() and (error := task.exception())]


def _is_cause_missing(tasks: Sequence[asyncio.Task[None]]) -> bool:
    """Return whether all steps that have failed did so because of another one."""
    errors = _list_errors(tasks)
    return bool(errors) and all(isinstance(e, _StepFailedError) and is_consequence(e.facts) for e in errors)


def _get_size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _open_log(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


def _append_lines(path: Path, lines: deque[str]) -> None:
    """Move lines to a log, unless the training has not ended its last line yet, or the log cannot be written."""
    if not lines:
        return
    with suppress(OSError):
        if not _ends_line(path):
            return
        with _open_log(path) as log:
            log.write("".join(lines).encode())
        lines.clear()


def _ends_line(path: Path) -> bool:
    """Return whether a log is empty or ends with the end of a line."""
    with path.open("rb") as log:
        if log.seek(0, os.SEEK_END):
            log.seek(-1, os.SEEK_END)
            return log.read(1) == b"\n"
    return True
