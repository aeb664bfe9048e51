"""The objective of a search beside the training: rungs in each line and in the record, and the pause at a rung."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from node_process import BARE, Node

from trainer_core.model.jobs import ObjectiveReport, RungValue, extract_training_state
from trainer_core.model.logs import build_progress, parse_progress
from trainer_core.node import env
from trainer_core.node.objective import Objective
from trainer_core.node.progress import Reporter
from trainer_core.packaging import serializer

SETTINGS = {"metric": "val_loss", "best": "min", "value": "last", "at": [1, 3, 9], "until": None, "trial": "tune/0"}


@pytest.fixture
def reporter(monkeypatch: pytest.MonkeyPatch) -> Reporter:
    """A reporter that prints no line but the first and those at rungs: its clock stands still."""
    monkeypatch.setenv(env.OBJECTIVE, json.dumps(SETTINGS))
    return Reporter(clock=lambda: 100.0)


@pytest.fixture
def read_reports(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[ObjectiveReport | None]]:
    """What the lines that were printed have of the objective."""

    def read() -> list[ObjectiveReport | None]:
        lines = capsys.readouterr().out.splitlines()
        return [build_progress(report).objective for line in lines if (report := parse_progress(line)) is not None]

    return read


def _rungs(report: ObjectiveReport | None) -> list[tuple[int, float, float | None]]:
    assert report is not None
    return [each[:3] for each in report.rungs]


def test_a_rung_between_two_lines_has_a_line_at_once(reporter: Reporter, read_reports: Any) -> None:
    reporter.report(0, 30, {"loss": 1.0})
    for step in range(1, 5):
        reporter.report(step, 30, {"val_loss": 1 / step})

    assert [_rungs(each) for each in read_reports()[1:]] == [[(0, 1, 1.0)], [(0, 1, 1.0), (1, 3, 1 / 3)]]


def test_each_later_line_has_all_rungs_and_the_best_value(reporter: Reporter, read_reports: Any) -> None:
    for step, value in enumerate([0.5, 0.2, 0.4, 0.3], start=1):
        reporter.report(step, 30, {"val_loss": value})
    reporter.report(30, 30, {"loss": 1.0})

    last = read_reports()[-1]
    assert (_rungs(last), last.best, last.value, last.step) == ([(0, 1, 0.5), (1, 3, 0.4)], 0.2, 0.3, 4)


def test_the_first_report_after_a_rung_counts_for_it_and_for_those_it_has_skipped(
    reporter: Reporter, read_reports: Any
) -> None:
    reporter.report(5, 30, {"val_loss": 0.7})
    reporter.report(6, 30, {"val_loss": 0.6})

    assert [_rungs(each) for each in read_reports()] == [[(0, 5, 0.7), (1, 5, 0.7)]]


def test_a_report_without_the_metric_reaches_no_rung(reporter: Reporter, read_reports: Any) -> None:
    reporter.report(5, 30, {"loss": 0.7})
    assert read_reports() == [None]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "text", None])
def test_what_is_not_a_number_is_reported_as_none(reporter: Reporter, read_reports: Any, value: Any) -> None:
    reporter.report(1, 30, {"val_loss": value})
    assert _rungs(read_reports()[0]) == [(0, 1, None)]


class Tensor:
    """A number on a device: each `item` waits for it."""

    def __init__(self, value: float) -> None:
        self.value, self.reads = value, 0

    def numel(self) -> int:
        return 1

    def detach(self) -> Tensor:
        return self

    def clone(self) -> Tensor:
        return self

    def item(self) -> float:
        self.reads += 1
        return self.value


def test_no_tensor_is_read_between_two_lines_and_each_counts_for_the_best(
    reporter: Reporter, read_reports: Any
) -> None:
    losses = [Tensor(value) for value in (0.9, 0.8, 0.1, 0.7, 0.6)]
    for step, loss in zip((0, 1, 2, 2.5, 2.75), losses, strict=True):
        reporter.report(step, 30, {"val_loss": loss})
    assert [loss.reads for loss in losses[2:]] == [0, 0, 0]
    reporter.report(3, 30, {"val_loss": Tensor(0.5)})
    last = read_reports()[-1]
    assert (_rungs(last), last.best, last.value, last.step) == ([(0, 1, 0.8), (1, 3, 0.5)], 0.1, 0.5, 3)


def test_metrics_without_steps_reach_no_rung(reporter: Reporter, read_reports: Any) -> None:
    reporter.report(metrics={"val_loss": 0.1})
    assert _rungs(read_reports()[0]) == []


def test_the_best_value_so_far_is_that_of_a_rung_where_the_best_counts() -> None:
    objective = Objective({**SETTINGS, "best": "max", "value": "best"})
    for step, value in enumerate([0.5, 0.9, 0.1], start=1):
        objective.record(step, value, 7)
    assert objective.values["rungs"] == [[0, 1, 0.5, 7], [1, 3, 0.9, 7]]


def test_a_resumed_training_has_the_rungs_of_its_checkpoint_and_passes_those_up_to_its_step() -> None:
    first, second = Objective(SETTINGS), Objective(SETTINGS)
    first.record(1, 0.5, 7)
    second.resume(4, first.copy_values())
    second.record(5, 0.4, 8)
    second.record(9, 0.3, 9)
    assert second.values["rungs"] == [[0, 1, 0.5, 7], [2, 9, 0.3, 9]]
    assert second.values["best"] == 0.3


def test_the_checkpoint_of_another_trial_gives_no_rungs() -> None:
    other, objective = Objective({**SETTINGS, "trial": "tune/1"}), Objective(SETTINGS)
    other.record(1, 0.5, 7)
    objective.resume(1, other.copy_values())
    assert objective.values["rungs"] == []


@pytest.mark.parametrize(
    "data",
    [None, 7, {}, {"rungs": 7}, {"rungs": [[1, 2]]}, {"rungs": [[1, 2, "x", None]]}, {"rungs": [["a", 2, 3, 4]]}],
)
def test_what_another_program_prints_as_an_objective_is_passed_over(data: Any) -> None:
    assert ObjectiveReport.parse(data) is None


def test_the_log_precedes_the_record_and_the_record_serves_without_a_log() -> None:
    record = {"objective": {"value": 1.0, "step": 1, "best": 1.0, "rungs": [[0, 1, 1.0, 7]]}}
    progress = build_progress({"objective": {"value": 2.0, "step": 2, "best": 1.0, "rungs": []}})
    assert extract_training_state([record])["objective"].rungs == (RungValue(0, 1, 1.0, 7),)
    assert extract_training_state([record], progress)["objective"].value == 2.0


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shipped")
    serializer.ship(folder)
    return folder


@pytest.fixture
def node(tmp_path: Path, shipped: Path) -> Node:
    return Node(tmp_path, shipped)


def report_and_end(code: int) -> dict[str, float]:
    import os
    import sys

    from trainer_core import report_metrics

    report_metrics({"val_loss": 0.5}, step=1)
    report_metrics({"val_loss": 0.25}, step=2)
    if code:
        sys.stdout.flush()
        os._exit(code)
    return {"x": 1.0}


def test_the_record_of_a_node_has_the_objective_beside_its_result(node: Node) -> None:
    ended = node.run(
        serializer.package(report_and_end, {"code": 0}), BARE, **{env.OBJECTIVE: json.dumps(SETTINGS), env.NAME: "t"}
    )
    assert ended.record is not None
    values = ended.record["objective"]
    assert (ended.record["result"], values["value"], values["best"]) == ({"x": 1.0}, 0.25, 0.25)
    assert [rung[:3] for rung in values["rungs"]] == [[0, 1, 0.5]]


def test_the_record_of_a_node_that_was_killed_has_the_rungs(node: Node) -> None:
    ended = node.run(
        serializer.package(report_and_end, {"code": 9}), BARE, **{env.OBJECTIVE: json.dumps(SETTINGS), env.NAME: "t"}
    )
    assert (ended.code, [rung[:3] for rung in (ended.record or {})["objective"]["rungs"]]) == (9, [[0, 1, 0.5]])


def train_to_a_rung(reports_first: bool) -> str:
    from trainer_core import checkpoints, progress

    store = checkpoints()
    last = store.latest()
    for step in range((last.step if last else 0) + 1, 31):
        if reports_first:
            progress(step=step, total=30, metrics={"val_loss": 1 / step})
        if store.due(step):
            with store.save(step) as folder:
                (folder / f"rank-{store.rank}.txt").write_text(str(step))
        if not reports_first:
            progress(step=step, total=30, metrics={"val_loss": 1 / step})
    return f"from {last.step if last else 0}"


def _run_ranks(node: Node, root: Path, until: float | None, reports_first: bool, **settings: Any) -> list[Any]:
    """Run two ranks to their end; return their exit codes, and the record of rank 0."""
    variables = {
        env.OBJECTIVE: json.dumps({**SETTINGS, "until": until}),
        env.NAME: "t",
        env.CHECKPOINT_PATH: str(root),
        env.CHECKPOINTS: json.dumps({"after": "none", **settings}),
        "WORLD_SIZE": "2",
    }
    code = serializer.package(train_to_a_rung, {"reports_first": reports_first})
    logs = {"TRAINJOB_TERMINATION_LOG": str(node.folder / "other.json")}
    other = node.start(code, BARE, RANK="1", **{**variables, **logs})
    first = node.end(node.start(code, BARE, RANK="0", **variables))
    return [first.code, node.end(other).code, first.record]


@pytest.mark.parametrize(("reports_first", "step"), [(True, 9), (False, 10)])
def test_all_ranks_end_at_the_rung_with_a_checkpoint_and_a_promoted_run_continues_there(
    node: Node, tmp_path: Path, reports_first: bool, step: int
) -> None:
    codes = _run_ranks(node, tmp_path / "a" / "g-0", 9, reports_first)
    assert codes[:2] == [0, 0]
    paused = codes[2]
    assert (paused["result"], paused["paused_at"], paused["checkpoint"]) == (None, step, step)
    assert [rung[:2] for rung in paused["objective"]["rungs"]] == [[0, 1], [1, 3], [2, 9]]

    node.log.unlink()
    locations = [str(tmp_path / "a" / "g-0")]
    promoted = _run_ranks(node, tmp_path / "b" / "g-0", None, reports_first, load="path", load_paths=locations)
    record = promoted[2]
    assert (record["result"], "paused_at" in record, record["resumed_from"]) == (f"from {step}", False, step)
    assert [rung[:2] for rung in record["objective"]["rungs"]] == [[0, 1], [1, 3], [2, 9]]


def read_parameters(lr: float, name: str, layers: int = 2, sizes: list[int] | None = None) -> list[Any]:
    from trainer_core import get_hyperparameters

    return [lr, name, layers, sizes, get_hyperparameters()]


def test_below_an_optimization_job_variables_replace_arguments_of_the_same_name(node: Node) -> None:
    variables = {
        "KUBEFLOW_TRAINER_OPT_LR": "1e-3",
        "KUBEFLOW_TRAINER_OPT_NAME": "7",
        "KUBEFLOW_TRAINER_OPT_LAYERS": "3.0",
    }
    code = serializer.package(read_parameters, {"lr": 1.0, "name": "adam", "layers": 2})
    assert node.run(code, BARE, **variables).result == [0.001, "7", 3, None, {"lr": 0.001, "name": 7, "layers": 3.0}]


def test_parameters_of_a_search_keep_their_names_and_types(node: Node) -> None:
    variables = {"KUBEFLOW_TRAINER_OPT_LR": "5", "TRAINJOB_HYPERPARAMETERS": '{"Lr": 0.5, "opt.name": "adam"}'}
    code = serializer.package(read_parameters, {"lr": 1.0, "name": "sgd"})
    assert node.run(code, BARE, **variables).result == [1.0, "sgd", 2, None, {"Lr": 0.5, "opt.name": "adam"}]


def test_outside_of_a_search_there_are_no_parameters(node: Node) -> None:
    assert node.run(serializer.package(read_parameters, {"lr": 1.0, "name": "sgd"}), BARE).result[-1] == {}
