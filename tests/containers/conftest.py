"""What the tests on a real engine share."""

from __future__ import annotations

from types import SimpleNamespace

import container_engine
import pytest

from trainer_core.backends.container import names


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
    for each in engine.containers(label):
        engine.remove(each["Id"])
    for each in engine.networks(label):
        engine.remove_network(each["Name"])
    for each in engine.volumes(label):
        engine.remove_volume(each["Name"])
