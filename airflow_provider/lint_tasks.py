"""Converts a task of a DAG to the requests that it would submit, as far as they are known before a run."""

from __future__ import annotations

import copy
import difflib
import functools
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import airflow.sdk
import jinja2
import jinja2.meta
from airflow.sdk import Asset, BaseOperator
from airflow.sdk.definitions._internal.mixins import ResolveMixin
from airflow.sdk.definitions.asset import AssetBooleanCondition, AssetNameRef
from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS
from airflow.sdk.execution_time.context import MacrosAccessor

from airflow_provider import spec
from airflow_provider.compat import AirflowException
from airflow_provider.hooks.trainjob import TrainJobHook
from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core.base.errors import TrainerError
from trainer_core.client import TrainerClient, backend_for
from trainer_core.definition import request_builder
from trainer_core.frontend.lint import Definition
from trainer_core.model.config import BackendConfig

_Path = tuple[str, ...]
_REFUSED = "_trainjob_lint_refused"

#: Names that templates do not have in a run without a logical date.
_NEED_LOGICAL_DATE = frozenset(
    [
        "logical_date",
        "data_interval_start",
        "data_interval_end",
        "ds",
        "ds_nodash",
        "ts",
        "ts_nodash",
        "ts_nodash_with_tz",
    ]
)
#: Timetables whose runs have a partition key, and the one whose tasks give keys to their events; by version of Airflow.
_KEYED_RUNS = ("CronPartitionTimetable", "PartitionedAssetTimetable")
_KEYED_EVENTS = (*_KEYED_RUNS, "PartitionedAtRuntime")


#: A template of the date on which a run starts.
_DATE_OF_RUN = re.compile(r"run_after.*(\|\s*ds|\.date\(|strftime|to_date_string)")


@dataclass(frozen=True)
class RefusedTask:
    """A task whose operator refused its arguments."""

    file: str
    line: int
    #: The DAG and the task.
    location: Mapping[str, str]
    error: str


@contextmanager
def collect_refused_tasks(path: Path) -> Iterator[list[RefusedTask]]:
    """Collect the tasks that `TrainJobOperator` refuses, so that parsing continues after the first one of a file.

    In place of such a task its DAG has a task without a TrainJob.
    """
    refused: list[RefusedTask] = []
    create: Any = TrainJobOperator.__init__

    @functools.wraps(create)
    def create_or_collect(self: TrainJobOperator, *args: Any, **kwargs: Any) -> None:
        try:
            create(self, *args, **kwargs)
        except (ValueError, TypeError) as error:
            frame = _find_frame(path)
            if frame is None or type(self) is not TrainJobOperator:
                raise  # A subclass would continue with half an operator.
            task_id = str(kwargs.get("task_id", "?"))
            # The id may be in the DAG already: Airflow finds a mistyped argument after it has added the task.
            BaseOperator.__init__(self, task_id=f"{task_id}.refused.{len(refused)}")
            setattr(self, _REFUSED, True)
            dag = {"dag": self.dag.dag_id} if self.has_dag() else {}
            location = {**dag, "task": task_id}
            refused.append(RefusedTask(frame.filename, frame.lineno or 0, location, " ".join(str(error).split())))

    # As for the function that it replaces, which Airflow has wrapped.
    vars(create_or_collect)["__wrapped__"] = create.__wrapped__
    TrainJobOperator.__init__ = create_or_collect  # type: ignore[method-assign]
    try:
        yield refused
    finally:
        TrainJobOperator.__init__ = create  # type: ignore[method-assign]


def _find_frame(path: Path) -> traceback.FrameSummary | None:
    """Return the innermost frame of the stack in a DAG file."""
    frames = reversed(traceback.extract_stack())
    return next((frame for frame in frames if Path(frame.filename).is_relative_to(path)), None)


