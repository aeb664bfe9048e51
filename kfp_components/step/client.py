"""A TrainerClient for the inputs of a component, which rides out what passes by itself: the exit of a step is final."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

from trainer_core.base.errors import BackendUnavailableError
from trainer_core.base.retries import read_limit, repeat_while_failing
from trainer_core.client import TrainerClient
from trainer_core.lifecycle import wait_state
from trainer_core.model.config import ClusterConfig, config_from_dict
from trainer_core.model.jobs import Outcome, TrainJobRef

_T = TypeVar("_T")

_LIMIT_SECONDS = wait_state.MAX_UNAVAILABLE_SECONDS

#: Set in the components' image.
IN_CONTAINER = "TRAINJOB_KFP_CONTAINER"

#: What the namespace of a ref is called in the configuration of its backend.
_PLACES = {"local": "home", "debug": None}


def ride_out(action: Callable[[], _T], may_pass: Callable[[Exception], bool], once: bool = False) -> _T:
    """Repeat an action as long as a wait tolerates errors, with a line in the step's log each ten seconds."""

    def report(error: Exception, remaining: float) -> None:
        print(f"repeated for {remaining:.0f} s: {error}", file=sys.stderr)

    return repeat_while_failing(action, may_pass, 0.0 if once else read_limit(_LIMIT_SECONDS), report)


def _is_away(error: Exception) -> bool:
    return isinstance(error, BackendUnavailableError) and error.transient


def _patient(name: str) -> Any:
    """Return a method of TrainerClient that is repeated while the cluster is away. It has the same effect twice."""
    method = getattr(TrainerClient, name)

    @wraps(method)
    def call(self: _PatientClient, *arguments: Any, **more: Any) -> Any:
        try:
            return ride_out(lambda: method(self, *arguments, **more), _is_away, once=self._has_given_up)
        except BackendUnavailableError as error:
            self._has_given_up = self._has_given_up or _is_away(error)
            raise

    return call


class _PatientClient(TrainerClient):
    """A client whose requests are repeated while the cluster is away, as long as a wait tolerates it.

    `wait` and `get_job_logs` do so anyway. `cancel` does not: a step that gets SIGTERM has a second.
    """

    _retry_seconds = _LIMIT_SECONDS
    #: The limit was reached once: each further request is sent once.
    _has_given_up = False

    get_pod = _patient("get_pod")
    set_job_owner = _patient("set_job_owner")
    find_jobs = _patient("find_jobs")
    list_jobs = _patient("list_jobs")
    get_job = _patient("get_job")
    get_job_ref = _patient("get_job_ref")
    get_job_request = _patient("get_job_request")
    observe = _patient("observe")
    suspend = _patient("suspend")
    resume = _patient("resume")
    delete_job = _patient("delete_job")
    wait_for_job_status = _patient("wait_for_job_status")

    def get_job_outcome(self, job: str | TrainJobRef) -> Outcome:
        """See `TrainerClient.get_job_outcome`, which waits for no time at all."""
        self.observe(job)
        return super().get_job_outcome(job)


def create_client(backend: str, settings: dict[str, Any] | None) -> TrainerClient:
    config = config_from_dict(backend, settings or {})
    return _PatientClient(config) if isinstance(config, ClusterConfig) else TrainerClient(config)


def open_job(ref_data: Mapping[str, Any], settings: dict[str, Any] | None) -> tuple[TrainerClient, TrainJobRef]:
    """Return the ref of a job, and a client that reaches the job; settings win over what the ref says."""
    ref = TrainJobRef.from_dict(ref_data)
    place = _PLACES.get(ref.backend, "namespace")
    known = {place: ref.namespace} if place else {}
    return create_client(ref.backend, {**known, **(settings or {})}), ref
