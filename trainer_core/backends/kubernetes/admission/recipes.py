"""What admission wants of a job that runs torchtune's recipes (specs.md A6). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_core import resources, torchtune
from trainer_core.cluster import runtimes
from trainer_core.errors import UnsupportedError
from trainer_core.request import TrainerRequest, TrainJobRequest

__all__ = ["check", "gpus"]

_COMMAND = ("tune", "run")
#: By the model's name as admission reads it from the runtime's: torchtune-llama3.2-1b is llama3_2/1B.
_MODELS = ("llama3_2/1B", "llama3_2/3B", "llama3_3/70B", "qwen2_5/1.5B")
#: The one with a recipe for several nodes.
_LARGE = "llama3_3/70B"
_NO_QLORA = "qwen2_5/1.5B"
_RUNTIMES_OWN = ("output_dir", "tokenizer.path", "checkpointer.checkpoint_dir", "tokenizer.merges_file")


def check(request: TrainJobRequest, runtime: Mapping[str, Any]) -> None:
    """Refuse what torchtune has no recipe for; jobs of other kinds pass.

    Raises:
        UnsupportedError: The model, the number of nodes or the arguments do not go together.
    """
    trainer = request.trainer
    if trainer is None or runtimes.policy(runtime) != "torch" or not _runs_torchtune(trainer):
        return
    model, args = _model(runtimes.name(runtime)), _arguments(request, trainer)
    if model not in _MODELS:
        raise UnsupportedError(
            f"runtime {runtimes.name(runtime)!r}: torchtune jobs need a runtime called torchtune-<family>-<size> of a "
            "model it knows: torchtune-llama3.2-1b, -llama3.2-3b, -llama3.3-70b or -qwen2.5-1.5b"
        )
    _check_arguments(args)
    _check_nodes(model, trainer.num_nodes or 1, args)
    if _is_qlora(args):
        _check_qlora(model, trainer, runtime)


def gpus(trainer: TrainerRequest, runtime: Mapping[str, Any]) -> int:
    """Return how many GPUs of a node the controller counts."""
    asked = trainer.resources_per_node
    if asked is not None:
        return _count(asked)
    node = (runtimes.trainer_container(runtime) or {}).get("resources") or {}
    return _count(node.get("requests") or {}) or _count(node.get("limits") or {})


def _runs_torchtune(trainer: TrainerRequest) -> bool:
    return trainer.kind == "builtin" or trainer.command == _COMMAND


def _model(runtime: str) -> str:
    parts = runtime.split("-")
    return f"{parts[1].replace('.', '_')}/{parts[2].upper()}" if len(parts) == 3 else ""


def _arguments(request: TrainJobRequest, trainer: TrainerRequest) -> list[str]:
    return torchtune.arguments(trainer.config or {}) if trainer.kind == "builtin" else list(trainer.args or ())


def _check_arguments(args: list[str]) -> None:
    for arg in args:
        if arg.partition("=")[0] in _RUNTIMES_OWN:
            raise UnsupportedError(f"trainer.args: {arg.partition('=')[0]} is set by the runtime; leave it out")


def _check_nodes(model: str, nodes: int, args: list[str]) -> None:
    if nodes > 1 and model != _LARGE:
        raise UnsupportedError(
            f"num_nodes must be 1 for {model}, got {nodes}: torchtune trains it on one; use more GPUs of one node"
        )
    if nodes > 1 and (_is_lora(args) or _is_qlora(args)):
        raise UnsupportedError(
            f"num_nodes must be 1 with LoRA, got {nodes}: torchtune has no recipe for several; leave peft_config out"
        )


def _check_qlora(model: str, trainer: TrainerRequest, runtime: Mapping[str, Any]) -> None:
    if model == _NO_QLORA:
        raise UnsupportedError(f"quantize_base: torchtune has no QLoRA for {model}; leave it out")
    single = trainer.num_proc_per_node == 1 or gpus(trainer, runtime) == 1
    if not single and model != _LARGE:
        raise UnsupportedError(
            f"quantize_base: QLoRA of {model} runs on one GPU, and a node has {gpus(trainer, runtime)}; "
            "give resources_per_node={'gpu': 1}"
        )


def _is_lora(args: list[str]) -> bool:
    return any("model.lora_attn_modules" in arg for arg in args)


def _is_qlora(args: list[str]) -> bool:
    return _is_on(args, "model.quantize_base") and not _is_on(args, "model.use_dora")


def _is_on(args: list[str], name: str) -> bool:
    pairs = [arg.partition("=") for arg in args]
    return any(name in key and value.strip().lower() == "true" for key, _, value in pairs)


def _count(amounts: Mapping[str, Any]) -> int:
    name = next((each for each in amounts if "gpu" in each.lower()), None)
    return int(resources.parse_quantity(amounts[name])) if name else 0
