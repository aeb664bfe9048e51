"""Checkpoints of local jobs: after a kill at any moment the next attempt continues, and the result is the same."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from trainer_core import Checkpoints, CustomTrainer, LocalProcessBackendConfig, Owner, TrainerClient
from trainer_core.backends.local import job_status, processes
from trainer_core.testing.case import wait_until_suspended

#: Of the instants of the kills. Another seed tests other instants.
SEED = 1


@pytest.fixture
def client(tmp_path):
    client = TrainerClient(LocalProcessBackendConfig(home=tmp_path / "home"))
    yield client
    for job in client.list_jobs():
        client.delete_job(job.name)


def walk(steps, seconds, finish=None):
    """Walk at random; with the state of its checkpoint the walk is the same as without an interruption.

    Without the file `finish` the walk is too slow after step 260 to end before it is killed.
    """
    import json
    import random
    import time
    from pathlib import Path

    from trainer_core import checkpoints, progress

    store, dice, place, begun = checkpoints(), random.Random(7), 0.0, 0  # noqa: S311
    if last := store.latest():
        state = json.loads((last.path / f"rank-{store.rank}.json").read_text())
        version, internal, gauss = state["dice"]
        dice.setstate((version, tuple(internal), gauss))
        place, begun = state["place"], last.step
    for step in range(begun + 1, steps + 1):
        place += dice.gauss(0, 1)
        time.sleep(1 if step > 260 and finish and not Path(finish).exists() else seconds)
        progress(step=step, total=steps)
        if store.due(step):
            with store.save(step) as folder:
                state = json.dumps({"dice": dice.getstate(), "place": place})
                (folder / f"rank-{store.rank}.json").write_text(state)
    return {"place": place, "from": begun}


def submit(client, owner, steps=400, seconds=0.002, finish=None, **settings):
    trainer = CustomTrainer(func=walk, func_args={"steps": steps, "seconds": seconds, "finish": finish}, num_nodes=2)
    option = Checkpoints(**{"every_steps": 5, **settings})
    return client.submit(client.build_request(runtime="python", trainer=trainer, options=[option], owner=owner))


def list_pids(client, ref):
    return [int(step.pod_name.partition("-")[2]) for step in client.get_job(ref.name).steps if step.pod_name]


def wait_for_step(client, ref, least):
    end = time.monotonic() + 180
    while time.monotonic() < end:
        observation = client.observe(ref)
        reached = observation.progress.step if observation.progress else None
        if observation.outcome or (reached or 0) >= least:
            return
        time.sleep(0.02)
    raise AssertionError("no progress")


def kill_rank(client, ref, dice):
    os.kill(dice.choice(list_pids(client, ref)), signal.SIGKILL)


def kill_all(client, ref, dice):
    processes.kill_job_processes([ref.uid])


def kill_supervisor(client, ref, dice):
    os.kill(job_status.read_record(client.backend._get_folder(ref)).supervisor, signal.SIGKILL)


def terminate_rank(client, ref, dice):
    os.kill(dice.choice(list_pids(client, ref)), signal.SIGTERM)


def test_the_result_is_that_of_an_undisturbed_run_whatever_is_killed(client, tmp_path):
    dice = random.Random(SEED)  # noqa: S311
    expected = client.wait(submit(client, Owner(key="undisturbed"), seconds=0)).result["place"]
    owner = Owner(key="disturbed", generation="0")
    attacks = [kill_rank, kill_all, kill_supervisor, terminate_rank]
    dice.shuffle(attacks)
    resumed = []
    finish = tmp_path / "finish"
    for number, attack in enumerate(attacks):
        ref = submit(client, owner, finish=str(finish))
        wait_for_step(client, ref, least=dice.randint(1, 60) + 60 * number)
        time.sleep(dice.random() / 50)
        attack(client, ref, dice)
        ended = client.wait(ref)
        resumed.append(ended.resumed_from or 0)
        assert ended.diagnosis.retryable, ended

    finish.touch()
    last = client.wait(submit(client, owner, finish=str(finish)))

    assert last.result["place"] == expected
    assert resumed == sorted(resumed)
    assert last.result["from"] > 0
    assert not list((tmp_path / "home" / "checkpoints").glob("*/*/.part-*"))


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
