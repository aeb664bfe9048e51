"""Data: what initializers fetch, and where it lies."""

# ruff: noqa: S101, D102 -- assert is what a test does, and its name says what it shows

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from trainer_core.client import TrainerClient
from trainer_core.initializers import FileDatasetInitializer, FileModelInitializer, Initializer
from trainer_core.options import Name
from trainer_core.request import TrainJobRequest
from trainer_core.testing.case import Contract, where
from trainer_core.testing.functions import reads

__all__ = ["Data"]

Ask = Callable[..., TrainJobRequest]


def _path(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path))


class Data(Contract):
    """Initializers fetch before training starts, and the same source once."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        """A folder with three files, one of them further down."""
        folder = tmp_path / "größere Daten"
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "train.csv").write_text("1,2", encoding="utf-8")
        (folder / "notes.txt").write_text("for people", encoding="utf-8")
        (folder / "deep" / "er" / "test.csv").write_text("3,4", encoding="utf-8")
        return folder

    @where(reads_this_machine=True)
    def test_a_folder_lies_where_training_looks_for_the_dataset(
        self, client: TrainerClient, ask: Ask, source: Path
    ) -> None:
        fetch = Initializer(dataset=FileDatasetInitializer(source.as_uri()))
        outcome = client.wait(client.submit(ask(reads, {"role": "dataset"}, initializer=fetch)))
        assert outcome.result == {"deep/er/test.csv": "3,4", "notes.txt": "for people", "train.csv": "1,2"}
        assert [step.name for step in client.get_job("job").steps] == ["dataset-initializer", "node-0"]

    @where(reads_this_machine=True)
    def test_links_in_a_source_are_followed(self, client: TrainerClient, ask: Ask, source: Path) -> None:
        folder = source.with_name("links")
        folder.mkdir()
        (folder / "file.csv").symlink_to(source / "train.csv")
        (folder / "folder").symlink_to(source / "deep")
        (folder / "round").symlink_to(folder)
        fetch = Initializer(dataset=FileDatasetInitializer(folder.as_uri()))
        outcome = client.wait(client.submit(ask(reads, {"role": "dataset"}, initializer=fetch)))
        assert outcome.result == {"file.csv": "1,2", "folder/er/test.csv": "3,4"}

    @where(reads_this_machine=True)
    def test_a_single_file_lies_in_the_folder_of_the_model(self, client: TrainerClient, ask: Ask, source: Path) -> None:
        fetch = Initializer(model=FileModelInitializer((source / "train.csv").as_uri()))
        outcome = client.wait(client.submit(ask(reads, {"role": "model"}, initializer=fetch)))
        assert outcome.result == {"train.csv": "1,2"}

    @where(reads_this_machine=True)
    def test_ignored_files_are_left_out(self, client: TrainerClient, ask: Ask, source: Path) -> None:
        for name in ("kept.bin", "deep/kept.bin", "deep/er/left-out.bin"):
            (source / name).write_text("x", encoding="utf-8")
        patterns = ["*.txt", "deep/er/l*", "t*.csv"]
        fetch = Initializer(dataset=FileDatasetInitializer(source.as_uri(), ignore_patterns=patterns))
        outcome = client.wait(client.submit(ask(reads, {"role": "dataset"}, initializer=fetch)))
        assert set(outcome.result) == {"kept.bin", "deep/kept.bin"}

    @pytest.mark.parametrize("link", [True, False], ids=["linked", "copied"])
    @where(reads_this_machine=True)
    def test_a_link_shows_what_the_source_holds_now_and_a_copy_what_it_held(
        self, client: TrainerClient, ask: Ask, source: Path, link: bool
    ) -> None:
        client.initialize(Initializer(dataset=FileDatasetInitializer(source.as_uri(), link=link)), [Name("job")])
        fetched = _path(client.wait("job").artifacts["dataset"]) / "train.csv"
        (source / "train.csv").write_text("changed", encoding="utf-8")
        assert fetched.read_text(encoding="utf-8") == {True: "changed", False: "1,2"}[link]

    @where(reads_this_machine=True)
    def test_a_job_that_only_initializes_says_where_the_data_lies(
        self, client: TrainerClient, ask: Ask, source: Path
    ) -> None:
        dataset, model = FileDatasetInitializer(source.as_uri()), FileModelInitializer((source / "train.csv").as_uri())
        outcome = client.wait(client.initialize(Initializer(dataset=dataset, model=model), [Name("fetch")]))
        assert outcome.result == outcome.artifacts
        assert (_path(outcome.result["dataset"]) / "train.csv").read_text(encoding="utf-8") == "1,2"
        assert (_path(outcome.result["model"]) / "train.csv").read_text(encoding="utf-8") == "1,2"
        assert client.get_job("fetch").num_nodes == 0

    @where(reads_this_machine=True)
    def test_what_was_fetched_once_can_be_trained_on_many_times(
        self, client: TrainerClient, ask: Ask, source: Path
    ) -> None:
        fetched = client.wait(client.initialize(Initializer(dataset=FileDatasetInitializer(source.as_uri()))))
        again = Initializer(dataset=FileDatasetInitializer(fetched.result["dataset"], link=True))
        outcomes = [
            client.wait(client.submit(ask(reads, {"role": "dataset"}, initializer=again, name=name)))
            for name in ("one", "two")
        ]
        assert [outcome.result["train.csv"] for outcome in outcomes] == ["1,2", "1,2"]

    @where(reads_this_machine=True)
    def test_the_same_source_is_fetched_once(self, client: TrainerClient, ask: Ask, source: Path) -> None:
        fetch = Initializer(dataset=FileDatasetInitializer(source.as_uri()))
        places = [client.wait(client.initialize(fetch, [Name(name)])).result["dataset"] for name in ("one", "two")]
        assert places[0] == places[1]
        assert "found in" in next(client.get_job_logs("two", step="dataset-initializer"))

    @where(reads_this_machine=True)
    def test_a_source_that_has_changed_is_fetched_anew(self, client: TrainerClient, ask: Ask, source: Path) -> None:
        fetch = Initializer(dataset=FileDatasetInitializer(source.as_uri()))
        client.wait(client.initialize(fetch, [Name("one")]))
        (source / "train.csv").write_text("5,6,7", encoding="utf-8")
        request = ask(reads, {"role": "dataset"}, initializer=fetch, name="two")
        assert client.wait(client.submit(request)).result["train.csv"] == "5,6,7"
