"""The search space: which parameters a search varies, and which values each can have."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from trainer_core.base import validation
from trainer_core.base.errors import InvalidRequestError
from trainer_core.base.secrets import redact
from trainer_core.model import func_args

#: A name of Python; with dots it is an entry of a dict argument, or a field of a recipe.
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_MAX_PARAMETERS = 100
_MAX_NAME = 100
#: Numbers up to it are exact as floats.
_MAX_INT = 2**53
#: Digits of a drawn float, and cells of a grid.
_DIGITS, _MAX_CELLS = 12, 1_000_000
_EXAMPLE = "such as {'lr': {'loguniform': [1e-4, 1e-1]}, 'batch': [16, 32]}"


@dataclass(frozen=True)
class Uniform:
    """A float between two bounds, both included, each value as likely as any other."""

    min: float
    max: float

    def __post_init__(self) -> None:
        _check_bounds(self, "uniform", float)

    def to_plain(self) -> dict[str, Any]:
        """Return the plain data, such as ``{"uniform": [0.0, 1.0]}``."""
        return {"uniform": [self.min, self.max]}


@dataclass(frozen=True)
class LogUniform:
    """A float between two bounds, both included, each order of magnitude as likely as any other."""

    #: The smallest value, greater than 0.
    min: float
    max: float

    def __post_init__(self) -> None:
        _check_bounds(self, "loguniform", float)
        if self.min <= 0:
            raise ValueError(f"loguniform needs a min greater than 0, got {self.min}; use uniform")

    def to_plain(self) -> dict[str, Any]:
        """Return the plain data, such as ``{"loguniform": [0.0001, 0.1]}``."""
        return {"loguniform": [self.min, self.max]}


@dataclass(frozen=True)
class RandInt:
    """A whole number between two bounds, both included."""

    min: int
    max: int
    #: Whether each order of magnitude is as likely as any other. Default False: each value is.
    log: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.log, bool):
            raise ValueError(f"randint log must be true or false, got {redact(self.log)}")
        _check_bounds(self, "randint", int)
        if self.log and self.min < 1:
            raise ValueError(f"randint with log needs a min of at least 1, got {self.min}")

    def to_plain(self) -> dict[str, Any]:
        """Return the plain data, such as ``{"randint": [1, 4]}``."""
        return {"randint": [self.min, self.max, self.log] if self.log else [self.min, self.max]}


@dataclass(frozen=True)
class Choice:
    """One of a list of values."""

    #: The values: JSON data. A list is the short form of a choice.
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        values: object = self.values
        if isinstance(values, (str, bytes)) or not isinstance(values, Sequence) or not values:
            raise ValueError(f"choice needs a list of at least one value such as [16, 32], got {redact(values)}")
        plain = tuple(func_args.check_json({"values": list(values)}, "choice")["values"])
        encoded = [json.dumps(value, sort_keys=True) for value in plain]
        if len(set(encoded)) < len(encoded):
            twice = next(each for each in encoded if encoded.count(each) > 1)
            raise ValueError(f"choice has {twice} twice; remove one")
        object.__setattr__(self, "values", plain)

    def to_plain(self) -> list[Any]:
        """Return the plain data, such as ``[16, 32]``."""
        return list(self.values)


Distribution: TypeAlias = Uniform | LogUniform | RandInt | Choice


class Search:
    """Constructors of the distributions of a search space.

    Example:
        ```python
        space = {"lr": Search.loguniform(1e-4, 1e-1), "batch": Search.choice([16, 32]), "layers": Search.randint(1, 4)}
        ```
    """

    @staticmethod
    def uniform(min: float, max: float) -> Uniform:
        """Return a float between two bounds, both included.

        Args:
            min: The smallest value.
            max: The largest value.
        """
        return Uniform(min, max)

    @staticmethod
    def loguniform(min: float, max: float) -> LogUniform:
        """Return a float between two bounds, both included, each order of magnitude as likely as any other.

        Args:
            min: The smallest value, greater than 0.
            max: The largest value.
        """
        return LogUniform(min, max)

    @staticmethod
    def choice(values: Sequence[Any]) -> Choice:
        """Return one of a list of values.

        Args:
            values: The values: JSON data.
        """
        return Choice(values)  # type: ignore[arg-type]  # It becomes a tuple.

    @staticmethod
    def randint(min: int, max: int, log: bool = False) -> RandInt:
        """Return a whole number between two bounds, both included.

        Args:
            min: The smallest value.
            max: The largest value.
            log: Whether each order of magnitude is as likely as any other. Default False.
        """
        return RandInt(min, max, log)


_KINDS: dict[str, type[Any]] = {
    "uniform": Uniform,
    "loguniform": LogUniform,
    "randint": RandInt,
    "choice": Choice,
}


def parse_space(data: object) -> dict[str, Distribution]:
    """Return the distributions by the name of the parameter, for objects or plain data."""
    if not isinstance(data, Mapping) or not data:
        raise ValueError(f"search_space must be a dict of at least one parameter, {_EXAMPLE}, got {redact(data)}")
    if len(data) > _MAX_PARAMETERS:
        raise ValueError(f"search_space has {len(data)} parameters; use at most {_MAX_PARAMETERS}")
    variables: dict[str, str] = {}
    for name in data:
        if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > _MAX_NAME:
            raise ValueError(
                f"search_space: {redact(name)} is not the name of a parameter; use letters, digits and '_', with dots "
                "for an entry of a dict argument"
            )
        other = variables.setdefault(variable_name(name), name)
        if other != name:
            raise ValueError(f"search_space: {other} and {name} have the same variable {variable_name(name)}")
    for name in data:
        parent = next((each for each in data if name.startswith(f"{each}.")), None)
        if parent is not None:
            raise ValueError(f"search_space: {name} is an entry of {parent}, which is searched too; remove one")
    return {name: _parse_distribution(name, value) for name, value in data.items()}


def variable_name(parameter: str) -> str:
    """Return the environment variable of a parameter, such as ``KUBEFLOW_TRAINER_OPT_LR``."""
    return f"KUBEFLOW_TRAINER_OPT_{parameter.replace('.', '__').upper()}"


def _parse_distribution(name: str, value: Any) -> Distribution:
    if isinstance(value, (Uniform, LogUniform, RandInt, Choice)):
        return value
    try:
        if isinstance(value, (list, tuple)):
            return Choice(value)  # type: ignore[arg-type]  # It becomes a tuple.
        if not isinstance(value, Mapping) or len(value) != 1 or next(iter(value)) not in _KINDS:
            raise ValueError(
                f"must be a list of values, or a dict of one of {', '.join(_KINDS)} and its bounds, such as "
                f"{{'uniform': [0, 1]}}, got {redact(value)}"
            )
        ((kind, arguments),) = value.items()
        if kind == "choice":
            return Choice(arguments)
        if isinstance(arguments, Mapping):
            parsed: Distribution = _KINDS[kind](**validation.known_fields(_KINDS[kind], arguments))
            return parsed
        if not isinstance(arguments, (list, tuple)) or len(arguments) not in ((2, 3) if kind == "randint" else (2,)):
            raise ValueError(f"{kind} needs [min, max], got {redact(arguments)}")
        parsed = _KINDS[kind](*arguments)
    except ValueError as error:
        raise ValueError(f"search_space.{name}: {error}") from error
    return parsed


def _check_bounds(distribution: Any, kind: str, number: type[float] | type[int]) -> None:
    """Check the bounds and convert them, also from text, as YAML reads 1e-4."""
    for bound in ("min", "max"):
        value = getattr(distribution, bound)
        try:
            converted = number(value)
            valid = not isinstance(value, bool) and math.isfinite(converted) and converted == float(value)
        except (TypeError, ValueError, OverflowError):
            valid = False
        if not valid or abs(converted) > (_MAX_INT if number is int else math.inf):
            what = "a whole number from -2**53 to 2**53" if number is int else "a number"
            raise ValueError(f"{kind} needs {what} as {bound}, got {redact(value)}")
        object.__setattr__(distribution, bound, converted)
    if distribution.min >= distribution.max and not (number is int and distribution.min == distribution.max):
        raise ValueError(f"{kind} needs a min below its max, got {distribution.min} and {distribution.max}")
    if math.isinf(float(distribution.max) - float(distribution.min)):
        raise ValueError(f"{kind} has bounds too far apart: {distribution.min} and {distribution.max}")
    if number is float and f"{distribution.min:.{_DIGITS}g}" == f"{distribution.max:.{_DIGITS}g}":
        raise ValueError(
            f"{kind} has bounds that are equal in {_DIGITS} digits, to which draws are rounded: {distribution.min} and "
            f"{distribution.max}"
        )


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
