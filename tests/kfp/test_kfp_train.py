"""The components train and submit, run by its own commands as a backend's driver starts them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import kfp_definitions as definitions
import pytest
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from kfp_driver import component_spec, request_for

from kfp_components.step.request_encoding import encode_request
from trainer_core.testing.training_functions import save_checkpoints

ARGUMENTS = {"epochs": 2, "learning_rate": 0.1}


@pytest.fixture
def request_():
    return request_for(definitions.train_a_little, ARGUMENTS)


def test_a_task_that_waits_writes_result_metrics_and_model(task, request_):
    training = task("train", request=request_, metric_name="accuracy")

    finished = training.run()

    assert finished.returncode == 0, finished.stderr
    assert (training.output("status"), training.output("metric")) == ("Complete", 0.9)
    assert training.output("result")["accuracy"] == 0.9
    assert training.artifact("model").read_text() == "weights"
    assert training.metadata("metrics") == {"accuracy": 0.9, "loss": 0.25}


@pytest.mark.parametrize("component", ["submit", "train"])
def test_every_declared_output_is_written(task, request_, component):
    training = task(component, request=request_)

    training.run()

    declared = component_spec(component)["outputDefinitions"]
    assert training.outputs() == set(declared["parameters"])
    assert set(training.executor_output()["artifacts"]) == set(declared["artifacts"])


def test_what_the_task_writes_is_an_executor_output_of_kfp(task, request_):
    training = task("train", request=request_)

    training.run()

    message = pipeline_spec_pb2.ExecutorOutput()
    json_format.ParseDict(training.executor_output(), message)
    assert message.artifacts["model"].artifacts[0].metadata["runtime"] == "python"


def test_the_report_and_the_model_name_the_last_checkpoint(task):
    request = request_for(save_checkpoints, {"steps": 2})
    training = task("train", request={**request, "checkpoints": {"every_steps": 1}})

    finished = training.run()

    assert finished.returncode == 0, finished.stderr
    assert training.metadata("report")["checkpoint"] == 2
    assert "resumed_from" not in training.metadata("report")


def test_a_retry_that_resumes_has_the_steps_as_outputs_and_in_its_report(task, tmp_path):
    request = request_for(definitions.save_and_fail_once, {"marker": str(tmp_path / "marker")})
    training = task("train", request={**request, "checkpoints": {"every_steps": 1}})

    codes = [training.run().returncode, training.run().returncode]

    assert codes == [1, 0]
    assert (training.output("checkpoint"), training.output("resumed_from")) == (4, 2)
    report = training.artifact("report").read_text()
    assert ">resumed from step 2 of attempt 1</text>" in report
    assert "<tr><th>resumed from</th><td>step 2</td></tr>" in report


def test_a_training_without_checkpoints_has_zero_as_their_steps(task, request_):
    training = task("train", request=request_)

    training.run()

    assert (training.output("checkpoint"), training.output("resumed_from")) == (0, 0)


def test_the_log_of_the_job_is_the_log_of_the_task(task, request_):
    finished = task("train", request=request_).run()

    assert "[node-0] a line of the log, with python3 in it\n" in finished.stdout


def test_a_task_that_does_not_wait_returns_the_ref_of_a_live_job(task, client, request_):
    training = task("submit", request=request_)

    finished = training.run()

    assert finished.returncode == 0, finished.stderr
    assert client.wait(training.output("job")["name"]).succeeded


def test_arguments_arrive_as_the_types_that_the_function_declares(task, request_):
    overrides = {"epochs": 3, "learning_rate": "1", "note": '$HOME "`quoted`"', "tags": "[1.0, 2.0]"}
    training = task("train", request=request_, func_args=overrides)

    training.run()

    expected = {"epochs": 3, "learning_rate": 1.0, "note": '$HOME "`quoted`"', "tags": [1.0, 2.0]}
    assert training.output("result")["given"] == repr(expected)


def test_pipeline_parameters_that_the_driver_left_as_references_arrive_too(task, request_):
    reference = "{{$.inputs.parameters['pipelinechannel--%s']}}"
    training = task(
        "train",
        request=request_,
        func_args={"epochs": reference % "epochs", "note": reference % "note"},
        **{"pipelinechannel--epochs": 4, "pipelinechannel--note": "it's\nfine"},
    )

    training.run()

    expected = {"epochs": 4, "learning_rate": 0.1, "note": "it's\nfine", "tags": None}
    assert training.output("result")["given"] == repr(expected)


def test_nodes_come_from_the_input(task, client, request_):
    training = task("submit", request=request_, num_nodes=2)

    training.run()

    assert client.get_job(training.output("job")["name"]).num_nodes == 2


def test_a_retry_of_a_task_finds_the_job_of_the_first_try(task, client, request_):
    training = task("submit", request=request_)

    names = [(training.run(), training.output("job")["name"])[1] for _ in range(3)]

    assert [job.name for job in client.list_jobs()] == [names[0]]
    assert len(set(names)) == 1


def test_two_tries_at_the_same_time_share_one_job(task, client, request_):
    training = task("train", request=request_)

    tries = [training.start() for _ in range(3)]
    codes = [(process.communicate(timeout=300), process.returncode)[1] for process in tries]

    assert codes == [0, 0, 0]
    assert len(client.list_jobs()) == 1


def test_another_task_of_the_run_has_a_job_of_its_own(task, client, request_):
    task("submit", "iteration-1", request=request_).run()
    task("submit", "iteration-2", request=request_).run()

    assert len(client.list_jobs()) == 2


def test_a_job_name_wins_over_the_task(task, client, request_):
    task("submit", "run-1", request=request_, job_name="digits").run()
    task("submit", "run-2", request=request_, job_name="digits").run()

    assert [job.name for job in client.list_jobs()] == ["digits"]


def test_a_job_name_that_another_request_has_taken_is_refused_in_one_line(task, request_):
    task("submit", "run-1", request=request_, job_name="digits").run()

    finished = task("submit", "run-2", request=request_, job_name="digits", func_args={"epochs": 9}).run()

    assert finished.returncode == 1
    assert finished.stderr.startswith("error: TrainJob 'digits' exists with another request")


def test_a_failed_job_fails_the_task_with_its_diagnosis_in_one_line(task):
    training = task("train", request=request_for(definitions.fail_with_markup))

    finished = training.run()

    (line,) = finished.stderr.splitlines()
    assert finished.returncode == 1
    assert line.startswith("error: TrainJob 'fail-with-markup-")
    assert "ValueError: <b>no luck</b>" in line
    assert training.output("status") == "Failed"


def test_the_report_of_a_failed_job_shows_the_traceback_and_no_markup_of_the_user(task):
    training = task("train", request=request_for(definitions.fail_with_markup))

    training.run()

    report = training.artifact("report").read_text()
    assert "&lt;b&gt;no luck&lt;/b&gt;" in report
    assert "Traceback" in report
    assert "<b>" not in report


def test_a_retry_after_a_failed_job_runs_it_again(task, client, tmp_path):
    request = request_for(definitions.fail_once, {"marker": str(tmp_path / "marker")})
    training = task("train", request=request)

    codes = [training.run().returncode, training.run().returncode]

    assert codes == [1, 0]
    assert len(client.list_jobs()) == 2


def test_an_artifact_becomes_the_dataset_of_the_job(task, tmp_path):
    folder = tmp_path / "with a space and ü"
    folder.mkdir()
    (folder / "a.csv").write_text("1,2")
    artifacts = {"dataset": folder}

    training = task("train", artifacts=artifacts, request=request_for(definitions.read_the_dataset))
    training.run()

    assert training.output("result") == {"files": {"a.csv": "1,2"}}


def test_a_uri_becomes_the_pretrained_model_of_the_job(task, tmp_path):
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "w.safetensors").write_text("w")
    uri = (tmp_path / "weights").as_uri()

    training = task("train", request=request_for(definitions.read_the_model), pretrained_uri=uri)
    training.run()

    assert training.output("result") == {"files": {"w.safetensors": "w"}}


def test_a_result_that_is_no_dict_goes_under_value(task):
    training = task("train", request=request_for(definitions.return_a_list))

    training.run()

    assert training.output("result") == {"value": [1, 2, 3]}


def test_a_model_in_another_store_is_named_in_the_metadata_of_the_artifact(task):
    training = task("train", request=request_for(definitions.name_a_model_elsewhere))

    training.run()

    (model,) = training.executor_output()["artifacts"]["model"]["artifacts"]
    assert (model["uri"], model["metadata"]["uri"]) == (str(training.artifact("model")), "s3://models/digits")


def refusals():
    plain = request_for(definitions.train_a_little, ARGUMENTS)
    uri = "file:///data"
    return {
        "no backend of that name": ({"request": plain, "backend": "moon"}, "unknown backend 'moon'; known are"),
        "no setting of that name": ({"request": plain, "backend_config": {"color": 1}}, "unknown setting color"),
        "no runtime of that name": ({"request": {**plain, "runtime": {"name": "x"}}}, "runtime 'x'"),
        "no argument of that type": (
            {"request": plain, "func_args": {"epochs": "many"}},
            "func_args.epochs: 'many' is not an int",
        ),
        "no trainer": (
            {"request": {"initializer": {"dataset": {"storage_uri": uri}}}, "num_nodes": 2},
            "num_nodes: the request has no trainer",
        ),
        "no image": ({"request": plain, "args": ["--epochs", "3"]}, "command and args are for an image"),
        "no function": (
            {"request": {"version": 1, "trainer": {"kind": "container", "image": "x:1"}}, "func_args": {"a": 1}},
            "func_args are for a training function",
        ),
        "a negative number of nodes": ({"request": plain, "num_nodes": -1}, "trainer.num_nodes: "),
        "no such dataset": (
            {"request": plain, "dataset_uri": "file:///nowhere/at/all"},
            "/nowhere/at/all does not exist",
        ),
        "a name with a slash": ({"request": plain, "job_name": "a/b"}, "job name 'a/b' is not a DNS label"),
        "no request": ({}, "give either request or request_file"),
    }


@pytest.mark.parametrize("case", refusals())
def test_invalid_inputs_are_refused_in_one_line_and_nothing_is_created(task, client, case):
    parameters, reason = refusals()[case]

    finished = task("submit", **parameters).run()

    (line,) = finished.stderr.splitlines()
    assert (finished.returncode, client.list_jobs()) == (1, [])
    assert line.startswith("error: ")
    assert reason in line


def test_an_unknown_on_kill_is_refused(task, client, request_):
    finished = task("train", request=request_, on_kill="maybe").run()

    assert finished.stderr == "error: on_kill must be one of cancel, keep; got 'maybe'\n"
    assert client.list_jobs() == []


def test_a_task_that_does_not_wait_has_no_model_and_no_metric():
    outputs = component_spec("submit")["outputDefinitions"]

    assert {name for kind in outputs.values() for name in kind} == {"job", "status", "report"}


def test_a_dataset_given_twice_is_refused(task, tmp_path, request_):
    artifacts = {"dataset": tmp_path}

    finished = task("submit", artifacts=artifacts, request=request_, dataset_uri="file:///data").run()

    assert finished.stderr == "error: dataset and dataset_uri are both given; give one of them\n"


def test_a_metric_that_the_job_does_not_report_fails_the_task_and_names_those_it_does(task, request_):
    finished = task("train", request=request_, metric_name="f1").run()

    assert finished.stderr == ("error: metric_name: the job reported no metric 'f1'; it reported accuracy, loss\n")


def test_a_container_does_not_leave_a_local_job_behind(task, client, monkeypatch, request_):
    monkeypatch.setenv("TRAINJOB_KFP_CONTAINER", "1")

    finished = task("submit", request=request_).run()

    assert (finished.returncode, client.list_jobs()) == (1, [])
    assert "end with the container of this task; use the component train" in finished.stderr


def test_a_container_may_wait_for_a_local_job(task, monkeypatch, request_):
    monkeypatch.setenv("TRAINJOB_KFP_CONTAINER", "1")

    assert task("train", request=request_).run().returncode == 0


def test_json_of_outputs_has_no_nan(task):
    training = task("train", request=request_for(definitions.return_what_json_has_not))

    training.run()

    json.dumps([training.executor_output(), training.output("result")], allow_nan=False)
    assert training.output("status") == "Complete"


DEFINITION = """
runtime: python
trainer:
  func: kfp_definitions:train_a_little
  packaging: reference
  func_args: {epochs: 2, learning_rate: 0.1}
