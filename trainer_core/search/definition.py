"""The definition of a search: objectives, limits, algorithm and the rule that ends losers."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from functools import wraps
from importlib.util import find_spec
from typing import Any, ClassVar, Literal, TypeAlias

from trainer_core.base import validation
from trainer_core.base.secrets import redact
from trainer_core.base.text import missing_extra
from trainer_core.search.space import Distribution, count_cells, draw, parse_space

_MAX_TRIALS = 100_000
_VALUES = ("last", "min", "max", "best")


#: Samplers that are functions of a history, with their settings that are plain data.
SAMPLERS: dict[str, dict[str, type]] = {
    "tpe": {"n_startup_trials": int, "n_ei_candidates": int, "group": bool},
    "gp": {"n_startup_trials": int, "deterministic_objective": bool},
}
ALWAYS_SET: dict[str, dict[str, bool]] = {"tpe": {"multivariate": True, "constant_liar": True}, "gp": {}}
#: Packages beside optuna that a sampler imports.
_PACKAGES: dict[str, tuple[str, ...]] = {"tpe": (), "gp": ("scipy", "torch")}


class Direction(str, Enum):
    """Whether the smallest or the largest value of an objective is the best."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"


@dataclass(frozen=True)
class Objective:
    """The metric by which trials are compared.

    Args:
        metric: Name of the metric: a number of the result, or one that `progress` reports.
        direction: ``"minimize"`` (the default) or ``"maximize"``. For a metric that is known to grow, such as
            ``"accuracy"``, it must be set.
        value: Which report counts: ``"last"`` (the default), or the ``"min"``, ``"max"`` or ``"best"`` of all.
        goal: The search is complete when a trial reaches this value. The default is none.

    Raises:
        ValueError: An invalid value.
    """

    metric: str = "loss"
    direction: Direction | Literal["minimize", "maximize"] = Direction.MINIMIZE
    value: Literal["last", "min", "max", "best"] = "last"
    goal: float | None = None

    def __post_init__(self) -> None:
        validation.check_string("Objective metric", self.metric, "val_loss")
        if not self.metric.isprintable():
            raise ValueError(f"Objective metric must be one line of printable characters, got {redact(self.metric)}")
        validation.check_one_of("Objective direction", self.direction, [each.value for each in Direction])
        object.__setattr__(self, "direction", Direction(self.direction))
        validation.check_one_of("Objective value", self.value, _VALUES)
        if self.goal is not None:
            object.__setattr__(self, "goal", _to_number("Objective goal", self.goal, float))

    @property
    def best_of(self) -> Literal["min", "max"] | None:
        """Whether the smallest or the largest of all reports counts. None: the last one does."""
        best: Literal["min", "max"] = "min" if self.direction is Direction.MINIMIZE else "max"
        if self.value == "last":
            return None
        return best if self.value == "best" else self.value

    def is_better(self, value: float, other: float) -> bool:
        """Return whether one value is better than another one."""
        return value < other if self.direction is Direction.MINIMIZE else value > other

    def reaches_goal(self, value: float) -> bool:
        """Return whether a value is the goal or better. False without a goal."""
        return self.goal is not None and not self.is_better(self.goal, value) and not math.isnan(value)


def _note_direction(initialize: Callable[..., None]) -> Callable[..., None]:
    """Note whether a direction is given: the one that is the default of the Kubeflow SDK may have been chosen, too.

    `dataclasses.replace` gives every field, so that its objective counts as one with a direction.
    """

    @wraps(initialize)
    def note(self: Objective, *args: Any, **kwargs: Any) -> None:
        initialize(self, *args, **kwargs)
        object.__setattr__(self, "_is_directed", len(args) > 1 or "direction" in kwargs)

    return note


Objective.__init__ = _note_direction(Objective.__init__)  # type: ignore[method-assign]


