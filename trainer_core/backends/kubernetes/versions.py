"""What a cluster's Trainer takes, by its own schema: 2.0 … 2.3 and what comes after. Pure.

Nothing here knows a version number: the schema of TrainJob, from the CRD or from the OpenAPI v3 document of the
API group, says which fields there are and how much each can hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from trainer_core.cluster import kinds
from trainer_core.errors import BackendUnavailableError, UnsupportedError

__all__ = ["Field", "Server", "check", "overrides", "server_of_crd", "server_of_openapi"]

_PATCHES = "runtimePatches"
#: What changes a runtime's pods for one job, the newest first: 2.2 and later, 2.1, 2.0 (specs.md A2).
_OVERRIDES = (_PATCHES, "podTemplateOverrides", "podSpecOverrides")
_JOBS = f"spec.{_PATCHES}.trainingRuntimeSpec.template.spec.replicatedJobs"
_INT_LIMITS = {"int32": 2**31 - 1, "int64": 2**63 - 1}


@dataclass(frozen=True)
class Field:
    """A field of TrainJob, and how much it can hold.

    Attributes:
        integer: It takes whole numbers only.
        open: It takes any key.
        minimum: The least number.
        maximum: The greatest number.
        max_items: How many entries, of a list.
        max_length: How many characters, of a text or of each text in a list.
        keys: The names by which entries of a list are told apart; no two may agree in all of them.
    """

    integer: bool = False
    open: bool = False
    minimum: int | None = None
    maximum: int | None = None
    max_items: int | None = None
    max_length: int | None = None
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Server:
    """What the Trainer of a cluster takes.

    Attributes:
        fields: Every field of a TrainJob by its dotted path, such as ``spec.trainer.numNodes``.
    """

    fields: Mapping[str, Field]

    def takes(self, path: str) -> bool:
        """Say whether a TrainJob has a field, such as ``spec.activeDeadlineSeconds``."""
        return path in self.fields

    @property
    def override(self) -> str | None:
        """The field that changes a runtime for one job; None where it has none that we know."""
        return next((name for name in _OVERRIDES if self.takes(f"spec.{name}")), None)

    @property
    def active_deadline(self) -> bool:
        """Whether it ends jobs at a deadline."""
        return self.takes("spec.activeDeadlineSeconds")

    @property
    def termination_grace_period(self) -> bool:
        """Whether a patch can set ``terminationGracePeriodSeconds``, as from 2.3 on."""
        return self.takes(f"{_JOBS}.template.spec.template.spec.terminationGracePeriodSeconds")

    @property
    def checks_initializer_mount(self) -> bool:
        """Whether its admission wants a volume mount ``initializer`` of every initializer; it came with 2.3, too."""
        return self.termination_grace_period


def server_of_crd(crd: Mapping[str, Any]) -> Server:
    """Read the CustomResourceDefinition of TrainJob.

    Raises:
        BackendUnavailableError: It does not serve our version of TrainJob.
    """
    for version in crd.get("spec", {}).get("versions", ()):
        if version.get("name") == kinds.TRAINJOBS.version and version.get("served"):
            return _server(version["schema"]["openAPIV3Schema"])
    raise BackendUnavailableError(
        f"the cluster does not serve {kinds.TRAINJOBS.api_version} TrainJob; install Kubeflow Trainer 2.0 or later"
    )


def server_of_openapi(document: Mapping[str, Any]) -> Server:
    """Read the OpenAPI v3 document of the API group, as ``/openapi/v3/apis/<group>/<version>`` answers it.

    Raises:
        BackendUnavailableError: There is no TrainJob in it.
    """
    for schema in document.get("components", {}).get("schemas", {}).values():
        marks = schema.get("x-kubernetes-group-version-kind") or ()
        # The list of TrainJobs is marked with a kind of its own.
        if any(mark.get("kind") == kinds.TRAINJOBS.kind and _same_group(mark) for mark in marks):
            return _server(schema)
    raise BackendUnavailableError(
        f"the cluster does not serve {kinds.TRAINJOBS.api_version} TrainJob; install Kubeflow Trainer 2.0 or later"
    )


def overrides(patches: Sequence[Mapping[str, Any]], server: Server) -> dict[str, Any]:
    """Return the fields of ``spec`` that say what RuntimePatch entries say, in the words of the server.

    Args:
        patches: Entries in the shape of ``spec.runtimePatches``.
        server: Who is to take them.

    Raises:
        UnsupportedError: The server has no words for a part of them; the message names it by its dotted path.
    """
    if not patches:
        return {}
    if server.override is None:
        _refuse(_PATCHES, server)
    if server.override == _PATCHES:
        same = {_PATCHES: [dict(patch) for patch in patches]}
        check(same, server)
        return same
    spec: dict[str, Any] = {}
    for patch in patches:
        _translate(patch, server.override, server, spec)
    return spec


def check(spec: Mapping[str, Any], server: Server) -> None:
    """Refuse a spec that the server would refuse: unknown fields, too many entries, two entries of one key.

    Raises:
        UnsupportedError: The message names the place by its dotted path.
    """
    _check_object(spec, "spec", "spec", server)


def _same_group(mark: Mapping[str, Any]) -> bool:
    return (mark.get("group"), mark.get("version")) == (kinds.TRAINJOBS.group, kinds.TRAINJOBS.version)


def _server(schema: Mapping[str, Any]) -> Server:
    return Server({path: field for path, field in _fields(schema, "") if path.startswith(("spec", "status"))})


def _fields(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, Field]]:
    for name, part in schema.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        inner = part
        while inner.get("type") == "array":
            inner = inner.get("items", {})
        yield below, _field(part, inner)
        yield from _fields(inner, below)


def _field(part: Mapping[str, Any], inner: Mapping[str, Any]) -> Field:
    return Field(
        integer=inner.get("type") == "integer",
        open="properties" not in inner,
        minimum=part.get("minimum"),
        maximum=part.get("maximum", _INT_LIMITS.get(part.get("format", ""))),
        max_items=part.get("maxItems"),
        max_length=inner.get("maxLength"),
        keys=tuple(part.get("x-kubernetes-list-map-keys", ())),
    )


@dataclass(frozen=True)
class _Place:
    """An object in a patch, and the dotted path under which its author finds it."""

    data: Mapping[str, Any]
    shown: str
    server: Server

    def below(self, name: str, *beside: str) -> _Place:
        """Go one step down; whatever else lies here, but what is named, has no place on an old server."""
        self.only(name, *beside)
        return _Place(self.data.get(name) or {}, f"{self.shown}.{name}", self.server)

    def only(self, *names: str) -> None:
        for key in self.data:
            if key not in names:
                _refuse(f"{self.shown}.{key}", self.server)


def _translate(patch: Mapping[str, Any], field: str, server: Server, spec: dict[str, Any]) -> None:
    """Add to a spec what one patch says, in the words of 2.0 and 2.1."""
    start = _Place(patch, f"{_PATCHES}[{patch.get('manager')}]", server)
    template = start.below("trainingRuntimeSpec", "manager", "time").below("template")
    # The controller of 2.0 and 2.1 lays spec.labels over the JobSet's labels, as that of 2.2 lays those of the patch.
    metadata = template.below("metadata", "spec")
    for kind, values in metadata.data.items():
        if not server.takes(f"spec.{kind}"):
            _refuse(f"{metadata.shown}.{kind}", server)
        spec.setdefault(kind, {}).update(values)
    jobs = template.below("spec", "metadata")
    jobs.only("replicatedJobs")
    for job in jobs.data.get("replicatedJobs") or ():
        place = _Place(job, f"{jobs.shown}.replicatedJobs[{job.get('name')}]", server)
        pod = place.below("template", "name").below("spec").below("template")
        entry = _flat(pod, field) if field == _OVERRIDES[-1] else _nested(pod, field)
        if entry:
            spec.setdefault(field, []).append({"targetJobs": [{"name": job.get("name")}], **entry})


def _nested(pod: _Place, field: str) -> dict[str, Any]:
    _check_object(pod.data, f"spec.{field}", pod.shown, pod.server)
    return dict(pod.data)


def _flat(pod: _Place, field: str) -> dict[str, Any]:
    """An override of 2.0 has the pod's fields beside the names of the jobs, and nothing of its metadata."""
    inner = pod.below("spec")
    _check_object(inner.data, f"spec.{field}", inner.shown, inner.server)
    return dict(inner.data)


