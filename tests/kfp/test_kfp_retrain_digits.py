"""The committed YAML of the example pipeline trains a real model, in two processes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kfp_driver import REPOSITORY
from optional_packages import requires

pytestmark = requires("torch", "sklearn")


@pytest.mark.deep
def test_the_committed_pipeline_trains_a_good_model_and_promotes_it(tmp_path, client):
    command = [sys.executable, str(REPOSITORY / "pipelines" / "retrain_digits.py"), "--run", "--root", str(tmp_path)]

    finished = subprocess.run([*command, "--epochs", "12"], capture_output=True, text=True, check=False, cwd=tmp_path)

    assert finished.returncode == 0, finished.stdout[-5000:] + finished.stderr[-2000:]
    shown = dict(re.findall(r"^(\w+) {2,}(.*)$", finished.stdout, flags=re.MULTILINE))
    promoted = json.loads((tmp_path / "registry" / "current.json").read_text())
    ref = client.get_job_ref(shown["TrainJob"])
    assert shown["status"] == "Complete"
    assert float(shown["accuracy"]) >= 0.95
    assert Path(shown["model"]).exists()
    assert promoted["version"] == ref.name
    assert client.get_job_request(ref).work.trainer.code.args["epochs"] == 12
