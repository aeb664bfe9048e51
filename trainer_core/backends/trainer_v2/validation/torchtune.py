"""Validation of torchtune jobs, with the same rules as the admission of Trainer's torch plugin. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_core.base import resources
from trainer_core.base.errors import UnsupportedError
from trainer_core.k8s import runtimes
from trainer_core.model import torchtune
from trainer_core.model.request import TrainerRequest, TrainJobRequest

#: The only model with a multi-node recipe.
_MULTI_NODE_MODEL = "llama3_3/70B"
#: The model without a QLoRA recipe.
_MODEL_WITHOUT_QLORA = "qwen2_5/1.5B"
#: Arguments that the runtime sets.
_RUNTIME_ARGUMENTS = ("output_dir", "tokenizer.path", "checkpointer.checkpoint_dir", "tokenizer.merges_file")


def check_recipe(request: TrainJobRequest, runtime: Mapping[str, Any]) -> None:
    """Check that torchtune has a recipe for a request; other jobs are not checked."""
    trainer = request.work.trainer
    if trainer is None or runtimes.get_ml_policy(runtime) != "torch":
        return
    recipe, is_builtin = torchtune.TorchTuneConfig, trainer.program == torchtune.TorchTuneConfig.framework
    if not is_builtin and trainer.command != recipe.command:
        return
    args = recipe.to_args(trainer.config or {}) if is_builtin else list(trainer.args or ())
    name = runtimes.get_name(runtime)
    if name not in torchtune.MODELS:
        raise UnsupportedError(
            f"runtime {name!r} has no torchtune recipe: the name must be one of {', '.join(torchtune.MODELS)}"
        )
    model = torchtune.MODELS[name].config
    _check_arguments(args)
    _check_nodes(model, trainer.num_nodes or 1, args)
    if _is_qlora(args):
        _check_qlora(model, trainer, runtime)


def count_gpus(trainer: TrainerRequest, runtime: Mapping[str, Any]) -> int:
    """Return the number of GPUs per node, as the Trainer controller counts them."""
    per_node = trainer.resources_per_node
    if per_node is not None:
        return _count_gpu_amount(per_node)
    node = (runtimes.find_trainer_container(runtime) or {}).get("resources") or {}
    return _count_gpu_amount(node.get("requests") or {}) or _count_gpu_amount(node.get("limits") or {})


def _check_arguments(args: list[str]) -> None:
    for arg in args:
        if arg.partition("=")[0] in _RUNTIME_ARGUMENTS:
            raise UnsupportedError(f"trainer.args: {arg.partition('=')[0]} is set by the runtime; remove it")


def _check_nodes(model: str, nodes: int, args: list[str]) -> None:
    if nodes > 1 and model != _MULTI_NODE_MODEL:
        raise UnsupportedError(
            f"num_nodes must be 1 for {model}, got {nodes}: torchtune has no multi-node recipe "
            "for it; use more GPUs on one node"
        )
    is_lora = any("model.lora_attn_modules" in arg for arg in args)
    if nodes > 1 and (is_lora or _is_qlora(args)):
        raise UnsupportedError(
            f"num_nodes must be 1 with LoRA, got {nodes}: torchtune has no multi-node LoRA recipe; remove peft_config"
        )


def _check_qlora(model: str, trainer: TrainerRequest, runtime: Mapping[str, Any]) -> None:
    if model == _MODEL_WITHOUT_QLORA:
        raise UnsupportedError(f"quantize_base: torchtune has no QLoRA recipe for {model}; remove it")
    single = trainer.num_proc_per_node == 1 or count_gpus(trainer, runtime) == 1
    if not single and model != _MULTI_NODE_MODEL:
        raise UnsupportedError(
            f"quantize_base: QLoRA of {model} needs one GPU per node, got {count_gpus(trainer, runtime)}; "
            "set resources_per_node={'gpu': 1}"
        )


def _is_qlora(args: list[str]) -> bool:
    return _is_on(args, "model.quantize_base") and not _is_on(args, "model.use_dora")


def _is_on(args: list[str], name: str) -> bool:
    pairs = [arg.partition("=") for arg in args]
    return any(name in key and value.strip().lower() == "true" for key, _, value in pairs)


def _count_gpu_amount(amounts: Mapping[str, Any]) -> int:
    name = next((each for each in amounts if "gpu" in each.lower()), None)
    return int(resources.parse_quantity(amounts[name])) if name else 0
