"""Executor input → typed arguments; results → the files that KFP reads back.

This is all that the components know of KFP at run time, and it is plain JSON: no kfp is imported. What the local
runner leaves out is done here: folders of outputs are made, and output artifacts are written down with their
metadata, without which they vanish.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from kfp_components.step.request_encoding import decode_request
from trainer_core.base import validation
from trainer_core.base.errors import InvalidRequestError
from trainer_core.base.secrets import redact

#: ``{INPUT_REFERENCE: name}`` in an input stands for the value of another input, whatever its type.
INPUT_REFERENCE = "trainjob.input"

#: Where KFP's launcher puts what lies in an object store.
_MOUNTS = {"gs": "/gcs/", "minio": "/minio/", "s3": "/s3/"}
_WORKSPACE_ARTIFACTS = "/kfp-workspace/.artifacts"
#: The step's log. KFP adds it to the outputs of every task and writes it itself; its URI differs in each retry.
_EXECUTOR_LOGS = "executor-logs"
#: A pipeline parameter inside a dict arrives unresolved, or as text: KFP resolves whole arguments only.
_PARAMETER = re.compile(r"\{\{\$\.inputs\.parameters\['([^']+)'\]\}\}")


def get_local_path(uri: str) -> Path | None:
    """Return where KFP puts the content of a URI on this machine; None where it puts it nowhere."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return Path(uri)
    if scheme == "file":
        return Path(unquote(urlsplit(uri).path))
    if scheme == "oci":
        return Path("/oci", rest.replace("/", "_"), "models")
    return Path(_MOUNTS[scheme] + rest) if scheme in _MOUNTS else None


@dataclass
class Artifact:
    """One artifact of a task."""

    name: str
    uri: str
    #: Facts shown beside it.
    metadata: dict[str, Any] = field(default_factory=dict)
    #: Where its content lies instead of where the URI says.
    custom_path: str | None = None

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Artifact:
        """Read one artifact of an executor input."""
        metadata = dict(data.get("metadata") or {})
        return cls(str(data.get("name") or ""), str(data["uri"]), metadata, data.get("customPath") or None)

    @property
    def path(self) -> Path | None:
        """Where its content lies on this machine; None where KFP puts it nowhere."""
        path = Path(self.custom_path) if self.custom_path else get_local_path(self.uri)
        if path is not None and self.metadata.get("_kfp_workspace") is True:
            return Path(_WORKSPACE_ARTIFACTS, str(path).lstrip("/"))
        return path

    def require_path(self) -> Path:
        """Return where its content lies or goes."""
        if self.path is None:
            raise InvalidRequestError(
                f"artifact {redact(self.name)}: {redact(self.uri)} is not on this machine; use s3, gs or minio"
            )
        return self.path


class Task:
    """One run of a component: its inputs, and the places of its outputs."""

    def __init__(self, executor_input: Mapping[str, Any]) -> None:
        inputs, outputs = executor_input.get("inputs") or {}, executor_input.get("outputs") or {}
        self._values: dict[str, Any] = dict(inputs.get("parameterValues") or {})
        self._artifacts = {name: _parse_single_artifact(held) for name, held in (inputs.get("artifacts") or {}).items()}
        files = outputs.get("parameters") or {}
        self._files = {name: Path(place["outputFile"]) for name, place in files.items()}
        declared = {n: held for n, held in (outputs.get("artifacts") or {}).items() if n != _EXECUTOR_LOGS}
        self.artifacts = {name: _parse_single_artifact(held) for name, held in declared.items()}
        self._output_file = Path(outputs["outputFile"]) if outputs.get("outputFile") else None
        self._written: set[str] = set()
        self._nulls: dict[str, None] = {}
        # Values that did not pass through KFP: none of them is converted.
        self._encoded_inputs: dict[str, Any] = {}

    @classmethod
    def parse(cls, text: str, request: str | None = None) -> Task:
        """Read the arguments of the entry point."""
        try:
            data = json.loads(text)
            validation.check_size("it", data)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(
                f"the executor input is not JSON ({error}); a pipeline parameter inside a dict must not hold quotes, "
                "backslashes or line ends: make the whole dict a pipeline parameter"
            ) from error
        if not isinstance(data, dict):
            raise InvalidRequestError("the executor input is no JSON object; pass '{{$}}' as the only argument")
        try:
            task = cls(data)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidRequestError(
                f"the executor input is damaged ({type(error).__name__}: {error}); pass '{{{{$}}}}' as the only "
                "argument"
            ) from error
        if request is not None:
            task._encoded_inputs["request"] = decode_request(request)
        return task

    def get_arguments(self, target: Callable[..., Any]) -> dict[str, Any]:
        """Return the keyword arguments for a function or class, by its annotations and defaults.

        An input that is missing, or None, takes the function's default: the backend fills in a component's
        defaults, the local runner passes null for some, and neither does for all.
        """
        hints = typing.get_type_hints(target)
        wanted = [p for p in inspect.signature(target).parameters.values() if p.kind is p.KEYWORD_ONLY]
        return {parameter.name: self._get_argument(parameter, hints[parameter.name]) for parameter in wanted}

    def _get_argument(self, parameter: inspect.Parameter, hint: Any) -> Any:
        if is_shared(hint):
            return hint(**self.get_arguments(hint))
        name, (kind, *_) = parameter.name, _list_types(hint)
        if name in self._encoded_inputs:
            return _resolve_references(self._encoded_inputs[name], self._values)
        if kind is Artifact:
            value = self._artifacts.get(name)
        else:
            value = _resolve_parameters(self._values.get(name), self._values)
        if value is None:
            if parameter.default is parameter.empty:
                raise InvalidRequestError(f"input {redact(name)} is missing; pass it to the component")
            return parameter.default
        return value if kind is Artifact else _convert(name, value, kind)

    def make_output_folders(self) -> None:
        """Make the folders that outputs go into; the local runner does not."""
        paths = [artifact.path for artifact in self.artifacts.values()]
        for path in (*self._files.values(), self._output_file, *paths):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)

    def get_artifact(self, name: str) -> Artifact:
        if name not in self.artifacts:
            raise InvalidRequestError(
                f"the component has no output artifact {redact(name)}; its image is of another version"
            )
        return self.artifacts[name]

    def write(self, name: str, value: Any) -> None:
        """Write an output parameter: text as it is, anything else as JSON; None for an output without a value."""
        if name not in self._files:
            raise InvalidRequestError(f"the component has no output {redact(name)}; its image is of another version")
        if value is None:
            # The launcher fails a task whose output has no file, and a number's file that is not a number.
            self._nulls[name] = None
        else:
            text = value if isinstance(value, str) else json.dumps(_replace_non_finite(value), ensure_ascii=False)
            self._files[name].write_text(text, encoding="utf-8")
        self._written.add(name)

    def list_missing_outputs(self) -> list[str]:
        """Return the declared output parameters that have no value; the backend fails a task for one."""
        return sorted(self._files.keys() - self._written)

    def close(self) -> None:
        """Write down the output artifacts with their metadata, and which output parameters have no value."""
        if self._output_file is None:
            return
        artifacts = {name: {"artifacts": [_to_output_entry(artifact)]} for name, artifact in self.artifacts.items()}
        written: dict[str, Any] = {"artifacts": artifacts}
        if self._nulls:
            written["parameterValues"] = self._nulls
        self._output_file.write_text(json.dumps(written, ensure_ascii=False), encoding="utf-8")


