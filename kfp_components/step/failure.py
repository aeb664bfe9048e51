"""Reports the reason of a failure where it outlasts the step: at the end of its log, and as its container's message.

KFP uploads nothing of a failed task but its log, so the report and the other outputs do not get into KFP.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from kfp_components.step.client import IN_CONTAINER
from trainer_core.model.jobs import Diagnosis, Outcome
from trainer_core.model.readable_log import format_log_line
from trainer_core.node import env

#: Bytes of the message that Kubernetes keeps of a container.
_MAX_MESSAGE_BYTES = 4096


def print_diagnosis(outcome: Outcome) -> None:
    """Print the diagnosis of a failed TrainJob; nothing for a complete one."""
    diagnosis = outcome.diagnosis
    if outcome.succeeded or diagnosis is None:
        return
    facts, text = describe_diagnosis(diagnosis)
    print(f"TrainJob {outcome.job.name} is {outcome.status}")
    for name, value in facts.items():
        print(f"  {name}: {value}")
    for line in filter(None, text.splitlines()):
        print(f"  | {line}")


def describe_diagnosis(diagnosis: Diagnosis) -> tuple[dict[str, str], str]:
    """Return the known facts by name, and the traceback or the last lines of the log."""
    facts = {
        "category": diagnosis.category.value,
        "reason": diagnosis.reason,
        "step": diagnosis.step,
        "node": diagnosis.node,
        "exit code": None if diagnosis.exit_code is None else str(diagnosis.exit_code),
        "can a retry help": "yes" if diagnosis.retryable else "no",
    }
    text = diagnosis.traceback or "\n".join(filter(None, map(format_log_line, diagnosis.log_tail)))
    return {name: value for name, value in facts.items() if value}, text


def print_error(text: str) -> None:
    """Print an error as the last line of the log; in a pod, Kubernetes keeps it as the message of the container too."""
    print(f"error: {text}", file=sys.stderr)
    log = Path(env.setting(env.TERMINATION_LOG))
    # The kubelet makes the file. On a user's machine it may be another program's.
    if IN_CONTAINER in os.environ and log.exists():
        with suppress(OSError):
            log.write_bytes(text.encode()[:_MAX_MESSAGE_BYTES])
