"""Optuna's samplers as functions of a history: the parameters of one trial, without a study that has to be kept.

A study in memory holds the trials before this one in the order of their numbers, and is asked once with a seed of this
trial. A study is kept between two calls only to save time: where the trials differ from those that it holds, it is
filled again.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from trainer_core.search.definition import ALWAYS_SET, OptunaSampler
from trainer_core.search.space import Choice, Distribution, RandInt, Uniform

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

    from trainer_core.search.history import SettledTrial

_MAX_KEPT = 4


def suggest(
    space: Mapping[str, Distribution],
    algorithm: OptunaSampler,
    seed: str,
    trial: int,
    history: Sequence[SettledTrial],
    running: Mapping[int, Mapping[str, Any]],
    direction: str = "minimize",
) -> dict[str, Any]:
    """Return the parameters of a trial: a pure function of its arguments."""
    trials = sorted(
        [past for line in history if (past := _read_line(line, direction)) is not None]
        + [_PastTrial(number, parameters) for number, parameters in running.items()]
    )
    key = (repr(sorted(space.items())), repr(algorithm), seed)
    with _lock:
        study = _kept.pop(key, None)
        parameters = None if study is None else study.suggest(algorithm, seed, trial, trials)
        if study is None or parameters is None:
            study = _KeptStudy(space)
            parameters = study.suggest(algorithm, seed, trial, trials)
        _kept[key] = study
        if len(_kept) > _MAX_KEPT:
            _kept.popitem(last=False)
    assert parameters is not None  # noqa: S101 -- a new study can hold any trials
    return parameters


class _PastTrial(NamedTuple):
    """A trial as Optuna sees it: the state "" is a running one, and `value` is a loss."""

    trial: int
    parameters: Mapping[str, Any]
    state: str = ""
    value: float | None = None
    rungs: tuple[tuple[int, float], ...] = ()


def _read_line(line: SettledTrial, direction: str) -> _PastTrial | None:
    """Return a settled trial; None for one whose end has nothing to do with its parameters, such as a lost node."""
    if line.state == "Lost":
        return None
    sign = -1.0 if direction == "maximize" else 1.0
    if line.state == "Complete" and line.value is not None and not math.isnan(line.value):
        return _PastTrial(line.trial, line.parameters, "COMPLETE", sign * line.value)
    rungs = line.rungs if line.state == "StoppedEarly" else ()
    finite = ((report.rung, report.value) for report in rungs if report.value is not None)
    values = tuple((rung, sign * value) for rung, value in finite if math.isfinite(value))
    return _PastTrial(line.trial, line.parameters, "PRUNED", None, values)


class _KeptStudy:
    """A study in memory and the trials that it holds. Running ones can end, and further ones follow."""

    def __init__(self, space: Mapping[str, Distribution]) -> None:
        self._indexes = {
            name: {_to_key(value): index for index, value in reversed(list(enumerate(distribution.values)))}
            for name, distribution in space.items()
            if isinstance(distribution, Choice)
        }
        self._space = space
        with _quiet():
            from optuna import create_study
            from optuna.storages import InMemoryStorage

            self._storage = InMemoryStorage()
            self._study: Study = create_study(storage=self._storage)
        self._study_id = self._storage.get_study_id_from_name(self._study.study_name)
        self._distributions = {name: _to_distribution(space[name]) for name in sorted(space)}
        self._trials: list[_PastTrial] = []

    def suggest(
        self, algorithm: OptunaSampler, seed: str, trial: int, trials: Sequence[_PastTrial]
    ) -> dict[str, Any] | None:
        """Return the parameters of a trial after these; None if the study holds others."""
        held = self._trials
        if held and held[-1].trial == trial:
            return dict(held[-1].parameters) if held[:-1] == trials else None
        if len(held) > len(trials) or not all(map(_can_become, held, trials)):
            return None
        for index, past in enumerate(trials):
            if index >= len(held):
                self._storage.create_new_trial(self._study_id, self._build_trial(past))
            elif held[index] != past:
                self._finish(index, past)
        digest = hashlib.sha256(f"{seed}/{trial}".encode()).digest()
        with _quiet():
            self._study.sampler = _build_sampler(algorithm, int.from_bytes(digest[:4], "big"))
            found = self._study.ask(self._distributions).params
        parameters = {name: self._decode(name, found[name]) for name in self._space}
        self._trials = [*trials, _PastTrial(trial, parameters)]
        return parameters

    def _decode(self, name: str, value: Any) -> Any:
        distribution = self._space[name]
        return distribution.values[value] if isinstance(distribution, Choice) else value

    def _encode(self, name: str, value: Any) -> Any:
        return self._indexes[name][_to_key(value)] if name in self._indexes else value

    def _finish(self, index: int, past: _PastTrial) -> None:
        from optuna.trial import TrialState

        trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._study_id, index)
        for step, value in past.rungs:
            self._storage.set_trial_intermediate_value(trial_id, step, value)
        values = None if past.value is None else [past.value]
        self._storage.set_trial_state_values(trial_id, TrialState[past.state], values)

    def _build_trial(self, past: _PastTrial) -> FrozenTrial:
        from optuna.trial import TrialState, create_trial

        return create_trial(
            state=TrialState[past.state or "RUNNING"],
            value=past.value,
            params={name: self._encode(name, past.parameters[name]) for name in self._distributions},
            distributions=self._distributions,
            intermediate_values=dict(past.rungs),
        )


_lock = threading.Lock()
_kept: OrderedDict[tuple[str, str, str], _KeptStudy] = OrderedDict()


def _can_become(before: _PastTrial, after: _PastTrial) -> bool:
    return before == after or (before.state == "" and before[:2] == after[:2])


def _to_key(value: Any) -> str:
    # 1, 1.0 and True are equal in Python, and a choice can have all of them.
    return json.dumps(value, sort_keys=True)


def _to_distribution(distribution: Distribution) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    class Indexes(CategoricalDistribution):
        # Optuna compares the distributions of all trials at each suggestion, choice by choice: half of its time.
        def __eq__(self, other: object) -> bool:
            return self is other or super().__eq__(other)

        def __deepcopy__(self, memo: object) -> Indexes:
            return self

        __hash__ = CategoricalDistribution.__hash__

    if isinstance(distribution, Choice):
        # Optuna takes numbers and strings only, and compares them with ==.
        return Indexes(range(len(distribution.values)))
    if isinstance(distribution, RandInt):
        return IntDistribution(distribution.min, distribution.max, log=distribution.log)
    return FloatDistribution(distribution.min, distribution.max, log=not isinstance(distribution, Uniform))


def _build_sampler(algorithm: OptunaSampler, seed: int) -> BaseSampler:
    from optuna.samplers import GPSampler, TPESampler

    cls = {"tpe": TPESampler, "gp": GPSampler}[algorithm.name]
    sampler: BaseSampler = cls(seed=seed, **ALWAYS_SET[algorithm.name], **algorithm.settings)
    return sampler


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Optuna from announcing each study and its experimental arguments."""
    from optuna import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
