"""The snippets that fetch from the HuggingFace Hub, run against its stand-in."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from blocks import ROOT, blocks
from fake_hub import Hub

from trainer_core import LocalProcessBackendConfig, TrainerClient


@pytest.fixture
def hub():
    with Hub() as hub:
        hub.publish("tatsu-lab/alpaca", {"README.md": b"", "train.parquet": b"1,2"}, kind="dataset")
        hub.publish("HuggingFaceTB/SmolLM2-135M", {"config.json": b"{}", "model.safetensors": b"0", "model.bin": b"0"})
        yield hub


def test_the_guide_fetches_and_trains(hub, tmp_path):
    page = blocks(ROOT / "docs" / "guides" / "initializers.md")
    (script,) = [block for block in page if block.file == "hub.py"]
    (tmp_path / "hub.py").write_text(script.text)
    home = tmp_path / "home"
    env = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "hf"), "TRAINJOB_HOME": str(home)}

    done = subprocess.run(
        [sys.executable, "hub.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False
    )

    client = TrainerClient(LocalProcessBackendConfig(home=home))
    for job in client.list_jobs():
        client.delete_job(job.name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['config.json', 'model.safetensors', 'train.parquet']"
