"""What a DAG author wrote → the request as plain JSON data, when the DAG is parsed.

Whatever cannot be right is found here: an option that the backend does not accept, a function that cannot travel, a
negative number of nodes. Templates and upstream results stay as they are, for Airflow to fill in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg

from trainer_core import build
from trainer_core.client import backend_for

if TYPE_CHECKING:
    from trainer_core.configs import BackendConfig
    from trainer_core.initializers import Initializer
    from trainer_core.runtimes import Runtime

__all__ = ["joined", "plain", "split"]

_DEFAULT_BACKEND = "local"


def plain(
    *,
    backend: str | None,
    backend_config: BackendConfig | Mapping[str, Any] | None,
    runtime: str | Runtime | None = None,
    trainer: build.Trainer | Mapping[str, Any] | str | None = None,
    initializer: Initializer | None = None,
    options: Sequence[build.Option] | None = None,
) -> dict[str, Any]:
    """Build the request as plain data, checked against the class of the backend.

    Args:
        backend: Name of the backend; None for that of `backend_config`, else ``local``.
        backend_config: Its configuration, or settings of it.
        runtime: The blueprint, or its name.
        trainer: What to run: an object, a dict of its fields, or YAML of that dict.
        initializer: What to fetch first.
        options: Such as ``[Labels({"team": "vision"})]``.

    Raises:
        ValueError: Something cannot be right; one line says what and where.
    """
    name = backend or getattr(backend_config, "backend", None) or _DEFAULT_BACKEND
    given = _from_yaml(trainer) if isinstance(trainer, str) else trainer
    stand_in, arguments = _without_upstream_results(given)
    data = build.plain(
        backend=backend_for(name), runtime=runtime, trainer=stand_in, initializer=initializer, options=options
    )
    if arguments is not None:
        data["trainer"]["code"]["args"] = _with_upstream_results(data["trainer"]["code"]["args"], arguments)
    return data


def split(data: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Take the text of the training function out of a request.

    It must not be in a template field: Jinja would read the braces of its f-strings and dicts as templates. And it
    would push everything else out of Airflow's page of rendered templates, which shows 4,096 characters.
    """
    code = data.get("trainer", {}).get("code")
    if code is None:
        return data, ""
    rest = {key: value for key, value in code.items() if key != "text"}
    return {**data, "trainer": {**data["trainer"], "code": rest}}, code.get("text", "")


def joined(data: dict[str, Any], text: str) -> dict[str, Any]:
    """Undo `split`."""
    if not text:
        return data
    return {**data, "trainer": {**data["trainer"], "code": {**data["trainer"]["code"], "text": text}}}


def _from_yaml(text: str) -> Mapping[str, Any]:
    import yaml  # 20 ms that only those who give YAML shall pay

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise ValueError(f"trainer is not YAML: {problem}; put templates such as '{{{{ ds }}}}' in quotes") from error
    if not isinstance(found, Mapping):
        raise ValueError(
            f"trainer must be YAML of a mapping such as 'func: package.module:function', got {text[:60]!r}"
        )
    return found


def _without_upstream_results(trainer: Any) -> tuple[Any, Any]:
    """Put a template in the place of each upstream result among a function's arguments; return those, if any."""
    arguments = trainer.get("func_args") if isinstance(trainer, Mapping) else getattr(trainer, "func_args", None)
    stand_in = _stand_in(arguments)
    if stand_in == arguments:
        return trainer, None
    if is_dataclass(trainer) and not isinstance(trainer, type):
        return replace(trainer, func_args=stand_in), arguments
    return {**trainer, "func_args": stand_in}, arguments


def _stand_in(value: Any) -> Any:
    if isinstance(value, XComArg):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _stand_in(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_stand_in(item) for item in value]
    return value


def _with_upstream_results(data: Any, given: Any) -> Any:
    """Put the upstream results themselves back: Airflow keeps their types, and sees the dependency in them."""
    if isinstance(given, XComArg):
        return given
    if isinstance(given, Mapping):
        return {key: _with_upstream_results(item, given[key]) for key, item in data.items()}
    if isinstance(given, (list, tuple)):
        return [_with_upstream_results(item, each) for item, each in zip(data, given, strict=True)]
    return data
