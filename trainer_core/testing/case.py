"""BackendCase: a backend under test. Contract: the fixtures that all parts of the contract suite share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from trainer_core.client import TrainerClient
from trainer_core.definition.initializers import Initializer
from trainer_core.definition.options import Name
from trainer_core.definition.trainers import CustomTrainer
from trainer_core.model.jobs import SUSPENDED, Outcome, TrainJob, TrainJobRef
from trainer_core.model.request import Owner, TrainJobRequest
from trainer_core.node.env import RESOURCE_INTERVAL
from trainer_core.testing.training_functions import return_value

if TYPE_CHECKING:
    from trainer_core.k8s.client import ApiClient

#: Seconds to wait for a status; far more than needed, because the machine may be busy or have to pull an image first.
_TIMEOUT = 300.0
#: Seconds between polls: the first and the longest interval.
_INTERVAL, _MAX_INTERVAL = 0.02, 0.5

#: Seconds until the first report of the use of resources. On a busy machine a job may take longer than the default of
#: ten seconds, and its log would have a line that the test does not expect.
_RESOURCE_INTERVAL = "3600"

_FACTS = "__trainjob_facts__"
_NOT_APPLICABLE = "not-applicable"
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True)
class BackendCase:
    """A backend to test, and the facts in which backends may differ.

    Each fact is tested both ways; backends may differ in nothing else.

    Attributes:
        name: Shown in test ids.
        connect: Creates a client that stores its state in a folder. A second call with the same folder returns another
            client of the same state.
        runtime: Name of a runtime that runs a function in a plain Python process. Default: ``python``.
        runtime_with_resources: Name of such a runtime that takes `resources_per_node`. Default: None, for `runtime`.
        runtime_without_restarts: Name of such a runtime that starts no process again. Default: None, for `runtime`.
        is_visible_to_other_clients: Other clients can find its jobs.
        runs_in_background: `submit` returns before the job ends, so that a running job can be observed, suspended and
            cancelled.
        enforces_deadline: It stops a job at its deadline.
        runs_multiple_nodes: It runs one process per node.
        installs_packages: It installs `packages_to_install`.
        reads_local_files: Its initializers can read the files of the client's machine.
        runs_runtime_without_trainer: It runs a runtime without a trainer.
        times_log_lines: It knows when each line of a log was written.
        reports_resource_use: It reports the use of processor, memory and GPUs.
        limits_memory: A node has the memory that its request asks for, so that another attempt can ask for more.
        restarts_trainings: It accepts the option `RestartPolicy`.
        restarts_in_place: It starts a training again in the same job, without a process that waits.
        notices_stalls: It ends a training that makes no progress.
        knows_versions: It accepts the option `Reuse`.
        restarts_processes: A process that was killed is started again in the same attempt.
        shares_checkpoints: All nodes of a job can mount the place of its checkpoints.
        reads_checkpoints: Its client can read the place of its checkpoints, and not only its nodes.
        replaces_pods: A pod that was deleted or evicted is replaced in the same attempt. It needs `get_api`.
        image: Image for the training, instead of that of the runtime; it must contain ``python3``. Default: None, for
            the image of the runtime.
        image_with_digest: Image for trainings whose result is reused, by its digest. Default: None, for `image`.
        get_api: Returns an API client of the cluster that runs the pods of a client's jobs. Default: None, for a
            backend without pods.
    """

    name: str
    connect: Callable[[Path], TrainerClient]
    runtime: str = "python"
    runtime_with_resources: str | None = None
    runtime_without_restarts: str | None = None
    is_visible_to_other_clients: bool = True
    runs_in_background: bool = True
    enforces_deadline: bool = True
    runs_multiple_nodes: bool = True
    installs_packages: bool = True
    reads_local_files: bool = True
    runs_runtime_without_trainer: bool = False
    times_log_lines: bool = True
    reports_resource_use: bool = True
    limits_memory: bool = True
    restarts_trainings: bool = True
    restarts_in_place: bool = False
    notices_stalls: bool = True
    knows_versions: bool = True
    restarts_processes: bool = False
    shares_checkpoints: bool = True
    reads_checkpoints: bool = True
    replaces_pods: bool = False
    image: str | None = None
    image_with_digest: str | None = None
    get_api: Callable[[TrainerClient], ApiClient] | None = None


def count_nodes(case: BackendCase) -> int:
    """Return two if nodes can share the place of their checkpoints, else one."""
    return 1 + (case.runs_multiple_nodes and case.shares_checkpoints)


def applies_to(**facts: bool | str | None) -> Callable[[_F], _F]:
    """Mark a test that applies only to backends with these facts.

    Args:
        **facts: Attributes of `BackendCase` and their values.
    """

    def mark(test: _F) -> _F:
        setattr(test, _FACTS, facts)
        return test

    return mark


def is_applicable(test: Callable[..., Any], case: BackendCase) -> bool:
    """Return whether a test applies to a backend."""
    return all(getattr(case, fact) == value for fact, value in getattr(test, _FACTS, {}).items())


def parametrize_backends(cases: Sequence[BackendCase], metafunc: pytest.Metafunc) -> None:
    """Run a test on each backend to which it applies; call it in ``pytest_generate_tests``.

    A test that applies to none of the backends is deselected.

    Args:
        cases: The backends.
        metafunc: The argument of ``pytest_generate_tests``.
    """
    if "case" not in metafunc.fixturenames:
        return
    applicable = [case for case in cases if is_applicable(metafunc.function, case)]
    metafunc.parametrize("case", applicable or [None], ids=[case.name for case in applicable] or [_NOT_APPLICABLE])
    if not metafunc.config.pluginmanager.has_plugin(_NOT_APPLICABLE):
        metafunc.config.pluginmanager.register(_NotApplicableFilter(), _NOT_APPLICABLE)


class _NotApplicableFilter:
    """Deselects tests that apply to none of the backends; `pytest_generate_tests` cannot deselect a test."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        config.hook.pytest_deselected(items=[item for item in items if _is_not_applicable(item)])
        items[:] = [item for item in items if not _is_not_applicable(item)]


