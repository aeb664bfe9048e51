"""Builds the request of an operator as plain JSON data when the DAG is parsed.

Invalid definitions are found here: an option that the backend does not accept, a function that cannot be packaged, a
negative number of nodes. Templates and results of upstream tasks remain for Airflow to render.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

# Base class of values that Airflow resolves when a task runs: upstream results, DAG parameters, mapped arguments.
from airflow.sdk.definitions._internal.mixins import ResolveMixin

from trainer_core.base import validation
from trainer_core.base.secrets import redact
from trainer_core.base.text import shorten, write_text
from trainer_core.definition import request_builder
from trainer_core.definition.initializers import Initializer, initializer_from_dict
from trainer_core.model.func_args import PartialArgs

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context, XComArg

    from trainer_core.model.config import BackendConfig
    from trainer_core.model.runtimes import Runtime

#: Placeholder of an upstream result; values with a brace are checked when the task runs.
_PLACEHOLDER = "{from upstream}"


def build_spec(
    *,
    backend: str | None,
    backend_config: BackendConfig | Mapping[str, Any] | None,
    runtime: str | Runtime | None = None,
    trainer: request_builder.Trainer | Mapping[str, Any] | str | None = None,
    func_args: Mapping[str, Any] | XComArg | None = None,
    initializer: Initializer | Mapping[str, Any] | None = None,
    options: Sequence[request_builder.Option] | str | None = None,
    partition: str | XComArg | None = None,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Build the request as plain data, checked against the class of the backend where the DAG names it."""
    for what, value in (("trainer", trainer), ("func_args", func_args), ("options", options)):
        validation.check_size(what, value)
    if backend is not None and not isinstance(backend, str):
        raise ValueError(f"backend must be the name of a backend such as 'local', got {redact(backend)}")
    definition: Any = trainer
    if isinstance(trainer, str):
        definition = _parse_yaml("trainer", trainer, "func: package.module:function")
    is_late = has_late_args(func_args)
    trainer_args = get_func_args(definition)
    overrides = {} if func_args is None or is_late else check_func_args(func_args)
    all_args = _replace_upstream_results({**trainer_args, **overrides})
    if is_late or isinstance(func_args, PartialArgs):
        definition = _set_func_args(definition, PartialArgs(all_args))
    elif all_args:
        definition = _set_func_args(definition, all_args)
    sources = initializer if isinstance(initializer, Mapping) else {}
    late_uris = {role: uri for role, uri in sources.items() if is_upstream_result(uri)}
    data = request_builder.build_request_data(
        backend=_find_backend(backend or getattr(backend_config, "backend", None)),
        runtime=runtime,
        trainer=definition,
        initializer=initializer_from_dict({**initializer, **dict.fromkeys(late_uris, _PLACEHOLDER)})
        if isinstance(initializer, Mapping)
        else initializer,
        options=_parse_yaml("options", options, "- QueueName: nightly") if isinstance(options, str) else options,
        folder=folder,
    )
    for role, uri in late_uris.items():
        data["initializer"][role]["storage_uri"] = uri
    if partition is not None:
        if not is_upstream_result(partition) and not validation.is_placeholder(partition):
            validation.check_partition(partition)
        data["partition"] = partition
    if all_args:
        code = data["trainer"]["code"]
        kept = {key: value for key, value in code["args"].items() if key not in overrides}
        code["args"] = _restore_upstream_results(kept, trainer_args)
    return data


def _find_backend(name: str | None) -> type[Any] | None:
    """Return the class of the backend; a DAG that names none does not load the client."""
    if not name:
        return None
    from trainer_core.client import backend_for

    return backend_for(name)


class CodeContent(NamedTuple):
    """What `split_code` removes from a request."""

    text: str = ""
    #: Files that travel with it.
    archive: str = ""
    #: File and line of the source. In a template field, each line added above a task would be a new version of its DAG.
    origin: str | None = None


def find_dag_folder(operator: Any) -> Path | None:
    """Return the folder of the DAG file; None for an operator that belongs to no DAG yet."""
    file = operator.dag.fileloc if operator.has_dag() else None
    return Path(file).parent if file else None


def split_code(data: dict[str, Any]) -> tuple[dict[str, Any], CodeContent]:
    """Remove the source of the training function and its files from a request; return the rest and what was removed.

    The source must not be in a template field: Jinja would render the braces of its f-strings and dicts. Both would
    take up Airflow's page of rendered templates, which shows 4,096 characters.
    """
    code = data.get("trainer", {}).get("code")
    if code is None:
        return data, CodeContent()
    rest = {key: value for key, value in code.items() if key not in ("text", "origin")}
    archive = ""
    if "project" in code:
        rest["project"] = {key: value for key, value in code["project"].items() if key != "archive"}
        archive = code["project"]["archive"]
    content = CodeContent(code.get("text", ""), archive, code.get("origin"))
    return {**data, "trainer": {**data["trainer"], "code": rest}}, content


