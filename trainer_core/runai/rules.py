"""What the fields of a workload demand of each other, and how their values may be given. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trainer_core import resources
from trainer_core.secrets import secret_from

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from trainer_core.runai.spec import TrainingWorkloadSpec

__all__ = ["check", "check_names", "pull_policy", "setting", "words"]

#: Set by Run:ai itself, and why they are refused.
_INTERNAL = {"ingress_url": "it is internal to Run:ai", "user_id": "Run:ai sets it to whoever submits"}
_PULL_POLICIES = {name.lower(): name for name in ("Always", "IfNotPresent", "Never")}
_TEMPLATE = "Template"


def setting(value: Any) -> Any:
    """Read the value of an environment variable: a text, a number, a secret by reference, or its removal."""
    if isinstance(value, Mapping) and "deleted" not in value:
        return secret_from(value)  # What it says of a mistake names no entry of it.
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return value


def words(separator: str) -> Callable[[Any], Any]:
    """Return what reads a list given as a list, or as one text with a separator between."""

    def read(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            return value
        for word in value:
            text = str(word)
            if isinstance(word, bool) or not isinstance(word, (str, int)) or not text or separator in text:
                raise ValueError(f"{word!r} cannot be in the list: its parts are written with {separator!r} between")
        return separator.join(map(str, value))

    return read


def pull_policy(value: Any) -> Any:
    """Return a pull policy as Kubernetes spells it; Run:ai's own documents begin it with a small letter."""
    return _PULL_POLICIES.get(value.lower(), value) if isinstance(value, str) else value


def check_names(data: Mapping[str, Any], fields: Mapping[str, FieldInfo]) -> Mapping[str, Any]:
    """Return fields whose names are all known, each once.

    Raises:
        ValueError: A name is not known, or a field is given by both of its names.
    """
    names = {str(field.alias): name for name, field in fields.items()}
    known = {**names, **{name: name for name in fields}}
    unknown = [str(name) for name in data if name not in known]
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, 2)
        meant = f" (did you mean {' or '.join(close)}?)" if close else ""
        raise ValueError(
            f"unknown field {', '.join(unknown)}{meant}; what Run:ai knows and this model does not goes into extra, as "
            f"it is to be sent: extra={{{unknown[0]!r}: {{'value': …}}}}"
        )
    twice = sorted(alias for alias, name in names.items() if alias != name and alias in data and name in data)
    if twice:
        raise ValueError(f"{', '.join(twice)} is given by its Python name too; keep one")
    return data


def check(spec: TrainingWorkloadSpec, reading: bool = False) -> None:
    """Refuse fields that contradict each other.

    Args:
        spec: The fields.
        reading: They come from a server, which may set its own fields.

    Raises:
        ValueError: They do; all that is wrong, on one line.
    """
    wrong = [*_amounts(spec), *_together(spec), *_template(spec), *_extra(spec)]
    if not reading:
        wrong += [
            f"{field}: {why}; leave it out" for field, why in _INTERNAL.items() if getattr(spec, field) is not None
        ]
    if wrong:
        raise ValueError("; ".join(wrong))


def _amounts(spec: TrainingWorkloadSpec) -> Iterator[str]:
    given = [name for name in ("gpu", "gpu_memory", "mig_profile") if getattr(spec, name) is not None]
    if len(given) > 1:
        yield f"{' and '.join(given)} exclude each other; keep one"
    if spec.gpu is not None:
        count = resources.parse_quantity(spec.gpu)
        if count.denominator != 1 and count > 1:
            yield f"gpu: {spec.gpu} is neither a whole number nor a part of one GPU; use one such as 2 or 0.5"
    for least, most in (("cpu", "cpu_limit"), ("memory", "memory_limit")):
        low, high = getattr(spec, least), getattr(spec, most)
        if low is not None and high is not None and resources.parse_quantity(low) > resources.parse_quantity(high):
            yield f"{least}: {low} is more than {most}, {high}"
    if None not in (spec.parallelism, spec.completions) and (spec.parallelism or 0) > (spec.completions or 0):
        yield f"parallelism: {spec.parallelism} is more than completions, {spec.completions}"


def _together(spec: TrainingWorkloadSpec) -> Iterator[str]:
    if spec.name is not None and spec.name_prefix is not None:
        yield "name and name_prefix exclude each other; keep one"
    for needed, fields in (
        ("pod_affinity", ("pod_affinity_scheduling_rule", "pod_affinity_topology")),
        ("run_as_user", ("run_as_uid", "run_as_gid")),
    ):
        # What is not said here may be said by the base workload.
        unknown = getattr(spec, needed) is None and spec.base_workload is not None
        given = [name for name in fields if getattr(spec, name) is not None]
        if given and not getattr(spec, needed) and not unknown:
            yield f"{' and '.join(given)} count only with {needed}; set {needed}=True"
    if spec.run_as_non_root and spec.run_as_user and spec.run_as_uid == 0:
        yield "run_as_uid: 0 is root, which run_as_non_root refuses"


def _template(spec: TrainingWorkloadSpec) -> Iterator[str]:
    if spec.usage == _TEMPLATE and spec.base_workload is not None:
        yield "base_workload: a template has none; leave it out, or usage='Submit'"


def _extra(spec: TrainingWorkloadSpec) -> Iterator[str]:
    for name, field in type(spec).model_fields.items():
        if field.alias in spec.extra and getattr(spec, name) is not None:
            yield f"extra: {field.alias} is given by {name} too; keep one"
