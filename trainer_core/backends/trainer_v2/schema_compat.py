"""Compatibility with Trainer 2.0 to 2.3 and later, by the fields of a cluster's TrainJob schema, no version. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from trainer_core.base.errors import BackendUnavailableError, UnsupportedError
from trainer_core.k8s import resources

_RUNTIME_PATCHES = "runtimePatches"
#: Fields that override the pods of a runtime for one job, the newest first: 2.2 and later, 2.1, 2.0.
_OVERRIDE_FIELDS = (_RUNTIME_PATCHES, "podTemplateOverrides", "podSpecOverrides")
_REPLICATED_JOBS = f"spec.{_RUNTIME_PATCHES}.trainingRuntimeSpec.template.spec.replicatedJobs"
_INT_LIMITS = {"int32": 2**31 - 1, "int64": 2**63 - 1}


@dataclass(frozen=True)
class SchemaField:
    """A field of TrainJob with its validation rules."""

    #: Whether it accepts only integers.
    is_integer: bool = False
    #: Whether it accepts any key.
    is_open: bool = False
    minimum: int | None = None
    maximum: int | None = None
    #: Maximum number of list entries.
    max_items: int | None = None
    #: Maximum length of a string, or of each string in a list.
    max_length: int | None = None
    #: Fields that identify a list entry (`x-kubernetes-list-map-keys`); entries must differ in them.
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainJobSchema:
    """Schema of TrainJob on a cluster."""

    fields: Mapping[str, SchemaField]

    def has_field(self, path: str) -> bool:
        """Return whether TrainJob has a field, such as ``spec.activeDeadlineSeconds``."""
        return path in self.fields

    def list_children(self, path: str) -> list[str]:
        """Return the names of the fields of an object, such as ``spec.trainer``."""
        return [name for parent, _, name in (field.rpartition(".") for field in self.fields) if parent == path]

    @property
    def override_field(self) -> str | None:
        """Field of `spec` that overrides a runtime for one job; None if there is no known one."""
        return next((name for name in _OVERRIDE_FIELDS if self.has_field(f"spec.{name}")), None)

    @property
    def supports_active_deadline(self) -> bool:
        """Whether the controller ends jobs at a deadline (Trainer 2.2 and later)."""
        return self.has_field("spec.activeDeadlineSeconds")

    @property
    def supports_termination_grace_period(self) -> bool:
        """Whether a patch can set ``terminationGracePeriodSeconds`` (Trainer 2.3 and later)."""
        return self.has_field(f"{_REPLICATED_JOBS}.template.spec.template.spec.terminationGracePeriodSeconds")

    @property
    def requires_initializer_mount(self) -> bool:
        """Whether admission requires a volume mount ``initializer`` in every initializer (Trainer 2.3 and later)."""
        return self.supports_termination_grace_period


def parse_crd(crd: Mapping[str, Any]) -> TrainJobSchema:
    """Parse the CustomResourceDefinition of TrainJob."""
    for version in crd.get("spec", {}).get("versions", ()):
        if version.get("name") == resources.TRAINJOBS.version and version.get("served"):
            return _parse_schema(version["schema"]["openAPIV3Schema"])
    raise BackendUnavailableError(
        f"the cluster does not serve {resources.TRAINJOBS.api_version} TrainJob; install Kubeflow Trainer 2.0 or later"
    )


def parse_openapi(document: Mapping[str, Any]) -> TrainJobSchema:
    """Parse the OpenAPI v3 document of the API group, from ``/openapi/v3/apis/<group>/<version>``."""
    for schema in document.get("components", {}).get("schemas", {}).values():
        gvks = schema.get("x-kubernetes-group-version-kind") or ()
        # The schema of the list of TrainJobs has the kind TrainJobList.
        if any(gvk.get("kind") == resources.TRAINJOBS.kind and _is_trainjob_group(gvk) for gvk in gvks):
            return _parse_schema(schema)
    raise BackendUnavailableError(
        f"the cluster does not serve {resources.TRAINJOBS.api_version} TrainJob; install Kubeflow Trainer 2.0 or later"
    )


def render_overrides(patches: Sequence[Mapping[str, Any]], schema: TrainJobSchema) -> dict[str, Any]:
    """Render RuntimePatch entries as the fields of `spec` that the cluster's Trainer version has."""
    if not patches:
        return {}
    if schema.override_field is None:
        _raise_unsupported(_RUNTIME_PATCHES, schema)
    if schema.override_field == _RUNTIME_PATCHES:
        unchanged = {_RUNTIME_PATCHES: [dict(patch) for patch in patches]}
        check_spec(unchanged, schema)
        return unchanged
    spec: dict[str, Any] = {}
    for patch in patches:
        _convert_patch(patch, schema.override_field, schema, spec)
    return spec


