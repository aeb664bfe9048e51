"""trainjob debug of a TrainJob on a cluster."""

from __future__ import annotations

from k8s_scene import a_stage

from trainer_core import CustomTrainer, Name


def fail() -> None:
    raise ValueError("bad @ row 3")


def test_debugging_a_trainjob_only_reads_from_the_cluster():
    with a_stage("preempted", backoff_limit=0) as (cluster, client):
        job = client.train(trainer=CustomTrainer(func=fail), options=[Name("nightly")])
        client.wait(job)
        begin = len(cluster.requests)
        result = client.debug(job, pdb=False)
        verbs = {request.verb for request in cluster.requests[begin:]}
    assert "ValueError: bad @ row 3" in str(result)
    assert {"get"} <= verbs <= {"get", "list", "watch"}
