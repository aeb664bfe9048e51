"""Fixtures for tests on a real container engine."""

from __future__ import annotations

from types import SimpleNamespace

import container_engine
import pytest
import tenacity

from trainer_core.backends.container import names
from trainer_core.backends.container.engine import EngineRequestError


@pytest.fixture
def sandbox(tmp_path, monkeypatch):
    """Clients with a namespace for this test, and the engine. All objects of the namespace are removed afterwards."""
    monkeypatch.setenv("TRAINJOB_HOME", str(tmp_path / "home"))
    engine = container_engine.engine()
    namespace = container_engine.namespace(tmp_path)
    label = f"{names.NAMESPACE_LABEL}={namespace}"

    def list_objects():
        """Return the names of all objects on the engine that belong to a job of this test."""
        containers = [each["Names"][0] for each in engine.list_containers(label)]
        return [
            *containers,
            *[each["Name"] for each in engine.list_networks(label)],
            *[each["Name"] for each in engine.list_volumes(label) if names.UID_LABEL in each["Labels"]],
        ]

    def client(**settings):
        return container_engine.client(tmp_path, **settings)

    yield SimpleNamespace(
        client=client, engine=engine, list_objects=list_objects, label=label, folder=tmp_path, namespace=namespace
    )
    # With retries, because a supervisor that is still running may create objects meanwhile.
    clear = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(EngineRequestError),
        wait=tenacity.wait_fixed(0.2),
        stop=tenacity.stop_after_delay(60),
        reraise=True,
    )
    clear(remove_all, engine, label)


def remove_all(engine, label):
    for each in engine.list_containers(label):
        engine.remove_container(each["Id"])
    for each in engine.list_networks(label):
        engine.remove_network(each["Name"])
    for each in engine.list_volumes(label):
        engine.remove_volume(each["Name"])
