"""Puts the parameters of a trial into its request: into arguments, fields of a recipe, or placeholders of an image.

Every trainer also gets them as environment variables. Pure functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from trainer_core.base.errors import InvalidRequestError
from trainer_core.base.validation import list_names
from trainer_core.model.func_args import coerce, read_type
from trainer_core.model.recipe import find_recipe
from trainer_core.model.request import TrainerRequest, TrainJobRequest
from trainer_core.node import env
from trainer_core.search.definition import Asha, Direction, MedianStop, SearchDefinition
from trainer_core.search.early_stop import list_rungs
from trainer_core.search.space import Choice, scale, variable_name

#: A parameter in the arguments or variables of an image, as in Katib's trial templates.
_PLACEHOLDER = re.compile(r"\$\{trialParameters\.([^}]*)\}")


def check_trial(request: TrainJobRequest, definition: SearchDefinition) -> None:
    """Raise if a trial cannot have a value of the space or a placeholder, or does what a search cannot."""
    trainer, space = request.work.trainer, definition.space
    if trainer is None:
        raise InvalidRequestError("a search needs a trainer, which takes the parameters; set one")
    if request.policy.more_memory is not None:
        raise InvalidRequestError(
            "MoreMemory: a retry of a trial asks for the memory of the template; remove it, and raise memory in "
            "resources_per_node"
        )
    if request.policy.restart_policy is not None:
        raise InvalidRequestError(
            "RestartPolicy: a search decides which trials are tried again; remove it, and set its retries"
        )
    if isinstance(definition.stop, Asha) and definition.stop.promote:
        _check_promotion(request)
    _check_values(request, definition)
    if trainer.kind != "container":
        return
    fields = [*(trainer.command or ()), *(trainer.args or ()), *trainer.literal_env.values()]
    unknown = sorted({name for text in fields for name in _PLACEHOLDER.findall(text)} - space.keys())
    if unknown:
        raise InvalidRequestError(
            f"${{trialParameters.{unknown[0]}}} is no parameter of the search; its parameters are {list_names(space)}"
        )


def _check_promotion(request: TrainJobRequest) -> None:
    if request.work.trainer is None or request.work.trainer.code is None:
        raise InvalidRequestError("Asha with promote pauses a training function; use CustomTrainer(func=…)")
    if request.policy.checkpoints is None:
        raise InvalidRequestError("Asha with promote continues from checkpoints; add the option Checkpoints()")
    if request.policy.checkpoints.load == "never":
        raise InvalidRequestError("Asha with promote continues from checkpoints; remove load='never' from Checkpoints")


def _check_values(request: TrainJobRequest, definition: SearchDefinition) -> None:
    """Raise if the trainer cannot have one of the values; of a range, values in it stand for all."""
    for name, distribution in definition.space.items():
        inside = [scale(distribution, part) for part in (0.0, 0.618)]
        for value in distribution.values if isinstance(distribution, Choice) else inside:
            try:
                apply_parameters(request, {name: value})
            except ValueError as error:
                raise InvalidRequestError(str(error).replace("func_args", "search_space", 1)) from error


def apply_parameters(request: TrainJobRequest, parameters: Mapping[str, Any]) -> TrainJobRequest:
    """Return the request of a trial with its parameters, which replace those of another trial."""
    trainer = request.work.trainer
    if trainer is None:
        return request
    changes: dict[str, Any] = {}
    if trainer.code is not None:
        types = trainer.code.types
        values = {name: convert_parameter(value, types.get(name)) for name, value in parameters.items()}
        arguments = _set_all(trainer.code.args, values)
        arguments = coerce(arguments, types, trainer.code.entry)
        changes["code"] = trainer.code.model_copy(update={"args": arguments})
    elif trainer.config is not None:
        changes["config"] = _check_config(trainer.program, _set_all(trainer.config, parameters))
    variables = dict(trainer.env)
    if trainer.kind == "container":
        texts = {name: to_text(value) for name, value in parameters.items()}
        changes |= {name: _replace_all(getattr(trainer, name), texts) for name in ("command", "args")}
        literals = {name: _replace(value, texts) for name, value in trainer.literal_env.items()}
        variables |= literals
    variables |= {variable_name(name): to_text(value) for name, value in parameters.items()}
    variables[env.HYPERPARAMETERS] = json.dumps(dict(parameters), ensure_ascii=False, sort_keys=True)
    return _with_trainer(request, trainer, {**changes, "env": variables})


def apply_objective(
    request: TrainJobRequest, definition: SearchDefinition, until: float | None, trial: int | None = None
) -> TrainJobRequest:
    """Return the request of a trial whose nodes report the objective, at rungs at once, and pause at a step."""
    if request.work.trainer is None:
        return request
    objective = definition.objective
    best = objective.best_of or ("min" if definition.direction is Direction.MINIMIZE else "max")
    settings = {
        "metric": objective.metric,
        "best": best,
        "value": "last" if objective.best_of is None and not isinstance(definition.stop, MedianStop) else "best",
        "at": list_rungs(definition.stop) if definition.stop else [],
        "until": until,
        "trial": trial,
    }
    text = json.dumps({name: value for name, value in settings.items() if value is not None}, sort_keys=True)
    return _with_trainer(request, request.work.trainer, {"env": {**request.work.trainer.env, env.OBJECTIVE: text}})


def convert_parameter(value: Any, declared: str | None) -> Any:
    """Return a value; its text for an argument declared as str, because Kubeflow's optimizer passes text."""
    return to_text(value) if declared and read_type(declared)[0] == "str" and value is not None else value


def _with_trainer(request: TrainJobRequest, trainer: TrainerRequest, changes: Mapping[str, Any]) -> TrainJobRequest:
    return request.with_fields(trainer=trainer.model_copy(update=dict(changes)))


def _set_all(values: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return values in which the parameters are set; a name with dots is an entry of an inner dict."""
    result = dict(values)
    for name, value in parameters.items():
        *parents, last = name.split(".")
        target = result
        for parent in parents:
            inner = target.get(parent)
            target[parent] = dict(inner) if isinstance(inner, Mapping) else {}
            target = target[parent]
        target[last] = value
    return result


def _check_config(recipe: str | None, config: dict[str, Any]) -> dict[str, Any]:
    try:
        find_recipe(str(recipe)).from_dict(config)
    except ValueError as error:
        raise InvalidRequestError(f"the recipe cannot have these parameters: {error}") from error
    return config


def _replace_all(texts: tuple[str, ...] | None, values: Mapping[str, str]) -> tuple[str, ...] | None:
    return None if texts is None else tuple(_replace(text, values) for text in texts)


def _replace(text: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)


def to_text(value: Any) -> str:
    """Return a value of a parameter as text: a string itself, other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
