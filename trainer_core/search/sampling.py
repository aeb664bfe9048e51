"""Chooses the parameters of a trial: a pure function of the space, the algorithm, the seed and the history."""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainer_core.errors import InvalidRequestError
from trainer_core.search.definition import Algorithm, Direction, GridSearch, OptunaSampler
from trainer_core.search.history import SettledTrial
from trainer_core.search.space import Choice, Distribution, LogUniform, RandInt, Uniform

__all__ = ["count_cells", "draw", "suggest"]

_DIGITS = 12
_MAX_CELLS = 1_000_000


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


def draw(distribution: Distribution, seed: str, trial: int, name: str) -> Any:
    """Return a random value that depends on nothing but the arguments, so that another parameter changes no other."""
    digest = hashlib.sha256(f"{seed}/{trial}/{name}".encode()).digest()
    return scale(distribution, (int.from_bytes(digest[:7], "big") >> 3) / 2**53)


def scale(distribution: Distribution, fraction: float) -> Any:
    """Return the value of a distribution for a number from 0 to below 1."""
    if isinstance(distribution, Choice):
        return distribution.values[int(fraction * len(distribution.values))]
    if isinstance(distribution, RandInt):
        if distribution.log:
            low, high = math.log(distribution.min - 0.5), math.log(distribution.max + 0.5)
            value = round(math.exp(low + fraction * (high - low)))
        else:
            value = distribution.min + int(fraction * (distribution.max - distribution.min + 1))
        return min(max(value, distribution.min), distribution.max)
    if isinstance(distribution, LogUniform):
        low, high = math.log(distribution.min), math.log(distribution.max)
        exact = math.exp(low + fraction * (high - low))
    else:
        exact = distribution.min + fraction * (distribution.max - distribution.min)
    return min(max(float(f"{exact:.{_DIGITS}g}"), distribution.min), distribution.max)


def count_cells(space: Mapping[str, Distribution]) -> int:
    """Return the number of cells of a grid."""
    continuous = [name for name, each in space.items() if isinstance(each, (Uniform, LogUniform))]
    if continuous:
        raise ValueError(
            f"GridSearch needs a list of values or a randint for {', '.join(continuous)}; a range of floats has no grid"
        )
    cells = math.prod(map(_count_values, space.values()))
    if cells > _MAX_CELLS:
        raise ValueError(f"the grid has {cells} cells; use at most {_MAX_CELLS}, or RandomSearch")
    return cells


def get_cell(space: Mapping[str, Distribution], number: int) -> dict[str, Any]:
    """Return the cell of a grid: of two, that of the lower number comes first, and the last name changes fastest."""
    if not 0 <= number < count_cells(space):
        raise InvalidRequestError(f"the grid has {count_cells(space)} cells, and trial {number} is not one of them")
    chosen: dict[str, Any] = {}
    for name, distribution in reversed(list(space.items())):
        number, index = divmod(number, _count_values(distribution))
        chosen[name] = distribution.values[index] if isinstance(distribution, Choice) else distribution.min + index
    return {name: chosen[name] for name in space}


def _count_values(distribution: Distribution) -> int:
    if isinstance(distribution, Choice):
        return len(distribution.values)
    return int(distribution.max - distribution.min) + 1
