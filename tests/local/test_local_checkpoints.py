"""Checkpoints of local jobs. Kills at random instants are an attack: `interrupt_trainings` in tests/attack."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpointed_walk import kill_all, submit, wait_for_step

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
    trainer = digits.digits_trainer(epochs=12, data=str(tmp_path / "digits"))

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
