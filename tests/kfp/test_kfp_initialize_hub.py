"""initialize_dataset and initialize_model on the local backend, from the stand-in of the HuggingFace Hub."""

from __future__ import annotations

import pytest
from fake_hub import TOKEN, in_place_of_the_hub

FILES = {"config.json": b"{}", "deep/notes.txt": b"text"}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with in_place_of_the_hub(monkeypatch, tmp_path) as hub:
        for kind in ("dataset", "model"):
            hub.publish("team/digits", FILES, kind=kind, private=True, readers={TOKEN})
        yield hub


@pytest.mark.parametrize("role", ["dataset", "model"])
def test_a_private_repository_becomes_the_artifact(task, hub, monkeypatch, role):
    # As kubernetes.use_secret_as_env puts it into the step.
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    fetching = task(f"initialize_{role}", storage_uri="hf://team/digits", ignore_patterns=["*.txt"])

    finished = fetching.run()

    assert finished.returncode == 0, finished.stderr
    found = fetching.artifact(role)
    assert [str(path.relative_to(found)) for path in found.rglob("*.*")] == ["config.json"]
    assert f"[{role}-initializer] {role}: hf://team/digits fetched into" in finished.stdout
    assert TOKEN not in finished.stderr + finished.stdout


def test_an_unavailable_repository_fails_the_step_in_one_line(task, hub):
    finished = task("initialize_dataset", storage_uri="hf://team/digits").run()

    assert finished.returncode != 0
    assert "it is private and needs an access_token" in finished.stderr.splitlines()[-1]