def check_spec(spec: Mapping[str, Any], schema: TrainJobSchema) -> None:
    """Check a spec against the schema: unknown fields, limits, and list entries with equal keys."""
    _check_object(spec, "spec", "spec", schema)


def _is_trainjob_group(gvk: Mapping[str, Any]) -> bool:
    return (gvk.get("group"), gvk.get("version")) == (resources.TRAINJOBS.group, resources.TRAINJOBS.version)


def _parse_schema(schema: Mapping[str, Any]) -> TrainJobSchema:
    fields = {path: field for path, field in _walk_fields(schema, "") if path.startswith(("spec", "status"))}
    return TrainJobSchema(fields)


def _walk_fields(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, SchemaField]]:
    for name, part in schema.get("properties", {}).items():
        field_path = f"{path}.{name}" if path else name
        inner = part
        while inner.get("type") == "array":
            inner = inner.get("items", {})
        yield field_path, _parse_field(part, inner)
        yield from _walk_fields(inner, field_path)


def _parse_field(part: Mapping[str, Any], inner: Mapping[str, Any]) -> SchemaField:
    return SchemaField(
        is_integer=inner.get("type") == "integer",
        is_open="properties" not in inner,
        minimum=part.get("minimum"),
        maximum=part.get("maximum", _INT_LIMITS.get(part.get("format", ""))),
        max_items=part.get("maxItems"),
        max_length=inner.get("maxLength"),
        keys=tuple(part.get("x-kubernetes-list-map-keys", ())),
    )


@dataclass(frozen=True)
class _PatchNode:
    """An object inside a patch."""

    data: Mapping[str, Any]
    #: Dotted path of the object in the patch, for messages.
    path: str
    #: Schema of TrainJob on the cluster.
    schema: TrainJobSchema

    def descend(self, name: str, *ignored: str) -> _PatchNode:
        """Return the object of a key; raise UnsupportedError for keys other than it and the ignored ones."""
        self.check_keys(name, *ignored)
        return _PatchNode(self.data.get(name) or {}, f"{self.path}.{name}", self.schema)

    def check_keys(self, *names: str) -> None:
        """Raise UnsupportedError for a key that is not in `names`: the older override field has no place for it."""
        for key in self.data:
            if key not in names:
                _raise_unsupported(f"{self.path}.{key}", self.schema)


def _convert_patch(patch: Mapping[str, Any], field: str, schema: TrainJobSchema, spec: dict[str, Any]) -> None:
    """Add one patch to a spec, as override fields of Trainer 2.0 and 2.1."""
    root = _PatchNode(patch, f"{_RUNTIME_PATCHES}[{patch.get('manager')}]", schema)
    template = root.descend("trainingRuntimeSpec", "manager", "time").descend("template")
    # Trainer 2.0 and 2.1 merge spec.labels into the labels of the JobSet, as 2.2 does with those of the patch.
    metadata = template.descend("metadata", "spec")
    for kind, values in metadata.data.items():
        if not schema.has_field(f"spec.{kind}"):
            _raise_unsupported(f"{metadata.path}.{kind}", schema)
        spec.setdefault(kind, {}).update(values)
    jobs = template.descend("spec", "metadata")
    jobs.check_keys("replicatedJobs")
    for job in jobs.data.get("replicatedJobs") or ():
        node = _PatchNode(job, f"{jobs.path}.replicatedJobs[{job.get('name')}]", schema)
        pod = node.descend("template", "name").descend("spec").descend("template")
        entry = _convert_pod_spec(pod, field) if field == _OVERRIDE_FIELDS[-1] else _convert_pod_template(pod, field)
        if entry:
            spec.setdefault(field, []).append({"targetJobs": [{"name": job.get("name")}], **entry})


