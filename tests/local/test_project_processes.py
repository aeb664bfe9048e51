"""A project with torchrun: several nodes, and DataLoader workers that are started with spawn."""

from __future__ import annotations

from local_jobs import PATIENCE
from optional_packages import requires

from trainer_core import CustomTrainer

pytestmark = requires("torch")

TRAIN = """\
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from .samples import Squares


def main():
    dist.init_process_group("gloo")
    total = torch.zeros(1)
    if dist.get_rank() == 0:
        loader = DataLoader(Squares(4), num_workers=1, multiprocessing_context="spawn")
        total += sum(batch.item() for batch in loader)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total.item()
"""
SAMPLES = """\
from torch.utils.data import Dataset


class Squares(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return index * index
"""


def test_two_nodes_and_a_spawned_worker_import_from_the_project(client, tmp_path):
    package = tmp_path / "project" / "src" / "squares"
    package.mkdir(parents=True)
    for name, text in {"__init__.py": "", "train.py": TRAIN, "samples.py": SAMPLES}.items():
        (package / name).write_text(text)
    trainer = CustomTrainer("squares.train:main", code=tmp_path / "project", num_nodes=2)
    name = client.train(runtime="torch-distributed", trainer=trainer)
    outcome = client.wait(name, timeout=PATIENCE)
    assert (outcome.status, outcome.result) == ("Complete", 0 + 1 + 4 + 9)