def is_shared(hint: Any) -> bool:
    """Return whether an annotation is a dataclass of inputs, which several components have."""
    return is_dataclass(hint) and hint is not Artifact


def _parse_single_artifact(held: Mapping[str, Any]) -> Artifact:
    artifacts = held.get("artifacts") or []
    if len(artifacts) != 1:
        raise InvalidRequestError(f"exactly one artifact is expected for each input and output, got {len(artifacts)}")
    return Artifact.parse(artifacts[0])


def _to_output_entry(artifact: Artifact) -> dict[str, Any]:
    # The launcher fails a task for a null at the top of metadata; inside lists and dicts it takes one.
    metadata = {key: value for key, value in _replace_non_finite(artifact.metadata).items() if value is not None}
    return {"name": artifact.name, "uri": artifact.uri, "metadata": metadata}


def _list_types(hint: Any) -> list[Any]:
    """Return the type of an annotation, without the None of an optional one."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    members = typing.get_args(hint) if union else (hint,)
    return [typing.get_origin(member) or member for member in members if member is not type(None)]


def _is_reference(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {INPUT_REFERENCE}


def _list_given(data: Mapping[str, Any], values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Leave out references to optional inputs without a value: a function then takes its own default."""
    return [
        (key, item)
        for key, item in data.items()
        if not _is_reference(item) or values.get(item[INPUT_REFERENCE]) is not None
    ]


def _resolve_references(value: Any, values: Mapping[str, Any]) -> Any:
    """Put the values of inputs in the place of references to them."""
    if _is_reference(value):
        return _restore_ints(values.get(value[INPUT_REFERENCE]))
    if isinstance(value, dict):
        return {key: _resolve_references(item, values) for key, item in _list_given(value, values)}
    return [_resolve_references(item, values) for item in value] if isinstance(value, list) else value


def _resolve_parameters(value: Any, values: Mapping[str, Any]) -> Any:
    """Put parameters in the place of references to them, with their type where the reference stands alone."""
    if _is_reference(value):
        return values.get(value[INPUT_REFERENCE])
    if isinstance(value, dict):
        return {key: _resolve_parameters(item, values) for key, item in _list_given(value, values)}
    if isinstance(value, list):
        return [_resolve_parameters(item, values) for item in value]
    if not isinstance(value, str):
        return value
    alone = _PARAMETER.fullmatch(value)
    if alone and alone[1] in values:
        return values[alone[1]]
    return _PARAMETER.sub(lambda match: _to_text(values.get(match[1], match[0])), value)


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(_restore_ints(value))


def _convert(name: str, value: Any, kind: type) -> Any:
    """Give a value the type its input is declared with; KFP knows one kind of number and sometimes only text."""
    if kind is not str and isinstance(value, str):
        try:
            value = json.loads(value.lower() if kind is bool else value)
        except (ValueError, RecursionError):
            raise InvalidRequestError(f"input {name!r} must be {kind.__name__}, got {redact(value)}") from None
        validation.check_size(f"input {name!r}", value)
    value = _restore_ints(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < sys.float_info.max:
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InvalidRequestError(f"input {redact(name)} must be {kind.__name__}, got {redact(value)}")
    return value


def _restore_ints(value: Any) -> Any:
    """Make 2.0 what it was before KFP: 2. An argument annotated float becomes a float again in the request."""
    if isinstance(value, dict):
        return {key: _restore_ints(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_restore_ints(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _replace_non_finite(value: Any) -> Any:
    """Put null in the place of NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {str(key): _replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_non_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