def find_task_jobs(file: str, dag: Any, task: Any, connections: Sequence[str] = ()) -> Iterator[Definition]:
    """Yield the TrainJobs of a task: one, or for a mapped task one for each entry that the DAG file lists.

    A task that names no backend has one for each connection.
    """
    location = {"dag": dag.dag_id, "task": task.task_id}
    if getattr(task, _REFUSED, False):
        return
    for pulled in _find_pulled_results(dag, getattr(task, "job", None)):
        error = (
            f"job: the template is what task {pulled!r} returned, not its TrainJob; pass its output, or add key='ref'"
        )
        yield Definition(file, location, error=error)
    if isinstance(task, TrainJobOperator):
        yield from _build_jobs(file, location, dag, task, connections)
    elif issubclass(getattr(task, "operator_class", object), TrainJobOperator):
        for index, arguments in enumerate(_list_mapped_arguments(task)):
            entry = {**location, "entry": str(index)}
            yield from _build_mapped_jobs(file, entry, dag, task, arguments, connections)


def _find_pulled_results(dag: Any, job: Any) -> Iterator[str]:
    """Yield the tasks whose results a template of a job pulls, although these are those of trainings."""
    for arguments in re.findall(r"xcom_pull\(([^)]*)\)", job if isinstance(job, str) else ""):
        task = dag.task_dict.get((re.findall(r"[\w.-]+(?=['\"])", arguments) or [""])[0])
        if isinstance(task, TrainJobOperator) and task.wait_for_completion and "key=" not in arguments:
            yield task.task_id


def is_partitioned(dag: Any) -> bool:
    """Return whether the runs of a DAG have a partition key, and so no logical date."""
    return _has_timetable(dag, _KEYED_RUNS)


def list_partitioned_assets(dag: Any) -> list[str]:
    """Return the names of the Assets whose events from this DAG have a partition key."""
    every = _has_timetable(dag, _KEYED_EVENTS)
    outlets = (outlet for task in dag.tasks if every or _has_partition(task) for outlet in task.outlets)
    return [name for outlet in outlets for name in list_assets(outlet)]


def list_assets(condition: Any) -> list[str]:
    """Return the names of the Assets in a schedule; Airflow has one active Asset of a name."""
    if isinstance(condition, AssetBooleanCondition):
        return [name for each in condition.objects for name in list_assets(each)]
    return [condition.name] if isinstance(condition, (Asset, AssetNameRef)) else []


def _has_timetable(dag: Any, names: Sequence[str]) -> bool:
    return isinstance(dag.timetable, tuple(getattr(airflow.sdk, name) for name in names if hasattr(airflow.sdk, name)))


def _has_partition(task: Any) -> bool:
    """Return whether the task of a TrainJob names a partition, alone or mapped."""
    if isinstance(task, TrainJobOperator):
        return "partition" in getattr(task, "spec", ())  # A refused task has none.
    if not issubclass(getattr(task, "operator_class", object), TrainJobOperator):
        return False
    return "partition" in task.partial_kwargs or any("partition" in each for each in _list_mapped_arguments(task))


def _build_mapped_jobs(
    file: str,
    location: Mapping[str, str],
    dag: Any,
    task: Any,
    arguments: Mapping[str, Any],
    connections: Sequence[str],
) -> Iterator[Definition]:
    try:
        # Airflow itself creates the operator of an entry only at run time.
        operator = task.unmap({"op_kwargs": arguments} if _is_decorated(task) else arguments)
    except (ValueError, TypeError) as error:
        yield Definition(file, location, error=str(error))
        return
    yield from _build_jobs(file, location, dag, operator, connections)


def _is_decorated(task: Any) -> bool:
    return hasattr(task, "op_kwargs_expand_input")


