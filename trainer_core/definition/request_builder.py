"""Builds requests: trainers, initializers, runtimes and options in, the request as plain JSON data out.

Strings are copied unread, because an orchestrator may still render templates in them. `TrainJobRequest.parse` validates
the rendered data.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args, get_origin, get_type_hints

import trainer_core
from trainer_core.backends import backend_class
from trainer_core.base import secrets, validation
from trainer_core.base.errors import InvalidRequestError
from trainer_core.base.secrets import SecretRef, redact
from trainer_core.base.text import shorten
from trainer_core.definition.initializers import (
    DataCacheInitializer,
    FileDatasetInitializer,
    FileModelInitializer,
    Initializer,
)
from trainer_core.definition.options.on_backend import OnBackend, check_backend_name, log_skipped
from trainer_core.definition.trainers import BuiltinTrainer, CustomTrainer, CustomTrainerContainer, trainer_from_dict
from trainer_core.model.option import BaseOption, check_accepted, get_backend_class
from trainer_core.model.request import OPTION_OF_FIELD, Owner, TrainJobRequest
from trainer_core.model.runtimes import Runtime
from trainer_core.model.storage_schemes import SCHEMES, check_scheme
from trainer_core.packaging import requirements_file, serializer
from trainer_core.packaging.project import read_project

if TYPE_CHECKING:
    from trainer_core.backends.base import Backend

Trainer: TypeAlias = CustomTrainer | CustomTrainerContainer | BuiltinTrainer
#: An option, or its plain data: see `parse_options`.
Option: TypeAlias = Callable[[dict[str, Any], Any, Any], None] | Mapping[str, Any] | str

#: Fields of initializers that are secrets. Requests contain references to them only.
_SECRET_FIELDS = ("access_token", "access_key_id", "secret_access_key")
#: Fields of initializers that are fields of the request, too. The others become environment variables.
_REQUEST_FIELDS = ("storage_uri", "ignore_patterns", "link", *_SECRET_FIELDS)
_OPTIONS_EXAMPLE = "such as [{'QueueName': 'nightly'}, {'Labels': {'team': 'vision'}}, 'Suspend']"


def build_request_data(
    *,
    backend: type[Backend] | Backend | None,
    runtime: str | Runtime | None = None,
    trainer: Trainer | Mapping[str, Any] | None = None,
    initializer: Initializer | None = None,
    options: Sequence[Option] | None = None,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Build a request as plain JSON data, with templates that are not rendered yet. Equal arguments give equal data."""
    data, literals = _flatten(backend, runtime, trainer, initializer, options, folder)
    if any(secrets.has_credentials(url) for url in data.get("trainer", {}).get("pip_index_urls", ())):
        raise ValueError(
            "pip_index_urls contains a URL with a user or password, which would be readable in the UI and the "
            "metadata database; write it into the pip configuration where the job runs"
        )
    if literals:
        raise ValueError(
            f"initializer {', '.join(sorted(literals))} is a secret given as text, which would be readable in the UI "
            "and the metadata database; give SecretRef(name, key)"
        )
    return data


def build_request(
    *,
    backend: type[Backend] | Backend,
    runtime: str | Runtime | None = None,
    trainer: Trainer | Mapping[str, Any] | None = None,
    initializer: Initializer | None = None,
    options: Sequence[Option] | None = None,
    owner: Owner | None = None,
    folder: Path | None = None,
) -> TrainJobRequest:
    """Build a validated request. Secrets given as text stay in this process, outside of its JSON."""
    data, literals = _flatten(backend, runtime, trainer, initializer, options, folder)
    owned = {"owner": owner.model_dump()} if owner else {}
    return TrainJobRequest.parse({**data, **owned, "literal_secrets": literals})


def select_backend(data: Mapping[str, Any], backend: type[Backend] | Backend) -> dict[str, Any]:
    """Complete request data that were built for an unknown backend, as `build_request_data` builds them for it."""
    names = data.get("options", [])
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names) or isinstance(names, str):
        raise InvalidRequestError(f"options of a request must be a list of names of options, got {redact(names)}")
    for name in names:
        check_accepted([name], getattr(_get_option_class(name), "home_backend", BaseOption.home_backend), backend)
    variants = list_variants(data)
    used = get_backend_class(backend).name
    for name in variants:
        if name not in (None, used):
            log_skipped(str(name), used)
    return variants.get(used, variants[None])


