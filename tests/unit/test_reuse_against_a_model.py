"""Random sequences of trainings with Reuse, against a dictionary that knows the bytes of all inputs and artifacts."""

from __future__ import annotations

import json
import os
import random
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

import pytest
from file_times import wait_for_next_time
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from trainer_core import CustomTrainer, LocalProcessBackendConfig, Reuse, TrainerClient
from trainer_core.client import trainer_client
from trainer_core.definition.initializers import initializer_from_dict
from trainer_core.fetch import cache, local_files
from trainer_core.fetch.local_files import LocalSource, parse_local_path
from trainer_core.fetch.source import FetchProgress
from trainer_core.model.jobs import build_complete_outcome
from trainer_core.model.request import Owner
from trainer_core.node import termination
from trainer_core.testing.recorder import JobRecorder, build_recording_backend, fails

STEPS = [*["train"] * 8, *["edit_data", "disturb"] * 3, "edit_code", "edit_args", "edit_env", "move", "retry"]
STEPS += ["overwrite", "restore", "delete_artifact", "delete_job"]


def train_a(rate: int, folder: str) -> None:
    """Train."""


def train_b(rate: int, folder: str) -> None:
    """Train otherwise."""


#: Each input has two values, so that earlier ones come back.
OTHER = {"a": "b", "b": "a", 1: 5, 5: 1, "0": "1", "1": "0"}


class Inputs(NamedTuple):
    """All that decides a result."""

    code: str
    rate: int
    seed: str
    data: str
    #: Where and how often large data was written: it is the same only where nothing has written it again.
    written: str = ""

    @property
    def trained(self) -> list[object]:
        """What is in the result and in the weights."""
        return [self.code, self.rate, self.seed, self.data]


class Known(NamedTuple):
    """A complete TrainJob, by what it really trained with, and the artifact that it left."""

    asked: Inputs
    trained: Inputs
    folder: str


