"""SearchOperator: run a hyperparameter search as an Airflow task.

The search is its TrainJobs, and its key is that of the task instance. A worker or a triggerer that is killed at any
point is followed by one that reads the TrainJobs and continues with the same trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider import assets, job_location, spec, xcom
from airflow_provider.exceptions import TrainJobSearchFailedError
from airflow_provider.operators.trainjob import TrainJobOperator, build_unreachable
from airflow_provider.trigger_event import JobEvent
from trainer_core.base import validation
from trainer_core.base.errors import JobNotFoundError, TrainerError
from trainer_core.definition.trainers import CustomTrainer
from trainer_core.model.func_args import PartialArgs
from trainer_core.model.jobs import RUNNING, TrainJobRef
from trainer_core.search.definition import Direction, SearchDefinition, build_search_data
from trainer_core.search.space import parse_space, scale

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from trainer_core.model.request import TrainJobRequest
    from trainer_core.search.definition import Algorithm, Objective, StopPolicy, TrialConfig
    from trainer_core.search.driver import SearchDriver, SearchState
    from trainer_core.search.results import SearchOutcome

__all__ = ["SearchOperator"]


class SearchOperator(TrainJobOperator):
    """Search for the best parameters of a training: each trial is a TrainJob, and the task ends with the search.

    A retry, and a worker or a triggerer that takes over, continue the search with the same trials. Clearing the task
    ends the trials and starts another search.

    XComs: ``return_value`` (a dict with ``parameters``, ``value``, ``trial``, ``job`` and ``result`` of the best
    trial), ``parameters``, ``best_value``, ``best_ref`` and ``metrics`` of the best trial, ``search`` (key and
    generation), ``status``, ``diagnosis`` if it failed, ``resource_use``, and ``trials``, the best 100.

    Example:
        ```python
        tune = SearchOperator(
            task_id="tune",
            runtime="python",
            trainer=CustomTrainer(train),
            search_space={"lr": Search.loguniform(1e-4, 1e-1), "batch": [16, 32]},
            objectives=[Objective("val_loss")],
            trial_config=TrialConfig(num_trials=20, parallel_trials=4),
            deferrable=True,
        )
        best = tune.output["parameters"]
        final = TrainJobOperator(task_id="final", runtime="python", trainer=CustomTrainer(train), func_args=best)
        ```

    Args:
        search_space: Distribution of each parameter, such as ``{"lr": Search.loguniform(1e-4, 1e-1)}``, or as plain
            data, ``{"lr": {"loguniform": [1e-4, 1e-1]}, "batch": [16, 32]}``. Templated.
        objectives: The objective, and further metrics to collect: a list of `Objective`, or of dicts of their fields.
            Default: None, the smallest ``loss``. Templated.
        trial_config: Limits: a `TrialConfig`, or a dict of its fields. Default: None, 10 trials one after the other.
            Templated.
        algorithm: `RandomSearch`, `GridSearch` or `OptunaSampler`, or its name and fields as plain data,
            ``{"OptunaSampler": {"name": "tpe"}}``. Default: None, `RandomSearch`. Templated.
        stop: Rule that ends losers early: `Asha` or `MedianStop`, or its name and fields as plain data. Default: None,
            every trial runs to its end. Templated.
        func_args: As for `TrainJobOperator`; the parameters of a trial override them.
        kwargs: Arguments of `TrainJobOperator`, for each trial. `on_kill` and `execution_timeout` apply to the search.

    Raises:
        ValueError: An argument is invalid; raised when the DAG is parsed.
    """

    template_fields: Sequence[str] = ("spec", "func_args", "search")
    template_fields_renderers: ClassVar[dict[str, str]] = {"spec": "json", "func_args": "json", "search": "json"}
    job_key = "best_ref"

    def __init__(
        self,
        *,
        search_space: Mapping[str, Any],
        objectives: Sequence[Objective | Mapping[str, Any]] | None = None,
        trial_config: TrialConfig | Mapping[str, Any] | None = None,
        algorithm: Algorithm | Mapping[str, Any] | str | None = None,
        stop: StopPolicy | Mapping[str, Any] | None = None,
        func_args: Mapping[str, Any] | XComArg | None = None,
        **kwargs: Any,
    ) -> None:
        if not kwargs.get("wait_for_completion", True):
            raise ValueError(
                "SearchOperator always waits, because a search continues only while a process waits for it; remove "
                "wait_for_completion, or set deferrable=True to free the worker slot"
            )
        if kwargs.get("on_clear", "new") != "new":
            raise ValueError("SearchOperator: clearing always starts another search; remove on_clear")
        search = build_search_data(
            _has_template,
            search_space=search_space,
            objectives=objectives,
            trial_config=trial_config,
            algorithm=algorithm,
            stop=stop,
        )
        examples = _build_examples(search["search_space"], kwargs.get("trainer"))
        checked: Any = func_args
        if examples is not None and (func_args is None or isinstance(func_args, Mapping)):
            checked = type(examples)({**examples, **(func_args or {})})
        super().__init__(func_args=checked, **kwargs)
        self.func_args = func_args
        self.search = search
        self._driver: SearchDriver | None = None
        self._state: SearchState | None = None

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Continue the search in this worker as far as the trigger could not, or finish the task.

        Raises:
            TrainJobSearchFailedError: The search failed.
            TrainJobTimeoutError: The search did not end within `execution_timeout`.
            TrainJobUnreachableError: The trigger could no longer read the trials.
        """
        return self.execute(context) if JobEvent.parse(event).search else super().execute_complete(context, event)

    def _resume(self, ref: TrainJobRef) -> Any:
        return self._follow(self._submit()[0])

    def _submit_request(self, request: TrainJobRequest) -> TrainJobRef:
        from trainer_core.search.driver import SearchDriver  # Parsing a DAG file does not need it.

        assert request.context.owner is not None  # noqa: S101 -- the request of a task has one
        client, definition = self.hook.client, SearchDefinition.from_dict(self.search)
        self._driver = SearchDriver.open(client, request.context.owner, definition, request)
        if not self._driver.exists:
            self._memory.announce(job_location.describe_place(client), None)
        self._state = self._driver.try_step()
        while self._state.must_create or self._state.is_stale:
            if self._state.is_stale:
                self._driver.wait(self._state)
            self._state = self._driver.try_step()
        ref = self._driver.first_ref
        if ref is None:
            raise JobNotFoundError(f"search {self._driver.name!r}: its TrainJobs were deleted while it began")
        return ref

    def _describe_ref(self, ref: TrainJobRef, request: TrainJobRequest) -> dict[str, Any]:
        """Return the ref of the search's first TrainJob, with what finds the search."""
        assert self._driver is not None  # noqa: S101 -- _submit_request has set it
        return {**super()._describe_ref(ref, request), "search": self._driver.owner.model_dump()}

    def _still_runs_unchanged(self, request: TrainJobRequest) -> bool:
        return False  # Clearing a task always starts another search.

    def _follow(self, ref: TrainJobRef) -> Any:
        state = self._state
        assert state is not None  # noqa: S101 -- _submit_request has set it
        self._ti.xcom_push(key="search", value=self._memory.ref_data["search"])
        if state.outcome is not None:
            return self._finish_search(state.outcome)
        self._ti.xcom_push(key="status", value=RUNNING)
        if self._waiting.is_deferred(ref):
            self._memory.record_wait(ref, waits=False)
            self._waiting.raise_deferral()
        return self._finish_search(self._run_driver(ref))

    def _run_driver(self, ref: TrainJobRef) -> SearchOutcome:
        assert self._driver is not None  # noqa: S101 -- _submit_request has set it
        self._memory.record_wait(ref, waits=True)

        def handle_state(state: SearchState) -> None:
            self._is_waiting = False
            if self._interrupted:
                self._raise_interrupted(ref)
            self._is_waiting = state.outcome is None

        try:
            with self._driver as driver:
                return driver.run(on_change=handle_state)
        except TrainerError as error:
            self._is_waiting = False
            self._cancel_unless_retried()
            raise build_unreachable(ref, error) from error
        finally:
            self._is_waiting = False

    def _finish_search(self, outcome: SearchOutcome) -> Any:
        ref = TrainJobRef.from_dict(self._memory.ref_data)
        self._memory.record_wait(ref, waits=False)
        direction = SearchDefinition.from_dict(self.search).direction
        returned = xcom.push_search_outcome(self._ti, outcome, maximize=direction is Direction.MAXIMIZE)
        self.log.info("%s", outcome.message)
        if not outcome.succeeded:
            if self._interrupted:
                self._raise_interrupted(ref)
            raise TrainJobSearchFailedError(outcome.message, outcome)
        best = outcome.best
        if best is not None and best.ref is not None:
            self.outcome = self.hook.client.get_job_outcome(TrainJobRef.from_dict(best.ref))
            assets.update_asset_events(self.outlets, self.outcome, self.spec.get("partition"))
        return returned


def _has_template(value: Any) -> bool:
    leaves = validation.iterate_leaves(value)
    return any("{{" in leaf if isinstance(leaf, str) else spec.is_upstream_result(leaf) for leaf in leaves)


def _build_examples(space: Any, trainer: Any) -> dict[str, Any] | None:
    """Return a value of each parameter that the function's arguments lack, with which its signature is checked.

    It is None for a parameter whose values are known later. None for a trainer without a function.
    """
    definition = spec.parse_template_yaml("trainer", trainer) if isinstance(trainer, str) else trainer
    if not isinstance(definition, CustomTrainer) and not (isinstance(definition, Mapping) and "func" in definition):
        return None
    if not isinstance(space, Mapping) or _has_template(list(space)):
        return PartialArgs()
    given = spec.get_func_args(definition)
    values = {name: None if _has_template(each) else parse_space({name: each})[name] for name, each in space.items()}
    return {name: each and scale(each, 0.0) for name, each in values.items() if "." not in name and name not in given}
