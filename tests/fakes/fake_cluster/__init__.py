"""A Kubernetes cluster on this machine: a real HTTP API server, and whatever plays the rest of a cluster.

    with Cluster() as cluster:
        api = kubernetes.client.ApiClient(cluster.configuration())     # or cluster.url and cluster.token
        cluster.add({"apiVersion": "v1", "kind": "Pod", …})            # as an administrator, past every check
        cluster.get("TrainJob", "name", "namespace")                   # a copy, or None
        cluster.objects("pods"), cluster.update(…), cluster.update_status(…), cluster.delete(…)
        cluster.write_log("pod", "line", …), cluster.start_log(…), cluster.end_log(…)
        cluster.faults.next(status=503, method="GET", path="trainjobs"), cluster.faults.at_random(0.2, seed=1)
        cluster.break_watches(), cluster.compact(), cluster.forbid("list", "pods"), cluster.tokens = {"another"}
        cluster.requests, cluster.counts["list pods"], cluster.watches

As a process of its own: ``python -m fake_cluster --port 0`` prints its URL and runs until its input is closed.
"""

from fake_cluster.cluster import Cluster
from fake_cluster.faults import Fault

__all__ = ["Cluster", "Fault"]