def _is_not_applicable(item: Any) -> bool:
    return hasattr(item, "callspec") and item.callspec.params.get("case", item) is None


def wait_for_status(client: TrainerClient, name: str, status: str) -> TrainJob:
    """Wait until a job has a status, and return the job."""
    job = _poll(client, name, lambda job: job.status == status)
    assert job.status == status  # noqa: S101 -- helper of tests
    return job


def wait_until_suspended(client: TrainerClient, name: str) -> TrainJob:
    """Wait until a job is suspended and all its processes have ended, and return the job.

    A job that is resumed earlier may continue without a restart.
    """
    job = _poll(client, name, lambda job: job.status == SUSPENDED and not _list_running_pods(job))
    assert (job.status, _list_running_pods(job)) == (SUSPENDED, [])  # noqa: S101 -- helper of tests
    return job


def _list_running_pods(job: TrainJob) -> list[str]:
    return [step.pod_name for step in job.steps if step.pod_name]


def _poll(client: TrainerClient, name: str, condition: Callable[[TrainJob], bool]) -> TrainJob:
    end, interval = time.monotonic() + _TIMEOUT, _INTERVAL
    while not condition(job := client.get_job(name)) and time.monotonic() < end:
        time.sleep(interval)
        interval = min(_MAX_INTERVAL, 1.5 * interval)
    return job


#: Fixtures: a function and its arguments become a request, a job that was submitted, the outcome of one that has ended.
BuildRequest = Callable[..., TrainJobRequest]
Submit = Callable[..., TrainJobRef]
Run = Callable[..., Outcome]


class Contract:
    """Base class of the parts of the contract suite: fixtures."""

    @pytest.fixture
    def client(self, case: BackendCase, tmp_path: Path) -> Iterator[TrainerClient]:
        """A client without jobs; all jobs are deleted after the test."""
        client = case.connect(tmp_path / "state")
        yield client
        # Of the backend: that of the client leaves out the records of searches.
        for job in client.backend.list_jobs():
            client.delete_job(job.name)

    @pytest.fixture
    def build_request(self, case: BackendCase, client: TrainerClient) -> Callable[..., TrainJobRequest]:
        """Builds requests: ``build_request(func, {args}, name=, owner=, options=[], runtime=, **trainer_fields)``."""

        def build_request(
            func: Callable[..., Any] = return_value,
            args: dict[str, Any] | None = None,
            *,
            name: str | None = "job",
            owner: Owner | None = None,
            options: Sequence[Any] = (),
            initializer: Initializer | None = None,
            runtime: str | None = None,
            **fields: Any,
        ) -> TrainJobRequest:
            if runtime is None and fields.get("resources_per_node"):
                runtime = case.runtime_with_resources
            variables = {RESOURCE_INTERVAL: _RESOURCE_INTERVAL, **fields.pop("env", {})}
            trainer = CustomTrainer(func=func, func_args=args, env=variables, **{"image": case.image, **fields})
            named = [Name(name)] if name and owner is None else []
            return client.build_request(
                runtime=runtime or case.runtime,
                trainer=trainer,
                initializer=initializer,
                options=[*named, *options],
                owner=owner,
            )

        return build_request

    @pytest.fixture
    def submit(self, client: TrainerClient, build_request: BuildRequest) -> Submit:
        """Submits a job; takes what `build_request` takes."""
        return lambda *args, **fields: client.submit(build_request(*args, **fields))

    @pytest.fixture
    def run(self, client: TrainerClient, submit: Submit) -> Run:
        """Submits a job and waits for its outcome; takes what `build_request` takes."""
        return lambda *args, **fields: client.wait(submit(*args, **fields))