def list_variants(data: Mapping[str, Any]) -> dict[str | None, dict[str, Any]]:
    """Return request data as they are on each backend that an `OnBackend` names, and with key None on all others."""
    parts = data.get("on_backend", {})
    if not isinstance(parts, Mapping) or not all(isinstance(part, Mapping) for part in parts.values()):
        raise InvalidRequestError("on_backend of a request must be a dict of the fields that change on each backend")
    for name in parts:
        check_backend_name("on_backend", name)
    base = {key: value for key, value in data.items() if key not in ("options", "on_backend")}
    return {None: base, **{name: _merge_part(base, part) for name, part in parts.items()}}


def parse_options(options: Sequence[Any] | None) -> list[Any]:
    """Return options for their plain data, as in a YAML file or a DAG. Options are returned unchanged.

    An option without settings is its name (``"Suspend"``). An option with one setting is a dict of its name and the
    value (``{"QueueName": "nightly"}``), with several settings a dict of its name and the settings
    (``{"Workspace": {"claim": "data", "size": "1Ti"}}``).
    """
    if options is None:
        return []
    if isinstance(options, (str, Mapping)) or not isinstance(options, Sequence):
        raise ValueError(f"options must be a list {_OPTIONS_EXAMPLE}, got {type(options).__name__}")
    return [_parse_option(each) for each in options]