def _check_object(value: Mapping[str, Any], path: str, shown: str, server: Server) -> None:
    for key, item in value.items():
        field = server.fields.get(f"{path}.{key}")
        if field is None:
            _refuse(f"{shown}.{key}", server)
        _check_value(item, field, f"{shown}.{key}")
        for where, entry in () if field.open else _objects(item):
            _check_object(entry, f"{path}.{key}", f"{shown}.{key}{where}", server)


def _objects(value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects in a value, each with what leads there: nothing, or ``[name]``."""
    if isinstance(value, Mapping):
        yield "", value
    for index, entry in enumerate(value if isinstance(value, list) else ()):
        if isinstance(entry, Mapping):
            yield f"[{entry.get('manager') or entry.get('name') or index}]", entry


def _check_value(value: Any, field: Field, shown: str) -> None:
    if isinstance(value, list):
        _check_list(value, field, shown)
    texts = value if isinstance(value, list) else [value]
    for text in texts:
        if field.max_length is not None and isinstance(text, str) and len(text) > field.max_length:
            raise UnsupportedError(
                f"{shown} has {len(text)} characters; this cluster takes at most {field.max_length} in one text"
            )
    if field.integer and isinstance(value, int):
        _check_number(value, field, shown)


def _check_list(value: list[Any], field: Field, shown: str) -> None:
    if field.max_items is not None and len(value) > field.max_items:
        raise UnsupportedError(f"{shown} has {len(value)} entries; this cluster takes at most {field.max_items}")
    seen = set()
    for entry in value if field.keys else ():
        key = tuple(str(entry.get(name)) for name in field.keys)
        if key in seen:
            raise UnsupportedError(
                f"{shown} has {', '.join(field.keys)} {'/'.join(key)!r} twice; the cluster tells entries apart by it, "
                "so keep one"
            )
        seen.add(key)


def _check_number(value: int, field: Field, shown: str) -> None:
    if field.minimum is not None and value < field.minimum:
        raise UnsupportedError(f"{shown} must be at least {field.minimum}, got {value}")
    if field.maximum is not None and value > field.maximum:
        raise UnsupportedError(f"{shown} must be at most {field.maximum}, got {value}")


def _refuse(shown: str, server: Server) -> NoReturn:
    raise UnsupportedError(
        f"{shown}: the Trainer of this cluster, which has {server.override or 'no runtimePatches'}, has no such field; "
        "leave it out, or use a newer Trainer"
    )
