"""RestartPolicy: the option that starts a training again after a failure, within a budget by cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from trainer_core.base import validation
from trainer_core.model.jobs import Category
from trainer_core.model.option import BaseOption, section
from trainer_core.model.restart_rules import RestartRules


@dataclass
class RestartPolicy(BaseOption):
    """Start the training again after a failure, within a budget that depends on the cause.

    A failure is counted if a retry can help against it (`Diagnosis.retryable`): a lost node counts, an exception of the
    training function does not lead to a restart. `free`, `never` and `exit_codes` change that for a category or an exit
    code. The budget is that of an owner and generation: all retries of a task share it, and a task that a person clears
    has a new one. Once it is used up the TrainJob is Failed, and a retry cannot help. After ``Deleted``, ``Deadline``
    and ``StoppedEarly`` a training is never started again, and ``active_deadline_seconds`` limits the run time of all
    starts together.

    The local and the container backend start the steps again in the same TrainJob. On clusters, and after the
    supervisor of a local one was killed, a process that waits for the TrainJob starts it again, as its next attempt:
    the Airflow operator in the same try, a step of KFP, ``trainjob submit --wait`` and ``trainjob wait``,
    `TrainerClient.wait`. No upstream field: a TrainJob has no such policy yet (KEP-4162).

    Args:
        max_restarts: How many restarts are counted at most. Default 3.
        free: Categories of failures after which a restart is not counted, such as ``["Preempted", "NodeLost"]``.
            Default: none.
        never: Categories of failures after which the training is not started again. Default: none.
        exit_codes: What an exit code means, before the categories: ``{17: "free", 3: "never", 4: "count"}``. The end by
            a signal has 128 and its number. Default: none.
        delay: Time before the first restart, in seconds or as text such as ``"10s"``; twice as long before each further
            one, at most 5 minutes. Default 10 seconds.
        no_progress: How many starts in a row may end without a new checkpoint, or without the option `Checkpoints`
            without a higher step of `progress`, before the TrainJob is Failed even if its restarts are free. Default 3.

    Raises:
        ValueError: An invalid value, or the backend does not accept the option.

    Example:
        ```python
        policy = RestartPolicy(max_restarts=3, free=["Preempted", "NodeLost"])
        client.train(trainer=trainer, options=[Checkpoints(), policy])
        ```
    """

    max_restarts: int = 3
    free: Sequence[str | Category] = ()
    never: Sequence[str | Category] = ()
    exit_codes: Mapping[int, str] = field(default_factory=dict)
    delay: float | str = 10.0
    no_progress: int = 3

    def __post_init__(self) -> None:
        settings = self._settings()
        if any(map(validation.is_placeholder, _list_values(settings))):
            return
        try:
            RestartRules.parse(settings)
        except ValueError as error:
            raise ValueError(f"RestartPolicy {error}") from None

    def _apply(self, job_spec: dict[str, Any], trainer: Any) -> None:
        data = self._settings()
        if not any(map(validation.is_placeholder, _list_values(data))):
            data = RestartRules.parse(data).to_dict()
        section(job_spec, "spec")["restartPolicy"] = data

    def _settings(self) -> dict[str, Any]:
        # Not `asdict`, which copies what was given: it may be nested without end.
        return {each.name: getattr(self, each.name) for each in fields(self)}


def _list_values(settings: Mapping[str, object]) -> Iterable[object]:
    for value in settings.values():
        if isinstance(value, Mapping):
            yield from (*value, *value.values())
        elif isinstance(value, Sequence) and not isinstance(value, str):
            yield from value
        else:
            yield value