def _list_mapped_arguments(task: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the arguments of each entry. Of lists whose product is mapped, each value is used once."""
    value = task._get_specified_expand_input().value
    if isinstance(value, Mapping):
        columns = {name: _list_values(values, _is_decorated(task)) for name, values in value.items()}
        longest = max(map(len, columns.values())) if all(columns.values()) else 0
        for index in range(longest):
            yield {name: values[min(index, len(values) - 1)] for name, values in columns.items()}
    elif isinstance(value, Sequence):
        yield from (each for each in value if isinstance(each, Mapping))


def _list_values(values: Any, decorated: bool) -> list[Any]:
    """Return the values of a mapped argument; those of an upstream task are unknown and count as one."""
    if isinstance(values, ResolveMixin):
        return [values] if decorated else []
    return list(values.items()) if isinstance(values, Mapping) else list(values)


def _build_jobs(
    file: str, location: Mapping[str, str], dag: Any, task: TrainJobOperator, connections: Sequence[str]
) -> Iterator[Definition]:
    if task.backend is not None or isinstance(task.backend_config, BackendConfig) or not connections:
        yield _build_job(file, location, dag, task, task.hook, None)
        return
    for connection in connections:
        where = {**location, "connection": connection}
        hook = TrainJobHook(connection, backend_config=task.backend_config)
        try:
            backend = backend_for(hook.config.backend)
        except (AirflowException, TrainerError, ValueError) as error:
            yield Definition(file, where, error=str(error))
            continue
        yield _build_job(file, where, dag, task, hook, backend)


def _build_job(
    file: str, location: Mapping[str, str], dag: Any, task: TrainJobOperator, hook: TrainJobHook, backend: Any
) -> Definition:
    renderer = _Renderer(dag, task)
    try:
        request = renderer.request(backend)
    except ValueError as error:
        return Definition(file, location, error=str(error))
    return Definition(
        file,
        location,
        error="; ".join(renderer.errors) or None,
        request=request,
        unknown=tuple(renderer.unknown),
        warnings=tuple(renderer.warnings),
        client=lambda: _get_client(hook),
    )


def _get_client(hook: TrainJobHook) -> TrainerClient:
    try:
        return hook.client
    except AirflowException as error:
        raise ValueError(str(error)) from error


class _Renderer:
    """Renders the templates of a task as far as the DAG file determines them."""

    def __init__(self, dag: Any, task: TrainJobOperator) -> None:
        self._dag, self._task = dag, task
        self._jinja = copy.copy(task.get_template_env(dag))
        # Overrides the DAG's setting: a name that is undefined before the run must raise an exception.
        self._jinja.undefined = jinja2.StrictUndefined
        self._context = _build_context(dag, task)
        self._is_partitioned = is_partitioned(dag)
        #: Paths of the values that are unknown before the run.
        self.unknown: list[_Path] = []
        #: Templates that cannot be rendered in any run.
        self.errors: list[str] = []
        #: Templates that cannot be rendered in some runs.
        self.warnings: list[str] = []

    def request(self, backend: Any) -> dict[str, Any]:
        """Return the request for a backend; None for a backend that is not known."""
        data = spec.join_code(self._task.spec, self._task._code_content, self._task._get_func_args())
        if backend is not None:
            data = request_builder.select_backend(data, backend)
        code = data.get("trainer", {}).get("code", {})
        args, text, project = code.pop("args", {}), code.pop("text", ""), code.pop("project", None)
        rendered = self._render(data, ())
        if code:
            rendered["trainer"]["code"].update(text=text, args=self._render_func_args(args))
            if project:
                rendered["trainer"]["code"]["project"] = project
        return rendered

    def _render_func_args(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the known arguments; unknown ones cannot be converted to the types that the function declares."""
        known = {}
        for name, value in args.items():
            before = len(self.unknown)
            rendered = self._render(value, ("trainer", "code", "args", name))
            if len(self.unknown) == before:
                known[name] = rendered
        return known

    def _render(self, value: Any, path: _Path) -> Any:
        if isinstance(value, Mapping):
            return {key: self._render(item, (*path, str(key))) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._render(item, (*path, str(index))) for index, item in enumerate(value)]
        if isinstance(value, ResolveMixin):
            self.unknown.append(path)
            return str(value)
        return self._render_string(value, path) if isinstance(value, str) and "{" in value else value

    def _render_string(self, text: str, path: _Path) -> Any:
        try:
            names = jinja2.meta.find_undeclared_variables(self._jinja.parse(text))
            template = self._jinja.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            self.errors.append(f"{'.'.join(path)}: the template has a syntax error: {error.message}")
            return text
        self._check_names(template, names, path)
        self._check_time_zone(text, path)
        try:
            return template.render(self._context)
        except Exception:  # noqa: BLE001 -- a template can raise anything if a value is missing
            self.unknown.append(path)
            return text

    def _check_time_zone(self, text: str, path: _Path) -> None:
        """Find dates of the run that are not those of the DAG's time zone."""
        zone = str(getattr(self._dag.timetable, "timezone", self._dag.timezone))
        is_right = f"'{zone}'" in text or ("dag.timezone" in text and str(self._dag.timezone) == zone)
        if _DATE_OF_RUN.search(text) and zone != "UTC" and not is_right:
            self.warnings.append(
                f"{'.'.join(path)}: the date is not in the time zone of the DAG, {zone}; use "
                f"dag_run.run_after.astimezone(dag.timezone) | ds, with a start_date in {zone}"
            )

    def _check_names(self, template: jinja2.Template, names: set[str], path: _Path) -> None:
        """Find names that no run has, and those that a run without a logical date does not have."""
        known = {*KNOWN_CONTEXT_KEYS, *self._jinja.globals}
        for name in sorted(names - known):
            similar = difflib.get_close_matches(name, sorted(known), 1)
            hint = f"did you mean {similar[0]}?" if similar else "Airflow has no such name in templates"
            self.errors.append(f"{'.'.join(path)}: {name} is undefined; {hint}")
        if names & _NEED_LOGICAL_DATE:
            context = {name: jinja2.ChainableUndefined(name=name) for name in names - _NEED_LOGICAL_DATE}
            context |= {name: value for name, value in self._context.items() if name not in _NEED_LOGICAL_DATE}
            try:
                template.render(context)
            except jinja2.UndefinedError as error:
                missing = next((name for name in sorted(names & _NEED_LOGICAL_DATE) if f"'{name}'" in str(error)), None)
                if missing is not None:
                    runs = (
                        "a run with a partition key, as all of this DAG have; use partition_key"
                        if self._is_partitioned
                        else "a run without a logical date, such as one that an Asset or a person starts; "
                        "dag_run.run_after is the time of every run"
                    )
                    self.warnings.append(f"{'.'.join(path)}: {missing} is undefined in {runs}")
            except Exception:  # noqa: BLE001, S110 -- another value is missing
                pass


def _build_context(dag: Any, task: TrainJobOperator) -> dict[str, Any]:
    """Return the template context, without entries that exist only in a run, such as ``ti``, ``conn`` and ``var``."""
    now = datetime.now(timezone.utc).replace(microsecond=0)
    day, moment = now.date().isoformat(), now.isoformat()
    return {
        "dag": dag,
        "task": task,
        "params": _get_default_params(task),
        "run_id": f"manual__{moment}",
        "logical_date": now,
        "data_interval_start": now,
        "data_interval_end": now,
        "ds": day,
        "ds_nodash": day.replace("-", ""),
        "ts": moment,
        "ts_nodash": now.strftime("%Y%m%dT%H%M%S"),
        "ts_nodash_with_tz": now.strftime("%Y%m%dT%H%M%S%z"),
        "macros": MacrosAccessor(),
    }


def _get_default_params(task: TrainJobOperator) -> dict[str, Any]:
    params = {}
    for name in task.params:
        try:
            params[name] = task.params[name]
        except Exception:  # noqa: BLE001, S112 -- a required parameter has no value before the run
            continue
    return params
