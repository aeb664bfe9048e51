"""The fields of a TrainJob where its CRD is not on this machine: from the models that Trainer publishes on PyPI.

Enough for a client to see what the server takes; nothing is validated by it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from trainer_core.k8s.resources import TRAINJOBS

__all__ = ["openapi"]


@cache
def openapi() -> dict[str, Any]:
    """Return what ``/openapi/v3/apis/trainer.kubeflow.org/v1alpha1`` would."""
    from kubeflow_trainer_api import models  # half a second: only where there is no CRD

    schema = models.TrainerV1alpha1TrainJob.model_json_schema(by_alias=True)
    found = _structural(schema, schema["$defs"], ())
    about = {"group": TRAINJOBS.group, "version": TRAINJOBS.version, "kind": TRAINJOBS.kind}
    name = "io.kubeflow.trainer.v1alpha1.TrainJob"
    marked = {**found, "x-kubernetes-group-version-kind": [about]}
    return {"openapi": "3.0.0", "info": {}, "paths": {}, "components": {"schemas": {name: marked}}}


def _structural(schema: dict[str, Any], known: dict[str, Any], above: tuple[str, ...]) -> dict[str, Any]:
    """A schema as a CRD has it: no references, and no "or null"."""
    options = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    if options:
        return _structural(options[0], known, above)
    name = schema.get("$ref", "").rpartition("/")[2]
    if name:
        return {"type": "object"} if name in above else _structural(known[name], known, (*above, name))
    plain: dict[str, Any] = {"type": schema.get("type", "object")}
    if "properties" in schema:
        inner = schema["properties"].items()
        plain["properties"] = {key: _structural(value, known, above) for key, value in inner}
    if "items" in schema:
        plain["items"] = _structural(schema["items"], known, above)
    return plain
