"""The program of every component: ``python3 -m kfp_components.step.entrypoint <target> '{{$}}' [--option=value …]``.

Options are written when a component or pipeline is compiled:

- ``--interface`` is a digest of the component's inputs and outputs. It only makes the container differ from others.
- ``--request`` is the value of the input `request`, encoded.

Exit codes: 0 the task is done; 1 it failed, with the reason in one line; 2 wrong usage; 143 it was terminated.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from kfp_components.step.executor_input import Task
from kfp_components.step.failure import print_error
from kfp_components.step.sigterm import Terminated, handle_sigterm
from trainer_core.base.errors import InvalidRequestError, TrainerError

#: Not __name__, which is __main__ where this program runs.
_MODULE = "kfp_components.step.entrypoint"
_OPTIONS = ("--interface", "--request")


#: What each component runs, as module:function of this package; only that module is loaded. The function's keyword
#: arguments are the component's inputs.
TARGETS = {
    "best_of": "best_of:best_of",
    "delete": "lifecycle:delete",
    "evaluate_gate": "gate:evaluate_gate",
    "initialize_dataset": "initialize:initialize",
    "initialize_model": "initialize:initialize",
    "look": "source_version:look",
    "promote": "promote:promote",
    "resume": "lifecycle:resume",
    "search": "search:search",
    "submit": "train:submit",
    "suspend": "lifecycle:suspend",
    "train": "train:train",
    "wait": "wait:wait",
}


def load_target(name: str) -> Callable[..., None]:
    """Return the function that a component runs."""
    module, _, function = TARGETS[name].partition(":")
    target: Callable[..., None] = getattr(import_module(f"kfp_components.step.{module}"), function)
    return target


def main(arguments: Sequence[str]) -> int:
    """Run one task and return its exit code."""
    options = dict(option.partition("=")[::2] for option in arguments[2:])
    if len(arguments) < 2 or arguments[0] not in TARGETS or not options.keys() <= set(_OPTIONS):
        known = " ".join(f"[{option}=…]" for option in _OPTIONS)
        print(f"usage: python3 -m {_MODULE} {{{'|'.join(TARGETS)}}} '{{{{$}}}}' {known}", file=sys.stderr)
        return 2
    logging.basicConfig(format="%(message)s")
    # They name each OnBackend that is skipped.
    logging.getLogger("trainer_core.definition.options").setLevel(logging.INFO)
    name, executor_input, *_ = arguments
    try:
        with handle_sigterm():
            _run_task(load_target(name), Task.parse(executor_input, options.get("--request")))
    except Terminated:
        print_error(f"{name} was terminated")
        return 143
    except (TrainerError, ValueError, OSError) as error:
        print_error(" ".join(str(error).split()))
        return 1
    return 0


def _run_task(target: Callable[..., None], task: Task) -> None:
    task.make_output_folders()
    try:
        target(task, **task.get_arguments(target))
    finally:
        # Also for a failed task: KFP uploads none of its artifacts, but the local runners keep them.
        task.close()
    missing = task.list_missing_outputs()
    if missing:
        raise InvalidRequestError(f"no value for output {', '.join(missing)}; the image is of another version")


if __name__ == "__main__":
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # Each line is in the log of the step at once.
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: a thread that still prints a job's log must not disturb the end of the interpreter.
    os._exit(code)
