"""The component search: its outputs, its retries, and search_task."""

import csv
import re
import time

import pytest
from kfp import dsl
from kfp_driver import compiled

from kfp_components.step import search_report
from kfp_components.tasks import search_task, train_task
from kfp_components.testing import host_runner
from trainer_core import CustomTrainer, Objective, RandomSearch, Search, SearchOutcome, Trial
from trainer_core.search.definition import SearchDefinition
from trainer_core.search.results import BestTrial

PROJECT = """
def square(x=1.0, kind="a"):
    return {"metrics": {"loss": x * x}, "artifacts": {"model": f"s3://models/{kind}"}}

def wait(x=1.0, gate=""):
    import pathlib, time
    while not pathlib.Path(gate).exists():
        time.sleep(0.02)
    return {"loss": x * x}

def double(loss=1.0, job=""):
    return {"loss": 2 * loss}

def grow(x=1.0, kind=""):
    return {"fid_score": x * x}

def fail(x=1.0):
    raise ValueError("no <data>")
"""
SPACE = {"x": {"uniform": [-1, 1]}, "kind": ["a", "<b>"]}


def square(x: float, kind: str) -> dict:
    return {"loss": x * x}


@pytest.fixture
def request_of(tmp_path):
    """Return the definition of a trial with a function of the project."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "project.py").write_text(PROJECT)

    def build(name, **func_args):
        trainer = {"func": f"project:{name}", "code": str(tmp_path / "code"), "func_args": func_args}
        return {"runtime": "python", "trainer": trainer}

    return build


@pytest.fixture
def search(task, request_of):
    """Make a task of the component."""

    def make(name="square", number="task-1", space=SPACE, trials=3, func_args=None, **inputs):
        limits = {"num_trials": trials, "parallel_trials": 2}
        parameters = {"search_space": space, "trial_config": limits, "algorithm": {"RandomSearch": {"random_state": 1}}}
        request = request_of(name, **(func_args or {}))
        return task("search", number, run_id="run", task_name="tune", request=request, **parameters, **inputs)

    return make


def list_trials(client):
    entries = {job.name: client.get_job_request(job.name).context.search for job in client.list_jobs()}
    return {name: entry.parameters for name, entry in entries.items() if entry and entry.kind == "run"}


def wait_for_two_trials(client, step):
    while len(list_trials(client)) < 2:
        assert step.poll() is None
        time.sleep(0.05)


def test_the_outputs_are_those_of_the_best_trial(search, client):
    tuned = search()
    tuned.run()
    best = min(list_trials(client).items(), key=lambda trial: trial[1]["x"] ** 2)
    assert tuned.output("parameters") == best[1]
    assert tuned.output("job")["name"] == best[0]
    assert tuned.output("metric") == best[1]["x"] ** 2
    assert tuned.metadata("metrics") == {"loss": best[1]["x"] ** 2}
    assert tuned.metadata("model")["uri"] == f"s3://models/{best[1]['kind']}"


def test_a_pipeline_that_was_compiled_without_the_default_direction_minimizes(search):
    tuned = search("grow", objectives=[{"metric": "fid_score"}])
    tuned.run()
    with tuned.artifact("trials").open(newline="") as file:
        assert tuned.output("metric") == min(float(row["fid_score"]) for row in csv.DictReader(file))


def test_the_table_and_the_report_have_all_trials(search, client):
    tuned = search()
    tuned.run()
    with tuned.artifact("trials").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["job"]: float(row["x"]) for row in rows} == {
        name: parameters["x"] for name, parameters in list_trials(client).items()
    }
    page = tuned.artifact("report").read_text()
    assert all(name in page for name in list_trials(client))
    assert "loss by kind" in page
    assert page.count('<polyline class="line ') == len(list_trials(client))
    assert "<b>" not in page


def test_the_report_has_a_line_for_each_of_the_best_trials_through_all_parameters():
    space = {"p0": Search.loguniform(0.1, 0.2), "p1": [1, "<b>", {"a": [1]}], "p2": Search.randint(1, 1, log=True)}
    definition = SearchDefinition.parse(space)
    statuses = {0: "Stopped early", 1: "Failed"}
    trials = tuple(
        Trial(
            *("job", {"p0": "0.1", "p1": "<b>", "p2": "1"}, None, []),
            *(number, statuses.get(number, "Complete"), {"p0": 0.1, "p1": "<b>", "p2": 1}),
            value=None if number == 1 else abs(number - 100.0),
        )
        for number in range(300)
    )
    best = BestTrial(100, {}, 0.0, "job")
    page = search_report.render_html(
        "tune", SearchOutcome("tune", "Complete", "complete", "", best, trials), definition
    )
    lines = re.findall(r'<polyline class="line (\w*)" points="([^"]*)"><title>(Trial \d+)', page)
    assert len(lines) == 200
    assert (lines[-1][0], lines[-1][2]) == ("best", "Trial 100")
    assert {len(points.split()) for _, points, _ in lines} == {4}
    assert "<b>" not in page


def test_a_retry_continues_the_search_of_a_step_that_was_killed(search, client, tmp_path):
    gate = tmp_path / "gate"
    tuned = search("wait", space={"x": [1, 2, 3]}, func_args={"gate": str(gate)})
    with tuned.start() as step:
        wait_for_two_trials(client, step)
        step.kill()
    before = set(list_trials(client))
    gate.touch()
    tuned.run()
    assert before < set(list_trials(client))
    assert len(list_trials(client)) == 3
    assert tuned.output("metric") == min(each["x"] ** 2 for each in list_trials(client).values())


def test_sigterm_cancels_the_search(search, client, tmp_path):
    tuned = search("wait", space={"x": [1, 2, 3]}, func_args={"gate": str(tmp_path / "never")})
    with tuned.start() as step:
        wait_for_two_trials(client, step)
        step.terminate()
        errors = step.communicate()[1]
    assert step.returncode == 143, errors
    assert [job.name for job in client.list_jobs() if job.status in ("Created", "Running")] == []


def test_a_search_whose_trials_fail_fails_the_task_with_the_reason(search):
    done = search("fail", space={"x": [1, 2, 3]}).run()
    assert done.returncode == 1
    assert "ValueError: no <data>" in done.stderr


def test_a_definition_becomes_inputs_that_can_be_read(tmp_path):
    @dsl.pipeline
    def pipeline(trials: int = 5):
        search_task(
            trainer=CustomTrainer(square),
            search_space={"x": Search.uniform(-1, 1), "kind": ["a"]},
            objectives=[Objective("loss")],
            trial_config={"num_trials": trials},
            algorithm=RandomSearch(random_state=1),
        )

    inputs = compiled(pipeline, tmp_path)[0]["root"]["dag"]["tasks"]["search"]["inputs"]["parameters"]
    constants = {name: value["runtimeValue"]["constant"] for name, value in inputs.items() if "runtimeValue" in value}
    assert constants["search_space"] == {"x": {"uniform": [-1, 1]}, "kind": ["a"]}
    assert constants["objectives"] == [{"metric": "loss"}]
    assert constants["algorithm"] == {"RandomSearch": {"random_state": 1}}
    assert "pipelinechannel--trials" in constants["trial_config"]["num_trials"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"search_space": {"rate": [1]}}, "square has no parameter rate"),
        ({"search_space": {"x": [1]}}, "square requires kind"),
        ({"search_space": SPACE, "stop": {"Asha": {"factor": 1}}}, "Asha factor"),
    ],
)
def test_an_invalid_definition_is_refused_when_the_pipeline_is_compiled(arguments, message):
    with pytest.raises(ValueError, match=message):
        search_task(trainer=CustomTrainer(square), **arguments)


def test_a_space_can_have_pipeline_parameters_for_arguments_without_a_default(tmp_path):
    @dsl.pipeline
    def pipeline(high: float = 2.0, space: dict = {}):  # noqa: B006 -- KFP takes its default from here
        search_task(trainer=CustomTrainer(square), search_space={"x": {"uniform": [0, high]}, "kind": ["a"]})
        search_task(trainer=CustomTrainer(square), search_space=space)
        with pytest.raises(ValueError, match="square has no parameter z"):
            search_task(trainer=CustomTrainer(square), search_space={"x": [1], "kind": ["a"], "z": [high]})

    tasks = compiled(pipeline, tmp_path)[0]["root"]["dag"]["tasks"].values()
    requests = [task["inputs"]["parameters"]["request"]["runtimeValue"]["constant"] for task in tasks]
    assert [request["trainer"]["code"].get("args") for request in requests] == [{"kind": "a"}, {}]


def test_a_column_of_the_table_is_of_one_value_also_if_a_parameter_is_called_like_the_objective(search):
    tuned = search(name="double", space={"loss": [2.0], "job": ["a"]}, trials=1)
    tuned.run()
    header = tuned.artifact("trials").read_text().splitlines()[0]
    assert header == "trial,status,loss,param.loss,param.job,seconds,gpu_hours,job,reason"


@pytest.mark.slow
def test_the_best_parameters_are_arguments_of_the_next_task(client, tmp_path):
    @dsl.pipeline
    def pipeline(trials: int = 5):
        tuned = search_task(
            trainer=CustomTrainer(square),
            runtime="python",
            search_space={"x": Search.uniform(-1, 1), "kind": ["a", "b"]},
            trial_config={"num_trials": trials, "parallel_trials": 2},
        )
        train_task(trainer=CustomTrainer(square), runtime="python", func_args=tuned.outputs["parameters"], wait=True)

    with host_runner(tmp_path / "runs"):
        pipeline(trials=2)
    trials = list_trials(client)
    (final,) = (
        {job.name for job in client.list_jobs()}
        - trials.keys()
        - {job.name for job in client.list_jobs() if client.get_job_request(job.name).context.search}
    )
    best = min(trials.values(), key=lambda parameters: parameters["x"] ** 2)
    assert client.get_job_request(final).work.trainer.code.args == best
