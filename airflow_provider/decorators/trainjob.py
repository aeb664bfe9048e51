"""``@task.trainjob``: run the decorated function as a TrainJob."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, _TaskDecorator
from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from airflow_provider import assets
from airflow_provider.operators.trainjob import TrainJobOperator
from trainer_core.definition.trainers import CustomTrainer
from trainer_core.packaging import serializer

__all__ = ["TrainJobDecoratedOperator", "trainjob_task"]

_TRAINER_FIELDS = {item.name for item in fields(CustomTrainer)} - {"func", "func_args"}
_PLACEHOLDER = "{argument}"


class TrainJobDecoratedOperator(DecoratedOperator, TrainJobOperator):
    """Operator of a task that `trainjob_task` creates.

    Args:
        python_callable: The training function. Its source is packaged, not templated.
        op_args: Positional arguments of the function. Default: None. Templated.
        op_kwargs: Keyword arguments of the function. Default: None. Templated.
        packages: Python packages that pip installs before the function runs, or the path of a file that lists them.
            Default: None. Templated.
        kwargs: Arguments of `trainjob_task`.

    Raises:
        ValueError: The function cannot be packaged, or an argument is invalid.
        TypeError: The arguments do not match the function's signature.
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
        packages: list[str] | str | None = None,
        **kwargs: Any,
    ) -> None:
        settings: dict[str, Any] = {name: kwargs.pop(name) for name in _TRAINER_FIELDS & kwargs.keys()}
        trainer = CustomTrainer(python_callable, **{"packages_to_install": packages, **settings})
        if not kwargs.get("wait_for_completion", True):
            # The result is the job's ref, whatever the function returns.
            kwargs["multiple_outputs"] = False
        super().__init__(
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=op_kwargs,
            trainer=trainer,
            func_args=_bind_arguments(python_callable, op_args or (), op_kwargs or {}),
            **kwargs,
        )
        self.func_args = None  # Airflow renders and shows op_args and op_kwargs instead, as for every @task.

    def _get_func_args(self) -> Mapping[str, Any]:
        return _bind_arguments(self.python_callable, self.op_args, self.op_kwargs)


class _CheckedDecorator(_TaskDecorator[Any, Any, Any]):
    """Decorated function of ``@task.trainjob``."""

    def _expand(self, expand_input: Any, *, strict: bool) -> Any:
        is_sweep = self.kwargs.get("partition") is None
        assets.check_outlets(self.kwargs["task_id"], self.kwargs.get("outlets"), is_sweep=is_sweep)
        return super()._expand(expand_input, strict=strict)


def trainjob_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> TaskDecorator:
    """Turn a training function into a task: each call of it in a DAG runs a TrainJob.

    The function is packaged as source, without its decorator and without the global names of the DAG file, so it must
    import what it uses. Its arguments can be results of upstream tasks, templates and DAG parameters; they are
    converted to the types that the function declares. The return value of the function is the result of the task. With
    ``code``, the files of a project travel with the function, and it can import from them.

    Example:
        ```python
        @task.trainjob(packages=["scikit-learn"], num_nodes=1)
        def fit(epochs: int, day: str):
            from sklearn.linear_model import LogisticRegression

            return {"accuracy": 0.9}

        fit(epochs=3, day="{{ ds }}")
        ```

    Args:
        python_callable: The training function. Default: None, when the decorator is used with arguments.
        multiple_outputs: True: push each entry of a returned dict as a separate XCom. Default: None, True if the
            function is annotated to return a dict.
        kwargs: ``packages``, a list of Python packages that pip installs before the function runs (templated), or the
            path of a file that lists them; ``code``, the folder of a project, relative to the DAG file; other fields of
            `CustomTrainer` except `func` and `func_args`, such as ``num_nodes`` (``spec.trainer.numNodes``),
            ``resources_per_node`` (``spec.trainer.resourcesPerNode``), ``env`` (``spec.trainer.env``) and ``image``
            (``spec.trainer.image``); and arguments of `TrainJobOperator` and of every operator, such as ``runtime``,
            ``options``, ``initializer``, ``trainjob_conn_id`` and ``deferrable``.

    Raises:
        ValueError: The function cannot be packaged, or a parameter has the name of a context variable of Airflow;
            raised when the DAG is parsed.
    """
    outputs: dict[str, Any] = {} if multiple_outputs is None else {"multiple_outputs": multiple_outputs}

    def decorate(function: Callable[..., Any]) -> Any:
        # Checked here because Airflow creates the operator of a mapped task only at run time.
        _validate_function(function, kwargs)
        return _CheckedDecorator(function, TrainJobDecoratedOperator, kwargs=kwargs, **outputs)

    return decorate if python_callable is None else decorate(python_callable)  # type: ignore[return-value]


def _validate_function(function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    parameters = inspect.signature(function).parameters.values()
    _refuse_context_parameters(function.__name__, [each.name for each in parameters if each.default is None])
    placeholders = {
        each.name: _PLACEHOLDER for each in parameters if each.default is each.empty and _accepts_keyword(each)
    }
    if settings.get("code") is None:
        # With code, what the function may use depends on the files; they are read once, by the operator.
        serializer.package(function, placeholders, settings.get("packaging", "source"))


def _accepts_keyword(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def _bind_arguments(function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by parameter name; a TrainJob has keyword arguments only."""
    signature = inspect.signature(function)
    bound = dict(signature.bind(*args, **kwargs).arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            bound.update(bound.pop(parameter.name, {}))
        elif parameter.kind is parameter.VAR_POSITIONAL and bound.pop(parameter.name, ()):
            raise ValueError(f"{function.__name__}: *{parameter.name} is not supported; pass the arguments by keyword")
    return bound


def _refuse_context_parameters(function: str, names: list[str]) -> None:
    """Refuse parameters such as ``ti=None``, which Airflow fills with context variables in other decorated tasks."""
    refused = [name for name in names if name in KNOWN_CONTEXT_KEYS]
    if refused:
        raise ValueError(
            f"{function}: parameter {', '.join(refused)} is a context variable of Airflow, which a TrainJob does not "
            "have; pass the needed value under another name, such as day='{{ ds }}'"
        )
