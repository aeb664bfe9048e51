"""What an engine returns for a name or labels that belong to several jobs."""

from __future__ import annotations

import pytest
from container_jobs import build_job

from trainer_core import CustomTrainer, Name, Suspend
from trainer_core.backends.container import names
from trainer_core.backends.container.engine import EngineNotFoundError, EngineRequestError
from trainer_core.backends.container.store import JobStore
from trainer_core.base.errors import BackendUnavailableError
from trainer_core.model.request import Owner


def train():
    pass


def submit_suspended(client, name=None, owner=None):
    options = [Suspend(), *([Name(name)] if name else [])]
    trainer = CustomTrainer(train)
    return client.submit(client.build_request(runtime="python", trainer=trainer, options=options, owner=owner))


def test_a_second_deletion_of_a_job_spares_another_one_whose_name_begins_with_its_name(sandbox):
    client = sandbox.client()
    deleted, other = submit_suspended(client, "job"), submit_suspended(client, "job-1")
    job = client.backend._store.get(deleted)
    client.delete_job(deleted)
    client.backend._store.remove_job(job)  # By a process that has read the job before it was deleted.
    assert [job.name for job in client.list_jobs()] == [other.name]


def test_namespaces_of_an_engine_may_have_jobs_of_the_same_owner(sandbox):
    owner = Owner(key="dag/run/task", slug="task")
    first, second = (sandbox.client(namespace=f"{sandbox.namespace}{suffix}") for suffix in ("", "-other"))
    refs = [submit_suspended(client, owner=owner) for client in (first, second)]
    assert [client.get_job_ref(ref.name) for client, ref in zip((first, second), refs, strict=True)] == refs
    assert refs[0].uid != refs[1].uid
    for client, ref in zip((first, second), refs, strict=True):
        client.delete_job(ref)


class FullEngine:
    """An engine with two containers and a claim, which removes only some of its objects while its disk is full."""

    address = "unix:///engine.sock"

    def __init__(self, job, removable):
        labels = names.job_labels(job.namespace, job.name, job.uid)
        self.objects = {"digits-node-0": labels, "other": labels, names.claim_volume("default", "digits"): labels}
        self.removable = removable

    def list_containers(self, *_):
        containers = [name for name in self.objects if "trainjob." not in name]
        return [{"Id": name, "Names": [f"/{name}"], "Labels": self.objects[name]} for name in containers]

    def list_networks(self, *_):
        return []

    def list_volumes(self, *_):
        return []

    def inspect_volume(self, name):
        if name not in self.objects:
            raise EngineNotFoundError("no such volume", self.address)
        return {"Name": name, "Labels": self.objects[name]}

    def remove_container(self, name):
        if name not in self.removable:
            raise EngineRequestError("no space left on device", self.address)
        self.objects.pop(name, None)

    remove_volume = remove_container


@pytest.mark.parametrize(
    ("removable", "left"),
    [
        ([], ["digits-node-0", "other", "trainjob.default.digits"]),
        (["digits-node-0"], ["other", "trainjob.default.digits"]),
        (["digits-node-0", "other"], ["trainjob.default.digits"]),
    ],
)
def test_a_deletion_removes_what_it_can_and_names_the_rest_and_is_repeated(removable, left):
    job = build_job()
    engine = FullEngine(job, removable)
    store = JobStore(engine, "default")
    with pytest.raises(BackendUnavailableError, match=rf"is deleted in part, and .*{left[0]}.*no space left"):
        store.remove_job(job)
    assert list(engine.objects) == left
    engine.removable = left
    store.remove_job(job)
    assert engine.objects == {}
