"""The components initialize_dataset and initialize_model, run by their own commands."""

from __future__ import annotations

import pytest
from kfp_driver import component_spec

COMPONENTS = {"initialize_dataset": "dataset", "initialize_model": "model"}


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.csv").write_text("1,2")
    (folder / "deep" / "b.csv").write_text("3,4")
    (folder / "notes.txt").write_text("not data")
    return folder


@pytest.mark.parametrize("component", COMPONENTS)
def test_fetched_files_become_the_artifact(task, source, component):
    role = COMPONENTS[component]
    fetching = task(component, storage_uri=source.as_uri(), ignore_patterns=["*.txt"])

    finished = fetching.run()

    found = fetching.artifact(role)
    assert finished.returncode == 0, finished.stderr
    assert sorted(str(p.relative_to(found)) for p in found.rglob("*.*")) == ["a.csv", "deep/b.csv"]
    assert fetching.metadata(role)["storage_uri"] == source.as_uri()
    assert list(fetching.output("result")) == [role]


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_declared_output_is_written(task, source, component):
    fetching = task(component, storage_uri=source.as_uri())

    fetching.run()

    declared = component_spec(component)["outputDefinitions"]
    assert fetching.outputs() == set(declared["parameters"])
    assert set(fetching.executor_output()["artifacts"]) == set(declared["artifacts"])


def test_a_retry_finds_the_job_of_the_first_try_and_replaces_the_artifact(task, client, source):
    fetching = task("initialize_dataset", storage_uri=source.as_uri())

    codes = [fetching.run().returncode, fetching.run().returncode]

    assert codes == [0, 0]
    assert len(client.list_jobs()) == 1
    assert (fetching.artifact("dataset") / "a.csv").read_text() == "1,2"


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("file:///nowhere/at/all", "/nowhere/at/all does not exist"),
        ("no uri", "initializer.dataset.storage_uri"),
        ("cache://schema/table", "cache://"),
    ],
)
def test_a_source_that_cannot_be_fetched_is_refused_in_one_line(task, client, uri, reason):
    finished = task("initialize_dataset", storage_uri=uri).run()

    (line,) = finished.stderr.splitlines()
    assert (finished.returncode, client.list_jobs()) == (1, [])
    assert reason in line
