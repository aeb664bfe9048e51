"""A TrainJob that a training submits is another one: it inherits nothing of the job around it."""

from __future__ import annotations

import pytest
from local_jobs import PATIENCE

from trainer_core import CustomTrainer, DebugBackendConfig, LocalProcessBackendConfig, TrainerClient
from trainer_core.node import env

#: What one job sets for its processes.
OUTER = {value for value in vars(env).values() if isinstance(value, str) and value.startswith("TRAINJOB_")}


def lists_variables():
    import os

    return {name: value for name, value in os.environ.items() if value == "of the outer job"}


@pytest.mark.parametrize("config", [LocalProcessBackendConfig(), DebugBackendConfig()], ids=["local", "debug"])
def test_a_job_inherits_the_variables_of_the_machine_and_none_of_the_job_around_it(tmp_path, monkeypatch, config):
    monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path))
    for name in OUTER:
        monkeypatch.setenv(name, "of the outer job")
    client = TrainerClient(config)
    ref = client.train(runtime="python", trainer=CustomTrainer(lists_variables))
    outcome = client.wait(ref, timeout=PATIENCE)
    assert outcome.result.keys() == {env.RESOURCE_INTERVAL, env.STATUS_SERVER}
