"""The one place where user objects become plain data.

Trainers, initializers, runtimes and options go in; the request as plain JSON comes out. Strings pass through
unread, because an orchestrator may still render templates in them; `TrainJobRequest.parse` judges them later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from trainer_core import packaging
from trainer_core.initializers import DataCacheInitializer, FileDatasetInitializer, FileModelInitializer, Initializer
from trainer_core.named_options import options_from
from trainer_core.request import Owner, TrainJobRequest
from trainer_core.runtimes import Runtime
from trainer_core.secrets import SecretRef
from trainer_core.trainers import BuiltinTrainer, CustomTrainer, CustomTrainerContainer, trainer_from_dict

if TYPE_CHECKING:
    from trainer_core.backends.base import Backend

__all__ = ["Option", "Trainer", "plain", "request"]

Trainer: TypeAlias = CustomTrainer | CustomTrainerContainer | BuiltinTrainer
#: An option, or what stands for one: see `options_from`.
Option: TypeAlias = Callable[[dict[str, Any], Any, Any], None] | Mapping[str, Any] | str

#: Fields of initializers that are secrets: they travel by reference only.
_SECRET_FIELDS = ("access_token", "access_key_id", "secret_access_key")
#: Fields of initializers that have a place of their own in the request.
_PLACED_FIELDS = ("storage_uri", "ignore_patterns", "link", *_SECRET_FIELDS)


def plain(
    *,
    backend: type[Backend] | Backend,
    runtime: str | Runtime | None = None,
    trainer: Trainer | Mapping[str, Any] | None = None,
    initializer: Initializer | None = None,
    options: Sequence[Option] | None = None,
) -> dict[str, Any]:
    """Flatten what a user wrote into the request as plain JSON data.

    Nothing is looked up, connected or named here; equal arguments give equal data.

    Args:
        backend: The backend it is meant for; its class is enough. Says which options are accepted.
        runtime: Name of a runtime, or the runtime itself; None for the backend's default.
        trainer: What to run, as an object or as a dict of its fields (``{"func": "module:function"}``,
            ``{"image": …}`` or ``{"config": {…}}``).
        initializer: What to fetch first.
        options: Called once each, as ``option(job_spec, trainer, backend)``; or as plain data: see `options_from`.

    Raises:
        ValueError: Something cannot be right, an option does not suit the backend, or a secret is given as
            literal text: give a `SecretRef`.
    """
    data, literals = _flatten(backend, runtime, trainer, initializer, options)
    # A user alone may be a token.
    if any(urlsplit(url).username for url in data.get("trainer", {}).get("pip_index_urls", ())):
        raise ValueError(
            "pip_index_urls: a URL with a user or password would be readable in the UI and the metadata database; "
            "put it into the configuration of pip where the job runs"
        )
    if literals:
        raise ValueError(
            f"initializer {', '.join(sorted(literals))}: a secret given as text would be readable in the UI and the "
            "metadata database; give SecretRef(name, key)"
        )
    return data


def request(
    *,
    backend: type[Backend] | Backend,
    runtime: str | Runtime | None = None,
    trainer: Trainer | Mapping[str, Any] | None = None,
    initializer: Initializer | None = None,
    options: Sequence[Option] | None = None,
    owner: Owner | None = None,
) -> TrainJobRequest:
    """Build the validated, frozen request; arguments as for `plain`.

    Args:
        backend: The backend it is meant for.
        runtime: Name of a runtime, or the runtime itself.
        trainer: What to run.
        initializer: What to fetch first. Literal secrets stay in this process.
        options: Called once each.
        owner: What the job belongs to.

    Raises:
        ValueError: Something cannot be right.
    """
    data, literals = _flatten(backend, runtime, trainer, initializer, options)
    owned = {"owner": owner.model_dump()} if owner else {}
    return TrainJobRequest.parse({**data, **owned, "literal_secrets": literals})


def _flatten(
    backend: Any, runtime: Any, trainer: Any, initializer: Initializer | None, options: Sequence[Option] | None
) -> tuple[dict[str, Any], dict[str, str]]:
    trainer = trainer_from_dict(trainer) if isinstance(trainer, Mapping) else trainer
    job_spec = _applied(options_from(options), trainer, backend)
    flat_initializer, literals = _initializer(initializer)
    data = {
        "version": 1,
        "runtime": _runtime(runtime),
        "trainer": _trainer(trainer, job_spec["spec"].pop("trainer", {})),
        "initializer": flat_initializer,
        **_from_options(job_spec),
    }
    return {key: value for key, value in data.items() if value not in (None, {}, [])}, literals


def _runtime(runtime: Any) -> dict[str, Any] | None:
    if runtime is None:
        return None
    if isinstance(runtime, Runtime):
        return {"name": runtime.name, "kind": runtime.kind.value}
    if not isinstance(runtime, str) or not runtime:
        raise ValueError(f"runtime must be a name or a Runtime, got {runtime!r}")
    return {"name": runtime}


def _trainer(trainer: Trainer | None, overrides: dict[str, Any]) -> dict[str, Any] | None:
    if trainer is None:
        if overrides:
            raise ValueError("TrainerCommand and TrainerArgs need a trainer: give CustomTrainerContainer(image=…)")
        return None
    if isinstance(trainer, CustomTrainer):
        flat = _custom(trainer)
    elif isinstance(trainer, CustomTrainerContainer):
        flat = {"kind": "container", **_common(trainer)}
    elif isinstance(trainer, BuiltinTrainer):
        config = _jsonable(asdict(trainer.config))
        flat = {"kind": "builtin", "config": config, "num_nodes": config.pop("num_nodes", None)}
        flat["resources_per_node"] = config.pop("resources_per_node", None)
    else:
        raise ValueError(
            "trainer must be CustomTrainer, CustomTrainerContainer, BuiltinTrainer or a dict of their fields, "
            f"got {type(trainer).__name__}"
        )
    return {key: value for key, value in {**flat, **overrides}.items() if value not in (None, {}, [])}


def _custom(trainer: CustomTrainer) -> dict[str, Any]:
    return {
        "kind": "custom",
        "code": packaging.package(trainer.func, trainer.func_args, mode=trainer.packaging),
        "packages": list(trainer.packages_to_install or ()),
        "pip_index_urls": list(trainer.pip_index_urls) if trainer.packages_to_install else [],
        "result_uri": trainer.result_uri,
        **_common(trainer),
    }


def _common(trainer: CustomTrainer | CustomTrainerContainer) -> dict[str, Any]:
    return {
        "image": trainer.image,
        "num_nodes": trainer.num_nodes,
        "num_proc_per_node": trainer.num_proc_per_node,
        "resources_per_node": dict(trainer.resources_per_node) if trainer.resources_per_node else None,
        "env": {n: asdict(v) if isinstance(v, SecretRef) else v for n, v in (trainer.env or {}).items()},
    }


def _initializer(initializer: Initializer | None) -> tuple[dict[str, Any] | None, dict[str, str]]:
    if initializer is None:
        return None, {}
    flat: dict[str, Any] = {}
    literals: dict[str, str] = {}
    for role in ("dataset", "model"):
        source = getattr(initializer, role)
        if source is not None:
            flat[role] = _source(source)
            literals.update({f"{role}.{name}": value for name, value in _secrets(source, str).items()})
    return flat, literals


def _source(source: Any) -> dict[str, Any]:
    settings = {f.name: getattr(source, f.name) for f in fields(source)}
    env = {n.upper(): str(v) for n, v in settings.items() if n not in _PLACED_FIELDS and v is not None}
    if isinstance(source, DataCacheInitializer):
        # Trainer's cache initializer counts the head node too (specs.md A11).
        env["CLUSTER_SIZE"] = str(int(env.pop("NUM_DATA_NODES")) + 1)
    flat = {
        "storage_uri": source.storage_uri,
        "ignore_patterns": settings.get("ignore_patterns"),
        "link": isinstance(source, (FileDatasetInitializer, FileModelInitializer)) and source.link,
        "env": env,
        "secrets": {name: asdict(ref) for name, ref in _secrets(source, SecretRef).items()},
    }
    return {key: value for key, value in flat.items() if value not in (None, {}, False)}


def _secrets(source: Any, kind: type[Any]) -> dict[str, Any]:
    given = {name.upper(): getattr(source, name, None) for name in _SECRET_FIELDS}
    return {name: value for name, value in given.items() if isinstance(value, kind)}


def _applied(options: Sequence[Option], trainer: Trainer | None, backend: Any) -> dict[str, Any]:
    job_spec: dict[str, Any] = {"metadata": {}, "spec": {}}
    for option in options:
        if not callable(option):
            raise ValueError(f"options must be callables such as Labels(…), got {option!r}")
        option(job_spec, trainer, backend)
    return job_spec


def _from_options(job_spec: dict[str, Any]) -> dict[str, Any]:
    """Take over what options may set; a key that would be dropped silently is refused."""
    metadata, spec = dict(job_spec["metadata"]), dict(job_spec["spec"])
    found = {
        "name": metadata.pop("name", None),
        "metadata": {key: metadata.pop(key) for key in ("labels", "annotations") if metadata.get(key)},
        "patches": spec.pop("runtimePatches", []),
        "active_deadline_seconds": spec.pop("activeDeadlineSeconds", None),
        "suspend": spec.pop("suspend", None) or None,
        "managed_by": spec.pop("managedBy", None),
        "delete_after_seconds": spec.pop("ttlSecondsAfterFinished", None),
        "workspace": spec.pop("workspace", None),
        "distributed": spec.pop("distributed", None),
        "pytorch_job": spec.pop("pytorchJob", None),
        "runai": spec.pop("runai", None),
    }
    unknown = [f"metadata.{key}" for key in metadata] + [f"spec.{key}" for key in spec]
    if unknown:
        raise ValueError(f"an option set {', '.join(unknown)}, which no request can carry; use RuntimePatch")
    return found


def _jsonable(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    return value
