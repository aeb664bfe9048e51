"""RestartRules: when a training is started again, validated. Plain data, without pydantic for a supervisor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trainer_core.base import validation
from trainer_core.base.secrets import redact
from trainer_core.model.jobs import Category

#: What an exit code means for the budget.
_CODE_RULES = ("never", "free", "count")
#: What a person or a limit has ended is never started again.
FINAL = (Category.DELETED.value, Category.DEADLINE.value, Category.STOPPED_EARLY.value)
_MAX_EXIT_CODE = 255
_MAX_COUNT = 1000


@dataclass(frozen=True)
class RestartRules:
    """When a training is started again after a failure; the delay in seconds."""

    max_restarts: int = 3
    free: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    exit_codes: Mapping[int, str] = field(default_factory=dict)
    delay: float = 10.0
    no_progress: int = 3

    @classmethod
    def parse(cls, data: object) -> RestartRules:
        """Validate the settings as a user or a template wrote them, or as `to_dict` returned them."""
        if isinstance(data, cls):
            return data
        values: dict[Any, object] = dict(data) if isinstance(data, Mapping) else {"settings": data}
        unknown = [name for name in values if name not in cls.__dataclass_fields__]
        if unknown:
            raise ValueError(f"{redact(unknown[0])} is unknown; known are {', '.join(cls.__dataclass_fields__)}")
        parsers: dict[str, Callable[[object], Any]] = {
            "max_restarts": lambda value: _parse_count("max_restarts", value, 0),
            "no_progress": lambda value: _parse_count("no_progress", value, 1),
            "free": lambda value: _parse_categories("free", value),
            "never": lambda value: _parse_categories("never", value),
            "exit_codes": _parse_exit_codes,
            "delay": _parse_delay,
        }
        rules = cls(**{name: parsers[name](value) for name, value in values.items()})
        both = sorted({*rules.free} & {*rules.never})
        if both:
            raise ValueError(f"free and never both have {', '.join(both)}; a failure is one of them")
        final = sorted({*rules.free} & {*FINAL})
        if final:
            raise ValueError(f"free: a TrainJob is never started again after {', '.join(final)}; remove it")
        return rules

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain JSON data."""
        codes = {str(code): rule for code, rule in sorted(self.exit_codes.items())}
        return {**asdict(self), "free": [*self.free], "never": [*self.never], "exit_codes": codes}


def _parse_count(name: str, value: object, least: int) -> int:
    number = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= _MAX_COUNT:
        raise ValueError(f"{name} must be a whole number from {least} to {_MAX_COUNT}, got {redact(value)}")
    return number


def _parse_categories(name: str, value: object) -> tuple[str, ...]:
    known = [each.value for each in Category]
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"{name} must be a list of categories such as ['NodeLost'], got {redact(value)}")
    names = [each.value if isinstance(each, Category) else each for each in value]
    unknown = next((each for each in names if each not in known), None)
    if unknown is not None:
        raise ValueError(f"{name}: {redact(unknown)} is not a category of failures; known are {', '.join(known)}")
    return tuple(dict.fromkeys(names))


def _parse_exit_codes(value: object) -> dict[int, str]:
    if not isinstance(value, Mapping):
        raise ValueError(f"exit_codes must be a dict such as {{17: 'free'}}, got {redact(value)}")
    codes = {}
    for key, rule in value.items():
        code = int(key) if isinstance(key, str) and key.strip().isdecimal() else key
        if isinstance(code, bool) or not isinstance(code, int) or not 1 <= code <= _MAX_EXIT_CODE:
            raise ValueError(f"exit_codes: a code must be a whole number from 1 to {_MAX_EXIT_CODE}, got {redact(key)}")
        if rule not in _CODE_RULES:
            raise ValueError(f"exit_codes: {code} must be 'never', 'free' or 'count', got {redact(rule)}")
        codes[code] = str(rule)
    return codes


def _parse_delay(value: object) -> float:
    if not isinstance(value, bool) and value in (0, "0", "0s"):
        return 0.0
    try:
        return validation.parse_duration(value)
    except ValueError as error:
        raise ValueError(f"delay {error}") from None
