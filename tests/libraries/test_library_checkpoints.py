"""The guide "Long training": transformers and Lightning stop with a checkpoint and resume from it, as it describes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from trainer_core.node import env
from trainer_core.packaging import serializer

PYTHON = Path(__file__).parents[2] / ".venv-libraries" / "bin" / "python"

pytestmark = [
    pytest.mark.slow,
    # transformers and Lightning are imported several times.
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON.exists(), reason="transformers and Lightning are not installed: make test-libraries"),
]

#: Of both programs: a signal after a step if there is one; the steps that were done, and the sum of the weights.
COMMON = """
import os, shutil, signal, sys
from pathlib import Path
import torch
from trainer_core import checkpoint_path, checkpoints

strike, steps = int(sys.argv[1]), []
torch.manual_seed(3)

def strike_after(step):
    steps.append(step)
    if step == strike:
        os.kill(os.getpid(), signal.SIGTERM)

def tell(model):
    total = sum(float(weight.double().sum()) for weight in model.parameters())
    print("steps", steps[0], "to", steps[-1], flush=True)
    print("weights", repr(total), flush=True)
"""

TRANSFORMERS = (
    COMMON
    + """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

class SaveCheckpoints(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        strike_after(state.global_step)
        control.should_save = checkpoints().due(state.global_step)

    def on_save(self, args, state, control, **kwargs):
        with checkpoints().save(state.global_step) as folder:
            if checkpoints().rank == 0:
                saved = Path(args.output_dir, f"checkpoint-{state.global_step}")
                shutil.copytree(saved, folder, dirs_exist_ok=True)

tokens = torch.randint(0, 64, (64, 8), generator=torch.Generator().manual_seed(5))
data = [{"input_ids": row, "labels": row} for row in tokens]
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=8, n_embd=16, n_layer=1, n_head=2))
arguments = TrainingArguments(
    output_dir="output", save_strategy="no", save_total_limit=1, max_steps=24, per_device_train_batch_size=4,
    report_to=[], use_cpu=True, disable_tqdm=True, seed=3,
)
trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[SaveCheckpoints()])
trainer.train(resume_from_checkpoint=checkpoint_path() and str(checkpoint_path()))
tell(trainer.model)
"""
)

LIGHTNING = (
    COMMON
    + """
import lightning

class SaveCheckpoints(lightning.Callback):
    def on_train_batch_end(self, trainer, module, *args, **kwargs):
        store = checkpoints()
        strike_after(trainer.global_step)
        if store.due(trainer.global_step):
            with store.save(trainer.global_step) as folder:
                trainer.save_checkpoint(folder / "lightning.ckpt")

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, number):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

rows = torch.rand(8, 4, generator=torch.Generator().manual_seed(5))
# One batch is an epoch: in the middle of one, Lightning resumes with its first data.
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=8)
model = Model()
trainer = lightning.Trainer(
    callbacks=[SaveCheckpoints()], enable_checkpointing=False, max_steps=24, max_epochs=-1, accelerator="cpu",
    logger=False, enable_progress_bar=False, enable_model_summary=False,
)
last = checkpoints().latest()
trainer.fit(model, data, ckpt_path=last.path / "lightning.ckpt" if last else None)
tell(model)
"""
)


@pytest.fixture
def run(tmp_path):
    """Run a training as a node does; return its exit code and the lines that it printed of itself."""
    serializer.ship(tmp_path / "shipped")

    def run(program, root, strike=0):
        folder = tmp_path / f"work-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(tmp_path / "shipped"),
            env.CHECKPOINT_PATH: str(tmp_path / root / "train" / "g-0"),
            env.CHECKPOINTS: json.dumps({"grace": 240, "every_steps": 10}),
        }
        done = subprocess.run(
            [PYTHON, "-c", program, str(strike)],
            env=variables,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith(("steps", "weights"))]
        assert done.returncode in (0, 128 + signal.SIGTERM), done.stdout + done.stderr
        return done.returncode, lines

    return run


@pytest.mark.parametrize("program", [TRANSFORMERS, LIGHTNING], ids=["transformers", "lightning"])
def test_a_training_that_sigterm_stopped_resumes_and_ends_with_the_weights_of_an_undisturbed_one(run, program):
    assert run(program, "disturbed", strike=13) == (143, [])
    _, (resumed, weights) = run(program, "disturbed")
    _, (undisturbed, expected) = run(program, "undisturbed")

    assert (resumed, undisturbed) == ("steps 14 to 24", "steps 1 to 24")
    assert weights == expected
