"""Chooses the parameters of a trial: a pure function of the space, the algorithm, the seed and the history."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from trainer_core.search.definition import Algorithm, Direction, GridSearch, OptunaSampler
from trainer_core.search.history import SettledTrial
from trainer_core.search.space import Distribution, draw, get_cell


def suggest(
    space: Mapping[str, Distribution],
    algorithm: Algorithm,
    seed: str,
    trial: int,
    history: Sequence[SettledTrial],
    running: Mapping[int, Mapping[str, Any]],
    direction: Direction = Direction.MINIMIZE,
) -> dict[str, Any]:
    """Return the parameters of a trial.

    `history` are the settled trials from which the algorithm learns, ordered by number, and `running` the parameters of
    those that count as running. Random and grid use neither.
    """
    if isinstance(algorithm, GridSearch):
        return get_cell(space, trial)
    if isinstance(algorithm, OptunaSampler):
        # By name: it needs the extra search.
        optuna_sampler = importlib.import_module("trainer_core.search.optuna_sampler")
        chosen: dict[str, Any] = optuna_sampler.suggest(space, algorithm, seed, trial, history, running, direction)
        return chosen
    return {name: draw(distribution, seed, trial, name) for name, distribution in space.items()}
