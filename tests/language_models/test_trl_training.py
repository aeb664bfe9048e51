"""Trainings with the real TRL on the local backend: every method, several nodes, a kill and a resume."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-trl" / "bin" / "python"
SCENE = Path(__file__).with_name("trl_scene.py")

pytestmark = [
    pytest.mark.slow,
    # A training takes 12 s on an idle machine.
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON.exists(), reason="TRL is not installed: make test-trl"),
]


def run_scene(deed, folder, settings=None):
    done = subprocess.run(
        [PYTHON, SCENE, deed, folder, json.dumps(settings or {})],
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]) if deed != "make" else None


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder with a model and data."""
    folder = tmp_path_factory.mktemp("tiny")
    run_scene("make", folder)
    return folder


@pytest.mark.parametrize("method", ["sft", "dpo", "grpo", "kto", "reward"])
def test_each_method_trains_with_two_processes_and_leaves_a_model(tiny, method):
    found = run_scene("train", tiny, {"method": method, "max_steps": 2})

    assert (found["status"], found["reason"]) == ("Complete", "")
    assert found["progress"] == [2, 2]
    assert {"loss", "train_loss"} <= found["metrics"].keys()
    assert {"README.md", "tokenizer.json"} <= {*found["files"]["model"]}
    assert not [name for name in found["files"]["model"] if name.startswith("checkpoint-")]
    assert f"| method | {method} |" in found["card"]


def test_sft_on_two_nodes_evaluates_and_leaves_an_adapter_and_the_merged_model(tiny):
    settings = {"method": "sft", "num_train_epochs": 1, "num_nodes": 2, "num_proc_per_node": 1}
    found = run_scene("train", tiny, {**settings, "per_device_train_batch_size": 16, "dataset": None})

    assert (found["status"], found["progress"]) == ("Complete", [2, 2])
    assert "eval_loss" in found["metrics"]
    load = "import sys; from transformers import AutoModelForCausalLM as M; M.from_pretrained(sys.argv[1])"
    assert "adapter_config.json" in found["files"]["model"]
    subprocess.run([PYTHON, "-c", load, found["folders"]["merged"]], check=True, timeout=300)


@pytest.mark.parametrize("method", ["sft", "grpo"])
def test_a_killed_training_resumes_with_the_weights_of_an_undisturbed_one(tmp_path, tiny, method):
    for name in ("model", method):
        (tmp_path / name).symlink_to(tiny / name)
    found = run_scene("resume", tmp_path, {"method": method})

    assert found["killed"] == [True, "Failed"]
    assert found["statuses"] == ["Complete", "Complete"]
    assert found["resumed"]
    resumed, undisturbed = found["weights"]
    assert resumed == undisturbed != {}


def test_a_dataset_without_the_columns_of_the_method_fails_with_what_it_has(tiny):
    found = run_scene("train", tiny, {"method": "dpo", "data": "sft", "max_steps": 2})

    assert found["status"] == "Failed"
    assert (
        "the dataset has the columns completion, prompt in test.jsonl, and dpo needs chosen with rejected"
        in (found["reason"])
    )


def test_the_program_of_the_guide_trains(tmp_path):
    page = (ROOT / "docs" / "guides" / "post-training.md").read_text()
    train, make = (part.split("```")[0].replace("/models", str(tmp_path)) for part in page.split("```python\n")[1:3])
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    (tmp_path / "posttrain.py").write_text(train)
    for program in (["-c", make], ["posttrain.py"]):
        done = subprocess.run(
            [PYTHON, *program], cwd=tmp_path, env=environ, stdout=subprocess.PIPE, check=True, timeout=600
        )
    loss, model = done.stdout.decode().splitlines()[-1].split()
    assert float(loss) > 0
    assert model.endswith("/output/model")
