"""Suggestions of Optuna's samplers: a function of the history, whatever a process has computed before."""

from __future__ import annotations

import inspect
import json
import math
import statistics
import subprocess
import sys

import pytest
from hypothesis import given, settings, strategies as st

from trainer_core.search import definition, optuna_sampler, sampling
from trainer_core.search.definition import OptunaSampler, RandomSearch
from trainer_core.search.history import RungReport, SettledTrial
from trainer_core.search.optuna_sampler import suggest
from trainer_core.search.space import Search, parse_space

SPACE = parse_space(
    {
        "lr": Search.loguniform(1e-4, 1e-1),
        "drop": Search.uniform(0, 0.5),
        "layers": Search.randint(1, 4),
        "width": Search.randint(8, 512, log=True),
        "kind": [1, 1.0, True, "1", None, {"depth": 2}, [3]],
    }
)
TPE = OptunaSampler("tpe", n_startup_trials=3)


def settle(trial, parameters, state="Complete", value=0.5, rungs=()):
    reports = tuple(RungReport(trial, rung, step, each, 0) for rung, (step, each) in enumerate(rungs))
    return SettledTrial(trial, state, value, reports, parameters)


def forget_studies():
    optuna_sampler._kept.clear()


def search(objective, space, algorithm, seed="seed", trials=60, lag=1, direction="minimize"):
    """Return the settled trials of a search in which all trials complete, and each starts from those up to its lag."""
    lines = []
    for trial in range(trials):
        known = max(0, trial - lag + 1)
        running = {line.trial: line.parameters for line in lines[known:]}
        parameters = suggest(space, algorithm, seed, trial, lines[:known], running, direction)
        lines.append(settle(trial, parameters, value=objective(parameters)))
    return lines


def loss(parameters):
    return abs(math.log10(parameters["lr"]) + 2) + parameters["drop"] + parameters["layers"] / 10


def branin(parameters):
    x, y = parameters["x"], parameters["y"]
    parabola = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return parabola**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10 - 0.39788735772973816


