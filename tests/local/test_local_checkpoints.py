"""Checkpoints of local jobs. Kills at random instants are an attack: `interrupt_trainings` in tests/attack."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from checkpointed_walk import kill_all, list_pids, submit, wait_for_step
from nested_training import train_in_a_child

from trainer_core import Checkpoints, CustomTrainer, LocalProcessBackendConfig, Owner, TrainerClient
from trainer_core.testing.case import wait_until_suspended

pytestmark = pytest.mark.slow


@pytest.fixture
def client(tmp_path):
    client = TrainerClient(LocalProcessBackendConfig(home=tmp_path / "home"))
    yield client
    for job in client.list_jobs():
        client.delete_job(job.name)


def test_a_job_may_use_its_grace_to_save(client):
    """Longer than the three seconds that other jobs have."""

    def save_slowly():
        import time

        from trainer_core import checkpoints, progress

        store = checkpoints()
        last = store.latest()
        if last:
            return last.step
        step = 0
        while True:
            step += 1
            progress(step=step)
            time.sleep(0.01)
            if store.due(step):
                with store.save(step) as folder:
                    time.sleep(3.5)
                    (folder / "state").touch()

    request = client.build_request(
        runtime="python", trainer=CustomTrainer(func=save_slowly), options=[Checkpoints(grace=60)]
    )
    ref = client.submit(request)
    wait_for_step(client, ref, least=1)
    client.suspend(ref)
    # A resume that comes before the supervisor has seen the suspend withdraws it.
    wait_until_suspended(client, ref.name)
    client.resume(ref)
    assert client.wait(ref).result > 0


def return_when_stopped(finish):
    """Save a checkpoint, return after SIGTERM; a start that finds a checkpoint fails, as it should not be there."""
    import time

    from trainer_core import checkpoints, progress

    store = checkpoints()
    with store.save(1) as folder:
        (folder / "state").touch()
    progress(step=1)
    while not store.stopping:
        time.sleep(0.01)
    return finish


def test_a_function_that_returns_while_its_job_is_suspended_has_its_result(client):
    trainer = CustomTrainer(func=return_when_stopped, func_args={"finish": "returned"})
    options = [Checkpoints(grace=60, after="none")]
    ref = client.submit(client.build_request(runtime="python", trainer=trainer, options=options))
    wait_for_step(client, ref, least=1)
    client.suspend(ref)
    outcome = client.wait(ref)
    assert (outcome.status, outcome.result) == ("Complete", "returned")


def load_with_workers(resumed):
    """Train with batches from two worker processes, until a file appears; return the step that was resumed from."""
    import time
    from pathlib import Path

    import torch

    from trainer_core import checkpoints, progress

    store, step = checkpoints(), 0
    last = store.latest()
    if Path(resumed).exists():
        return last and last.step
    loader = torch.utils.data.DataLoader(torch.arange(1_000_000), batch_size=1, num_workers=2)
    for step, _ in enumerate(loader, 1):
        progress(step=step)
        time.sleep(0.005)
        if store.due(step):
            with store.save(step) as folder:
                # The workers are needed until the end of the save.
                time.sleep(0.5)
                torch.save(step, folder / f"rank-{store.rank}.pt")
    return 0


def test_a_rank_of_torchrun_whose_data_loader_has_workers_saves_when_the_job_is_suspended(client, tmp_path):
    trainer = CustomTrainer(func=load_with_workers, func_args={"resumed": str(tmp_path / "resumed")})
    request = client.build_request(
        runtime="torch-distributed", trainer=trainer, options=[Checkpoints(every_steps=100_000, grace=60)]
    )
    ref = client.submit(request)
    wait_for_step(client, ref, least=20)
    client.suspend(ref)
    wait_until_suspended(client, ref.name)
    (tmp_path / "resumed").touch()
    client.resume(ref)
    assert (client.wait(ref).result or 0) >= 20


def test_a_child_that_trains_saves_when_the_job_is_suspended(client, tmp_path):
    """SIGTERM ends its parents at once."""
    trainer = CustomTrainer(func=train_in_a_child, func_args={"resumed": str(tmp_path / "resumed")})
    request = client.build_request(
        runtime="python", trainer=trainer, options=[Checkpoints(every_steps=100_000, grace=60)]
    )
    ref = client.submit(request)
    wait_for_step(client, ref, least=20)
    client.suspend(ref)
    wait_until_suspended(client, ref.name)
    assert client.backend.list_processes(ref) == []
    (tmp_path / "resumed").touch()
    client.resume(ref)
    assert (client.wait(ref).result or 0) >= 20


def test_a_child_that_trains_saves_when_its_parent_is_killed(client, tmp_path):
    trainer = CustomTrainer(func=train_in_a_child, func_args={"resumed": str(tmp_path / "resumed")})
    options = [Checkpoints(every_steps=100_000, grace=60)]
    owner = Owner(key="run/task", slug="task", generation="1")
    request = client.build_request(runtime="python", trainer=trainer, options=options, owner=owner)
    ref = client.submit(request)
    wait_for_step(client, ref, least=20)
    (node,) = list_pids(client, ref)
    os.kill(node, signal.SIGKILL)
    assert client.wait(ref).diagnosis.retryable
    (tmp_path / "resumed").touch()
    assert (client.wait(client.submit(request)).result or 0) >= 20


def test_with_never_an_attempt_ignores_those_before_it_and_continues_after_a_suspension(client, tmp_path):
    place = tmp_path / "place"
    settings = {"uri": place.as_uri(), "load": "never", "after": "all"}
    for steps in (5, 10):
        outcome = client.wait(submit(client, Owner(key="a", slug="train"), steps=steps, seconds=0, **settings))
        client.delete_job(outcome.ref["name"])
        assert outcome.result["from"] == 0
    assert len(list(place.glob("train-*/g-0-*/step-000000000005"))) == 2

    finish = tmp_path / "finish"
    ref = submit(client, Owner(key="a", slug="train"), steps=300, finish=str(finish), **settings)
    wait_for_step(client, ref, least=20)
    client.suspend(ref)
    wait_until_suspended(client, ref.name)
    finish.touch()
    client.resume(ref)
    assert client.wait(ref).result["from"] >= 20


def test_checkpoints_outlive_their_job_and_another_one_starts_from_them(client, tmp_path):
    place = tmp_path / "place"
    ref = submit(client, Owner(key="a", slug="train"), steps=10, seconds=0, uri=place.as_uri(), after="all")
    assert client.wait(ref).checkpoint == 10
    client.delete_job(ref)
    (folder,) = place.glob("train-*/g-0/step-000000000010")
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "rank-0.json", "rank-1.json"]
    warm = submit(client, Owner(key="b"), steps=12, seconds=0, uri=place.as_uri(), load=folder.as_uri())
    assert client.wait(warm).result["from"] == 10


def test_the_digits_that_were_killed_at_epoch_9_are_trained_from_epoch_9(client, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "dags"))
    import digits

    digits.write_dataset(tmp_path / "digits")
    trainer = digits.digits_trainer(epochs=12, data=str(tmp_path / "digits"), num_proc_per_node=1)

    def train(attack=None):
        options = [Checkpoints(every_steps=1, after="all")]
        request = client.build_request(
            runtime="torch-distributed", trainer=trainer, options=options, owner=Owner(key="digits")
        )
        ref = client.submit(request)
        if attack:
            wait_for_step(client, ref, least=9)
            attack(client, ref, None)
        return client.wait(ref)

    killed = train(kill_all)
    assert killed.checkpoint >= 8, killed
    outcome = train()
    assert outcome.resumed_from == outcome.result["resumed_from"] >= killed.checkpoint
