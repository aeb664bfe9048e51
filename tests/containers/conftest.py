"""What the tests on a real engine share."""

from __future__ import annotations

from types import SimpleNamespace

import container_engine
import pytest
import tenacity

from trainer_core.backends.container import names
from trainer_core.backends.container.engine import RefusedError


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A client whose jobs are this test's own, and the engine they run on; nothing of it is left behind."""
    monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path / "home"))
    engine = container_engine.engine()
    label = f"{names.NAMESPACE}={container_engine.namespace(tmp_path)}"

    def everything():
        """Names of all objects on the engine that belong to a job of this test."""
        containers = [each["Names"][0] for each in engine.containers(label)]
        return [
            *containers,
            *[each["Name"] for each in engine.networks(label)],
            *[each["Name"] for each in engine.volumes(label) if names.UID in each["Labels"]],
        ]

    def client(**settings):
        return container_engine.client(tmp_path, **settings)

    yield SimpleNamespace(client=client, engine=engine, everything=everything, label=label, folder=tmp_path)
    # Again, where a supervisor that still lives has made another one meanwhile.
    clear = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(RefusedError),
        wait=tenacity.wait_fixed(0.2),
        stop=tenacity.stop_after_delay(60),
        reraise=True,
    )
    clear(remove_all, engine, label)


def remove_all(engine, label):
    for each in engine.containers(label):
        engine.remove(each["Id"])
    for each in engine.networks(label):
        engine.remove_network(each["Name"])
    for each in engine.volumes(label):
        engine.remove_volume(each["Name"])
