"""Convert the command of a PyTorchJob's container to a command for Kubeflow Trainer. Pure functions.

The Training Operator sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in every container. Trainer sets PET_*
variables for torchrun, and torchrun sets RANK and the others in its processes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_PYTHON = re.compile(r"(.*/)?python[0-9.]*")
_TORCHRUN = re.compile(r"(.*/)?torchrun")
_MODULES = ("torch.distributed.run", "torch.distributed.launch")
#: Flags of the interpreter that torchrun cannot pass on; torchrun already runs python -u.
_FLAGS = re.compile(r"-[BEIOPRSbdisquvx]+")
#: Variables of the operator, and their equivalents of Trainer for one process per node.
_NAMES = {
    "MASTER_ADDR": "PET_MASTER_ADDR",
    "MASTER_PORT": "PET_MASTER_PORT",
    "RANK": "PET_NODE_RANK",
    "WORLD_SIZE": "PET_NNODES",
}
_KUBERNETES_REFERENCE = re.compile(rf"\$\(({'|'.join(_NAMES)})\)")
_SHELL_REFERENCE = re.compile(rf"\$({'|'.join(_NAMES)})\b|\$\{{({'|'.join(_NAMES)})\}}")
_OLD = "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
_WRAPPED = f"torchrun now starts the program and sets {_OLD} as the operator did"
_RENAMED = f"{_OLD} are now PET_NODE_RANK, PET_NNODES, PET_MASTER_ADDR and PET_MASTER_PORT"
_ELASTIC = re.compile(r"PET_RDZV_\w+|PET_MAX_RESTARTS")


@dataclass(frozen=True)
class ConvertedCommand:
    """Command of a container on Trainer."""

    command: list[str] | None
    args: list[str] | None
    #: Whether it starts one process per node, whatever the number of processes in the job.
    is_one_process: bool = False
    #: What works in another way, one line each.
    changed: tuple[str, ...] = ()
    #: What no longer works, one line each.
    lost: tuple[str, ...] = ()


def convert_command(command: Sequence[str] | None, args: Sequence[str] | None, nodes: int) -> ConvertedCommand:
    if not command:
        return _convert_entry_point(args, nodes)
    words = [*command, *(args or ())]
    starts_torchrun = any(_TORCHRUN.fullmatch(word) or word in _MODULES for word in words) or any(
        "torchrun" in word or "torch.distributed" in word for word in words if " " in word
    )
    renamed = [_rename_variables(word, shell=starts_torchrun) for word in words]
    changed = (_RENAMED,) if renamed != words else ()
    lost = tuple(f"{name} is not set by Trainer" for word in words for name in _ELASTIC.findall(word))
    if starts_torchrun:
        split = len(command)
        return ConvertedCommand(renamed[:split], renamed[split:] if args is not None else None, False, changed, lost)
    wrapped = _wrap_in_torchrun(renamed)
    # By convention, the command is the program alone.
    return ConvertedCommand(wrapped[:1], wrapped[1:], True, (_WRAPPED, *changed), lost)


def _convert_entry_point(args: Sequence[str] | None, nodes: int) -> ConvertedCommand:
    text = f"Trainer does not set {_OLD} for the image's entry point; set command: [torchrun] and the script in args"
    kept = None if args is None else list(args)
    return ConvertedCommand(None, kept, lost=(text,)) if nodes > 1 else ConvertedCommand(None, kept, changed=(text,))


def _rename_variables(word: str, shell: bool) -> str:
    word = _KUBERNETES_REFERENCE.sub(lambda match: f"$({_NAMES[match[1]]})", word)
    return _SHELL_REFERENCE.sub(lambda match: f"${{{_NAMES[match[1] or match[2]]}}}", word) if shell else word


def _wrap_in_torchrun(words: Sequence[str]) -> list[str]:
    """Return the torchrun command: a Python script or module directly, any other program with --no-python."""
    if _PYTHON.fullmatch(words[0]):
        rest = list(words[1:])
        while rest and _FLAGS.fullmatch(rest[0]):
            rest.pop(0)
        if rest and (rest[0] == "-m" or not rest[0].startswith("-")):
            return ["torchrun", *rest]
    return ["torchrun", "--no-python", *words]
