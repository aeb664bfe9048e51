"""The guide "Progress without code": transformers and Lightning report their progress as it describes."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from trainer_core.model.logs import parse_progress
from trainer_core.packaging import serializer

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-libraries" / "bin" / "python"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON.exists(), reason="transformers and Lightning are not installed: make test-libraries"),
]


@pytest.fixture
def run(tmp_path):
    """Run a program in an environment with the libraries; return the lines that it printed."""

    def run(*command, **variables):
        environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [PYTHON, *command],
            env={**environ, **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return run


@pytest.fixture
def run_node(run, tmp_path):
    """Run a function as a node does; return its progress."""

    def run_node(function, **variables):
        bootstrap = serializer.ship(tmp_path / "shipped")
        (tmp_path / "payload.json").write_text(serializer.payload(serializer.package(function)))
        paths = {
            "TRAINJOB_PAYLOAD": str(tmp_path / "payload.json"),
            "TRAINJOB_TERMINATION_LOG": str(tmp_path / "termination.json"),
        }
        lines = run(bootstrap, **paths, **variables)
        return [progress for line in lines if (progress := parse_progress(line))]

    return run_node


def train_with_lightning():
    import lightning
    import torch

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, number):
            loss = self.layer(batch[0]).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.rand(32, 4)), batch_size=8)
    trainer = lightning.Trainer(
        max_epochs=6, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False
    )
    trainer.fit(Model(), data)


def find_program(begin):
    """Return the program of the guide that begins with a line."""
    guide = (ROOT / "docs" / "guides" / "results.md").read_text(encoding="utf-8")
    (program,) = re.findall(rf"```python\n({begin}.*?)```", guide, re.DOTALL)
    return program


@pytest.mark.parametrize("folder", ["", "transformers-5.4"])
def test_the_example_of_the_guide_reports_the_steps_and_the_loss_of_transformers(run, tmp_path, folder):
    (tmp_path / "finetune.py").write_text(find_program("# finetune"))

    other = str(PYTHON.parents[1] / folder) if folder else ""
    lines = run("finetune.py", TRAINJOB_HOME=str(tmp_path / "state"), PYTHONPATH=other)

    *_, last, loss = lines
    assert last.startswith("100% (20/20) loss=")
    assert float(loss) > 0


def test_lightning_reports_steps_and_metrics(run_node):
    first, *_, last = run_node(train_with_lightning)
    assert (first["step"], first["total"]) == (1, 24)
    assert (last["step"], last["total"]) == (24, 24)
    assert 0 <= last["metrics"]["loss"] < 10


def test_no_library_reports_once_the_server_is_turned_off(run_node):
    assert run_node(train_with_lightning, TRAINJOB_STATUS_SERVER="0") == []


#: Library: what it is imported as, a training, the last step and a metric that it reports.
TRAININGS = {
    "LightGBM": (
        "lightgbm",
        """
table = lightgbm.Dataset(data, labels)
lightgbm.train({"metric": "l2", "verbose": -1}, table, 5, [table], callbacks=[report])
""",
        {"step": 5, "total": 5},
        "training_l2",
    ),
    "XGBoost": (
        "xgboost",
        """
table = xgboost.DMatrix(data, labels)
xgboost.train({}, table, 5, evals=[(table, "train")], callbacks=[Report()], verbose_eval=False)
""",
        {"step": 5},
        "train_rmse",
    ),
    "Keras": (
        "keras",
        """
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(data, labels, epochs=10, callbacks=[report], verbose=0)
""",
        {"step": 10, "total": 10},
        "loss",
    ),
}


@pytest.mark.parametrize("library", TRAININGS)
def test_the_lines_of_the_guide_report_for_a_library_without_a_registry(run, tmp_path, library):
    module, train, counts, metric = TRAININGS[library]
    (lines,) = re.findall(rf"(# {library}.*?)(?:\n\n\n|\Z)", find_program("# LightGBM"), re.DOTALL)
    imports = f"import numpy, {module}\nfrom trainer_core import progress"
    data = "data = numpy.random.default_rng(0).random((64, 4))\nlabels = data[:, 0]"
    (tmp_path / "train.py").write_text("\n".join([imports, data, lines, train]))

    last = parse_progress(run("train.py", KERAS_BACKEND="torch", PYTHONPATH=str(ROOT))[-1])

    assert last.items() >= counts.items()
    assert last["metrics"][metric] >= 0
