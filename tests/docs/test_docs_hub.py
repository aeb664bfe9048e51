"""The snippets that fetch from the HuggingFace Hub, run against its stand-in."""

from __future__ import annotations

import subprocess
import sys

import pytest
from blocks import ROOT, blocks
from fake_hub import in_place_of_the_hub


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with in_place_of_the_hub(monkeypatch, tmp_path) as hub:
        hub.publish("tatsu-lab/alpaca", {"README.md": b"", "train.parquet": b"1,2"}, kind="dataset")
        hub.publish("HuggingFaceTB/SmolLM2-135M", {"config.json": b"{}", "model.safetensors": b"0", "model.bin": b"0"})
        yield hub


@pytest.mark.slow
@pytest.mark.usefixtures("hub")
def test_the_guide_fetches_and_trains(folder):
    page = blocks(ROOT / "docs" / "guides" / "initializers.md")
    (script,) = [block for block in page if block.file == "hub.py"]
    (folder / "hub.py").write_text(script.text)

    done = subprocess.run([sys.executable, "hub.py"], cwd=folder, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['config.json', 'model.safetensors', 'train.parquet']"