@dataclass(frozen=True)
class TrialConfig:
    """Limits of a search.

    Args:
        num_trials: Number of trials. Default 10.
        parallel_trials: Number of trials that run at the same time. Default 1.
        max_failed_trials: The search fails when so many trials have failed. The default is no such limit.
        timeout: Seconds, or a text such as ``"6h"``, after which no trial starts, and what runs is stopped. The default
            is no limit.
        retries: How often a trial is started again from its checkpoint after a failure that can pass, such as a lost
            node. Default 2.

    Raises:
        ValueError: An invalid value.
    """

    num_trials: int = 10
    parallel_trials: int = 1
    max_failed_trials: int | None = None
    timeout: float | str | None = None
    retries: int = 2

    def __post_init__(self) -> None:
        for name, minimum in (("num_trials", 1), ("parallel_trials", 1), ("max_failed_trials", 1), ("retries", 0)):
            value = getattr(self, name)
            if value is not None or name != "max_failed_trials":
                number = _to_number(f"TrialConfig {name}", value, int, minimum, _MAX_TRIALS)
                object.__setattr__(self, name, number)
        if self.timeout is not None:
            try:
                object.__setattr__(self, "timeout", validation.parse_duration(_to_seconds(self.timeout)))
            except ValueError as error:
                raise ValueError(f"TrialConfig timeout {error}") from error


