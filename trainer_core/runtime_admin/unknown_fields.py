"""Rule V16: unknown fields of a runtime, such as ``imge`` of a container. The API server refuses them.

The fields are those of the models of `kubeflow-trainer-api`. Without that package the rule finds nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from trainer_core.runtime_admin.diagnostics import Diagnostics, build_error

__all__ = ["check_unknown_fields"]


def check_unknown_fields(runtime: Mapping[str, Any]) -> Diagnostics:
    """V16: the pods and jobs of a runtime have only fields that exist, with the nearest name of one that does not."""
    spec = runtime.get("spec")
    template = spec.get("template") if isinstance(spec, Mapping) else None
    if not isinstance(template, Mapping):
        return
    try:
        from kubeflow_trainer_api import models  # type: ignore[import-untyped]  # Takes a second.
    except ImportError:
        return
    try:
        parsed = models.TrainerV1alpha1TrainingRuntimeSpec.from_dict({"template": dict(template)})
    except (ValueError, TypeError, AttributeError):
        return  # A value of the wrong type, which other rules find.
    yield from _compare(template, getattr(parsed, "template", None), "spec.template")


def _compare(given: Any, parsed: Any, path: str) -> Diagnostics:
    fields = getattr(type(parsed), "model_fields", None)
    if isinstance(given, Mapping) and fields is not None:
        names = {str(field.alias or name): name for name, field in fields.items()}
        for key, value in given.items():
            if key in names:
                yield from _compare(value, getattr(parsed, names[key]), f"{path}.{key}")
            else:
                similar = difflib.get_close_matches(str(key), names, 1)
                yield build_error("V16", f"{path}.{key}", f"is unknown{f'; use {similar[0]}' if similar else ''}")
    elif isinstance(given, list) and isinstance(parsed, list):
        for index, (item, model) in enumerate(zip(given, parsed, strict=False)):
            name = item.get("name", index) if isinstance(item, Mapping) else index
            yield from _compare(item, model, f"{path}[{name}]")
