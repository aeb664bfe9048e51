"""The training definition of the examples, trained for real on processes of this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from optional_packages import requires

from trainer_core import LocalProcessBackendConfig, TrainerClient

pytestmark = requires("torch", "sklearn")

DAGS = Path(__file__).parents[2] / "dags"


@pytest.fixture
def digits(monkeypatch):
    monkeypatch.syspath_prepend(str(DAGS))
    monkeypatch.delitem(sys.modules, "digits", raising=False)
    import digits

    yield digits
    sys.modules.pop("digits", None)


@pytest.fixture
def client(tmp_path):
    client = TrainerClient(LocalProcessBackendConfig(home=tmp_path / "home"))
    yield client
    for job in client.list_jobs():
        client.delete_job(job.name)


@pytest.mark.slow
@pytest.mark.timeout(900)  # a cluster may pull images and add nodes
def test_two_nodes_train_one_model_and_texts_arrive_as_numbers(digits, client, tmp_path):
    data = digits.write_dataset(tmp_path / "data").parent
    trainer = digits.digits_trainer("8", "0.005", str(data), num_nodes="2", num_proc_per_node="1")

    outcome = client.wait(client.submit(client.build_request(trainer=trainer)), timeout=300)

    assert outcome.status == "Complete", outcome.diagnosis
    assert outcome.result["accuracy"] >= 0.95
    assert (outcome.result["epochs"], outcome.result["world_size"]) == (8, 2)
    import torch

    model = torch.load(urlsplit(outcome.artifacts["model"]).path, weights_only=True)
    assert all(tensor.isfinite().all() for tensor in model.values())


def test_the_dataset_is_the_same_each_time_and_all_that_lies_in_its_folder(digits, tmp_path):
    first = digits.write_dataset(tmp_path / "data").read_bytes()

    again = digits.write_dataset(tmp_path / "data")

    assert again.read_bytes() == first
    assert list(again.parent.iterdir()) == [again]


def test_nothing_to_train_is_refused_in_a_line(digits):
    with pytest.raises(ValueError, match=r"^epochs must be at least 1, got 0$"):
        digits.train_digits(epochs=0)
