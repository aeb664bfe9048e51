"""What `train_task` passes through the double of the KFP backend arrives unchanged."""

# KFP reads the signatures of pipelines and does not know "X | None".
# ruff: noqa: UP045

from typing import Optional

import kfp_definitions as definitions
import pytest
from kfp import dsl
from kfp_programs import compiled, run_python

from kfp_components.tasks import train_task
from trainer_core import CustomTrainer

#: ENV of the components' image.
IMAGE = {"TRAINJOB_KFP_CONTAINER": "1", "TRAINJOB_HOME": "/tmp/trainjob", "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def run(make_backend, tmp_path):
    """Run a pipeline whose steps train in their own containers."""

    def run(pipeline, parameters=None, **settings):
        finished = make_backend(image_environment=IMAGE, **settings).run(compiled(pipeline, tmp_path), parameters)
        assert finished.phase == "Succeeded", finished.explain()
        return finished

    return run


def repeat_dollars(text: str):
    return {"written": "cost $$5, $(KFP_POD_NAME), {{workflow.name}}", "given": text}


def read_both():
    from trainer_core import dataset_path, model_path

    return {"dataset": [p.name for p in dataset_path().iterdir()], "model": [p.name for p in model_path().iterdir()]}


def repeat(epochs: int, rate: float, **values):
    kinds = {"epochs is": type(epochs).__name__, "rate is": type(rate).__name__}
    return {"given": {"epochs": epochs, "rate": rate, **values}, **kinds}


def test_code_and_arguments_arrive_byte_for_byte(run):
    """Argo and two kubelets expand what looks like theirs in a constant of a task."""

    @dsl.pipeline(name="dollars")
    def pipeline():
        trainer = CustomTrainer(func=repeat_dollars)
        train_task(trainer=trainer, runtime="python", func_args={"text": "$$ and $(KFP_POD_NAME)"}, wait=True)

    result = run(pipeline).output("train", "result")

    assert result["written"] == "cost $$5, $(KFP_POD_NAME), {{workflow.name}}"
    assert result["given"] == "$$ and $(KFP_POD_NAME)"


def test_pipeline_parameters_in_the_arguments_keep_their_types_and_characters(run):
    values = {
        "names": ["a", 'b "quoted"'],
        "options": {"deep": [1, 2.5, True]},
        "note": 'two\nlines with "quotes" and \\',
        "epochs": 3,
        "rate": 0.5,
        "really": True,
    }

    @dsl.pipeline(name="parameters")
    def pipeline(names: list, options: dict, note: str, epochs: int, rate: float, really: bool):
        given = {"names": names, "options": options, "note": note, "epochs": epochs, "rate": rate, "really": really}
        train_task(trainer=CustomTrainer(func=repeat), runtime="python", func_args=given, wait=True)

    assert run(pipeline, values).output("train", "result") == {"given": values, "epochs is": "int", "rate is": "float"}


def test_waiting_tasks_with_other_metrics_keep_their_outputs(run):
    """KFP keeps one component for equal containers."""

    @dsl.pipeline(name="two-metrics")
    def pipeline():
        trainer = CustomTrainer(func=definitions.train_a_little, func_args={"epochs": 1, "learning_rate": 0.1})
        train_task(trainer=trainer, runtime="python", wait=True, metrics=["accuracy"])
        train_task(trainer=trainer, runtime="python", wait=True, metrics=["loss"])

    finished = run(pipeline)

    assert finished.output("train", "accuracy") == 0.9
    assert finished.output("train-2", "loss") == 0.25


def test_one_artifact_can_be_two_inputs_of_a_task_in_a_condition(run):
    """KFP passes an artifact into a condition under one name only; both inputs refer to this one."""

    @dsl.container_component
    def write(data: dsl.Output[dsl.Artifact]):
        return run_python("file = path('data'); file.mkdir(parents=True); (file / 'a.csv').write_text('1,2')")

    @dsl.pipeline(name="one-artifact")
    def pipeline(go: bool = True):
        data = write().outputs["data"]
        trainer = CustomTrainer(func=read_both)
        with dsl.If(go == True):  # noqa: E712 - KFP compares, not Python
            train_task(trainer=trainer, runtime="python", dataset=data, pretrained=data, wait=True)

    result = run(pipeline).output("train", "result")

    assert result == {"dataset": ["a.csv"], "model": ["a.csv"]}


def test_an_optional_parameter_that_is_left_out_leaves_the_function_its_default(run):
    def show(note: str = "the default"):
        return {"note": note}

    @dsl.pipeline(name="optional")
    def pipeline(note: Optional[str] = None):
        train_task(trainer=CustomTrainer(func=show), runtime="python", func_args={"note": note}, wait=True)

    assert run(pipeline).output("train", "result") == {"note": "the default"}
