"""The one program that every component image runs: ``python3 -m kfp_components._entry <target> '{{$}}' [request]``.

A large request comes as an argument of its own, as the code of KFP's own Python components does: what KFP calls a
parameter is written to its database and cut there.

Exit codes: 0 the task is done; 1 it failed, with one line that says why; 2 wrong usage; 143 it was terminated.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from kfp_components import _best_of, _follow, _gate, _initialize, _look, _manage, _promote, _train
from kfp_components._executor import Task
from trainer_core.errors import InvalidRequestError, TrainerError

__all__ = ["TARGETS", "main"]

#: What each component runs; its keyword arguments are the component's inputs.
TARGETS: dict[str, Callable[..., None]] = {
    "best_of": _best_of.best_of,
    "delete": _manage.delete,
    "evaluate_gate": _gate.evaluate_gate,
    "initialize_dataset": _initialize.initialize,
    "initialize_model": _initialize.initialize,
    "look": _look.look,
    "promote": _promote.promote,
    "resume": _manage.resume,
    "suspend": _manage.suspend,
    "train": _train.train,
    "wait": _train.wait,
}


def main(arguments: Sequence[str]) -> int:
    """Run one task and return its exit code."""
    if len(arguments) not in (2, 3) or arguments[0] not in TARGETS:
        print(f"usage: python3 -m kfp_components._entry {{{'|'.join(TARGETS)}}} '{{{{$}}}}' [request]", file=sys.stderr)
        return 2
    name, *given = arguments
    try:
        with _follow.terminable():
            _run(TARGETS[name], Task.parse(*given))
    except _follow.Terminated:
        print(f"error: {name} was terminated", file=sys.stderr)
        return 143
    except (TrainerError, ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


def _run(target: Callable[..., None], task: Task) -> None:
    task.prepare()
    try:
        target(task, **task.arguments(target))
    finally:
        # A failed task leaves its report too.
        task.close()
    missing = task.unwritten()
    if missing:
        raise InvalidRequestError(f"no value for output {', '.join(missing)}; the image is of another version")


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: a thread that still prints a job's log must not disturb the end of the interpreter.
    os._exit(code)
