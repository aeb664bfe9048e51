"""A request in the words of a Run:ai workload: which fields it sets, before anybody sets some directly. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from trainer_core import resources, shipping, torchtune
from trainer_core.backends.runai.blueprints import Blueprint
from trainer_core.cluster import objects
from trainer_core.errors import UnsupportedError
from trainer_core.inside import contract
from trainer_core.request import TrainerRequest, TrainJobRequest
from trainer_core.runai.parts import Claim
from trainer_core.runai.spec import TrainingWorkloadSpec
from trainer_core.secrets import SecretRef

__all__ = ["MIG", "WORKSPACE", "amounts", "base", "claims", "command", "environment", "num_nodes", "processes"]

MIG = "nvidia.com/mig-"
#: Where claims are mounted that hold a folder for each thing that was fetched.
WORKSPACE = "/workspace"
_PROCESSES = "PET_NPROC_PER_NODE"
_PLACED = ("cpu", "memory", resources.GPU)


def num_nodes(request: TrainJobRequest) -> int:
    """Return how many nodes a request has."""
    return (request.trainer.num_nodes if request.trainer else None) or 1


def amounts(trainer: TrainerRequest) -> dict[str, Any]:
    """Return what a node is to have, as fields: guaranteed, and no more than that where both can be said."""
    given = trainer.resources_per_node or {}
    found: dict[str, Any] = {}
    for name in ("cpu", "memory"):
        if name in given:
            found |= {name: given[name], f"{name}_limit": given[name]}
    if given.get(resources.GPU):
        found["gpu"] = given[resources.GPU]
    slices = [name for name in given if name.startswith(MIG)]
    if slices:
        found["mig_profile"] = slices[0].removeprefix(MIG)
    others = {name: amount for name, amount in given.items() if name not in (*_PLACED, *slices)}
    return {**found, "extended_resources": others} if others else found


def processes(request: TrainJobRequest, trainer: TrainerRequest, blueprint: Blueprint) -> int:
    """Return how many processes a node is to run: as many as GPUs; one for a part of a GPU, and for none."""
    if trainer.num_proc_per_node:
        return trainer.num_proc_per_node
    of_template = blueprint.template.gpu if blueprint.template else None
    direct = request.runai.spec if request.runai else {}
    asked = direct.get("gpu") or amounts(trainer).get("gpu") or of_template or 1
    return max(1, int(resources.parse_quantity(asked)))


def environment(request: TrainJobRequest, trainer: TrainerRequest, blueprint: Blueprint) -> dict[str, Any]:
    """Return the environment variables of every node; secrets by reference."""
    env = objects.trainer_env(request)
    if trainer.code is not None:
        env[contract.NODES] = str(num_nodes(request))
        if blueprint.policy == "torch":
            env[_PROCESSES] = str(processes(request, trainer, blueprint))
    given = sorted(env.items())
    return {name: value if isinstance(value, SecretRef) else objects.literal(value) for name, value in given}


def command(request: TrainJobRequest, trainer: TrainerRequest, blueprint: Blueprint) -> dict[str, str]:
    """Return command and arguments; what is not set is the image's own.

    Run:ai splits each as a shell does, so that every word is quoted for one.
    """
    if trainer.kind == "builtin":
        program, args = _recipe(request, trainer, blueprint)
    elif trainer.code is None:
        # Written for a container by somebody who may well mean Kubernetes' $(NAME).
        program, args = list(trainer.command or ()), list(trainer.args or ())
    else:
        argv = _argv(request, trainer, blueprint)
        loaded = argv.index(shipping.LOADER) + 1
        program, args = argv[:loaded], argv[loaded:]
    said = {"command": program, "arguments": args}
    return {name: shlex.join(words) for name, words in said.items() if words}


def _argv(request: TrainJobRequest, trainer: TrainerRequest, blueprint: Blueprint) -> list[str]:
    if trainer.code is None:
        return []
    launch = {"torch": "torchrun", "mpi": "mpirun"}.get(blueprint.policy or "", "python")
    exported = sorted(environment(request, trainer, blueprint))
    packages, indexes, wanted = trainer.packages, trainer.pip_index_urls, trainer.num_proc_per_node
    return shipping.argv(trainer.code, packages, indexes, launch, exported=exported, processes=wanted)  # type: ignore[arg-type]


def _recipe(request: TrainJobRequest, trainer: TrainerRequest, blueprint: Blueprint) -> tuple[list[str], list[str]]:
    """What Trainer's controller makes of a packaged recipe on one node (specs.md A7)."""
    model, *always = blueprint.recipe
    dataset = getattr(request.initializer, "dataset", None)
    args = torchtune.arguments(trainer.config or {}, dataset.storage_uri if dataset else None)
    count = processes(request, trainer, blueprint)
    tuned = _tuned(args)
    where = "single_device" if count == 1 else "distributed"
    recipe = f"{'lora' if tuned else 'full'}_finetune_{where}"
    suffix = f"_{tuned or 'full'}_single_device" if count == 1 else f"_{tuned or 'full'}"
    launch = [] if count == 1 else ["--nproc_per_node", str(count)]
    words = ["tune", "run", *launch, recipe, "--config", f"{model}{suffix}"]
    return words, [objects.literal(word) for word in (*always, *args)]


def _tuned(args: Sequence[str]) -> str:
    """How a recipe fine-tunes besides all weights: ``lora``, ``qlora``, or not."""
    if not any(arg.startswith("model.lora_attn_modules") for arg in args):
        return ""
    quantized = "model.quantize_base=True" in args and "model.use_dora=True" not in args
    return "qlora" if quantized else "lora"


def claims(request: TrainJobRequest) -> dict[str, Claim]:
    """Return the claims that hold what an earlier job has fetched.

    Run:ai mounts whole claims: one with a folder for each thing lies at /workspace, one of its own at that folder.

    Raises:
        UnsupportedError: A thing lies elsewhere in its claim.
    """
    found: dict[str, Claim] = {}
    for role, source in objects.sources(request):
        claim, _, path = source.storage_uri.removeprefix(objects.PVC).partition("/")
        folder = path.strip("/")
        if folder not in ("", role):
            raise UnsupportedError(
                f"initializer.{role}: Run:ai mounts whole claims, and not {folder!r} by itself; have it at "
                f"{objects.PVC}{claim}/{role}, or use a claim with nothing else in it ({objects.PVC}{claim})"
            )
        place = WORKSPACE if folder else objects.ROLES[role]
        mounted = Claim(claim_name=claim, existing_pvc=True, path=place, read_only=not folder)
        others = [other for other in found.values() if other.path == place and other != mounted]
        if others:
            raise UnsupportedError(
                f"initializer: claims {others[0].claim_name!r} and {claim!r} cannot both be mounted at {WORKSPACE}; "
                "have dataset and model in one claim, or each in one with nothing else in it"
            )
        found[f"trainjob-{role if not folder else 'workspace'}"] = mounted
    return found


def base(blueprint: Blueprint, inherits: bool) -> TrainingWorkloadSpec:
    """Return what a blueprint says of every workload.

    Args:
        blueprint: The blueprint.
        inherits: The workload can inherit from a template; a template is a TrainingWorkload, and what a workload of
            another kind would make of it is not known, so that its fields are said by us.
    """
    if blueprint.template is not None and inherits:
        return TrainingWorkloadSpec(base_workload=blueprint.name)
    if blueprint.template is not None:
        own = dict.fromkeys(("name", "name_prefix", "usage", "user_id", "ingress_url"))
        return blueprint.template.model_copy(update=own)
    return TrainingWorkloadSpec(image=blueprint.image)
