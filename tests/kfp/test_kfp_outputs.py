"""What a finished job leaves in KFP beside its parameters: metrics, curves, matrices."""

from __future__ import annotations

from dataclasses import replace

import kfp_definitions as definitions
import pytest
from kfp.dsl import ClassificationMetrics
from kfp_driver import request_for

from kfp_components.step import charts, classification, outputs, report
from kfp_components.step.executor_input import Task
from kfp_components.step.metric_history import MetricHistory
from trainer_core import CustomTrainer, DebugBackendConfig, TrainerClient
from trainer_core.model.jobs import Category, Diagnosis, Outcome, TrainJobRef
from trainer_core.model.request import Owner
from trainer_core.model.resource_use import ResourceUse
from trainer_core.node.artifact_stamps import read_stamps


@pytest.fixture
def classified(task):
    training = task("train", request=request_for(definitions.classify))
    training.run()
    return training


REF = TrainJobRef("local", "/home", "job", "uid-1")


@pytest.fixture
def step(tmp_path):
    """A task with the outputs that every task with an outcome has; the model has facts beside those of the job."""
    files = {"result": {"outputFile": str(tmp_path / "result")}}
    facts = {"model": {"framework": "torch", "accuracy": "of the pipeline"}}
    artifacts = {
        name: {"artifacts": [{"name": name, "uri": str(tmp_path / "kfp" / name), "metadata": facts.get(name, {})}]}
        for name in ("metrics", "model")
    }
    task = Task({"outputs": {"parameters": files, "artifacts": artifacts}})
    task.make_output_folders()
    return task


def build_outcome(tmp_path, status="Complete", **fields):
    (tmp_path / "weights.bin").write_text("weights")
    artifacts = {"model": (tmp_path / "weights.bin").as_uri(), "other": "s3://bucket/other"}
    return Outcome(
        ref=REF.to_dict(), status=status, artifacts=artifacts, metrics={"accuracy": 0.5, "loss": 2}, **fields
    )


def test_the_model_of_a_complete_job_is_placed_with_its_job_and_metrics_and_keeps_its_own_facts(step, tmp_path):
    outputs.write_result(step, build_outcome(tmp_path, result=[1]))

    model = step.get_artifact("model")
    assert model.require_path().read_text() == "weights"
    assert model.metadata == {
        "framework": "torch", "accuracy": "of the pipeline", "loss": 2,
        "job": "job", "backend": "local", "uid": "uid-1", "uri": (tmp_path / "weights.bin").as_uri(),
    }  # fmt: skip
    assert step.get_artifact("metrics").metadata == {"accuracy": 0.5, "loss": 2}
    assert (tmp_path / "result").read_text() == '{"value": [1]}'


def test_the_model_of_a_failed_job_is_not_placed(step, tmp_path):
    diagnosis = Diagnosis(category=Category.USER_CODE, reason="diverged")
    outputs.write_result(step, build_outcome(tmp_path, status="Failed", diagnosis=diagnosis))

    model = step.get_artifact("model")
    assert not model.require_path().exists()
    assert model.metadata == {"framework": "torch", "accuracy": "of the pipeline"}
    assert (tmp_path / "result").read_text() == "{}"


@pytest.mark.parametrize(("now", "is_placed"), [("weights", True), ("WEIGHTS", False)])
def test_a_model_is_placed_only_if_no_other_training_wrote_it_since(step, tmp_path, capsys, now, is_placed):
    outcome = build_outcome(tmp_path)
    outcome = replace(outcome, stamps=read_stamps({"model": outcome.artifacts["model"]}))
    (tmp_path / "weights.bin").write_text(now)
    outputs.write_result(step, outcome)

    model = step.get_artifact("model")
    assert (model.require_path().exists(), model.metadata["stamp"]) == (is_placed, outcome.stamps["model"])
    assert ("was written again after the TrainJob had ended" not in capsys.readouterr().out) == is_placed


@pytest.mark.parametrize("uri", ["s3://bucket/model", "file:///nowhere/model"])
def test_a_model_that_cannot_be_read_here_stays_where_it_is_and_its_uri_is_recorded(step, capsys, uri):
    outcome = Outcome(ref=REF.to_dict(), status="Complete", artifacts={"model": uri})
    outputs.write_result(step, outcome)

    assert step.get_artifact("model").metadata["uri"] == uri
    assert not step.get_artifact("model").require_path().exists()
    assert f"artifact 'model': its content stays at {uri}" in capsys.readouterr().out


def test_a_result_that_is_missing_is_explained_in_the_log(step, tmp_path, capsys):
    outputs.write_result(step, build_outcome(tmp_path, result_note="it is no JSON"))

    assert "TrainJob job: no result: it is no JSON" in capsys.readouterr().out


class CountingClient(TrainerClient):
    flushed = 0

    def flush_tracking(self, timeout: float = 5.0) -> None:
        self.flushed += 1
        super().flush_tracking(timeout)


def test_a_step_that_only_submits_sends_what_tracking_has_before_its_process_ends(tmp_path):
    files = {"status": {"outputFile": str(tmp_path / "status")}}
    page = {"artifacts": [{"name": "report", "uri": str(tmp_path / "report.html")}]}
    task = Task({"outputs": {"parameters": files, "artifacts": {"report": page}}})
    client = CountingClient(DebugBackendConfig())
    ref = client.submit(client.build_request(runtime="python", trainer=CustomTrainer(definitions.classify)))

    outputs.write_submission(task, client, ref)

    assert client.flushed == 1
    assert (tmp_path / "status").read_text() == "Complete"
    assert task.get_artifact("report").metadata == {"job": ref.name, "backend": "debug"}
    assert ref.name in (tmp_path / "report.html").read_text()