options:
  - Labels: {team: vision}
"""


@pytest.mark.parametrize("text", [DEFINITION, json.dumps(request_for(definitions.train_a_little, ARGUMENTS))])
def test_a_request_may_come_as_a_file(task, client, tmp_path, monkeypatch, text):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    (tmp_path / "request").write_text(text)
    training = task("train", artifacts={"request_file": tmp_path / "request"})

    codes = [training.run().returncode, training.run().returncode]

    assert codes == [0, 0]
    assert training.output("result")["accuracy"] == 0.9
    assert len(client.list_jobs()) == 1


def test_a_request_file_that_is_no_request_fails_in_one_line(task, tmp_path):
    (tmp_path / "request").write_text("- a\n- list")

    finished = task("submit", artifacts={"request_file": tmp_path / "request"}).run()

    assert finished.returncode == 1
    assert "must hold one mapping with trainer:" in finished.stderr


def test_a_damaged_request_is_refused_in_one_line(task):
    command = [*task("submit").command, "--request=eJwrycgsVgCi"]

    finished = subprocess.run(command, capture_output=True, text=True, check=False)

    (line,) = finished.stderr.splitlines()
    assert (finished.returncode, "--request is damaged" in line) == (1, True)


def test_a_request_beside_the_executor_input_is_taken(task, request_):
    training = task("train")
    command = [*training.command, f"--request={encode_request(request_)}"]

    finished = subprocess.run(command, capture_output=True, text=True, check=False)

    assert finished.returncode == 0, finished.stderr
    assert training.output("status") == "Complete"
