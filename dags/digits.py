"""The training definition of the examples: handwritten digits, a small network, two processes.

Airflow, KFP, the command and Python import it from here. The dataset, 1,797 scans, is part of scikit-learn; nothing is
downloaded.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from trainer_core import CustomTrainer

__all__ = ["digits_trainer", "train_digits", "write_dataset"]

DATASET_FILE = "digits.npz"


def write_dataset(folder: str | Path) -> Path:
    """Write the dataset into a folder; the file appears only when it is complete.

    Args:
        folder: Folder of the dataset; created if it does not exist.

    Returns:
        The file with the arrays ``train_x``, ``train_y``, ``test_x`` and ``test_y``; a fifth of the scans is for
        testing.
    """
    import numpy
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        (x / 16).astype("float32"), y.astype("int64"), test_size=0.2, stratify=y, random_state=0
    )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            numpy.savez_compressed(file, train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y)
        return Path(temporary).replace(folder / DATASET_FILE)
    finally:
        Path(temporary).unlink(missing_ok=True)


def train_digits(epochs: int = 20, learning_rate: float = 0.01, data: str = "") -> dict[str, Any]:
    """Train a small network with DistributedDataParallel. Runs in every process that torchrun starts.

    Args:
        epochs: Passes over the training scans.
        learning_rate: Learning rate of the Adam optimizer.
        data: Folder of the dataset; empty for the dataset of the initializer.

    Returns:
        Test accuracy, loss, and the URI of the model.

    Raises:
        ValueError: `epochs` is less than 1.
    """
    from pathlib import Path

    import numpy
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    from trainer_core import checkpoints, dataset_path, output_path, progress

    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, got {epochs}")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    arrays = numpy.load(Path(data or dataset_path()) / "digits.npz")
    train_x, train_y, test_x, test_y = (torch.from_numpy(arrays[n]) for n in ("train_x", "train_y", "test_x", "test_y"))

    network = torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 8, 8)),
        torch.nn.Conv2d(1, 16, kernel_size=3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, kernel_size=3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 4 * 4, 10),
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
    loss, accuracy = torch.zeros(()), 0.0
    # The sampler's order depends on the epoch alone, and nothing else is random: this is the whole state.
    store = checkpoints()
    last = store.latest()
    if last is not None:
        state = torch.load(last.path / "state.pt", weights_only=True)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        loss, accuracy = state["loss"], state["accuracy"]
    model = DistributedDataParallel(network)
    loss_function = torch.nn.CrossEntropyLoss()
    scans = TensorDataset(train_x, train_y)
    sampler = DistributedSampler(scans, seed=0)
    loader = DataLoader(scans, batch_size=32, sampler=sampler)

    for epoch in range(last.step if last else 0, epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_function(model(x), y)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = (network(test_x).argmax(dim=1) == test_y).float().mean().item()
        progress(step=epoch + 1, total=epochs, metrics={"loss": loss.item(), "accuracy": accuracy})
        if store.due(epoch + 1):
            with store.save(epoch + 1, {"accuracy": accuracy}) as folder:
                if store.rank == 0:
                    state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save({**state, "loss": loss.detach(), "accuracy": accuracy}, folder / "state.pt")

    path = output_path() / "digits.pt"
    if dist.get_rank() == 0:
        torch.save(network.state_dict(), path)
        print(f"test accuracy {accuracy:.3f} after {epochs} epochs on {dist.get_world_size()} processes")
    world_size = dist.get_world_size()
    dist.destroy_process_group()
    return {
        "accuracy": accuracy,
        "loss": loss.item(),
        "epochs": epochs,
        "resumed_from": last.step if last else 0,
        "world_size": world_size,
        "artifacts": {"model": path.as_uri()},
    }


def digits_trainer(
    epochs: int | str = 20,
    learning_rate: float | str = 0.01,
    data: str = "",
    num_nodes: int | str = 1,
    num_proc_per_node: int | str = 2,
) -> CustomTrainer:
    """Return the training definition. Numbers can be strings with templates.

    Args:
        epochs: Passes over the training scans.
        learning_rate: Learning rate of the optimizer.
        data: Folder of the dataset; empty for the dataset of the initializer.
        num_nodes: Number of nodes.
        num_proc_per_node: Number of processes on each node.
    """
    return CustomTrainer(
        func=train_digits,
        func_args={"epochs": epochs, "learning_rate": learning_rate, "data": data},
        num_nodes=num_nodes,  # type: ignore[arg-type]  # can be a template, checked after rendering
        num_proc_per_node=num_proc_per_node,  # type: ignore[arg-type]
    )
