"""train_task: a training definition becomes a task when a pipeline is compiled."""

import json

import kfp_definitions as definitions
import pytest
from kfp import dsl
from kfp_driver import compiled

from kfp_components.tasks import train_task, wait_task
from trainer_core import (
    CustomTrainer,
    CustomTrainerContainer,
    DeleteAfter,
    HuggingFaceDatasetInitializer,
    Initializer,
    Labels,
    Name,
    RuntimePatch,
    SecretRef,
    VolumeModelInitializer,
)

TRAINER = CustomTrainer(func=definitions.train_a_little, func_args={"epochs": 1, "learning_rate": 0.1})


def train_of(pipeline, folder):
    """The task that trains."""
    return compiled(pipeline, folder)[0]["root"]["dag"]["tasks"]["train"]


def test_a_definition_becomes_the_request_of_the_task(tmp_path):
    @dsl.pipeline
    def pipeline():
        train_task(trainer=TRAINER, runtime="python", options=[Labels({"team": "vision"})])

    request = train_of(pipeline, tmp_path)["inputs"]["parameters"]["request"]["runtimeValue"]["constant"]

    assert request["runtime"] == {"name": "python"}
    assert request["metadata"] == {"labels": {"team": "vision"}}
    assert "def train_a_little" in request["trainer"]["code"]["text"]


def test_the_task_is_never_cached(tmp_path):
    @dsl.pipeline
    def pipeline():
        train_task(trainer=TRAINER)

    assert train_of(pipeline, tmp_path)["cachingOptions"] == {}


def test_pipeline_parameters_reach_the_task(tmp_path):
    @dsl.pipeline
    def pipeline(epochs: int, nodes: int, backend: str):
        train_task(trainer=TRAINER, func_args={"epochs": epochs}, num_nodes=nodes, backend=backend)

    parameters = train_of(pipeline, tmp_path)["inputs"]["parameters"]

    assert parameters["num_nodes"] == {"componentInputParameter": "nodes"}
    assert parameters["backend"] == {"componentInputParameter": "backend"}
    assert "pipelinechannel--epochs" in parameters["func_args"]["runtimeValue"]["constant"]["epochs"]


def test_a_trainer_may_be_a_dict(tmp_path):
    @dsl.pipeline
    def pipeline():
        train_task(trainer={"image": "registry/train:1.0"}, backend="local")

    request = train_of(pipeline, tmp_path)["inputs"]["parameters"]["request"]["runtimeValue"]["constant"]

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

    train_of(pipeline, tmp_path)


@pytest.mark.parametrize("text", ["{{$}}", "{{$.inputs.parameters['x']}}", "{{channel:task=;name=x;}}"])
def test_what_kfp_would_replace_in_shipped_code_is_refused(text):
    trainer = CustomTrainerContainer(image="registry/train:1.0", env={"TEXT": text})

    with pytest.raises(ValueError, match="which KFP would replace"):
        train_task(trainer=trainer)


def test_more_than_an_argument_can_carry_is_refused():
    trainer = CustomTrainerContainer(image="registry/train:1.0", env={"TEXT": "x" * 120_000})

    with pytest.raises(ValueError, match="KFP can pass 100000"):
        train_task(trainer=trainer)


def test_initializers_and_options_are_part_of_the_definition(tmp_path):
    initializer = Initializer(
        dataset=HuggingFaceDatasetInitializer(storage_uri="hf://a/b", access_token=SecretRef("hugging-face", "token")),
        model=VolumeModelInitializer(storage_uri="pvc://models/base"),
    )

    @dsl.pipeline
    def pipeline():
        options = [Name("tune"), DeleteAfter(3600), RuntimePatch()]
        train_task(trainer=TRAINER, initializer=initializer, options=options, backend="kubernetes")

    request = train_of(pipeline, tmp_path)["inputs"]["parameters"]["request"]["runtimeValue"]["constant"]

    assert request["initializer"]["dataset"]["secrets"] == {"ACCESS_TOKEN": {"name": "hugging-face", "key": "token"}}
    assert request["initializer"]["model"]["storage_uri"] == "pvc://models/base"
    assert (request["name"], request["delete_after_seconds"]) == ("tune", 3600)


def test_a_distributed_config_is_part_of_the_definition_by_its_name(tmp_path):
    config = {"env": [{"name": "A", "value": "b"}], "runPolicy": {"suspend": True}}

    @dsl.pipeline
    def pipeline():
        train_task(trainer=TRAINER, options=[{"DistributedConfig": config}], backend="kubernetes")

    request = train_of(pipeline, tmp_path)["inputs"]["parameters"]["request"]["runtimeValue"]["constant"]

    assert request["distributed"] == {"env": [{"name": "A", "value": "b"}]}
    assert request["suspend"] is True


def test_a_secret_as_text_is_refused():
    initializer = Initializer(dataset=HuggingFaceDatasetInitializer(storage_uri="hf://a/b", access_token="hf_secret"))

    with pytest.raises(ValueError, match="give SecretRef") as refused:
        train_task(trainer=TRAINER, initializer=initializer, backend="kubernetes")
    assert "hf_secret" not in str(refused.value)


def test_a_definition_of_more_than_a_parameter_holds_travels_as_an_argument(tmp_path):
    trainer = CustomTrainerContainer(image="registry/train:1.0", env={"TEXT": "x" * 20_000})

    @dsl.pipeline
    def pipeline():
        train_task(trainer=trainer)

    document = compiled(pipeline, tmp_path)[0]

    parameters = document["root"]["dag"]["tasks"]["train"]["inputs"]["parameters"]
    (executor,) = document["deploymentSpec"]["executors"].values()
    assert max(len(json.dumps(value)) for value in parameters.values()) < 10_000
    assert executor["container"]["args"][:2] == ["train", "{{$}}"]
    assert json.loads(executor["container"]["args"][2])["trainer"]["image"] == "registry/train:1.0"


def test_metrics_become_outputs_of_one_task_alone(tmp_path):
    @dsl.pipeline
    def pipeline() -> float:
        trained = train_task(trainer=TRAINER, wait=True, metrics=["accuracy"])
        train_task(trainer=TRAINER, wait=True).after(trained)
        return trained.outputs["accuracy"]

    components = compiled(pipeline, tmp_path)[0]["components"]

    declared = [set(spec["outputDefinitions"]["parameters"]) for spec in components.values()]
    assert declared[0] - declared[1] == {"accuracy"}


@pytest.mark.parametrize("name", ["model", "status", "top-1", ""])
def test_a_metric_that_cannot_be_an_output_is_refused(name):
    with pytest.raises(ValueError, match="cannot be an output"):
        wait_task(job={}, metrics=[name])


def test_metrics_of_a_job_that_is_not_waited_for_are_refused():
    with pytest.raises(ValueError, match="give wait=True"):
        train_task(trainer=TRAINER, metrics=["accuracy"])


def test_the_run_is_written_down_with_the_job(tmp_path):
    @dsl.pipeline
    def pipeline():
        train_task(trainer=TRAINER)

    parameters = train_of(pipeline, tmp_path)["inputs"]["parameters"]

    assert parameters["run_id"]["runtimeValue"]["constant"] == "{{$.pipeline_job_uuid}}"
