"""The components in their own image: KFP's own runner, and the entry point as a cluster's launcher starts it."""

import io
import json
import re
import tarfile
from typing import NamedTuple

import built_image
import kfp_definitions as definitions
import pytest
from kfp import compiler, components, dsl
from kfp_driver import container, request_for

from kfp_components.container_spec import DEFAULT_IMAGE
from kfp_components.promote import promote
from kfp_components.tasks import train_task
from kfp_components.testing import docker_runner
from trainer_core import CustomTrainer

pytestmark = [
    # An image is built.
    # The docker library leaves the sockets of streams to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def engine():
    with built_image.engine() as client:
        yield client


@pytest.fixture(scope="module")
def image(engine):
    return built_image.built(engine, "trainjob-kfp", "kfp_components/Dockerfile")


class Outputs(NamedTuple):
    accuracy: float
    result: dict


@dsl.pipeline
def train_and_promote(registry: str, epochs: int = 2) -> Outputs:
    trained = train_task(
        trainer=CustomTrainer(func=definitions.train_a_little, func_args={"epochs": 1, "learning_rate": 0.1}),
        runtime="python",
        func_args={"epochs": epochs},
        wait=True,
        metrics=["accuracy"],
    )
    with dsl.If(trained.outputs["accuracy"] >= 0.9):
        promote(
            model=trained.outputs["model"],
            metric=trained.outputs["accuracy"],
            registry=registry,
        )
    return Outputs(accuracy=trained.outputs["accuracy"], result=trained.outputs["result"])


@dsl.pipeline
def fail():
    train_task(trainer=CustomTrainer(func=definitions.fail_with_markup), runtime="python", wait=True)


def compiled(pipeline, image, folder):
    """The pipeline from its YAML, for this image."""
    path = folder / "pipeline.yaml"
    compiler.Compiler().compile(pipeline, str(path))
    path.write_text(path.read_text().replace(DEFAULT_IMAGE, image))
    return components.load_component_from_file(str(path))


def test_a_pipeline_runs_in_containers(image, tmp_path):
    registry = tmp_path / "runs" / "registry"

    with docker_runner(tmp_path / "runs"):
        outputs = compiled(train_and_promote, image, tmp_path)(registry=str(registry), epochs=3).outputs

    assert (outputs["accuracy"], "'epochs': 3" in outputs["result"]["given"]) == (0.9, True)
    assert [path.read_text() for path in registry.glob("versions/*/*")] == ["weights"]


def test_a_failed_training_in_a_container_fails_the_pipeline(image, tmp_path, capfd):
    with docker_runner(tmp_path / "runs"), pytest.raises(RuntimeError, match=r"Inner task failed: .*train"):
        compiled(fail, image, tmp_path)()

    assert "ValueError: <b>no luck</b> (a retry will not help)" in capfd.readouterr().out


def executor_input(**inputs):
    """What KFP 2.17 writes on a cluster: numbers are floats, some defaults are there, some null, some missing."""
    kept = "minio://mlpipeline/v2/artifacts/digits/run-1/train"
    parameters = {
        "backend": "local",
        "func_args": None,
        "num_nodes": 0.0,
        "on_kill": "cancel",
        "run_id": "run-1",
        "task_name": "train",
        "task_config": {"affinity": None, "nodeSelector": None, "resources": {"limits": None, "requests": None}},
        **inputs,
    }
    artifacts = {
        name: {"artifacts": [{"name": name, "type": {"schemaTitle": "system.Artifact"}, "uri": f"{kept}/{name}"}]}
        for name in ("model", "metrics", "report", "classification")
    }
    names = ("job", "status", "result", "metric", "checkpoint", "resumed_from", "reused")
    places = {name: {"outputFile": f"/tmp/kfp/outputs/{name}"} for name in names}
    outputs = {"parameters": places, "artifacts": artifacts, "outputFile": "/tmp/kfp_outputs/output_metadata.json"}
    return json.dumps({"inputs": {"parameterValues": parameters}, "outputs": outputs})


@pytest.fixture
def launched(engine, image):
    """Start the container of a component as the launcher does; it is removed with the test."""
    started = []

    def launch(component="train", **inputs):
        command = [*container(component)["command"], component, executor_input(**inputs)]
        started.append(engine.containers.run(image, command, detach=True))
        return started[-1]

    yield launch
    for each in started:
        each.remove(force=True)


def content(launched, path):
    """A file of a container."""
    chunks, _ = launched.get_archive(path)
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        return archive.extractfile(archive.getmembers()[0]).read().decode()


def test_a_launcher_finds_what_the_entry_point_wrote(launched):
    request = request_for(definitions.train_a_little, {"epochs": 2.0, "learning_rate": 1.0})

    step = launched(request=request, metric_name="accuracy")

    assert (step.wait(timeout=300)["StatusCode"], step.logs(stdout=False)) == (0, b"")
    assert content(step, "/minio/mlpipeline/v2/artifacts/digits/run-1/train/model") == "weights"
    assert content(step, "/tmp/kfp/outputs/metric") == "0.9"
    recorded = json.loads(content(step, "/tmp/kfp_outputs/output_metadata.json"))
    assert recorded["artifacts"]["metrics"]["artifacts"][0]["metadata"]["accuracy"] == 0.9


def test_a_container_that_is_stopped_ends_with_143(launched):
    step = launched(request=request_for(definitions.run_for_ever))
    next(line for line in step.logs(stream=True, follow=True) if b"training has begun" in line)

    step.stop(timeout=60)

    assert step.wait(timeout=300)["StatusCode"] == 143
    assert re.search(rb"terminated: TrainJob \S+ is cancelled", step.logs())


def test_processes_that_would_end_with_the_container_are_refused(launched):
    step = launched("submit", request=request_for(definitions.run_for_ever))

    assert step.wait(timeout=300)["StatusCode"] == 1
    assert b"end with the container of this task; use the component train" in step.logs()
