"""The search space and the definition of a search: objects, plain data, and what they refuse."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from trainer_core import Asha, GridSearch, MedianStop, Objective, OptunaSampler, RandomSearch, Search, TrialConfig
from trainer_core.base.errors import InvalidRequestError
from trainer_core.search import sampling
from trainer_core.search.definition import Direction, SearchDefinition
from trainer_core.search.history import RungReport, SettledTrial, parse_lines
from trainer_core.search.space import Choice, LogUniform, RandInt, Uniform, count_cells, get_cell, parse_space, scale

SPACE = {
    "lr": Search.loguniform(1e-4, 1e-1),
    "dropout": Search.uniform(-1.0, 2.0),
    "layers": Search.randint(1, 4),
    "units": Search.randint(1, 512, log=True),
    "peft.rank": Search.choice([8, "16", None, {"a": [1]}]),
}
GRID = {"a": Search.choice(["x", "y"]), "b": Search.randint(1, 3)}


def define(**fields: Any) -> SearchDefinition:
    return SearchDefinition.parse(**{"search_space": {"lr": [1, 2]}, **fields})


def test_a_definition_is_the_same_after_json() -> None:
    definition = define(
        search_space=SPACE,
        objectives=[Objective("acc", "maximize", value="best", goal=0.9), Objective("loss")],
        trial_config=TrialConfig(20, 4, max_failed_trials=3, timeout="6h", retries=0),
        algorithm=OptunaSampler("tpe", 3, lag="any", n_startup_trials=4),
        stop=Asha(2, 30, promote=True),
    )
    data = json.loads(json.dumps(definition.to_dict()))
    assert SearchDefinition.from_dict(data) == definition
    assert SearchDefinition.from_dict(data).digest() == definition.digest()


def test_plain_data_and_objects_are_the_same_definition() -> None:
    assert define(
        search_space={"lr": {"loguniform": ["1e-4", 0.1]}, "n": {"randint": {"min": 1, "max": 4}}, "b": [16, 32]},
        objectives=[{"metric": "val_loss"}],
        trial_config={"num_trials": "20", "parallel_trials": 4.0, "timeout": "90"},
        algorithm={"RandomSearch": {"random_state": 1}},
        stop={"MedianStop": {"every": 5}},
    ) == define(
        search_space={"lr": Search.loguniform(1e-4, 0.1), "n": Search.randint(1, 4), "b": Search.choice((16, 32))},
        objectives=[Objective("val_loss")],
        trial_config=TrialConfig(20, 4, timeout=90),
        algorithm=RandomSearch(1),
        stop=MedianStop(every=5),
    )


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({}, "search_space must be a dict of at least one parameter"),
        ({"1r": [1]}, "not the name of a parameter"),
        ({"a.b": [1], "a__b": [2]}, "same variable KUBEFLOW_TRAINER_OPT_A__B"),
        ({"lr": [1], "LR": [2]}, "same variable"),
        ({"a": [1], "a.b": [2]}, "a.b is an entry of a"),
        ({"lr": []}, "choice needs a list of at least one value"),
        ({"lr": "abc"}, "must be a list of values, or a dict of one of"),
        ({"lr": [2, 1, 1]}, "has 1 twice"),
        ({"lr": [math.nan]}, "search_space.lr: choice['values'][0] is nan, which is not JSON"),
        ({"n": {"randint": [0, 2**53 + 2]}}, "a whole number from -2**53 to 2**53 as max, got 9007199254740994"),
        ({"lr": {"uniform": [1, 1]}}, "a min below its max"),
        ({"lr": {"uniform": [0, math.inf]}}, "needs a number as max"),
        ({"lr": {"uniform": [-1e308, 1e308]}}, "too far apart"),
        ({"lr": {"loguniform": [0, 1]}}, "greater than 0"),
        ({"lr": {"uniform": [1, 1 + 1e-12]}}, "uniform has bounds that are equal in 12 digits"),
        ({"lr": {"loguniform": [1e-3, 1e-3 + 1e-18]}}, "loguniform has bounds that are equal in 12 digits"),
        ({"lr": {"randint": [0.5, 3]}}, "a whole number from -2**53 to 2**53 as min"),
        ({"lr": {"randint": [0, 3, True]}}, "at least 1"),
        ({"lr": {"normal": [0, 1]}}, "must be a list of values, or a dict of one of"),
        ({"lr": {"uniform": [0]}}, "uniform needs [min, max]"),
        ({"lr": {"randint": [False, 3]}}, "as min, got False"),
        ({"lr": {"randint": [0, 2**53 + 2]}}, "as max, got 9007199254740994"),
        ({"a" * 101: [1]}, "not the name of a parameter"),
        ({f"a{number}": [1] for number in range(101)}, "has 101 parameters; use at most 100"),
    ],
)
def test_an_invalid_space_is_refused(space: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_space(space)


def test_a_space_has_100_parameters_at_most_with_100_characters_and_a_grid_a_million_cells() -> None:
    names = [f"{'a' * 97}{number}" for number in range(100, 200)]
    assert list(parse_space({name: [1] for name in names})) == names
    assert count_cells(parse_space({"a": {"randint": [1, 1000]}, "b": {"randint": [1, 1000]}})) == 1_000_000
    with pytest.raises(ValueError, match="1001000 cells; use at most 1000000"):
        count_cells(parse_space({"a": {"randint": [1, 1001]}, "b": {"randint": [1, 1000]}}))
    assert parse_space({"n": {"randint": [0, 2**53]}})["n"] == Search.randint(0, 2**53)


def test_a_cell_has_the_parameters_in_the_order_of_the_space_and_ends_with_the_last_one() -> None:
    space = parse_space({"b": [1, 2], "a": {"randint": [5, 6]}})
    assert list(get_cell(space, 3).items()) == [("b", 2), ("a", 6)]
    with pytest.raises(InvalidRequestError, match="has 4 cells, and trial 4 is not one of them"):
        get_cell(space, 4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"trial_config": {"num_trials": 0}}, "num_trials must be a whole number of at least 1"),
        ({"trial_config": {"trials": 3}}, "unknown field trials of TrialConfig"),
        ({"trial_config": TrialConfig}, "trial_config must be a TrialConfig"),
        ({"trial_config": {"timeout": "soon"}}, "TrialConfig timeout must be a number of seconds"),
        ({"objectives": []}, "objectives must be a list"),
        ({"objectives": [{"metric": "a\nb"}]}, "Objective metric must be one line"),
        ({"objectives": ["loss", "loss"]}, "objectives must be a list of Objective"),
        ({"objectives": [{"metric": "a"}, {"metric": "a"}]}, "name a metric twice"),
        ({"objectives": [{"direction": "up"}]}, "direction must be one of minimize, maximize"),
        (
            {"objectives": [{"metric": "val/acc@1"}]},
            "'val/acc@1' usually grows as a model gets better; write direction=",
        ),
        ({"objectives": Objective("accuracy")}, "write direction='maximize' (or direction='minimize')"),
        ({"algorithm": "Bayes"}, "algorithm must be one of RandomSearch, GridSearch, OptunaSampler"),
        ({"algorithm": "Bayes"}, "such as {RandomSearch: {random_state: …}}"),
        ({"algorithm": {"OptunaSampler": {"name": "cmaes"}}}, "must be one of tpe, gp"),
        ({"algorithm": {"OptunaSampler": {"seed": 1}}}, "use random_state"),
        ({"algorithm": GridSearch(), "search_space": {"lr": {"uniform": [0, 1]}}}, "a range of floats has no grid"),
        ({"stop": {"Asha": {"factor": 1}}}, "factor must be a whole number of at least 2"),
        ({"stop": {"Asha": {"promote": True}}}, "needs max_step"),
        ({"stop": {"Asha": {"min_step": 3, "max_step": 3}}}, "max_step must be greater than min_step, got 3"),
        ({"stop": "Never"}, "stop must be one of Asha, MedianStop"),
    ],
)
def test_an_invalid_definition_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        define(**fields)


@given(metric=st.sampled_from(["loss", "val_acc", "f1", "x"]), direction=st.sampled_from(["minimize", "maximize"]))
def test_a_direction_that_is_given_holds_and_is_kept(metric: str, direction: str) -> None:
    definition = define(objectives=[{"metric": metric, "direction": direction}])
    stored = definition.to_dict()

    assert definition.direction.value == direction
    assert SearchDefinition.from_dict(stored) == SearchDefinition.parse(**stored) == definition


@pytest.mark.parametrize(
    "objective",
    [
        Objective("fid_score", direction=Direction.MINIMIZE),
        Objective("fid_score", Direction.MINIMIZE),
        replace(Objective("fid_score", direction="minimize"), goal=0.1),
    ],
)
def test_the_default_direction_can_be_given(objective: Objective) -> None:
    assert define(objectives=objective).direction is Direction.MINIMIZE


def test_a_search_that_was_stored_without_a_direction_can_be_read() -> None:
    stored = {"search_space": {"lr": [1, 2]}, "objectives": [{"metric": "accuracy"}]}
    assert SearchDefinition.from_dict(stored).direction is Direction.MINIMIZE


def test_limits_and_the_goal_do_not_change_the_digest_and_all_else_does() -> None:
    first = define(objectives=[Objective("loss")])
    extended = define(objectives=[Objective("loss", goal=0.1)], trial_config=TrialConfig(50, 8, 3, "1h", 0))
    assert extended.digest() == first.digest()
    assert first.list_differences(extended) == []
    other = define(search_space={"lr": [1, 3], "n": [1]}, objectives=[Objective("loss", value="min")], stop=Asha())
    assert other.digest() != first.digest()
    assert first.list_differences(other) == ["objectives", "search_space.lr", "search_space.n", "stop"]


def test_the_order_of_parameters_is_part_of_a_grid_only() -> None:
    one, two = {"a": [1, 2], "b": [3, 4]}, {"b": [3, 4], "a": [1, 2]}
    assert define(search_space=one).digest() == define(search_space=two).digest()
    assert define(search_space=one, algorithm="GridSearch").digest() != (
        define(search_space=two, algorithm="GridSearch").digest()
    )


@given(st.integers(0, 10**6), st.text(max_size=20))
def test_a_random_trial_is_within_its_bounds_and_the_same_each_time(trial: int, seed: str) -> None:
    chosen = sampling.suggest(SPACE, RandomSearch(), seed, trial, (), {})
    assert chosen == sampling.suggest(SPACE, RandomSearch(), seed, trial, (), {})
    assert 1e-4 <= chosen["lr"] <= 1e-1
    assert -1 <= chosen["dropout"] <= 2
    assert chosen["layers"] in range(1, 5)
    assert chosen["units"] in range(1, 513)
    assert chosen["peft.rank"] in [8, "16", None, {"a": [1]}]


def test_a_further_parameter_changes_no_other_one() -> None:
    wider = {"aa": Search.uniform(0, 1), **SPACE}
    drawn = sampling.suggest(wider, RandomSearch(), "7", 3, (), {})
    assert sampling.suggest(SPACE, RandomSearch(), "7", 3, (), {}) == {name: drawn[name] for name in SPACE}


@pytest.mark.parametrize(
    ("distribution", "low", "high"),
    [
        (Uniform(0, 1), 0.0, 1.0),
        (LogUniform(1e-4, 1), 1e-4, 1.0),
        (RandInt(3, 9), 3, 9),
        (RandInt(1, 1000, True), 1, 1000),
        (Choice((1, 2, 3)), 1, 3),
        (RandInt(5, 5), 5, 5),
    ],
)
def test_the_bounds_themselves_can_be_drawn(distribution: Any, low: Any, high: Any) -> None:
    assert scale(distribution, 0.0) == low
    assert scale(distribution, 1 - 2**-53) == high


@pytest.mark.parametrize(
    ("distribution", "middle"),
    [(Uniform(2, 4), 3.0), (LogUniform(1e-4, 1), 0.01), (RandInt(1, 9), 5), (RandInt(1, 99, True), 7)],
)
def test_half_of_what_is_drawn_is_below_the_middle(distribution: Any, middle: Any) -> None:
    assert scale(distribution, 0.5) == middle


def test_random_values_are_spread_over_the_space() -> None:
    drawn = [sampling.suggest(SPACE, RandomSearch(), "1", trial, (), {}) for trial in range(600)]
    assert sum(each["lr"] < 10**-2.5 for each in drawn) == pytest.approx(300, abs=60)
    assert sum(each["units"] < 16 for each in drawn) == pytest.approx(300, abs=60)
    assert {each["layers"] for each in drawn} == {1, 2, 3, 4}


def test_a_grid_has_each_cell_once_and_the_last_name_changes_fastest() -> None:
    cells = [sampling.suggest(GRID, GridSearch(), "", number, (), {}) for number in range(count_cells(GRID))]
    assert cells == [{"a": a, "b": b} for a in "xy" for b in (1, 2, 3)]


def test_samples_of_a_random_search_are_the_trials_of_a_search() -> None:
    samples = RandomSearch(random_state=5).sample({"lr": {"uniform": [0, 1]}}, 3)
    assert samples == [
        sampling.suggest({"lr": Uniform(0, 1)}, RandomSearch(5), "5", trial, (), {}) for trial in range(3)
    ]
    with pytest.raises(ValueError, match="needs a random_state"):
        RandomSearch().sample({"lr": [1]}, 1)


@pytest.mark.parametrize(
    ("value", "direction", "expected"),
    [(0.1, "minimize", True), (0.2, "minimize", True), (0.3, "minimize", False), (math.nan, "minimize", False),
     (0.3, "maximize", True), (0.1, "maximize", False), (math.nan, "maximize", False)],
)  # fmt: skip
def test_a_goal_is_reached_by_a_value_that_is_as_good(value: float, direction: Any, expected: bool) -> None:
    assert Objective("m", direction, goal=0.2).reaches_goal(value) is expected


def test_a_settled_trial_is_the_same_after_json() -> None:
    trial = SettledTrial(
        3, "StoppedEarly", 0.25, (RungReport(3, 0, 1.0, 0.5, 17), RungReport(3, 1, 3.0, 0.25, 19)),
        {"lr": 0.1, "b": None}, "tune-3", 12.5, None, None, None, {"loss": 0.25},
    )  # fmt: skip
    assert parse_lines(json.loads(json.dumps([trial.to_line()]))) == {3: trial}
    with pytest.raises(ValueError, match="a settled trial of the search is invalid"):
        parse_lines([[1, 2]])
