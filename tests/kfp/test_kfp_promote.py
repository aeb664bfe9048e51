"""The promote component, run by its own command."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from kfp_driver import component_spec

from trainer_core.node.artifact_stamps import read_stamps
from trainer_core.tracking.model_registry import FolderRegistry, build_partition_alias


@pytest.fixture
def registry(tmp_path):
    return tmp_path / "registry"


@pytest.fixture
def promote(task, tmp_path, registry):
    """Promote a model of some content; returns the finished task."""

    def _promote(content, metric, job=None, **parameters):
        model = tmp_path / f"model-{content}"
        model.write_text(content)
        facts = {"model": {"job": job}}
        promoting = task(
            "promote", content, {"model": model}, facts, metric=metric, registry=str(registry), **parameters
        )
        finished = promoting.run()
        assert finished.returncode == 0, finished.stderr
        return promoting

    return _promote


def current(promoted):
    return Path(urlsplit(promoted.output("uri")).path).read_text()


def test_the_first_model_is_promoted(promote):
    promoted = promote("first", 0.5)

    assert (promoted.output("promoted"), current(promoted)) == (True, "first")


def test_a_better_model_takes_the_place_of_the_last(promote):
    promote("first", 0.5)

    promoted = promote("second", 0.6)

    assert (promoted.output("promoted"), current(promoted)) == (True, "second")


@pytest.mark.parametrize("metric", [0.5, 0.4])
def test_a_model_that_is_not_better_is_not_promoted(promote, metric):
    promote("first", 0.5)

    promoted = promote("second", metric)

    assert (promoted.output("promoted"), current(promoted)) == (False, "first")


def test_lower_can_be_better(promote):
    promote("first", 0.5, higher_is_better=False)

    assert promote("second", 0.4, higher_is_better=False).output("promoted") is True


def test_each_partition_has_a_separate_champion(promote, registry):
    promote("emea", 0.5, partition="emea")
    others = [promote("north", 0.4, partition="EMEA north"), promote("worse", 0.4, partition="emea")]

    assert [each.output("promoted") for each in others] == [True, False]
    aliases = {alias for each in FolderRegistry(registry).list_versions("") for alias in each.aliases}
    assert aliases == {"champion-emea", build_partition_alias("champion", "EMEA north")}


def test_a_retry_promotes_the_same_model(promote):
    promote("first", 0.5)

    assert promote("first", 0.5).output("promoted") is True


def test_a_worse_model_of_another_job_by_the_same_name_is_not_promoted(promote):
    promote("first", 0.5, job="nightly")

    promoted = promote("second", 0.4, job="nightly")

    assert (promoted.output("promoted"), current(promoted)) == (False, "first")


def test_a_metric_that_nothing_could_beat_is_refused(task, tmp_path, registry):
    (tmp_path / "model").write_text("m")
    promoting = task("promote", artifacts={"model": tmp_path / "model"}, metric=float("nan"), registry=str(registry))

    finished = promoting.run()

    assert finished.returncode == 1
    assert "metric is nan" in finished.stderr
    assert not registry.exists()


def test_a_model_that_stays_where_the_job_wrote_it_and_was_overwritten_is_refused(task, tmp_path, registry):
    model = tmp_path / "weights.bin"
    model.write_text("of lr=0.1")
    facts = {"job": "nightly", "uri": model.as_uri(), **read_stamps({"stamp": model.as_uri()})}
    model.write_text("of lr=0.5")
    nowhere = {"model": tmp_path / "nowhere"}
    promoting = task("promote", "late", nowhere, {"model": facts}, metric=0.5, registry=str(registry))

    finished = promoting.run()

    assert finished.returncode == 1
    assert f"artifact 'model' of TrainJob 'nightly': {model.as_uri()} was written again" in finished.stderr


def test_a_model_that_was_replaced_is_still_there(promote, registry):
    promote("first", 0.5)
    promote("second", 0.6)

    assert sorted(path.read_text() for path in registry.glob("versions/*/*")) == ["first", "second"]


def test_every_declared_output_is_written(promote):
    assert promote("first", 0.5).outputs() == set(component_spec("promote")["outputDefinitions"]["parameters"])


@pytest.mark.parametrize("registry_input", ["relative/path", "s3://bucket/registry"])
def test_a_registry_that_is_no_folder_of_this_machine_is_refused(task, tmp_path, registry_input):
    (tmp_path / "model").write_text("m")

    finished = task("promote", artifacts={"model": tmp_path / "model"}, metric=1, registry=registry_input).run()

    assert finished.returncode == 1
    assert finished.stderr.startswith("error: registry must be ")


def test_a_missing_model_is_refused(task, tmp_path, registry):
    finished = task("promote", artifacts={"model": tmp_path / "none"}, metric=1, registry=str(registry)).run()

    assert finished.returncode == 1
    assert "there is no model at" in finished.stderr


def test_a_model_whose_files_are_elsewhere_is_refused_with_its_place(task, tmp_path, registry):
    facts = {"model": {"uri": "s3://models/digits"}}

    finished = task("promote", "1", {"model": tmp_path / "none"}, facts, metric=0.5, registry=str(registry)).run()

    assert "model: its files are at s3://models/digits and not in the artifact" in finished.stderr


def test_a_model_with_a_broken_link_is_refused_instead_of_copied_in_part(task, tmp_path, registry):
    model = tmp_path / "model"
    model.mkdir()
    (model / "a.bin").write_text("a")
    (model / "b.bin").symlink_to(tmp_path / "nowhere")

    finished = task("promote", "1", {"model": model}, metric=0.5, registry=str(registry)).run()

    (line,) = finished.stderr.splitlines()
    assert (finished.returncode, "b.bin is a broken link" in line) == (1, True)
    assert not list(registry.glob("versions/*/*"))


def test_links_in_a_model_are_copied_as_files_and_folders(task, tmp_path, registry):
    model = tmp_path / "model"
    (tmp_path / "blobs" / "deep").mkdir(parents=True)
    (tmp_path / "blobs" / "deep" / "a.bin").write_text("a")
    model.mkdir()
    (model / "folder").symlink_to(tmp_path / "blobs" / "deep")
    (model / "file.bin").symlink_to(tmp_path / "blobs" / "deep" / "a.bin")

    promoting = task("promote", "1", {"model": model}, metric=0.5, registry=str(registry))
    promoting.run()

    copied = Path(urlsplit(promoting.output("uri")).path)
    assert (copied / "folder" / "a.bin").read_text() == (copied / "file.bin").read_text() == "a"
    assert not [path for path in copied.rglob("*") if path.is_symlink()]


@pytest.mark.parametrize("text", [json.dumps(["something else"]), json.dumps({"metric": 0.5}), "{half"])
def test_a_broken_registry_is_not_overwritten(task, tmp_path, registry, text):
    registry.mkdir()
    (registry / "current.json").write_text(text)
    (tmp_path / "model").write_text("m")

    finished = task("promote", artifacts={"model": tmp_path / "model"}, metric=1, registry=str(registry)).run()

    assert finished.returncode == 1
    assert "give promote a separate folder" in finished.stderr
    assert (registry / "current.json").read_text() == text
