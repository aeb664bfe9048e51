"""The run of a TrainJob whose result another one reuses (option Reuse), on a real MLflow server."""

from __future__ import annotations

from trainer_core import CustomTrainer, LocalProcessBackendConfig, Reuse, Tracking, TrainerClient
from trainer_core.model.request import Owner


def train(epochs: int) -> dict:
    from trainer_core import progress

    progress(step=epochs, total=epochs, metrics={"loss": 1 / epochs})
    return {"r2": 0.5}


def submit(client, run, experiment):
    request = client.build_request(
        runtime="python",
        trainer=CustomTrainer(func=train, func_args={"epochs": 2}),
        options=[Reuse("30d"), Tracking(experiment=experiment)],
        owner=Owner(key=f"dag/{run}/train", slug="train", generation="1"),
    )
    return client.submit(request)


def test_a_reused_result_has_the_run_that_trained_as_it_is(tracked, client, read_runs, experiment, tmp_path):
    first = submit(client, "monday", experiment)
    client.wait(first)
    client.flush_tracking(60)
    (run,) = read_runs()
    second = submit(client, "tuesday", experiment)
    for each in (client, TrainerClient(LocalProcessBackendConfig(home=str(tmp_path / "home")))):
        assert each.wait(second).reused
        assert each.get_run(second).id == run["id"]
        each.flush_tracking(60)
    assert read_runs() == [run]
