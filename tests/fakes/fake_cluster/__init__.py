"""A double of a Kubernetes cluster on this machine: an HTTP API server, controllers, a scheduler and a kubelet.

    with Cluster() as cluster:
        kubernetes.client.ApiClient(cluster.configuration())        # or url and token, or kubeconfig(path)

``Cluster(namespaces=, trainer="2.3", controllers=True, kueue=False, backoff_limit=, backoff=, grace=, delay=, keep=)``

* With controllers (the default) it does what Trainer, JobSet, Job, scheduler and kubelet do: a TrainJob becomes pods,
  and each container a real process of this machine, with a separate virtual environment and folder.
  TRAINJOB_TERMINATION_LOG names the file of the termination message; TRAINJOB_{DATASET,MODEL,OUTPUT}_PATH are folders
  of the pod, or of the claims that it mounts; hosts of a JobSet lead to this machine.
  A PyTorchJob becomes pods likewise, as by the Training Operator 1.9: conditions, run policies, replaced pods, webhook.
  ``controllers=False`` is a bare server: only requests and the test itself change objects.
  A pod without an owner is not run: the test that created it sets its status.
* Bodies are validated by the CRDs of ``trainer=`` ("2.0" … "2.3") and refused in the server's words;
  ``trainer=None`` for no CRDs at all.
  Trainer's webhooks refuse as theirs do. With ``kueue=True`` a TrainJob with a queue is suspended until `admit`.
* Runtimes: ``python`` (no ML policy), ``torch-distributed`` (PET_* are set); `load_stock_runtimes` for Trainer's own;
  `fake_cluster.runtimes.runtime` builds further ones, also with initializer steps.

What a test can do, from any thread, as an administrator whose requests are not authorized or validated:
  ``add(raw)``, ``get(kind, name, namespace)`` (None if absent), ``objects(kind, namespace)``,
  ``update(kind, name, edit)``, ``update_status(kind, name, status)``, ``delete(kind, name)``; a kind is a `Kind` or a
  name: ``"TrainJob"``, ``"pods"``. A CustomResourceDefinition that is added replaces the one of that name.
  ``write_log(pod, *lines)``, ``start_log(pod, lines)`` (another run; any sequence of (ns, line)), ``end_log(pod)``.
  ``until(condition)`` waits until a condition holds. ``signal(pod, number)`` sends a signal to the containers of a pod.
  While the Node ``node-a`` is cordoned (``spec.unschedulable``), processes of further pods do not start. A policy/v1
  Eviction of a pod is a DELETE that a PodDisruptionBudget can forbid (``status.disruptionsAllowed``).
  ``images["part of an image"] = "python source"``: the entrypoint of an image.
  ``advance(seconds)`` sets the clock of the cluster forward. ``event(pod, reason, message, component)`` is what an
  autoscaler reports: ``TriggeredScaleUp``, ``NotTriggerScaleUp``, ``Nominated`` of Karpenter.

Lives instead of processes, chosen before the job is created (or by its annotation ``fake-cluster/life``):
  ``lives.set("job", "preempted", "complete")``: the first pod of each node, the one in its place, …; ``"*"`` for all
  jobs. Names: `fake_cluster.pod_scripts.POD_LIVES`, `fake_cluster.job_scripts.JOB_LIVES`, and ``process`` for a real
  one. They advance every ``delay`` seconds; with ``delay=None``, by one step at each ``tick()``.

Faults:
  ``faults.next(status=503, method="GET", path="trainjobs", watch=False, times=2)``; see `Fault` for retry_after, reset,
  hang, after (it has taken effect), truncate, gone, drip. ``faults.at_random(0.2, seed=1)``, ``faults.clear()``,
  ``faults.counts``. ``break_watches()``, ``compact()`` (410 for what is older), ``forbid("list", "pods")`` and
  ``allow``, ``tokens = {"another"}`` (401 for the old one).

What it records: ``requests`` (method, path, query, time, agent, verb, type), ``counts["list pods"]``,
``forget_requests()``, ``watches`` (how many are open).

As a separate process: ``python -m fake_cluster --port 0 [--bare]`` prints its URL and ends when its input does.
`fake_cluster.raw_client.RawClient` is a client of a few lines for tests of the server itself.
"""

from fake_cluster.cluster import Cluster
from fake_cluster.faults import Fault

__all__ = ["Cluster", "Fault"]