def _convert_pod_template(pod: _PatchNode, field: str) -> dict[str, Any]:
    """Convert to an entry of `podTemplateOverrides` (Trainer 2.1), which has metadata and spec of the pod."""
    _check_object(pod.data, f"spec.{field}", pod.path, pod.schema)
    return dict(pod.data)


def _convert_pod_spec(pod: _PatchNode, field: str) -> dict[str, Any]:
    """Convert to an entry of `podSpecOverrides` (Trainer 2.0), which has the fields of the pod spec."""
    inner = pod.descend("spec")
    _check_object(inner.data, f"spec.{field}", inner.path, inner.schema)
    return dict(inner.data)


def _check_object(value: Mapping[str, Any], schema_path: str, path: str, schema: TrainJobSchema) -> None:
    for key, item in value.items():
        field = schema.fields.get(f"{schema_path}.{key}")
        if field is None:
            _raise_unsupported(f"{path}.{key}", schema, schema.list_children(schema_path))
        _check_value(item, field, f"{path}.{key}")
        for suffix, entry in () if field.is_open else _walk_objects(item):
            _check_object(entry, f"{schema_path}.{key}", f"{path}.{key}{suffix}", schema)


def _walk_objects(value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects in a value, each with the suffix of its path: empty, or ``[name]`` for a list entry."""
    if isinstance(value, Mapping):
        yield "", value
    for index, entry in enumerate(value if isinstance(value, list) else ()):
        if isinstance(entry, Mapping):
            yield f"[{entry.get('manager') or entry.get('name') or index}]", entry


def _check_value(value: Any, field: SchemaField, path: str) -> None:
    if isinstance(value, list):
        _check_list(value, field, path)
    texts = value if isinstance(value, list) else [value]
    for text in texts:
        if field.max_length is not None and isinstance(text, str) and len(text) > field.max_length:
            raise UnsupportedError(
                f"{path} has a text of {len(text)} characters; this cluster accepts at most {field.max_length}"
            )
    if field.is_integer and isinstance(value, int):
        _check_number(value, field, path)


def _check_list(value: list[Any], field: SchemaField, path: str) -> None:
    if field.max_items is not None and len(value) > field.max_items:
        raise UnsupportedError(f"{path} has {len(value)} entries; this cluster accepts at most {field.max_items}")
    seen = set()
    for entry in value if field.keys else ():
        key = tuple(str(entry.get(name)) for name in field.keys)
        if key in seen:
            raise UnsupportedError(
                f"{path} has two entries with {', '.join(field.keys)} {'/'.join(key)!r}; remove one, it must be unique"
            )
        seen.add(key)


def _check_number(value: int, field: SchemaField, path: str) -> None:
    if field.minimum is not None and value < field.minimum:
        raise UnsupportedError(f"{path} must be at least {field.minimum}, got {value}")
    if field.maximum is not None and value > field.maximum:
        raise UnsupportedError(f"{path} must be at most {field.maximum}, got {value}")


def _raise_unsupported(path: str, schema: TrainJobSchema, known: Sequence[str] = ()) -> NoReturn:
    similar = difflib.get_close_matches(path.rpartition(".")[2], known, 1)
    raise UnsupportedError(
        f"{path}: the Trainer of this cluster (with {schema.override_field or 'no runtimePatches'}) has no such field; "
        + (f"did you mean {similar[0]}?" if similar else "remove it, or upgrade Trainer")
    )