def test_matrix_and_curve_are_what_kfp_itself_would_log(classified):
    expected = ClassificationMetrics()
    expected.log_confusion_matrix(["<cat>", "dog"], [[9, 1], [2, 8]])
    # scikit-learn's first threshold is infinite, which the launcher refuses.
    expected.log_roc_curve([0, 0.1, 1], [0, 0.8, 1], [1e9, 0.5, 0])

    assert classified.metadata("classification") == expected.metadata


def test_the_report_shows_the_curve_of_the_loss_and_when_steps_ran(classified):
    report = classified.artifact("report").read_text()

    assert "<h3>loss</h3><svg" in report.replace("\n", "")
    assert report.count("<polyline") == 1
    assert "<rect" in report


def test_what_is_no_matrix_is_left_out_and_does_not_fail_the_task(task):
    training = task("train", request=request_for(definitions.classify_oddly))

    finished = training.run()

    assert (finished.returncode, training.metadata("classification")) == (0, {})
    assert "the result's 'confusion_matrix' cannot be shown" in finished.stdout


@pytest.mark.parametrize("threshold", [float("inf"), 1e300, None])
def test_the_first_threshold_of_scikit_learn_becomes_a_finite_number(threshold):
    curve = {"fpr": [0, 1], "tpr": [0, 1], "thresholds": [threshold, 0]}

    points = classification.build_metadata({"roc": curve})["confidenceMetrics"]

    assert [point["confidenceThreshold"] for point in points] == [1e9, 0]


@pytest.mark.parametrize("result", [None, 1, [1], {"roc": 1}, {"confusion_matrix": {"matrix": [["a"]]}}])
def test_any_result_has_metadata(result):
    assert classification.build_metadata(result) == {}


def test_a_history_of_days_stays_small_and_keeps_its_shape():
    history = MetricHistory()
    for step in range(100_000):
        history.add(f'[trainjob:progress] {{"step": {step}, "metrics": {{"loss": {step}}}}}')

    points = history.get_curves()["loss"]

    assert len(points) <= 1000
    assert points[0] == (0.0, 0.0)
    assert points[-1][0] > 99_000


def test_each_resumption_is_in_the_history_with_the_time_of_its_first_progress():
    history = MetricHistory()
    for line in (
        '[trainjob:progress] {"step": 1, "t": 1700000000000}',
        "trainjob: resumed from step 1, saved by TrainJob train-0123456789",
        '[trainjob:progress] {"step": 2, "t": 1700000001000}',
        "trainjob: resumed from step 2, saved by TrainJob train-0123456789-1",
        '[trainjob:progress] {"step": 3, "t": 1700000002000}',
        '[trainjob:progress] {"step": 4, "t": 1700000003000}',
    ):
        history.add(line)

    assert history.resumptions == [
        (1, "train-0123456789", 1700000001000),
        (2, "train-0123456789-1", 1700000002000),
    ]


def test_one_point_is_no_curve():
    history = MetricHistory()
    history.add('[trainjob:progress] {"step": 1, "metrics": {"loss": 1}}')

    assert history.get_curves() == {}


@pytest.mark.parametrize("points", [[(0, 1), (1, 1)], [(2, 0), (2, 5)]])
def test_a_curve_without_height_or_width_is_drawn(points):
    assert "polyline" in charts.render_curve(points)


def test_the_report_has_the_use_of_resources():
    ref = TrainJobRef("local", "/home", "job", "uid")
    use = ResourceUse(
        nodes=1,
        seconds=60.0,
        cpu_percent=50.0,
        memory_peak=3_900_000_000,
        memory_limit=4_000_000_000,
        gpus=2,
        gpu_hours=1.5,
    )
    page = report.render_html(ref, "Complete", None, Outcome(ref=ref.to_dict(), status="Complete", resource_use=use))

    assert "<h2>Use of resources</h2>" in page
    assert "<th>peak memory</th><td>3.63 GiB of 3.73 GiB</td>" in page
    assert "<th>GPU hours</th><td>1.50</td>" in page


def test_the_outputs_of_a_job_that_has_ended_name_it_and_each_of_its_resumptions(tmp_path):
    names = ("status", "checkpoint", "resumed_from", "result", "reused")
    artifacts = {
        name: {"artifacts": [{"name": name, "uri": str(tmp_path / "kfp" / name), "metadata": {}}]}
        for name in ("metrics", "model", "report", "classification")
    }
    files = {name: {"outputFile": str(tmp_path / name)} for name in names}
    task = Task({"outputs": {"parameters": files, "artifacts": artifacts}})
    task.make_output_folders()
    client = TrainerClient(DebugBackendConfig())
    request = client.build_request(runtime="python", trainer=CustomTrainer(definitions.score, {"rate": 0.5}))
    ref = client.submit(request.with_fields(name=None, owner=Owner(key="run/train", slug="train")))
    history = MetricHistory()
    history.resumptions += [(5, ref.name, 0), (6, "warm", 0)]
    outputs.write_outcome(task, client, client.wait(ref), history)

    assert [(tmp_path / name).read_text() for name in names[:3]] == ["Complete", "0", "0"]
    assert task.get_artifact("report").metadata == {"job": ref.name, "backend": "debug", "runtime": "python"}
    texts = [each.text for each in outputs._describe_resumptions(client, ref, history)]
    assert texts == ["resumed from step 5 of attempt 1", "resumed from step 6 of TrainJob warm"]
