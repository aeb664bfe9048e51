"""Initializers: what they fetch, and the paths of the data."""

# ruff: noqa: S101 -- tests use assert, and their names describe them

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from trainer_core.client import TrainerClient
from trainer_core.definition.initializers import FileDatasetInitializer, FileModelInitializer, Initializer
from trainer_core.definition.options import Name
from trainer_core.testing.case import BuildRequest, Contract, Run, applies_to
from trainer_core.testing.training_functions import read_files


def _get_path(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))


class Initializers(Contract):
    """Initializers fetch the data before training starts, and an unchanged source only once."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        """A folder with three files, one of them in a subfolder."""
        folder = tmp_path / "größere Daten"
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "train.csv").write_text("1,2", encoding="utf-8")
        (folder / "notes.txt").write_text("some notes", encoding="utf-8")
        (folder / "deep" / "er" / "test.csv").write_text("3,4", encoding="utf-8")
        return folder

    @applies_to(reads_local_files=True)
    def test_a_dataset_folder_is_available_at_the_dataset_path(
        self, client: TrainerClient, source: Path, run: Run
    ) -> None:
        fetch = Initializer(dataset=FileDatasetInitializer(source.as_uri()))
        outcome = run(read_files, {"role": "dataset"}, initializer=fetch)
        assert outcome.result == {"deep/er/test.csv": "3,4", "notes.txt": "some notes", "train.csv": "1,2"}
        assert [step.name for step in client.get_job("job").steps] == ["dataset-initializer", "node-0"]

    @applies_to(reads_local_files=True)
    def test_symbolic_links_in_a_source_are_followed(self, source: Path, run: Run) -> None:
        folder = source.with_name("links")
        folder.mkdir()
        (folder / "file.csv").symlink_to(source / "train.csv")
        (folder / "folder").symlink_to(source / "deep")
        (folder / "cycle").symlink_to(folder)
        fetch = Initializer(dataset=FileDatasetInitializer(folder.as_uri()))
        outcome = run(read_files, {"role": "dataset"}, initializer=fetch)
        assert outcome.result == {"file.csv": "1,2", "folder/er/test.csv": "3,4"}

    @applies_to(reads_local_files=True)
    def test_a_single_file_is_available_in_the_model_folder(self, source: Path, run: Run) -> None:
        fetch = Initializer(model=FileModelInitializer((source / "train.csv").as_uri()))
        outcome = run(read_files, {"role": "model"}, initializer=fetch)
        assert outcome.result == {"train.csv": "1,2"}

    @applies_to(reads_local_files=True)
    def test_files_matching_ignore_patterns_are_not_fetched(self, source: Path, run: Run) -> None:
        for name in ("kept.bin", "deep/kept.bin", "deep/er/ignored.bin"):
            (source / name).write_text("x", encoding="utf-8")
        patterns = ["*.txt", "deep/er/i*", "t*.csv"]
        fetch = Initializer(dataset=FileDatasetInitializer(source.as_uri(), ignore_patterns=patterns))
        outcome = run(read_files, {"role": "dataset"}, initializer=fetch)
        assert set(outcome.result) == {"kept.bin", "deep/kept.bin"}

    @pytest.mark.parametrize("link", [True, False], ids=["linked", "copied"])
    @applies_to(reads_local_files=True)
    def test_a_linked_source_shows_later_changes_and_a_copied_source_does_not(
        self, client: TrainerClient, build_request: BuildRequest, source: Path, link: bool
    ) -> None:
        client.initialize(Initializer(dataset=FileDatasetInitializer(source.as_uri(), link=link)), [Name("job")])
        fetched = _get_path(client.wait("job").artifacts["dataset"]) / "train.csv"
        (source / "train.csv").write_text("changed", encoding="utf-8")
        assert fetched.read_text(encoding="utf-8") == {True: "changed", False: "1,2"}[link]

    @applies_to(reads_local_files=True)
    def test_a_job_with_only_initializers_returns_the_paths_of_the_data(
        self, client: TrainerClient, build_request: BuildRequest, source: Path
    ) -> None:
        dataset, model = FileDatasetInitializer(source.as_uri()), FileModelInitializer((source / "train.csv").as_uri())
        outcome = client.wait(client.initialize(Initializer(dataset=dataset, model=model), [Name("fetch")]))
        assert outcome.result == outcome.artifacts
        assert (_get_path(outcome.result["dataset"]) / "train.csv").read_text(encoding="utf-8") == "1,2"
        assert (_get_path(outcome.result["model"]) / "train.csv").read_text(encoding="utf-8") == "1,2"
        assert client.get_job("fetch").num_nodes == 0

    @applies_to(reads_local_files=True)
    def test_several_jobs_can_train_on_data_fetched_by_one_job(
        self, client: TrainerClient, source: Path, run: Run
    ) -> None:
        fetched = client.wait(client.initialize(Initializer(dataset=FileDatasetInitializer(source.as_uri()))))
        again = Initializer(dataset=FileDatasetInitializer(fetched.result["dataset"], link=True))
        outcomes = [run(read_files, {"role": "dataset"}, initializer=again, name=name) for name in ("one", "two")]
        assert [outcome.result["train.csv"] for outcome in outcomes] == ["1,2", "1,2"]

    @applies_to(reads_local_files=True)
    def test_an_unchanged_source_is_fetched_once(
        self, client: TrainerClient, build_request: BuildRequest, source: Path
    ) -> None:
        fetch = Initializer(dataset=FileDatasetInitializer(source.as_uri()))
        paths = [client.wait(client.initialize(fetch, [Name(name)])).result["dataset"] for name in ("one", "two")]
        assert paths[0] == paths[1]
        assert "found in" in next(client.get_job_logs("two", step="dataset-initializer"))

    @applies_to(reads_local_files=True)
    def test_a_changed_source_is_fetched_again(self, client: TrainerClient, source: Path, run: Run) -> None:
        fetch = Initializer(dataset=FileDatasetInitializer(source.as_uri()))
        client.wait(client.initialize(fetch, [Name("one")]))
        (source / "train.csv").write_text("5,6,7", encoding="utf-8")
        assert run(read_files, {"role": "dataset"}, initializer=fetch, name="two").result["train.csv"] == "5,6,7"