def hartmann6(parameters):
    rates = [
        [10, 3, 17, 3.5, 1.7, 8],
        [0.05, 10, 17, 0.1, 8, 14],
        [3, 3.5, 1.7, 10, 17, 8],
        [17, 8, 0.05, 10, 0.1, 14],
    ]
    centres = [
        [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
        [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
        [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
        [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
    ]
    point = [parameters[f"x{axis}"] for axis in range(6)]
    return 3.32236801141551 - sum(
        height * math.exp(-sum(a * (x - p) ** 2 for a, x, p in zip(rate, point, centre, strict=True)))
        for height, rate, centre in zip([1, 1.2, 3, 3.2], rates, centres, strict=True)
    )


BRANIN = parse_space({"x": Search.uniform(-5, 10), "y": Search.uniform(0, 15)})
HARTMANN = parse_space({f"x{axis}": Search.uniform(0, 1) for axis in range(6)})


@settings(max_examples=25, deadline=None)
@given(data=st.data(), direction=st.sampled_from(["minimize", "maximize"]))
def test_a_kept_study_suggests_what_a_new_one_does(data, direction):
    forget_studies()
    values = st.floats(-10, 10)
    rungs = st.lists(st.one_of(values, st.just(math.nan), st.just(math.inf)), max_size=2)
    states = st.sampled_from(["Complete", "StoppedEarly", "Failed", "Lost"])
    ended, running, asked, kept = {}, {}, [], []
    for trial in range(9):
        asked.append((trial, [ended[number] for number in sorted(ended)], dict(running)))
        kept.append(suggest(SPACE, TPE, "seed", *asked[-1], direction))
        running[trial] = kept[-1]
        for number in data.draw(st.lists(st.sampled_from(sorted(running)), unique=True, max_size=3)):
            reports = enumerate(data.draw(rungs), 1)
            ended[number] = settle(number, running.pop(number), data.draw(states), data.draw(values), reports)
    fresh = []
    for arguments in asked:
        forget_studies()
        fresh.append(suggest(SPACE, TPE, "seed", *arguments, direction))
    assert kept == fresh


def test_another_process_suggests_the_same():
    lines = [line.to_line() for line in search(loss, SPACE, TPE, trials=8)]
    program = (
        "import json, sys; from trainer_core.search.definition import OptunaSampler;"
        "from trainer_core.search.history import parse_lines; from trainer_core.search.space import parse_space;"
        "from trainer_core.search.optuna_sampler import suggest; space, lines = json.load(sys.stdin);"
        "history = list(parse_lines(lines).values());"
        "tpe = OptunaSampler('tpe', n_startup_trials=3);"
        "print(json.dumps(suggest(parse_space(space), tpe, 'seed', 7, history[:7], {})))"
    )
    text = json.dumps([{name: each.to_plain() for name, each in SPACE.items()}, lines])
    done = subprocess.run([sys.executable, "-c", program], input=text, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == lines[7][4]


def test_the_order_of_the_parameters_changes_nothing():
    backwards = dict(reversed(SPACE.items()))
    first, second = (search(loss, space, TPE, trials=6) for space in (SPACE, backwards))
    assert [line.parameters for line in first] == [line.parameters for line in second]


def test_each_trial_starts_at_another_point_and_each_seed_too():
    parameters = [suggest(SPACE, TPE, seed, trial, [], {}) for seed in ("1", "2") for trial in range(3)]
    assert len({json.dumps(each) for each in parameters}) == 6


def test_values_keep_their_types_and_bounds():
    lines = search(loss, SPACE, TPE, trials=25)
    assert len(lines) == 25
    for line in lines:
        assert 1e-4 <= line.parameters["lr"] <= 1e-1
        assert type(line.parameters["layers"]) is type(line.parameters["width"]) is int
        assert json.dumps(line.parameters["kind"]) in ("1", "1.0", "true", '"1"', "null", '{"depth": 2}', "[3]")


def test_to_maximize_is_to_minimize_the_negative_value():
    first = search(loss, SPACE, TPE, trials=12)
    second = search(lambda parameters: -loss(parameters), SPACE, TPE, trials=12, direction="maximize")
    assert [line.parameters for line in first] == [line.parameters for line in second]


def test_a_lost_trial_teaches_nothing_and_a_failed_one_does():
    lines = search(loss, SPACE, TPE, trials=8)
    lost, failed = (settle(2, lines[2].parameters, state, None) for state in ("Lost", "Failed"))
    without = suggest(SPACE, TPE, "seed", 8, [*lines[:2], *lines[3:]], {})
    assert suggest(SPACE, TPE, "seed", 8, [*lines[:2], lost, *lines[3:]], {}) == without
    assert suggest(SPACE, TPE, "seed", 8, [*lines[:2], failed, *lines[3:]], {}) != without


def test_a_trial_that_has_not_ended_keeps_others_from_its_point():
    lines = search(loss, SPACE, TPE, trials=8)
    near = suggest(SPACE, TPE, "seed", 9, lines, {})
    assert suggest(SPACE, TPE, "seed", 9, lines, {8: near}) != near


@pytest.mark.parametrize(
    ("objective", "space", "upper_quartile"), [(branin, BRANIN, 1.43), (hartmann6, HARTMANN, 1.82)]
)
def test_tpe_finds_better_values_than_random_search(objective, space, upper_quartile):
    def draw(seed):
        return min(objective(sampling.suggest(space, RandomSearch(), seed, n, (), {})) for n in range(60))

    random = statistics.median(draw(str(seed)) for seed in range(200))
    found = [min(line.value for line in search(objective, space, OptunaSampler(), f"{n}", lag=6)) for n in range(5)]
    assert statistics.median(found) <= 0.6 * random
    assert max(found) <= upper_quartile


@pytest.mark.deep
def test_gp_finds_a_minimum_and_repeats_its_suggestions():
    gp = OptunaSampler("gp", n_startup_trials=5, deterministic_objective=True)
    lines = search(branin, BRANIN, gp, trials=12)
    assert min(line.value for line in lines) < 1
    forget_studies()
    assert suggest(BRANIN, gp, "seed", 11, lines[:11], {}) == lines[11].parameters


@pytest.mark.parametrize(("name", "cls"), [("tpe", "TPESampler"), ("gp", "GPSampler")])
def test_the_settings_are_arguments_of_the_sampler_with_their_types(name, cls):
    import optuna

    parameters = inspect.signature(getattr(optuna.samplers, cls)).parameters
    assert {key: type(parameters[key].default) for key in definition.SAMPLERS[name]} == definition.SAMPLERS[name]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("cmaes", {}, "must be one of tpe, gp.*'cmaes'"),
        (["tpe"], {}, "must be one of tpe, gp"),
        ("tpe", {"startup": 3}, "'tpe' has no setting 'startup'; it has n_startup_trials, n_ei_candidates, group"),
        ("tpe", {"seed": 3}, "seed is set for each trial"),
        ("tpe", {"multivariate": False}, "multivariate is set"),
        ("tpe", {"n_startup_trials": True}, "n_startup_trials must be a whole number of at least 1, got True"),
        ("gp", {"deterministic_objective": 1}, "deterministic_objective must be true or false, got 1"),
    ],
)
def test_a_sampler_that_cannot_be_used_is_refused(name, settings, message):
    with pytest.raises(ValueError, match=message):
        OptunaSampler(name, **settings)


def test_a_definition_is_checked_without_importing_optuna():
    program = (
        "import sys; from trainer_core.search.definition import OptunaSampler; OptunaSampler(n_startup_trials=3);"
        "print([name for name in ('optuna', 'torch', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_missing_extra_is_named_when_the_definition_is_made(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ValueError, match=r"OptunaSampler needs the package optuna.*\[search\]"):
        OptunaSampler()


def test_optuna_announces_nothing(capfd):
    forget_studies()
    suggest(SPACE, OptunaSampler("tpe", group=True), "seed", 0, [], {})
    assert capfd.readouterr() == ("", "")
