"""Masking of manifests, and data of unreachable jobs."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest
from airflow.sdk._shared.secrets_masker import redact

from airflow_provider.ui import serializers
from airflow_provider.ui.xcom_queries import SubmittedJob, TaskKey
from trainer_core import TrainJobRef
from trainer_core.model.jobs import Progress


def shown(manifest):
    return serializers.mask_manifest(manifest, lambda text, name: str(redact(text, name)))


def test_a_variable_with_a_secret_name_has_no_value():
    env = [{"name": "API_KEY", "value": "s3cr3t"}, {"name": "EPOCHS", "value": "3"}]
    assert shown({"env": env}) == {"env": [{"name": "API_KEY", "value": "***"}, {"name": "EPOCHS", "value": "3"}]}


def test_variables_in_a_dict_are_masked_by_name():
    assert shown({"env": {"HF_TOKEN": "hf_1", "X": "1"}}) == {"env": {"HF_TOKEN": "***", "X": "1"}}


def test_nested_values_of_variables_are_masked_by_name():
    items = {"HF_TOKEN": {"value": "hf_1"}, "X": {"value": "1"}}
    assert shown({"environment": {"items": items}}) == {
        "environment": {"items": {"HF_TOKEN": {"value": "***"}, "X": {"value": "1"}}}
    }


def test_a_secret_object_has_keys_but_no_values():
    secret = {"kind": "Secret", "metadata": {"name": "one"}, "stringData": {"model": "hf_literal"}}
    assert shown(secret)["stringData"] == {"model": "***"}


def test_a_reference_to_a_secret_is_shown():
    reference = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "one", "key": "k"}}}
    assert shown(reference) == reference


def test_code_and_encoded_data_are_replaced_by_their_length():
    assert shown({"args": ["torchrun", "x" * 1234]}) == {"args": ["torchrun", "(1,234 characters, not shown)"]}
    assert shown({"annotations": {"request": '{"password": "p"}'}}) == {
        "annotations": {"request": "(17 characters, not shown)"}
    }


def pushed(state, left):
    """XComs of the task of a job on a cluster."""
    now = datetime.datetime.now(datetime.timezone.utc)
    ref = TrainJobRef("kubernetes", "team", "train-1", "uid")
    return SubmittedJob(TaskKey("a_dag", "run", "train"), ref, now, state, left)


@pytest.mark.parametrize(
    ("state", "left", "actions"),
    [
        ("deferred", {}, ["end"]),
        ("running", {}, ["end"]),
        ("up_for_retry", {}, ["end"]),
        ("failed", {}, ["rerun"]),
        (None, {}, []),
        ("failed", {"trainjob_deleted": {"by": "a person"}}, []),
    ],
)
def test_the_actions_of_an_unreachable_job_depend_on_the_state_of_its_task(state, left, actions):
    assert serializers.list_task_actions(pushed(state, left)) == actions


@pytest.mark.parametrize("address", ["javascript:alert(1)", "https://[", {"a": "dict"}])
def test_only_safe_urls_of_xcoms_become_links(address):
    left = {
        "trainjob_dashboard_link": address,
        "trainjob_logs_link": "https://logs.example/train-1",
        "trainjob_mlflow_link": "https://mlflow.example/#/experiments/1/runs/2",
    }
    job = serializers.serialize_job(pushed("running", left), None, "there is no connection")
    assert ("dashboard" in job, job["logs"]) == (False, "https://logs.example/train-1")
    assert job["mlflow_run"] == "https://mlflow.example/#/experiments/1/runs/2"


def mapped(index, run="run", **params):
    """A job of a mapped task with its arguments, and the columns of the list."""
    job = replace(pushed("running", {}), task=TaskKey("a_dag", run, "train", index))
    return job, {f"param.{name}": value for name, value in params.items()}


def test_jobs_of_a_mapped_task_are_told_apart_by_the_arguments_in_which_they_differ():
    rows = [mapped(0, lr="0.1", epochs="3"), mapped(1, lr="0.6", epochs="3"), mapped(-1, "another", lr="0.6")]
    labels = serializers.label_tasks(*zip(*rows, strict=True))
    assert list(labels.values()) == ["train [0] lr=0.1", "train [1] lr=0.6", "train"]


def test_a_label_has_at_most_three_arguments_and_the_beginning_of_long_values():
    names = [f"p{number}" for number in range(5)]
    rows = [mapped(index, **dict.fromkeys(names, f"{index}" * 50)) for index in (1, 2)]
    assert serializers.build_labels(*zip(*rows, strict=True))[0] == "train [1] " + " ".join(
        f"p{number}={'1' * 20}" for number in range(3)
    )


def test_progress_has_for_how_long_a_training_is_silent():
    silent = serializers._serialize_progress(Progress(None, None, {}, silent="22 of 30 min"))
    assert silent == {"silent": "22 of 30 min"}
    assert serializers._serialize_progress(Progress(3, None, {})) == {"step": 3}
