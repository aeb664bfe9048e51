"""``@task.trainjob``: the decorated function is the training function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory
from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core import packaging
from trainer_core.trainers import CustomTrainer

__all__ = ["TrainJobDecoratedOperator", "trainjob_task"]

_OF_TRAINER = {item.name for item in fields(CustomTrainer)} - {"func", "func_args"}
_STAND_IN = "{argument}"


class TrainJobDecoratedOperator(DecoratedOperator, TrainJobOperator):
    """The task that `trainjob_task` makes of a function.

    Args:
        python_callable: The training function.
        op_args: What it is called with.
        op_kwargs: What it is called with, by name.
        packages: What pip installs before it runs.
        kwargs: As for `trainjob_task`.

    Raises:
        ValueError: The function cannot travel, or something in the definition cannot be right.
        TypeError: The arguments do not fit the function.
    """

    custom_operator_name = "@task.trainjob"
    template_fields: Sequence[str] = ("spec", "op_args", "op_kwargs")
    template_fields_renderers: ClassVar[dict[str, str]] = {"spec": "json", "op_args": "py", "op_kwargs": "py"}

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        packages: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        given: dict[str, Any] = {name: kwargs.pop(name) for name in _OF_TRAINER & kwargs.keys()}
        trainer = CustomTrainer(python_callable, **{"packages_to_install": packages, **given})
        if not kwargs.get("wait_for_completion", True):
            # Then the result is a ref, whatever the function returns.
            kwargs["multiple_outputs"] = False
        super().__init__(
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            trainer=trainer,
            func_args=_by_name(python_callable, op_args or (), op_kwargs or {}),
            **kwargs,
        )
        self.func_args = None  # They are in op_args and op_kwargs, which Airflow renders and shows for every @task.

    def _arguments(self) -> Mapping[str, Any]:
        return _by_name(self.python_callable, self.op_args, self.op_kwargs)


def trainjob_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """Make a task of a training function: each call of it in a DAG is a TrainJob.

    The function travels as source, without its decorator and without the names of the DAG file: it imports what it
    needs. Its arguments may be results of earlier tasks, templates and parameters of the DAG; they arrive as what it
    declares. What it returns is the task's result.

    Args:
        python_callable: The function.
        multiple_outputs: Push each entry of a returned dict as an XCom of its own; None to go by what it declares.
        kwargs: ``packages`` (what pip installs first); what `CustomTrainer` takes (``num_nodes``,
            ``resources_per_node``, ``env``, ``image``, …); what `TrainJobOperator` takes (``runtime``, ``options``,
            ``initializer``, ``deferrable``, …) and every operator.

    Raises:
        ValueError: The function cannot travel; one line says why and what to do.
    """
    decorate = task_decorator_factory(
        multiple_outputs=multiple_outputs, decorated_operator_class=TrainJobDecoratedOperator, **kwargs
    )

    def checked(function: Callable[..., Any]) -> Any:
        # Here, because Airflow makes no operator of a mapped task before it runs.
        _check(function, kwargs.get("packaging", "source"))
        return decorate(function)

    return checked if python_callable is None else checked(python_callable)  # type: ignore[return-value]


def _check(function: Callable[..., Any], mode: str) -> None:
    parameters = inspect.signature(function).parameters.values()
    _refuse_context(function.__name__, [each.name for each in parameters if each.default is None])
    stand_ins = {each.name: _STAND_IN for each in parameters if each.default is each.empty and _has_name(each)}
    packaging.package(function, stand_ins, mode)


def _has_name(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def _by_name(function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by the names of the parameters; a job is given nothing by position."""
    signature = inspect.signature(function)
    found = dict(signature.bind(*args, **kwargs).arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            found.update(found.pop(parameter.name, {}))
        elif parameter.kind is parameter.VAR_POSITIONAL and found.pop(parameter.name, ()):
            raise ValueError(f"{function.__name__} takes *{parameter.name}, but arguments of a training go by name")
    return found


def _refuse_context(function: str, names: list[str]) -> None:
    """A parameter of such a name is filled in by Airflow where the function runs in it, as in ``ti=None``."""
    asked = [name for name in names if name in KNOWN_CONTEXT_KEYS]
    if asked:
        raise ValueError(
            f"{function} takes {', '.join(asked)} of Airflow, which a training has nothing of; pass what it needs, "
            "such as day='{{ ds }}', under another name"
        )
