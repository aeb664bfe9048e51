"""A task of a DAG → the requests it would submit, with all that is known of them before a run."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import jinja2
from airflow.sdk.definitions._internal.mixins import ResolveMixin

from airflow_provider import definition
from airflow_provider.compat import AirflowNotFoundException
from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core.client import TrainerClient
from trainer_core.lint import Found

__all__ = ["jobs"]

_Path = tuple[str, ...]


def jobs(file: str, dag: Any, task: Any) -> Iterator[Found]:
    """Yield the TrainJobs of a task: one, or of a mapped task one for each entry that the file itself lists.

    Args:
        file: Where the DAG is defined.
        dag: The DAG.
        task: One of its tasks; of another kind than ours it has none.
    """
    place = {"dag": dag.dag_id, "task": task.task_id}
    if isinstance(task, TrainJobOperator):
        yield _job(file, place, dag, task)
    elif issubclass(getattr(task, "operator_class", object), TrainJobOperator):
        for index, given in enumerate(_entries(task)):
            yield _mapped(file, {**place, "entry": str(index)}, dag, task, given)


def _mapped(file: str, place: Mapping[str, str], dag: Any, task: Any, given: Mapping[str, Any]) -> Found:
    try:
        # Airflow makes the operator of an entry when it runs.
        operator = task.unmap({"op_kwargs": given} if _is_decorated(task) else given)
    except (ValueError, TypeError) as error:
        return Found(file, place, mistake=str(error))
    return _job(file, place, dag, operator)


def _is_decorated(task: Any) -> bool:
    return hasattr(task, "op_kwargs_expand_input")


def _entries(task: Any) -> Iterator[Mapping[str, Any]]:
    """The arguments of each entry; of lists that are multiplied with each other, each value once."""
    value = task._get_specified_expand_input().value
    if isinstance(value, Mapping):
        columns = {name: _column(values, _is_decorated(task)) for name, values in value.items()}
        longest = max(map(len, columns.values())) if all(columns.values()) else 0
        for index in range(longest):
            yield {name: values[min(index, len(values) - 1)] for name, values in columns.items()}
    elif isinstance(value, Sequence):
        yield from (each for each in value if isinstance(each, Mapping))


def _column(values: Any, decorated: bool) -> list[Any]:
    """What one argument is mapped over. What an earlier task will list is one argument of a function, not known."""
    if isinstance(values, ResolveMixin):
        return [values] if decorated else []
    return list(values.items()) if isinstance(values, Mapping) else list(values)


def _job(file: str, place: Mapping[str, str], dag: Any, task: TrainJobOperator) -> Found:
    try:
        request, unknown = _Rendering(dag, task).request()
    except _TemplateError as error:
        return Found(file, place, mistake=str(error))
    return Found(file, place, request=request, unknown=unknown, client=lambda: _client(task))


def _client(task: TrainJobOperator) -> TrainerClient:
    try:
        return task.hook.client
    except AirflowNotFoundException as error:
        raise ValueError(str(error)) from error


class _TemplateError(Exception):
    """A text is no template."""


class _Rendering:
    """Fills in the templates of a task as far as they depend on the DAG file alone."""

    def __init__(self, dag: Any, task: TrainJobOperator) -> None:
        self._task = task
        self._jinja = copy.copy(task.get_template_env(dag))
        # Whatever the DAG wants for production: here a name that is missing must be noticed.
        self._jinja.undefined = jinja2.StrictUndefined
        self._context = _context(dag, task)
        self._unknown: list[_Path] = []

    def request(self) -> tuple[dict[str, Any], tuple[_Path, ...]]:
        """Return the request, and the paths of what is not known of it."""
        data = definition.joined(self._task.spec, self._task.code_text, self._task._arguments())
        code = data.get("trainer", {}).get("code", {})
        args, text = code.pop("args", {}), code.pop("text", "")
        filled = self._filled(data, ())
        if code:
            filled["trainer"]["code"].update(text=text, args=self._arguments(args))
        return filled, tuple(self._unknown)

    def _arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Those that are known: the others could not be given the type that the function declares."""
        known = {}
        for name, value in given.items():
            before = len(self._unknown)
            filled = self._filled(value, ("trainer", "code", "args", name))
            if len(self._unknown) == before:
                known[name] = filled
        return known

    def _filled(self, value: Any, path: _Path) -> Any:
        if isinstance(value, Mapping):
            return {key: self._filled(item, (*path, str(key))) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._filled(item, (*path, str(index))) for index, item in enumerate(value)]
        if isinstance(value, ResolveMixin):
            self._unknown.append(path)
            return str(value)
        return self._text(value, path) if isinstance(value, str) and "{" in value else value

    def _text(self, text: str, path: _Path) -> Any:
        try:
            template = self._jinja.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise _TemplateError(f"{'.'.join(path)}: the template cannot be read: {error.message}") from error
        try:
            return template.render(self._context)
        except Exception:  # noqa: BLE001 - a template may do anything with what it does not get here
            self._unknown.append(path)
            return text


def _context(dag: Any, task: TrainJobOperator) -> dict[str, Any]:
    """What templates find. What only a run has, such as ``ti``, ``conn`` and ``var``, is not there."""
    now = datetime.now(timezone.utc).replace(microsecond=0)
    day, moment = now.date().isoformat(), now.isoformat()
    return {
        "dag": dag,
        "task": task,
        "params": _params(task),
        "run_id": f"manual__{moment}",
        "logical_date": now,
        "data_interval_start": now,
        "data_interval_end": now,
        "ds": day,
        "ds_nodash": day.replace("-", ""),
        "ts": moment,
        "ts_nodash": now.strftime("%Y%m%dT%H%M%S"),
    }


def _params(task: TrainJobOperator) -> dict[str, Any]:
    """The parameters that have a default."""
    found = {}
    for name in task.params:
        try:
            found[name] = task.params[name]
        except Exception:  # noqa: BLE001, S112 - a parameter that must be given has no value before the run
            continue
    return found
