"""Unknown fields of runtimes (rule V16) and of RuntimePatch, such as ``imge``. The API server refuses them.

The fields are those of the models of `kubeflow-trainer-api`. Without that package nothing is found.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from trainer_core.runtime_admin.diagnostics import Diagnostics, build_error


def check_unknown_fields(runtime: Mapping[str, Any]) -> Diagnostics:
    """V16: the pods and jobs of a runtime have only fields that exist, with the nearest name of one that does not."""
    spec = runtime.get("spec")
    template = spec.get("template") if isinstance(spec, Mapping) else None
    if isinstance(template, Mapping):
        for path, message in find_unknown_fields({"template": template}, "TrainingRuntimeSpec", "spec"):
            yield build_error("V16", path, message)


def find_unknown_fields(data: Mapping[str, Any], kind: str, path: str) -> Iterator[tuple[str, str]]:
    """Yield the path of each field that does not exist, and a message with the nearest name."""
    try:
        from kubeflow_trainer_api import models  # type: ignore[import-untyped]  # Takes seconds.
    except ImportError:
        return
    try:
        parsed = getattr(models, f"TrainerV1alpha1{kind}").from_dict(dict(data))
    except (ValueError, TypeError, AttributeError):
        return  # A value of the wrong type, which other checks find.
    yield from _compare(data, parsed, path)


def _compare(given: Any, parsed: Any, path: str) -> Iterator[tuple[str, str]]:
    fields = getattr(type(parsed), "model_fields", None)
    if isinstance(given, Mapping) and fields is not None:
        names = {str(field.alias or name): name for name, field in fields.items()}
        for key, value in given.items():
            if key in names:
                yield from _compare(value, getattr(parsed, names[key]), f"{path}.{key}")
            else:
                similar = difflib.get_close_matches(str(key), names, 1)
                yield f"{path}.{key}", f"is unknown{f'; use {similar[0]}' if similar else ''}"
    elif isinstance(given, list) and isinstance(parsed, list):
        for index, (item, model) in enumerate(zip(given, parsed, strict=False)):
            name = item.get("name", index) if isinstance(item, Mapping) else index
            yield from _compare(item, model, f"{path}[{name}]")
