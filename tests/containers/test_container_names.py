"""What an engine returns for a name or labels that belong to several jobs."""

from __future__ import annotations

from trainer_core import CustomTrainer, Name, Suspend
from trainer_core.backends.container import cleanup
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
    cleanup.remove_job(sandbox.engine, job)  # By a process that has read the job before it was deleted.
    assert [job.name for job in client.list_jobs()] == [other.name]


def test_namespaces_of_an_engine_may_have_jobs_of_the_same_owner(sandbox):
    owner = Owner(key="dag/run/task", slug="task")
    first, second = (sandbox.client(namespace=f"{sandbox.namespace}{suffix}") for suffix in ("", "-other"))
    refs = [submit_suspended(client, owner=owner) for client in (first, second)]
    assert [client.get_job_ref(ref.name) for client, ref in zip((first, second), refs, strict=True)] == refs
    assert refs[0].uid != refs[1].uid
    for client, ref in zip((first, second), refs, strict=True):
        client.delete_job(ref)