class Play:
    """One sequence: the product, and the model of it."""

    def __init__(self, folder: Path, client: TrainerClient, seed: int, is_large: bool) -> None:
        self.folder, self.client, self.recorder = folder, client, client.backend.recorder
        self.random = random.Random(seed)  # noqa: S311 -- no secret
        self.is_large, self.writes = is_large, 0
        self.inputs = Inputs("a", 1, "1", "0")
        self.place, self.model_folder, self.runs = "x", "m0", 0
        self.known: list[tuple[str, Known]] = []
        self.disturbing: str | None = None
        self.backup: dict[str, bytes] = {}
        self.write_data("0")

    @property
    def data_file(self) -> Path:
        return self.folder / self.place / "data.csv"

    def write_data(self, data: str) -> None:
        """Write data of the same size and time as any other."""
        self.data_file.parent.mkdir(exist_ok=True)
        if self.data_file.exists():
            wait_for_next_time(self.data_file, self.folder / "probe")
        self.data_file.write_text(data)
        os.utime(self.data_file, ns=(10**18, 10**18))
        self.writes += 1
        self.inputs = self.inputs._replace(data=data, written=f"{self.place}{self.writes}" * self.is_large)

    def run(self, job) -> object:
        """What a TrainJob does: fetch, train, write the model, and end."""
        if self.disturbing is not None:
            self.write_data(self.disturbing)
        uri = job.request.work.initializer.dataset.storage_uri
        source = LocalSource(parse_local_path(uri))
        fetched, _ = cache.fetch_to_cache(source, self.folder / "cache", FetchProgress())
        trainer = job.request.work.trainer
        trained = [trainer.code.entry[-1], job.args["rate"], trainer.literal_env["SEED"]]
        trained.append((fetched / "data.csv").read_text())
        weights = json.dumps(trained)
        model = self.folder / job.args["folder"]
        model.mkdir(exist_ok=True)
        (model / "weights.bin").write_text(weights)
        os.utime(model / "weights.bin", ns=(10**18, 10**18))
        result = {"trained": trained, "artifacts": {"model": model.as_uri()}}
        record = termination.parse_record(
            termination.encode_result(termination.add_stamps(termination.result_record(result)))
        )
        at = datetime.now(timezone.utc).isoformat()
        fetched_uris = {"dataset": fetched.as_uri()}
        return build_complete_outcome(job.ref, record, started_at=at, finished_at=at, fetched=fetched_uris)

    def ask(self):
        trainer = CustomTrainer(
            {"a": train_a, "b": train_b}[self.inputs.code],
            {"rate": self.inputs.rate, "folder": self.model_folder},
            env={"SEED": self.inputs.seed},
        )
        self.runs += 1
        return self.client.build_request(
            trainer=trainer,
            initializer=initializer_from_dict({"dataset": self.data_file.parent.as_uri()}),
            options=[Reuse("30d")],
            owner=Owner(key=f"dag/{self.runs}/train", slug="train", generation="1"),
        )

    def find_reusable(self) -> set[str]:
        """Return the jobs whose result is the one that a training would have now."""
        return {
            uid
            for uid, job in self.known
            if job.asked == job.trained == self.inputs
            and job.folder == self.model_folder
            and self.read_weights(job.folder) == job.trained.trained
        }

    def read_weights(self, folder: str) -> list | None:
        path = self.folder / folder / "weights.bin"
        return json.loads(path.read_text()) if path.exists() else None

    def train(self, disturbing: str | None = None) -> None:
        reusable, asked = self.find_reusable(), self.inputs
        self.disturbing = disturbing
        ref = self.client.submit(self.ask())
        outcome = self.client.wait(ref)
        self.disturbing = None
        assert ref.reused == bool(reusable)
        assert not ref.reused or ref.uid in reusable
        assert self.read_weights(self.model_folder) == outcome.result["trained"]
        assert outcome.result["trained"] == self.inputs.trained
        if not ref.reused:
            self.known.append((ref.uid, Known(asked, self.inputs, self.model_folder)))

    def disturb(self) -> None:
        """Data is written after the submit and before the fetch."""
        self.train(disturbing=OTHER[self.inputs.data])

    def edit_code(self) -> None:
        self.inputs = self.inputs._replace(code=OTHER[self.inputs.code])

    def edit_args(self) -> None:
        self.inputs = self.inputs._replace(rate=OTHER[self.inputs.rate])

    def edit_env(self) -> None:
        self.inputs = self.inputs._replace(seed=OTHER[self.inputs.seed])

    def edit_data(self) -> None:
        self.write_data(OTHER[self.inputs.data])

    def move(self) -> None:
        """The data is copied to another place, or models are written to another one."""
        self.place, self.model_folder = self.random.choice("xy"), self.random.choice(["m0", "m1"])
        self.write_data(self.inputs.data)

    def delete_artifact(self) -> None:
        shutil.rmtree(self.folder / self.model_folder, ignore_errors=True)

    def retry(self) -> None:
        """The first attempt fails; the second one trains or takes nothing of others."""
        reusable, asked = self.find_reusable(), self.inputs
        self.recorder.script(fails("NodeLost"), self.run)
        request = self.ask()
        first = self.client.submit(request)
        self.client.wait(first, restarts=False)
        second = self.client.submit(request)
        self.client.wait(second)
        self.recorder.script(self.run)
        assert first.reused == bool(reusable)
        if not first.reused:
            self.known.append((second.uid, Known(asked, asked, self.model_folder)))

    def overwrite(self) -> None:
        """A training without the option writes its model to the same folder, in the same size."""
        path = self.folder / self.model_folder / "weights.bin"
        if path.exists():
            self.backup[self.model_folder] = path.read_bytes()
            path.write_text(json.dumps([self.random.choice("ab"), 9, "1", "0"]))
            os.utime(path, ns=(10**18, 10**18))

    def restore(self) -> None:
        """A person restores what was overwritten."""
        if self.model_folder in self.backup:
            path = self.folder / self.model_folder / "weights.bin"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(self.backup[self.model_folder])

    def delete_job(self) -> None:
        if self.known:
            uid, _ = self.known.pop(self.random.randrange(len(self.known)))
            (job,) = (each for each in self.recorder.jobs if each.ref.uid == uid)
            self.client.delete_job(job.ref)


@pytest.fixture
def build_client(monkeypatch):
    """Builds a client without any job."""

    def build_client():
        recorder = JobRecorder()
        monkeypatch.setattr(trainer_client, "backend_class", lambda name: build_recording_backend(name, recorder))
        return TrainerClient(LocalProcessBackendConfig())

    return build_client


@pytest.mark.parametrize("hashed", [local_files._HASHED_BYTES, 0], ids=["small", "large"])
@given(seed=st.integers(0, 2**32), steps=st.lists(st.sampled_from(STEPS), min_size=30, max_size=40))
@settings(
    derandomize=True,
    max_examples=int(os.environ.get("TRAINJOB_ATTACK_EXAMPLES", "8")),
    deadline=None,
    phases=[Phase.generate],  # The first sequence is short enough to read, and a shorter one takes minutes.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
def test_a_result_is_reused_only_if_the_same_bytes_were_trained_on_and_the_artifact_is_the_one(
    tmp_path_factory, build_client, monkeypatch, hashed, seed, steps
):
    monkeypatch.setattr(local_files, "_HASHED_BYTES", hashed)
    play = Play(tmp_path_factory.mktemp("play"), build_client(), seed, is_large=not hashed)
    play.recorder.script(play.run)
    for step in steps:
        getattr(play, step)()
