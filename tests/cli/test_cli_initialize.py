"""`trainjob initialize` and `trainjob wait`: progress, secrets and failures of a fetch."""

from __future__ import annotations

import pytest
from fake_hub import TOKEN, held, in_place_of_the_hub

from trainer_core import HuggingFaceDatasetInitializer, Initializer, LocalProcessBackendConfig, Name, TrainerClient

#: huggingface_hub writes 10 MiB at a time.
PIECE = 10 * 2**20
LARGE = bytes(2 * PIECE)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with in_place_of_the_hub(monkeypatch, tmp_path) as hub:
        hub.publish("org/data", {"train.bin": LARGE}, kind="dataset", private=True, readers={TOKEN})
        yield hub


@pytest.fixture
def client(trainjob):
    return TrainerClient(LocalProcessBackendConfig(home=trainjob.folder / "home"))


def test_wait_prints_the_progress_of_a_fetch(trainjob, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    pause = held("train.bin", after=PIECE + 1000)
    hub.faults.append(pause)
    trainjob("initialize", "--dataset", "hf://org/data", "--name", "fetch")

    with trainjob.start("wait", "fetch") as waiting:
        progress_line = next(line for line in waiting.stderr if "50%" in line)
        pause.gate.set()
        waiting.communicate()

    assert progress_line.startswith("fetch Running 50% files=0")
    assert waiting.returncode == 0


def test_no_file_of_the_job_contains_the_token(trainjob, hub, client):
    source = HuggingFaceDatasetInitializer("hf://org/data", access_token=TOKEN)

    done = client.wait(client.get_job_ref(client.initialize(Initializer(dataset=source), [Name("fetch")])), timeout=300)

    assert done.succeeded, done.diagnosis
    files = [path for path in (trainjob.folder / "home").rglob("*") if path.is_file()]
    assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []


def test_a_retryable_failure_is_reported_as_such(trainjob, hub, client, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")

    done = trainjob("initialize", "--dataset", "hf://org/data", "--name", "fetch", "--wait")

    assert done.returncode == 1
    assert "http://127.0.0.1:9 could not be read" in done.stderr
    assert "a retry can help" in done.stderr
