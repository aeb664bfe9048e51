"""Requests of the entries of a search: the TrainJob of its trials, with the parameters and the place in the search.

Pure functions.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainer_core.base import naming
from trainer_core.base.errors import ConflictError, InvalidRequestError
from trainer_core.base.secrets import SecretRef
from trainer_core.base.text import WrittenText, format_size
from trainer_core.definition.trainers import CustomTrainer
from trainer_core.model import func_args
from trainer_core.model.jobs import SEARCH_LABEL, SEARCH_RECORD_LABEL
from trainer_core.model.request import (
    Code,
    Context,
    Metadata,
    Owner,
    Policy,
    SearchEntry,
    TrainerRequest,
    TrainJobRequest,
    Work,
)
from trainer_core.node import env
from trainer_core.packaging import project
from trainer_core.search.definition import SearchDefinition
from trainer_core.search.parameters import apply_objective, apply_parameters, convert_parameter
from trainer_core.search.space import Distribution, scale

_log = logging.getLogger(__name__)
#: Bytes that the files of a project may have in all trials of a search on a cluster.
_MAX_PROJECTS = 50_000_000
#: Fields of an image that may have placeholders of parameters.
_IMAGE_FIELDS = ("command", "args")
#: Beginning of a job's name that is its search's; the number of the entry and a digest follow.
_MAX_SLUG = 15
#: Variables of the nodes that differ between trials.
_OWN_VARIABLES = (env.OBJECTIVE, env.HYPERPARAMETERS)
_RECORD_CODE = "def record():\n    pass\n"


def add_example(trainer: Any, space: Mapping[str, Distribution | None] | None) -> Any:
    """Return a trainer whose function has a value for each parameter, so that its arguments can be checked.

    The values are replaced in each trial. A distribution that is known later has None, and if the whole space is known
    later, required arguments may be missing. Other trainers are returned unchanged.
    """
    if isinstance(trainer, Mapping) and "func" in trainer:
        return {**trainer, "func_args": _add_arguments(trainer["func"], trainer.get("func_args"), space)}
    if isinstance(trainer, CustomTrainer):
        return replace(trainer, func_args=_add_arguments(trainer.func, trainer.func_args, space))
    return trainer


def _add_arguments(
    func: Any, args: Mapping[str, Any] | None, space: Mapping[str, Distribution | None] | None
) -> dict[str, Any]:
    if space is None:
        return func_args.PartialArgs(args or {})
    types = func_args.declared_types(func) if callable(func) else {}
    arguments = func_args.check_json(args)
    arguments |= {name: value for name, value in (args or {}).items() if isinstance(value, WrittenText)}
    for name, distribution in space.items():
        *parents, last = name.split(".")
        target = arguments
        for parent in parents:
            inner = target.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise ValueError(f"search_space: {name} is an entry of {parent}, which is no dict in func_args")
            target = inner
        value = None if distribution is None else scale(distribution, 0.0)
        target[last] = convert_parameter(value, types.get(name))
    return arguments


def strip_template(request: TrainJobRequest) -> TrainJobRequest:
    """Return the request of a trial without its name, owner and place in a search."""
    return request.with_fields(name=None, owner=None, search=None)


def restore_template(request: TrainJobRequest) -> TrainJobRequest:
    """Return the template of a search from the request of one of its runs."""
    entry, trainer = request.context.search, request.work.trainer
    labels = {name: value for name, value in request.policy.metadata.labels.items() if name != SEARCH_LABEL}
    changes: dict[str, Any] = {"metadata": request.policy.metadata.model_copy(update={"labels": labels})}
    if request.policy.tracking is not None:  # Each trial has a separate run.
        run: dict[str, Any] = {"run_id": None, "experiment_id": None, "env": {}}
        changes["tracking"] = request.policy.tracking.model_copy(update=run)
    if trainer is not None:
        variables = {name: value for name, value in trainer.env.items() if name not in _OWN_VARIABLES}
        trainer = changes["trainer"] = trainer.model_copy(update={"env": variables})
    request = request.with_fields(**changes)
    if entry is None or trainer is None or not entry.template:
        return strip_template(request)
    fields: dict[str, Any] = {name: tuple(entry.template[name]) for name in _IMAGE_FIELDS if name in entry.template}
    originals = entry.template["env"].items()
    fields["env"] = {name: SecretRef(**value) if isinstance(value, dict) else value for name, value in originals}
    return strip_template(request.with_fields(trainer=trainer.model_copy(update=fields)))


def build_run(
    template: TrainJobRequest, definition: SearchDefinition, owner: Owner, entry: SearchEntry
) -> TrainJobRequest:
    """Return the request of a run of a trial."""
    request = apply_objective(apply_parameters(template, entry.parameters), definition, entry.until, entry.trial)
    entry = entry.model_copy(update={"template": _list_image_fields(template)})
    return request.with_fields(
        owner=_build_owner(owner, entry), search=entry, metadata=_add_label(request.policy.metadata, entry)
    )


def build_record(template: TrainJobRequest, owner: Owner, entry: SearchEntry, suspend: bool) -> TrainJobRequest:
    """Return the request of a record, which trains nothing and waits in no queue."""
    trainer = TrainerRequest(kind="custom", code=Code(kind="source", text=_RECORD_CODE, entry="record"))
    labels = {SEARCH_LABEL: naming.hash_owner_key(entry.key), SEARCH_RECORD_LABEL: str(entry.reason)}
    is_recipe = template.work.trainer is None or template.work.trainer.kind == "builtin"
    runtime = None if is_recipe else template.work.runtime
    delete_after = template.policy.delete_after_seconds
    return TrainJobRequest(
        work=Work(runtime=runtime, trainer=trainer, extensions=template.work.extensions),
        policy=Policy(metadata=Metadata(labels=labels), suspend=suspend, delete_after_seconds=delete_after),
        context=Context(owner=_build_owner(owner, entry), search=entry),
    )


def compute_digest(template: TrainJobRequest, definition: SearchDefinition) -> str:
    """Return a hash of what cannot change when a search is continued."""
    work = _build_example(template, definition).fingerprint()
    return hashlib.sha256(f"{definition.digest()}/{work}".encode()).hexdigest()[:16]


def check_same_search(entry: TrainJobRequest, template: TrainJobRequest, definition: SearchDefinition) -> None:
    """Raise if the search of an entry differs from another one with its key in more than the limits."""
    section = entry.context.search
    if section is None or section.digest == compute_digest(template, definition):
        return
    other = SearchDefinition.from_dict(section.definition)
    fields = other.list_differences(definition)
    if section.kind == "run":
        one, two = _build_example(restore_template(entry), other), _build_example(template, definition)
        if not fields and one.fingerprint() == two.fingerprint():
            return  # Another release has computed the digest.
        fields += [f"trial.{path}" for path in one.list_differences(two)]
    name = section.key.removeprefix("search/")
    raise ConflictError(
        f"search {name!r} exists with another definition; it differs in: {', '.join(fields or ['trial'])}. "
        f"Choose another name, continue it as it is (`trainjob search {name} --wait`), or delete it (`--delete`)"
    )


def keep_project(name: str, trial: TrainJobRequest, template: TrainJobRequest) -> TrainJobRequest:
    """Return a template with the files of its project that a trial has, unless modules among them differ."""
    begun, now = trial.project, template.project
    if begun is None or now is None or begun.digest == now.digest or not (begun.archive and now.archive):
        return template
    files = [project.read_files({"archive": each.archive}) for each in (begun, now)]
    changed = sorted(path for path in files[0].keys() | files[1].keys() if files[0].get(path) != files[1].get(path))
    if modules := [path for path in changed if path.endswith(".py")]:
        raise ConflictError(
            f"search {name!r} exists with other modules of the project: {', '.join(modules)}. Choose another name, "
            f"continue it with those that it has (`trainjob search {name} --wait`), or delete it (`--delete`)"
        )
    _log.warning("Search %s continues with the files that it began with; changed are %s", name, ", ".join(changed))
    return template.with_project(**begun.model_dump())


def check_continuable(request: TrainJobRequest) -> None:
    """Raise if no trial is left to take the template from, or the files of its project are not stored with the jobs."""
    code = request.work.trainer.code if request.work.trainer else None
    if code is not None and code.text == _RECORD_CODE:
        raise InvalidRequestError("no TrainJob of a trial of this search is left; continue it by its definition")
    files = request.project
    if files is not None and not files.archive and not files.uri:
        raise InvalidRequestError(
            "the files of the function's project are not stored with the jobs of this search; continue it where its "
            "definition is, or set code_uri"
        )


def check_project_size(request: TrainJobRequest, trials: int) -> None:
    """Raise if the files of a function's project, which each trial of a cluster carries, are too large together."""
    size = len(request.project.archive) if request.project and not request.project.uri else 0
    if size * trials > _MAX_PROJECTS:
        raise InvalidRequestError(
            f"the files of the function's project have {format_size(size)}, and {trials} trials would store "
            f"{format_size(size * trials)} in the cluster; set code_uri, so that they are stored once"
        )


def _build_example(template: TrainJobRequest, definition: SearchDefinition) -> TrainJobRequest:
    """Return the trial with the first value of each parameter, which is the same whichever trial it is made of."""
    return apply_parameters(template, {name: scale(each, 0.0) for name, each in definition.space.items()})


def _list_image_fields(template: TrainJobRequest) -> dict[str, Any]:
    trainer = template.work.trainer
    if trainer is None or trainer.kind != "container":
        return {}
    fields = trainer.model_dump(mode="json", include={*_IMAGE_FIELDS, "env"}, exclude_none=True)
    return {**fields, "env": fields.get("env", {})}


def _build_owner(owner: Owner, entry: SearchEntry) -> Owner:
    slug = f"{owner.slug[:_MAX_SLUG].rstrip('-')}-{entry.entry}"
    return Owner(key=f"{entry.key}/{entry.entry}", slug=slug, generation=owner.generation)


def _add_label(metadata: Metadata, entry: SearchEntry) -> Metadata:
    labels = {**metadata.labels, SEARCH_LABEL: naming.hash_owner_key(entry.key)}
    return metadata.model_copy(update={"labels": labels})
