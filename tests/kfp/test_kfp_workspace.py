"""KFP's workspace volume: a job on a cluster reads and writes what the steps of its run see."""

from __future__ import annotations

import pytest
from kfp import dsl
from kfp_driver import compiled

from kfp_components.best_of import best_of
from kfp_components.step.request import set_output_path
from kfp_components.tasks import train_task, wait_task
from trainer_core import CustomTrainerContainer
from trainer_core.base.errors import InvalidRequestError

MOUNTS = {"/kfp-workspace": "run-1-kfp-workspace"}


def output_path(owner="uri-1", path="/kfp-workspace/models/", **trainer):
    data = {"trainer": {"kind": "container", "image": "train:1", **trainer}}
    set_output_path(data, path, owner, MOUNTS)
    return data["trainer"]["env"]


def test_each_job_has_a_folder_of_its_own_in_the_workspace():
    first, second = output_path("uri-1"), output_path("uri-2")

    assert first["TRAINJOB_OUTPUT_PATH"].startswith("/kfp-workspace/models/")
    assert first != second


def test_a_retry_writes_into_the_folder_of_the_first_try():
    assert output_path("uri-1") == output_path("uri-1")


def test_the_environment_of_the_trainer_stays():
    assert output_path(env={"MODE": "fast"})["MODE"] == "fast"


def test_a_path_that_no_claim_of_the_job_holds_is_refused():
    with pytest.raises(InvalidRequestError, match="no volume claim is mounted at /elsewhere in the pods that train"):
        output_path(path="/elsewhere")


def test_a_request_without_a_trainer_has_no_output():
    with pytest.raises(InvalidRequestError, match="output_path needs a request with a trainer"):
        set_output_path({"runtime": {"name": "torch"}}, "/kfp-workspace", "uri", MOUNTS)


WORKSPACE = dsl.PipelineConfig(workspace=dsl.WorkspaceConfig(size="1Gi"))


@dsl.pipeline(pipeline_config=WORKSPACE)
def with_a_workspace():
    place = {"output_path": f"{dsl.WORKSPACE_PATH_PLACEHOLDER}/models"}
    trained = train_task(trainer=CustomTrainerContainer(image="train:1"), backend="kubernetes", **place)
    wait_task(job=trained.outputs["job"], **place)
    best_of(jobs=[], metric_name="accuracy", **place)


@pytest.mark.parametrize("task", ["submit", "wait", "best-of"])
def test_kfp_mounts_its_workspace_where_a_task_reads_or_writes_a_model(tmp_path, task):
    """KFP mounts it for a text that is a whole input and holds the placeholder."""
    tasks = compiled(with_a_workspace, tmp_path)[0]["root"]["dag"]["tasks"]

    given = tasks[task]["inputs"]["parameters"]["output_path"]
    assert given == {"runtimeValue": {"constant": "{{$.workspace_path}}/models"}}


def test_kfp_passes_the_claim_of_its_workspace_to_training(tmp_path):
    declared = compiled(with_a_workspace, tmp_path)[0]["components"]["comp-submit"]["taskConfigPassthroughs"]

    assert {"field": "KUBERNETES_VOLUMES", "applyToTask": True} in declared