def join_code(data: dict[str, Any], content: CodeContent, func_args: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Undo `split_code`, and override arguments of the training function, after everything is rendered."""
    code = data.get("trainer", {}).get("code")
    if code is None:
        return data
    args = {name: _to_plain_data(value) for name, value in {**code.get("args", {}), **(func_args or {})}.items()}
    removed = {"text": content.text, "origin": content.origin}
    code = {**code, "args": args, **{key: value for key, value in removed.items() if value}}
    if content.archive:
        code["project"] = {**code["project"], "archive": content.archive}
    return {**data, "trainer": {**data["trainer"], "code": code}}


def render_text(text: str, context: Context, env: jinja2.Environment) -> str:
    """Return a rendered template as text; one without a template as it is, also with native rendering.

    A template that is one expression also has what an argument without a declared type becomes: its value with native
    rendering, else None if that is its value.
    """
    if not any(mark in text for mark in ("{{", "{%", "{#")):
        return text
    from airflow.sdk.definitions._internal.templater import render_template_to_string  # type: ignore[attr-defined]
    from jinja2.nativetypes import NativeEnvironment

    values: list[Any] = []

    def keep(value: Any) -> str:
        values.append(value)
        return str(value)

    rendered = render_template_to_string(env.overlay(finalize=keep).from_string(text), context)
    is_value = len(values) == 1 and rendered == str(values[0])
    is_typed = is_value and (values[0] is None or isinstance(env, NativeEnvironment))
    return write_text(rendered, values[0]) if is_typed else rendered


def parse_template_yaml(what: str, text: str) -> Any:
    """Return the document of a YAML text in which templates are in quotes; None for an empty text."""
    from trainer_core.base.yaml_documents import parse_yaml  # takes 20 ms, so it is imported only for YAML

    try:
        documents = parse_yaml(text)
    except ValueError as error:
        problem = shorten(str(error), 200)
        raise ValueError(
            f"{what} is not valid YAML: {problem}; put templates such as '{{{{ ds }}}}' in quotes"
        ) from error
    if len(documents) > 1:
        raise ValueError(f"{what} must be one YAML document, got {len(documents)}")
    return documents[0] if documents else None


def _parse_yaml(what: str, text: str, example: str) -> Any:
    expected, name = (Mapping, "a mapping") if what == "trainer" else (list, "a list")
    data = parse_template_yaml(what, text)
    if not isinstance(data, expected):
        raise ValueError(f"{what} must be YAML of {name} such as '{example}', got {redact(text)}")
    return data


def has_late_args(func_args: Any) -> bool:
    """Return whether all overriding arguments are the result of an upstream task, such as a search."""
    return isinstance(func_args, ResolveMixin)


def check_func_args(func_args: Any) -> Mapping[str, Any]:
    """Return the arguments if they are a dict, of the definition or from an upstream task."""
    if not isinstance(func_args, Mapping):
        raise ValueError(
            "func_args must be a dict of keyword arguments such as {'epochs': 3}, or the result of an upstream task "
            f"that returns one; got {redact(func_args)}"
        )
    return func_args


def get_func_args(trainer: Any) -> Mapping[str, Any]:
    """Return the arguments of a trainer's function; empty for another trainer."""
    args = trainer.get("func_args") if isinstance(trainer, Mapping) else getattr(trainer, "func_args", None)
    return args if isinstance(args, Mapping) else {}


def _set_func_args(trainer: Any, func_args: Mapping[str, Any]) -> Any:
    if isinstance(trainer, Mapping):
        return {**trainer, "func_args": func_args}
    if is_dataclass(trainer) and not isinstance(trainer, type) and hasattr(trainer, "func_args"):
        return replace(trainer, func_args=func_args)
    raise ValueError(f"func_args needs a training function, CustomTrainer(func=…), not {type(trainer).__name__}")


def is_upstream_result(value: Any) -> bool:
    """Return whether Airflow provides the value at run time; results of a mapped task are a lazy sequence."""
    lazy = isinstance(value, Sequence) and not isinstance(value, (str, bytes, list, tuple))
    return lazy or isinstance(value, ResolveMixin)


def _replace_upstream_results(value: Any) -> Any:
    if is_upstream_result(value):
        return _PLACEHOLDER
    if isinstance(value, Mapping):
        return {key: _replace_upstream_results(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_upstream_results(item) for item in value]
    return value


def _restore_upstream_results(data: Any, original: Any) -> Any:
    """Replace placeholders by the upstream results: Airflow finds the dependency in them and keeps their types."""
    if is_upstream_result(original):
        return original
    if isinstance(original, Mapping):
        return {key: _restore_upstream_results(item, original[key]) for key, item in data.items()}
    if isinstance(original, (list, tuple)):
        return [_restore_upstream_results(item, each) for item, each in zip(data, original, strict=True)]
    return data


def _to_plain_data(value: Any) -> Any:
    """Convert the lazy sequence that holds the results of a mapped task to a list, which JSON can represent."""
    if isinstance(value, Mapping):
        return {key: _to_plain_data(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_to_plain_data(item) for item in value]
    return value
