"""What the search component does: drive a search to its end, and write its best trial, its table and its report."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

from kfp_components.step import outputs, search_report
from kfp_components.step.client import create_client
from kfp_components.step.executor_input import Task
from kfp_components.step.owner_reference import bind_to_run
from kfp_components.step.sigterm import ON_KILL, cancel_on_sigterm, delay_sigterm
from kfp_components.step.train import JobInputs, build_task_request
from trainer_core.base import validation
from trainer_core.base.errors import InvalidRequestError, WaitTimeoutError
from trainer_core.model.jobs import TrainJobRef
from trainer_core.model.request import Owner
from trainer_core.search.definition import SearchDefinition
from trainer_core.search.driver import SearchDriver
from trainer_core.search.results import SearchOutcome
from trainer_core.search.tables import name_columns


@dataclass(frozen=True, kw_only=True)
class SearchInputs:
    """The inputs that only search has; the component's docstring describes them."""

    search_space: dict[str, Any]
    objectives: list[dict[str, Any]] | None = None
    trial_config: dict[str, Any] | None = None
    algorithm: dict[str, Any] | None = None
    stop: dict[str, Any] | None = None
    timeout: int = 0
    on_kill: str = "cancel"

    def __post_init__(self) -> None:
        validation.check_one_of("on_kill", self.on_kill, ON_KILL)
        if self.timeout < 0:
            raise InvalidRequestError(f"timeout must be at least 0, got {self.timeout}")


def search(task: Task, *, jobs: JobInputs, inputs: SearchInputs) -> None:
    """Drive a search to its end; the component's docstring describes the inputs."""
    # `search_task` has asked for the direction; what an earlier version compiled has none if it is the default.
    definition = SearchDefinition.parse(
        inputs.search_space, inputs.objectives, inputs.trial_config, inputs.algorithm, inputs.stop, is_stored=True
    )
    client = create_client(jobs.backend, jobs.backend_config)
    request, run = build_task_request(task, client, jobs, inputs.on_kill)
    owner = request.context.owner or Owner(key=f"search/{request.context.name}", slug=str(request.context.name))

    def cancel() -> None:
        with SearchDriver.open(client, owner) as successor:
            successor.cancel()

    with ExitStack() as bound, cancel_on_sigterm(client, f"search {owner.slug}", cancel, inputs.on_kill, run):
        run.print_problem()
        driver = bound.enter_context(SearchDriver.open(client, owner, definition, request))
        outcome = _drive(driver, inputs.timeout, lambda ref: bind_to_run(client, ref, run, inputs.on_kill), bound)
    print(outcome.message)
    _write_trials(task, outcome, definition)
    text = search_report.render_html(owner.slug, outcome, definition)
    task.get_artifact("report").require_path().write_text(text, encoding="utf-8")
    best = outcome.best
    if not outcome.succeeded or best is None or best.ref is None:
        raise InvalidRequestError(outcome.message if best is None or best.ref else "the best trial's job was deleted")
    task.write("parameters", dict(best.parameters))
    task.write("job", dict(best.ref))
    task.write("metric", best.value)
    outputs.write_result(task, client.get_job_outcome(TrainJobRef.from_dict(best.ref)))


def _drive(
    driver: SearchDriver,
    timeout: int,
    bind: Callable[[TrainJobRef], AbstractContextManager[None]],
    bound: ExitStack,
) -> SearchOutcome:
    """Drive the search to its end, and bind each trial to the run of this step."""
    end = time.monotonic() + timeout if timeout else None
    seen: set[TrainJobRef] = set()
    while True:
        with delay_sigterm():
            # An exception in the middle of a request that creates a trial would leave one whose name is unknown.
            state = driver.try_step()
        for ref in set(state.live) - seen:
            bound.enter_context(bind(ref))
        seen.update(state.live)
        if state.outcome is not None:
            return state.outcome
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            raise WaitTimeoutError(f"search {driver.name!r} has not ended after {timeout} s; its trials continue")
        driver.wait(state, left)


def _write_trials(task: Task, outcome: SearchOutcome, definition: SearchDefinition) -> None:
    names, metrics = list(definition.space), [each.metric for each in definition.objectives]
    with task.get_artifact("trials").require_path().open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        others = ("trial", "status", *metrics, "seconds", "gpu_hours", "job", "reason")
        columns = name_columns(names, others).values()
        table.writerow((*others[: 2 + len(metrics)], *columns, *others[2 + len(metrics) :]))
        for trial in outcome.trials:
            reported = {each.name: each.latest for each in trial.metrics}
            own = [reported.get(name) for name in metrics]
            values = [trial.parameters.get(name) for name in names]
            table.writerow(
                (trial.number, trial.status, *own, *values, trial.seconds, trial.gpu_hours, trial.name, trial.reason)
            )