@dataclass(frozen=True)
class RandomSearch:
    """Draw each parameter at random, independently of the others.

    Args:
        random_state: Seed: equal seeds give equal trials. The default depends on the name of the search.
    """

    algorithm_name: ClassVar[str] = "random"
    random_state: int | None = None

    def __post_init__(self) -> None:
        _check_seed(self)

    def sample(self, space: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
        """Return the parameters of the first trials, such as for `expand` of Airflow.

        Args:
            space: The search space.
            count: Number of trials.

        Returns:
            A dict of parameters for each trial, the same in each process.

        Raises:
            ValueError: The space is invalid, or there is no `random_state`.
        """
        if self.random_state is None:
            raise ValueError("RandomSearch needs a random_state to draw samples, such as RandomSearch(random_state=1)")
        seed = str(self.random_state)
        parsed = parse_space(space).items()
        return [{name: draw(each, seed, trial, name) for name, each in parsed} for trial in range(count)]


@dataclass(frozen=True)
class GridSearch:
    """Try each combination of values once. The space has lists of values and `randint` only."""

    algorithm_name: ClassVar[str] = "grid"


@dataclass(frozen=True, init=False)
class OptunaSampler:
    """Choose parameters by a sampler of Optuna. Needs the extra ``search``.

    Args:
        name: ``"tpe"`` (the default) or ``"gp"``, which needs scipy and torch.
        random_state: Seed. The default depends on the name of the search.
        lag: A trial is chosen from what all trials up to this many before it had as results, so that the order in which
            trials end changes nothing. The default is 1.5 times `parallel_trials`. ``"any"`` (the default with a stop
            policy): from all that is known when it starts.
        settings: Arguments of the sampler: of ``"tpe"`` `n_startup_trials`, `n_ei_candidates` and `group`, of ``"gp"``
            `n_startup_trials` and `deterministic_objective`.

    Raises:
        ValueError: An invalid value.
    """

    name: str = "tpe"
    random_state: int | None = None
    lag: int | Literal["any"] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __init__(
        self,
        name: str = "tpe",
        random_state: int | None = None,
        lag: int | Literal["any"] | None = None,
        **settings: Any,
    ) -> None:
        _check_sampler(name, settings)
        for key, value in (("name", name), ("random_state", random_state), ("lag", lag), ("settings", settings)):
            object.__setattr__(self, key, value)
        _check_seed(self)
        if lag is not None and lag != "any":
            object.__setattr__(self, "lag", _to_number("OptunaSampler lag", lag, int, 1))


Algorithm: TypeAlias = RandomSearch | GridSearch | OptunaSampler


@dataclass(frozen=True)
class Asha:
    """Stop the trials that are not among the best at each rung (asynchronous successive halving).

    A rung is a step, ``min_step · factor^k``, in the unit of ``progress(step=…)``. At each one a trial continues if it
    is among the best 1/factor of those that have reached it.

    Args:
        min_step: Step of the first rung. Default 1.
        max_step: Last step of the training. The default is unknown.
        factor: Which part continues: one of so many. Default 3.
        promote: True pauses each trial at a rung, with a checkpoint, and continues the best ones, instead of stopping
            the others. Needs `max_step` and the option `Checkpoints`. Default False.

    Raises:
        ValueError: An invalid value.
    """

    min_step: float = 1
    max_step: float | None = None
    factor: int = 3
    promote: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_step", _to_positive("Asha min_step", self.min_step))
        object.__setattr__(self, "factor", _to_number("Asha factor", self.factor, int, 2))
        if self.max_step is not None:
            object.__setattr__(self, "max_step", _to_positive("Asha max_step", self.max_step))
            if self.max_step <= self.min_step:
                raise ValueError(f"Asha max_step must be greater than min_step, got {self.max_step}")
        if not isinstance(self.promote, bool):
            raise ValueError(f"Asha promote must be true or false, got {redact(self.promote)}")
        if self.promote and self.max_step is None:
            raise ValueError("Asha with promote needs max_step, the last step of the training")


@dataclass(frozen=True)
class MedianStop:
    """Stop the trials whose best value at a step is worse than the median of the others at that step.

    Args:
        min_step: The first step at which trials are compared. Default 1.
        every: Number of steps between two comparisons, of which there are 20: a trial that comes further is compared no
            more. The default doubles the step each time.
        min_trials: Number of other trials that must have passed the step. Default 5.

    Raises:
        ValueError: An invalid value.
    """

    min_step: float = 1
    every: float | None = None
    min_trials: int = 5

    def __post_init__(self) -> None:
        object.__setattr__(self, "min_step", _to_positive("MedianStop min_step", self.min_step))
        if self.every is not None:
            object.__setattr__(self, "every", _to_positive("MedianStop every", self.every))
        object.__setattr__(self, "min_trials", _to_number("MedianStop min_trials", self.min_trials, int, 1))


StopPolicy: TypeAlias = Asha | MedianStop


@dataclass(frozen=True)
class SearchDefinition:
    """What a search does, without the TrainJob of its trials."""

    #: Distributions by the name of the parameter.
    space: Mapping[str, Distribution]
    objectives: tuple[Objective, ...]
    trial_config: TrialConfig
    algorithm: Algorithm
    #: The rule by which losers end. None: all trials run to their end.
    stop: StopPolicy | None = None

    @classmethod
    def parse(
        cls,
        search_space: object,
        objectives: object = None,
        trial_config: object = None,
        algorithm: object = None,
        stop: object = None,
        is_stored: bool = False,
    ) -> SearchDefinition:
        """Return the definition for objects or plain data: ``algorithm={"RandomSearch": {"random_state": 1}}``."""
        space = parse_space(search_space)
        config = TrialConfig() if trial_config is None else trial_config
        if isinstance(config, Mapping):
            config = TrialConfig(**validation.known_fields(TrialConfig, config))
        if not isinstance(config, TrialConfig):
            raise ValueError(f"trial_config must be a TrialConfig or a dict of its fields, got {redact(config)}")
        chosen = _parse_named("algorithm", algorithm, (RandomSearch, GridSearch, OptunaSampler)) or RandomSearch()
        if isinstance(chosen, GridSearch):
            count_cells(space)
        policy = _parse_named("stop", stop, (Asha, MedianStop))
        promotes = isinstance(policy, Asha) and policy.promote
        if promotes and isinstance(chosen, OptunaSampler) and chosen.lag not in (None, "any"):
            raise ValueError(
                "OptunaSampler with a lag waits for trials to end, but Asha with promote pauses them; leave out the lag"
            )
        return cls(space, _parse_objectives(objectives, is_stored), config, chosen, policy)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SearchDefinition:
        """Read what `to_dict` returned."""
        known = ("search_space", "objectives", "trial_config", "algorithm", "stop")
        unknown = [name for name in data if name not in known]
        if unknown:
            raise ValueError(
                f"unknown field {validation.list_names(unknown)} of a search; known are {', '.join(known)}"
            )
        if "search_space" not in data:
            raise ValueError("a search needs a search_space such as {'lr': {'loguniform': [1e-4, 1e-1]}}")
        return cls.parse(**data, is_stored=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the definition as plain JSON data, without defaults."""
        data: dict[str, Any] = {"search_space": {name: each.to_plain() for name, each in self.space.items()}}
        data["objectives"] = [_to_fields(each) for each in self.objectives]
        if validation.is_growing(self.objective.metric):
            data["objectives"][0]["direction"] = self.direction.value
        data["trial_config"] = _to_fields(self.trial_config)
        data["algorithm"] = _to_named(self.algorithm)
        if self.stop is not None:
            data["stop"] = _to_named(self.stop)
        return data

    @property
    def objective(self) -> Objective:
        """The objective by which trials are compared."""
        return self.objectives[0]

    @property
    def direction(self) -> Direction:
        """Whether the smallest or the largest value is the best."""
        return Direction(self.objective.direction)

    @property
    def uses_history(self) -> bool:
        """Whether parameters are chosen from the results of other trials."""
        return isinstance(self.algorithm, OptunaSampler)

    @property
    def lag(self) -> int | None:
        """How many trials back parameters are chosen from. None: from those that have ended."""
        given = self.algorithm.lag if isinstance(self.algorithm, OptunaSampler) else "any"
        default = "any" if self.stop else max(1, 3 * self.trial_config.parallel_trials // 2)
        chosen = given or default
        return None if chosen == "any" else int(chosen)

    def limits(self) -> dict[str, Any]:
        """Return what may change when the search is continued: the limits and the goal."""
        return {**asdict(self.trial_config), "goal": self.objective.goal}

    def digest(self) -> str:
        """Return a hash of all that cannot change when the search is continued: all but the limits and the goal."""
        text = json.dumps(self._fixed_part(), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def list_differences(self, other: SearchDefinition) -> list[str]:
        """Return the fields in which two definitions differ, without those that a continued search may change."""
        mine, theirs = self._fixed_part(), other._fixed_part()
        names: list[str] = []
        for key in sorted(mine.keys() | theirs.keys()):
            one, two = mine.get(key), theirs.get(key)
            if one == two:
                continue
            if isinstance(one, dict) and isinstance(two, dict):
                names += [f"{key}.{name}" for name in sorted(one.keys() | two.keys()) if one.get(name) != two.get(name)]
            else:
                names.append(key)
        return names

    def _fixed_part(self) -> dict[str, Any]:
        data = self.to_dict()
        data.pop("trial_config")
        for objective in data["objectives"]:
            objective.pop("goal", None)
        # The order of the parameters decides that of a grid.
        if isinstance(self.algorithm, GridSearch):
            data["order"] = list(self.space)
        return data


def build_search_data(is_late: Callable[[Any], bool], **parts: Any) -> dict[str, Any]:
    """Return the parts of a definition as plain data, each checked unless it holds a value that is known later."""
    space = parts["search_space"]
    known = {"unknown": [0]} if is_late(space) else space
    checked = {
        name: SearchDefinition.parse(**{"search_space": known, name: value}).to_dict().get(name)
        for name, value in parts.items()
        if value is not None and not is_late(value)
    }
    return {name: checked.get(name, value) for name, value in parts.items() if value is not None}


def _parse_objectives(data: object, is_stored: bool) -> tuple[Objective, ...]:
    if data is None:
        return (Objective(),)
    if isinstance(data, (Objective, Mapping)):
        data = [data]
    if not isinstance(data, Sequence) or isinstance(data, str) or not data:
        raise ValueError(f"objectives must be a list such as [{{'metric': 'val_loss'}}], got {redact(data)}")
    parsed = []
    for each in data:
        fields_of = validation.known_fields(Objective, each) if isinstance(each, Mapping) else None
        objective = Objective(**fields_of) if fields_of is not None else each
        if not isinstance(objective, Objective):
            raise ValueError(f"objectives must be a list of Objective or dicts of its fields, got {redact(each)}")
        parsed.append(objective)
    metrics = [each.metric for each in parsed]
    if len(set(metrics)) < len(metrics):
        raise ValueError(f"objectives name a metric twice: {', '.join(metrics)}")
    if not is_stored and validation.is_growing(metrics[0]) and not vars(parsed[0])["_is_directed"]:
        raise ValueError(
            f"objectives: {metrics[0]!r} usually grows as a model gets better; write direction='maximize' (or "
            "direction='minimize')"
        )
    return tuple(parsed)


def _parse_named(what: str, data: object, kinds: Sequence[type[Any]]) -> Any:
    """Return an object for its plain data: its name, or a dict of its name and its fields."""
    if data is None or isinstance(data, tuple(kinds)):
        return data
    known = {kind.__name__: kind for kind in kinds}
    name: object = data if isinstance(data, str) else None
    arguments: Any = {}
    if isinstance(data, Mapping) and len(data) == 1:
        ((name, arguments),) = data.items()
    if name not in known or not isinstance(arguments, Mapping):
        raise ValueError(
            f"{what} must be one of {', '.join(known)}, or a dict of the name and its fields such as "
            f"{{{kinds[0].__name__}: {{{fields(kinds[0])[0].name}: …}}}}, got {redact(data)}"
        )
    kind = known[str(name)]
    if kind is OptunaSampler:
        return OptunaSampler(**dict(arguments))
    return kind(**validation.known_fields(kind, arguments))


def _to_named(value: Any) -> dict[str, Any]:
    fields_of = _to_fields(value)
    settings = fields_of.pop("settings", {}) if isinstance(value, OptunaSampler) else {}
    return {type(value).__name__: {**fields_of, **settings}}


def _to_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that do not have their default."""
    defaults = {each.name: each.default for each in fields(value)}
    data = {name: each.value if isinstance(each, Enum) else each for name, each in asdict(value).items()}
    always = ("metric", "num_trials", "parallel_trials", "name")
    return {name: each for name, each in data.items() if name in always or (each != defaults[name] and each != {})}


def _to_seconds(value: float | str) -> float | str:
    """Return a number for a text of digits, which a template may have given."""
    return float(value) if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?", value.strip()) else value


def _to_number(what: str, value: Any, kind: type[Any], minimum: float = -math.inf, maximum: float = math.inf) -> Any:
    """Return a number for a number or its text, which a template or a command line may have given."""
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    whole = kind is not int or number.is_integer()
    if not math.isfinite(number) or not whole or not minimum <= number <= maximum:
        limits = f" of at least {minimum:g}" if minimum > -math.inf else ""
        limits += f" and at most {maximum:g}" if maximum < math.inf else ""
        raise ValueError(f"{what} must be a {'whole ' if kind is int else ''}number{limits}, got {redact(value)}")
    return kind(number)


def _to_positive(what: str, value: Any) -> float:
    number: float = _to_number(what, value, float)
    if number <= 0:
        raise ValueError(f"{what} must be greater than 0, got {redact(value)}")
    return int(number) if number.is_integer() else number


def _check_sampler(name: Any, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for a sampler that cannot be used here. Does not import optuna, which takes 0.3 s."""
    if name not in tuple(SAMPLERS):
        raise ValueError(
            f"OptunaSampler: name must be one of {', '.join(SAMPLERS)}, whose suggestions are a function of the trials "
            f"before; got {redact(name)}"
        )
    for key, value in settings.items():
        kind = SAMPLERS[name].get(key)
        if key == "seed" or key in ALWAYS_SET[name]:
            raise ValueError(f"OptunaSampler: {key} is set for each trial; use random_state for the seed of the search")
        if kind is None:
            known = ", ".join(SAMPLERS[name])
            raise ValueError(f"OptunaSampler: {name!r} has no setting {redact(key)}; it has {known}")
        if type(value) is not kind or (isinstance(value, int) and value is not False and value < 1):
            raise ValueError(
                f"OptunaSampler: {key} must be {'a whole number of at least 1' if kind is int else 'true or false'}, "
                f"got {redact(value)}"
            )
    if find_spec("optuna") is None:
        raise ValueError(missing_extra("OptunaSampler", "optuna", "search"))
    for package in _PACKAGES[name]:
        if find_spec(package) is None:
            raise ValueError(
                f"OptunaSampler: {name!r} needs the package {package}, which is not installed: pip install {package}"
            )


def _check_seed(algorithm: Any) -> None:
    if algorithm.random_state is not None:
        seed = _to_number(f"{type(algorithm).__name__} random_state", algorithm.random_state, int)
        object.__setattr__(algorithm, "random_state", seed)