def _flatten(
    backend: Any,
    runtime: Any,
    trainer: Any,
    initializer: Initializer | None,
    options: Sequence[Option] | None,
    folder: Path | None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the request as plain data, and the secrets that were given as text."""
    validation.check_size("trainer", trainer)
    validation.check_size("options", options)
    trainer = trainer_from_dict(trainer) if isinstance(trainer, Mapping) else trainer
    options = parse_options(options)
    fields = _read_job_spec(_apply_options(options, trainer, backend))
    initializer_data, literals = _flatten_initializer(initializer)
    if backend is not None:
        kind = get_backend_class(backend)
        for role, source in (initializer_data or {}).items():
            check_scheme(role, source["storage_uri"], getattr(kind, "schemes", SCHEMES), f"by {kind.__name__}")
    data = {
        "version": 1,
        **fields,
        "runtime": fields["runtime"] or _flatten_runtime(runtime),
        "trainer": _flatten_trainer(trainer, fields["trainer"], folder, initializer_data or {}),
        "initializer": initializer_data,
    }
    if backend is None:
        data["options"] = [_get_option_name(each) for each in options if _depends_on_backend(each)]
        data["on_backend"] = _build_parts(options, trainer, fields)
    return _remove_empty(data), literals


def _build_parts(options: Sequence[Any], trainer: Trainer | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that differ on each backend that an `OnBackend` names."""
    parts = {}
    for name in dict.fromkeys(option.backend for option in options if isinstance(option, OnBackend)):
        # The other options are checked once the backend is known.
        job_spec: dict[str, Any] = {"metadata": {}, "spec": {}}
        for option in options:
            if isinstance(option, OnBackend) and option.backend == name:
                option(job_spec, trainer, backend_class(name))
            else:
                option(job_spec, trainer, None)
        part = {key: value for key, value in _read_job_spec(job_spec).items() if value != fields.get(key)}
        if "trainer" in part:
            own = fields["trainer"]
            part["trainer"] = {key: value for key, value in part["trainer"].items() if value != own.get(key)}
        parts[name] = part
    return parts


def _merge_part(data: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(data)
    for key, value in part.items():
        is_section = key in ("trainer", "metadata") and isinstance(value, Mapping)
        merged[key] = _remove_empty({**(merged.get(key) or {}), **value}) if is_section else value
    return _remove_empty(merged)


def _remove_empty(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value not in (None, {}, [])}


def _depends_on_backend(option: Any) -> bool:
    return isinstance(option, BaseOption) and not isinstance(option, OnBackend)


def _get_option_name(option: BaseOption) -> str:
    """Return the name by which a backend accepts an option: for a subclass of a public option, the name of that one."""
    kinds = (kind.__name__ for kind in type(option).__mro__ if _get_option_class(kind.__name__) is kind)
    return next(kinds, type(option).__name__)


def _flatten_runtime(runtime: Any) -> dict[str, Any] | None:
    if runtime is None:
        return None
    if isinstance(runtime, Runtime):
        return {"name": runtime.name, "kind": runtime.kind.value}
    if not isinstance(runtime, str) or not runtime:
        raise ValueError(f"runtime must be a name or a Runtime, got {redact(runtime)}")
    return {"name": runtime}


def _flatten_trainer(
    trainer: Trainer | None, overrides: dict[str, Any], folder: Path | None, sources: Mapping[str, Any]
) -> dict[str, Any] | None:
    if trainer is None:
        # The runtime's own image, with another command or other arguments.
        return {"kind": "container", **overrides} if overrides else None
    if isinstance(trainer, CustomTrainer):
        project = None if trainer.code is None else read_project(trainer.code, folder)
        packages = requirements_file.read_packages(
            trainer.packages_to_install or (),
            trainer.pip_index_urls,
            project.root if project else folder or Path.cwd(),
            project,
            has_index=any(name.startswith("PIP_") for name in trainer.env or ()),
        )
        data = {
            "kind": "custom",
            "code": serializer.package(trainer.func, trainer.func_args, trainer.packaging, packages.project),
            "packages": packages.requirements,
            "pip_index_urls": packages.index_urls if trainer.packages_to_install else [],
            "result_uri": trainer.result_uri,
            "code_uri": trainer.code_uri if project else None,
            **_flatten_nodes(trainer),
        }
    elif isinstance(trainer, CustomTrainerContainer):
        data = {"kind": "container", **_flatten_nodes(trainer)}
    elif isinstance(trainer, BuiltinTrainer):
        uris = {role: source["storage_uri"] for role, source in sources.items()}
        return {**trainer.config.to_trainer(uris), **_remove_empty(overrides)}
    else:
        raise ValueError(
            "trainer must be CustomTrainer, CustomTrainerContainer, BuiltinTrainer or a dict of their fields, "
            f"got {type(trainer).__name__}"
        )
    return _remove_empty({**data, **overrides})


def _flatten_nodes(trainer: CustomTrainer | CustomTrainerContainer) -> dict[str, Any]:
    """Return the fields that functions and images share."""
    return {
        "image": trainer.image,
        "num_nodes": trainer.num_nodes,
        "num_proc_per_node": trainer.num_proc_per_node,
        "resources_per_node": dict(trainer.resources_per_node) if trainer.resources_per_node else None,
        "env": {n: asdict(v) if isinstance(v, SecretRef) else v for n, v in (trainer.env or {}).items()},
    }


def _flatten_initializer(initializer: Initializer | None) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """Return an initializer as plain data, and the secrets that were given as text, by ``role.FIELD``."""
    if initializer is None:
        return None, {}
    if not isinstance(initializer, Initializer):
        raise ValueError(
            f"initializer must be an Initializer or a dict of URIs such as {{'dataset': 'hf://owner/name'}}, got "
            f"{redact(initializer)}"
        )
    data: dict[str, Any] = {}
    literals: dict[str, str] = {}
    for role in ("dataset", "model"):
        source = getattr(initializer, role)
        if source is not None:
            data[role] = _flatten_source(source)
            literals.update({f"{role}.{name}": value for name, value in _get_secrets(source, str).items()})
    return data, literals


def _flatten_source(source: Any) -> dict[str, Any]:
    settings = {f.name: getattr(source, f.name) for f in fields(source)}
    env = {n.upper(): str(v) for n, v in settings.items() if n not in _REQUEST_FIELDS and v is not None}
    if isinstance(source, DataCacheInitializer):
        # Trainer's cache initializer counts the head node, too.
        env["CLUSTER_SIZE"] = str(int(env.pop("NUM_DATA_NODES")) + 1)
    data = {
        "storage_uri": source.storage_uri,
        "ignore_patterns": settings.get("ignore_patterns"),
        "link": isinstance(source, (FileDatasetInitializer, FileModelInitializer)) and source.link,
        "env": env,
        "secrets": {name: asdict(ref) for name, ref in _get_secrets(source, SecretRef).items()},
    }
    return {key: value for key, value in data.items() if value not in (None, {}, False)}


def _get_secrets(source: Any, kind: type[Any]) -> dict[str, Any]:
    """Return the secrets of a source that are strings or that are references, by environment variable."""
    values = {name.upper(): getattr(source, name, None) for name in _SECRET_FIELDS}
    return {name: value for name, value in values.items() if isinstance(value, kind)}


def _apply_options(options: Sequence[Option], trainer: Trainer | None, backend: Any) -> dict[str, Any]:
    job_spec: dict[str, Any] = {"metadata": {}, "spec": {}}
    for option in options:
        if not callable(option):
            raise ValueError(f"options must be callables such as Labels(…), got {redact(option)}")
        option(job_spec, trainer, backend)
    return job_spec


def _read_job_spec(job_spec: dict[str, Any]) -> dict[str, Any]:
    """Return the request fields for what options have set; refuse a key that would be dropped silently."""
    metadata, spec = dict(job_spec["metadata"]), dict(job_spec["spec"])
    data = {
        "name": metadata.pop("name", None),
        "runtime": spec.pop("runtimeRef", None),
        "trainer": spec.pop("trainer", {}),
        "metadata": {key: metadata.pop(key) for key in ("labels", "annotations") if metadata.get(key)},
        **spec.pop("extensions", {}),
        **{name: spec.pop(option.key or _to_camel_case(name), None) for name, option in OPTION_OF_FIELD.items()},
    }
    data["suspend"] = data["suspend"] or None
    unknown = [f"metadata.{key}" for key in metadata] + [f"spec.{key}" for key in spec]
    if unknown:
        raise ValueError(
            f"an option set {validation.list_names(unknown)}, for which a request has no field; use RuntimePatch"
        )
    return data


def _parse_option(data: Any) -> Any:
    if isinstance(data, str):
        return _create_option(data, None)
    if not isinstance(data, Mapping):
        return data
    if len(data) != 1:
        names = validation.list_names(data) or "none"
        raise ValueError(f"an option must be one name with its settings, {_OPTIONS_EXAMPLE}; got {names}")
    ((name, settings),) = data.items()
    return _create_option(str(name), settings)


def _create_option(name: str, settings: Any) -> BaseOption:
    kind = _find_option_class(name)
    if issubclass(kind, OnBackend):
        return _create_on_backend(settings)
    known = [item.name for item in fields(kind) if item.init]  # type: ignore[arg-type]  # every option is a dataclass
    if settings is None:
        settings = {}
    elif len(known) == 1 and not _is_named_setting(kind, known[0], settings):
        settings = {known[0]: settings}
    elif not isinstance(settings, Mapping):
        expected = f"a dict of {', '.join(known)}" if known else "no settings"
        raise ValueError(f"option {name} takes {expected}, got {type(settings).__name__}")
    option: BaseOption = _create_dataclass(kind, settings)
    return option


def _is_named_setting(kind: type[BaseOption], field: str, settings: Any) -> bool:
    """Return whether the one setting of an option is given with its name: ``{"StartWithin": {"limit": "6h"}}``.

    One that is a dict itself is given without its name: ``{"Labels": {"labels": "x"}}`` has a label of this name.
    """
    takes_dict = any(get_origin(each) is dict or is_dataclass(each) for each in _walk_hint(get_type_hints(kind)[field]))
    return isinstance(settings, Mapping) and settings.keys() == {field} and not takes_dict


def _create_on_backend(settings: Any) -> OnBackend:
    if not isinstance(settings, Mapping) or "backend" not in settings:
        raise ValueError("option OnBackend takes a dict such as {backend: kubernetes, options: [{QueueName: nightly}]}")
    values = validation.known_fields(OnBackend, settings)
    return OnBackend(values.pop("backend"), *parse_options(values.pop("options", None)), **values)


def _create_dataclass(kind: type[Any], settings: Mapping[str, Any]) -> Any:
    """Return an object of a dataclass whose fields may be dataclasses, too, as in `RuntimePatch`."""
    values = validation.known_fields(kind, {_to_snake_case(str(key)): value for key, value in settings.items()})
    hints = get_type_hints(kind)
    return kind(**{name: _create_value(hints[name], value) for name, value in values.items()})


def _create_value(hint: Any, value: Any) -> Any:
    kind = next((each for each in _walk_hint(hint) if inspect.isclass(each) and is_dataclass(each)), None)
    if kind is None:
        return value
    if isinstance(value, list):
        return [_create_value(kind, each) for each in value]
    return _create_dataclass(kind, value) if isinstance(value, Mapping) else value


def _walk_hint(hint: Any) -> Iterator[Any]:
    """Yield the parts of an annotation: for ``list[X] | None`` also ``X``."""
    yield hint
    for each in get_args(hint):
        yield from _walk_hint(each)


def _to_snake_case(name: str) -> str:
    """Return the name of a field that may be given in Kubernetes' spelling, as in a copied patch."""
    return re.sub("([A-Z])", r"_\1", name).lower()


def _to_camel_case(name: str) -> str:
    """Return the name of a field in Kubernetes' spelling."""
    return re.sub("_([a-z])", lambda match: match[1].upper(), name)


def _find_option_class(name: str) -> type[BaseOption]:
    found = _get_option_class(name)
    if found is None:
        # Only this message loads all public names.
        options = [each for each in dir(trainer_core) if _get_option_class(each)]
        import difflib  # Only for a mistake.

        known = validation.list_names(difflib.get_close_matches(name[:60], options, n=len(options), cutoff=0))
        raise ValueError(f"unknown option {shorten(name, 60)}; known are {known}")
    return found


def _get_option_class(name: str) -> type[BaseOption] | None:
    found = getattr(trainer_core, name, None)
    return found if inspect.isclass(found) and issubclass(found, BaseOption) else None
