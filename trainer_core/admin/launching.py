"""The command of a PyTorchJob's container → one that Trainer can start, which tells its nodes less. Pure.

The Training Operator gives every container RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Trainer leaves that to
torchrun, which it tells by PET_* variables where the nodes meet.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Launch", "launch"]

_PYTHON = re.compile(r"(.*/)?python[0-9.]*")
_TORCHRUN = re.compile(r"(.*/)?torchrun")
_MODULES = ("torch.distributed.run", "torch.distributed.launch")
#: Flags of the interpreter that torchrun cannot hand on; of output it buffers nothing anyway.
_FLAGS = re.compile(r"-[BEIOPRSbdisquvx]+")
#: What the operator says, and what says the same with Trainer as long as a node has one process.
_NAMES = {
    "MASTER_ADDR": "PET_MASTER_ADDR",
    "MASTER_PORT": "PET_MASTER_PORT",
    "RANK": "PET_NODE_RANK",
    "WORLD_SIZE": "PET_NNODES",
}
_BY_KUBERNETES = re.compile(rf"\$\(({'|'.join(_NAMES)})\)")
_BY_A_SHELL = re.compile(rf"\$({'|'.join(_NAMES)})\b|\$\{{({'|'.join(_NAMES)})\}}")
_OLD = "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
_WRAPPED = f"torchrun starts it now, and tells it {_OLD} as the operator did"
_TOLD = (
    "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are PET_NODE_RANK, PET_NNODES, PET_MASTER_ADDR and PET_MASTER_PORT"
)
_ELASTIC = re.compile(r"PET_RDZV_\w+|PET_MAX_RESTARTS")


@dataclass(frozen=True)
class Launch:
    """How a container is started with Trainer.

    Attributes:
        command: Its command; None for the image's own.
        args: Its arguments; None for the image's own.
        is_one_process: It starts one process on each node, whatever the job says of processes.
        changed: What is different now, a line each.
        lost: What does not work any more, a line each.
    """

    command: list[str] | None
    args: list[str] | None
    is_one_process: bool = False
    changed: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


def launch(command: Sequence[str] | None, args: Sequence[str] | None, nodes: int) -> Launch:
    """Say how a container is to be started.

    Args:
        command: Of the container; None for the image's own.
        args: Of the container; None for the image's own.
        nodes: How many there are.
    """
    if not command:
        return _by_the_image(args, nodes)
    words = [*command, *(args or ())]
    starts_torchrun = any(_TORCHRUN.fullmatch(word) or word in _MODULES for word in words) or any(
        "torchrun" in word or "torch.distributed" in word for word in words if " " in word
    )
    renamed = [_renamed(word, shell=starts_torchrun) for word in words]
    changed = (_TOLD,) if renamed != words else ()
    lost = tuple(f"{name} is not set by Trainer" for word in words for name in _ELASTIC.findall(word))
    if starts_torchrun:
        split = len(command)
        return Launch(renamed[:split], renamed[split:] if args is not None else None, False, changed, lost)
    wrapped = _under_torchrun(renamed)
    # The program alone is the command: the rest are arguments, as people write it.
    return Launch(wrapped[:1], wrapped[1:], True, (_WRAPPED, *changed), lost)


def _by_the_image(args: Sequence[str] | None, nodes: int) -> Launch:
    text = f"the image's own entry point is not told {_OLD} by Trainer; give command: [torchrun] and the script as args"
    given = None if args is None else list(args)
    return Launch(None, given, lost=(text,)) if nodes > 1 else Launch(None, given, changed=(text,))


def _renamed(word: str, shell: bool) -> str:
    word = _BY_KUBERNETES.sub(lambda found: f"$({_NAMES[found[1]]})", word)
    return _BY_A_SHELL.sub(lambda found: f"${{{_NAMES[found[1] or found[2]]}}}", word) if shell else word


def _under_torchrun(words: Sequence[str]) -> list[str]:
    """A script or module of Python is torchrun's own business; any other program it starts as it is."""
    if _PYTHON.fullmatch(words[0]):
        rest = list(words[1:])
        while rest and _FLAGS.fullmatch(rest[0]):
            rest.pop(0)
        if rest and (rest[0] == "-m" or not rest[0].startswith("-")):
            return ["torchrun", *rest]
    return ["torchrun", "--no-python", *words]
