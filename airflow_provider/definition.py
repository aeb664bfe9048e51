"""What a DAG author wrote → the request as plain JSON data, when the DAG is parsed.

Whatever cannot be right is found here: an option that the backend does not accept, a function that cannot travel, a
negative number of nodes. Templates and upstream results stay as they are, for Airflow to fill in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Any

# What Airflow fills in when a task runs: results of earlier tasks, parameters of the DAG, entries of a mapped group.
from airflow.sdk.definitions._internal.mixins import ResolveMixin

from trainer_core import build
from trainer_core.client import backend_for
from trainer_core.initializers import Initializer, initializer_from_dict

if TYPE_CHECKING:
    from trainer_core.configs import BackendConfig
    from trainer_core.runtimes import Runtime

__all__ = ["joined", "plain", "split"]

_DEFAULT_BACKEND = "local"
#: Stands for what is not known before the task runs; what holds a brace is judged then.
_UNKNOWN = "{from upstream}"


def plain(
    *,
    backend: str | None,
    backend_config: BackendConfig | Mapping[str, Any] | None,
    runtime: str | Runtime | None = None,
    trainer: build.Trainer | Mapping[str, Any] | str | None = None,
    func_args: Mapping[str, Any] | None = None,
    initializer: Initializer | Mapping[str, Any] | None = None,
    options: Sequence[build.Option] | str | None = None,
) -> dict[str, Any]:
    """Build the request as plain data, checked against the class of the backend.

    Args:
        backend: Name of the backend; None for that of `backend_config`, else ``local``.
        backend_config: Its configuration, or settings of it.
        runtime: The blueprint, or its name.
        trainer: What to run: an object, a dict of its fields, or YAML of that dict.
        func_args: Arguments that `joined` will lay over the trainer's own; here they are only checked.
        initializer: What to fetch first: an object, or a dict of URIs or fields.
        options: Such as ``[Labels({"team": "vision"})]``: objects, plain data, or YAML of that.

    Raises:
        ValueError: Something cannot be right; one line says what and where.
    """
    name = backend or getattr(backend_config, "backend", None) or _DEFAULT_BACKEND
    given = _from_yaml("trainer", trainer, "func: package.module:function") if isinstance(trainer, str) else trainer
    own = _arguments(given)
    every = {**own, **_checked(func_args)} if func_args else own
    data = build.plain(
        backend=backend_for(name),
        runtime=runtime,
        trainer=_with_arguments(given, _stand_in(every)) if every else given,
        initializer=initializer_from_dict(initializer) if isinstance(initializer, Mapping) else initializer,
        options=_from_yaml("options", options, "- QueueName: nightly") if isinstance(options, str) else options,
    )
    if every:
        code = data["trainer"]["code"]
        mine = {key: value for key, value in code["args"].items() if key not in (func_args or ())}
        code["args"] = _with_upstream_results(mine, own)
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


def joined(data: dict[str, Any], text: str, func_args: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Undo `split`, and lay arguments over those of the training function, once all of it is rendered."""
    code = data.get("trainer", {}).get("code")
    if code is None:
        return data
    args = {name: _settled(value) for name, value in {**code.get("args", {}), **(func_args or {})}.items()}
    whole = {**code, "args": args, **({"text": text} if text else {})}
    return {**data, "trainer": {**data["trainer"], "code": whole}}


def _from_yaml(what: str, text: str, example: str) -> Any:
    import yaml  # 20 ms that only those who give YAML shall pay

    kind, name = (Mapping, "a mapping") if what == "trainer" else (list, "a list")
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise ValueError(f"{what} is not YAML: {problem}; put templates such as '{{{{ ds }}}}' in quotes") from error
    if not isinstance(found, kind):
        raise ValueError(f"{what} must be YAML of {name} such as '{example}', got {text[:60]!r}")
    return found


def _checked(func_args: Any) -> Mapping[str, Any]:
    if not isinstance(func_args, Mapping):
        raise ValueError(
            "func_args must be a dict of keyword arguments such as {'epochs': 3}; its values may be results of earlier "
            f"tasks, it may not; got {type(func_args).__name__}"
        )
    return func_args


def _arguments(trainer: Any) -> Mapping[str, Any]:
    found = trainer.get("func_args") if isinstance(trainer, Mapping) else getattr(trainer, "func_args", None)
    return found if isinstance(found, Mapping) else {}


def _with_arguments(trainer: Any, func_args: Mapping[str, Any]) -> Any:
    if isinstance(trainer, Mapping):
        return {**trainer, "func_args": func_args}
    if is_dataclass(trainer) and not isinstance(trainer, type) and hasattr(trainer, "func_args"):
        return replace(trainer, func_args=func_args)
    raise ValueError(f"func_args go with a training function, CustomTrainer(func=…), not with {type(trainer).__name__}")


def _is_upstream(value: Any) -> bool:
    """What comes from an earlier task: of a mapped one, a sequence that asks Airflow for each result."""
    lazy = isinstance(value, Sequence) and not isinstance(value, (str, bytes, list, tuple))
    return lazy or isinstance(value, ResolveMixin)


def _stand_in(value: Any) -> Any:
    if _is_upstream(value):
        return _UNKNOWN
    if isinstance(value, Mapping):
        return {key: _stand_in(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_stand_in(item) for item in value]
    return value


def _with_upstream_results(data: Any, given: Any) -> Any:
    """Put the upstream results themselves back: Airflow keeps their types, and sees the dependency in them."""
    if _is_upstream(given):
        return given
    if isinstance(given, Mapping):
        return {key: _with_upstream_results(item, given[key]) for key, item in data.items()}
    if isinstance(given, (list, tuple)):
        return [_with_upstream_results(item, each) for item, each in zip(data, given, strict=True)]
    return data


def _settled(value: Any) -> Any:
    """Results of mapped tasks come as a sequence that asks Airflow for each of them; JSON has lists."""
    if isinstance(value, Mapping):
        return {key: _settled(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_settled(item) for item in value]
    return value
