"""train_task: a training definition becomes a task when a pipeline is compiled."""

import kfp_definitions as definitions
import pytest
import yaml
from kfp import compiler, dsl

from kfp_components.tasks import train_task
from trainer_core import CustomTrainer, CustomTrainerContainer, Labels, RuntimePatch

TRAINER = CustomTrainer(func=definitions.train_a_little, func_args={"epochs": 1, "learning_rate": 0.1})


def compiled(pipeline, folder):
    compiler.Compiler().compile(pipeline, str(folder / "pipeline.yaml"))
    return yaml.safe_load((folder / "pipeline.yaml").read_text())["root"]["dag"]["tasks"]["train"]


def test_a_definition_becomes_the_request_of_the_task(tmp_path):
    @dsl.pipeline
    def pipeline():
        train_task(trainer=TRAINER, runtime="python", options=[Labels({"team": "vision"})])

    request = compiled(pipeline, tmp_path)["inputs"]["parameters"]["request"]["runtimeValue"]["constant"]

    assert request["runtime"] == {"name": "python"}
    assert request["metadata"] == {"labels": {"team": "vision"}}
    assert "def train_a_little" in request["trainer"]["code"]["text"]


def test_the_task_is_never_cached(tmp_path):
    @dsl.pipeline
    def pipeline():
        train_task(trainer=TRAINER)

    assert compiled(pipeline, tmp_path)["cachingOptions"] == {}


def test_pipeline_parameters_reach_the_task(tmp_path):
    @dsl.pipeline
    def pipeline(epochs: int, nodes: int, backend: str):
        train_task(trainer=TRAINER, func_args={"epochs": epochs}, num_nodes=nodes, backend=backend)

    parameters = compiled(pipeline, tmp_path)["inputs"]["parameters"]

    assert parameters["num_nodes"] == {"componentInputParameter": "nodes"}
    assert parameters["backend"] == {"componentInputParameter": "backend"}
    assert "pipelinechannel--epochs" in parameters["func_args"]["runtimeValue"]["constant"]["epochs"]


def test_a_trainer_may_be_a_dict(tmp_path):
    @dsl.pipeline
    def pipeline():
        train_task(trainer={"image": "registry/train:1.0"}, backend="local")

    request = compiled(pipeline, tmp_path)["inputs"]["parameters"]["request"]["runtimeValue"]["constant"]

    assert request["trainer"] == {"kind": "container", "image": "registry/train:1.0"}


def test_an_option_that_the_backend_does_not_take_is_refused():
    with pytest.raises(ValueError, match="RuntimePatch"):
        train_task(trainer=TRAINER, options=[RuntimePatch()], backend="local")


def test_options_need_a_backend_that_is_known_now(tmp_path):
    @dsl.pipeline
    def pipeline(backend: str):
        with pytest.raises(ValueError, match="options depend on the backend"):
            train_task(trainer=TRAINER, options=[Labels({"a": "b"})], backend=backend)
        train_task(trainer=TRAINER)

    compiled(pipeline, tmp_path)


@pytest.mark.parametrize("text", ["{{$}}", "{{$.inputs.parameters['x']}}", "{{channel:task=;name=x;}}"])
def test_what_kfp_would_replace_in_shipped_code_is_refused(text):
    trainer = CustomTrainerContainer(image="registry/train:1.0", env={"TEXT": text})

    with pytest.raises(ValueError, match="which KFP would replace"):
        train_task(trainer=trainer)


def test_more_than_an_argument_can_carry_is_refused():
    trainer = CustomTrainerContainer(image="registry/train:1.0", env={"TEXT": "x" * 120_000})

    with pytest.raises(ValueError, match="KFP can pass 100000"):
        train_task(trainer=trainer)
