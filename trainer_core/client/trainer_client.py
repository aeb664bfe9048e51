"""TrainerClient: submits TrainJobs to a backend, reads them, waits for them and ends them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from trainer_core.backends import backend_class
from trainer_core.backends.base import Backend
from trainer_core.backends.follower import Follower
from trainer_core.base import naming, validation
from trainer_core.base.errors import BackendUnavailableError, JobNotFoundError
from trainer_core.base.retries import Retries, read_limit, repeat_while_failing
from trainer_core.base.secrets import redact
from trainer_core.client import default_options, waiting
from trainer_core.client.runs import JobRuns, TrackedRun
from trainer_core.lifecycle import adoption
from trainer_core.lifecycle.adoption import ExistingJob
from trainer_core.model import readable_log
from trainer_core.model.backend_names import list_backends
from trainer_core.model.config import BackendConfig, ClusterConfig, LocalProcessBackendConfig, config_from_dict
from trainer_core.model.jobs import (
    SEARCH_RECORD_LABEL,
    Event,
    JobFailedError,
    Observation,
    Outcome,
    OwnerReference,
    TrainJob,
    TrainJobRef,
    build_partition_labels,
    mark_reused,
)
from trainer_core.model.logs import MAX_LOG_LINES, LogChunk
from trainer_core.model.request import Owner, TrainJobRequest

if TYPE_CHECKING:
    from pathlib import Path

    from trainer_core.client.attempts import Attempts
    from trainer_core.client.debugging import DebugResult
    from trainer_core.client.saved_checkpoints import SavedCheckpoint
    from trainer_core.definition.initializers import Initializer
    from trainer_core.definition.request_builder import Option, Trainer
    from trainer_core.definition.template import TrainJobTemplate
    from trainer_core.model.restart_rules import RestartRules
    from trainer_core.model.runtimes import Runtime
    from trainer_core.search.driver import SearchState
    from trainer_core.search.results import SearchOutcome
    from trainer_core.search.searches import Searches
    from trainer_core.tracking.model_registry import Promotion
    from trainer_core.tracking.reporter import EndedRun
    from trainer_core.tracking.server import MlflowServer

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
#: Seconds for which a submit is repeated while a cluster cannot be reached.
_SUBMIT_SECONDS = 120.0


def backend_for(name: str) -> type[Backend]:
    """Return the class of a backend, which is enough to build requests for it. Opens no connection.

    Args:
        name: Name of the backend, such as ``"local"`` or ``"kubernetes"``.

    Raises:
        ValueError: No backend has this name.
        BackendUnavailableError: It belongs to another distribution, and cannot be loaded.
    """
    return backend_class(name)


def _is_reused(ref: TrainJobRef, what: str) -> bool:
    """Return whether a TrainJob belongs to another run, which alone may change it."""
    if ref.reused:
        _log.warning("TrainJob %r is not %s: it belongs to another run, and only its result is reused", ref.name, what)
    return ref.reused


@runtime_checkable
class _SelectsByLabels(Protocol):
    """A backend whose server selects TrainJobs by labels."""

    def list_jobs_by_labels(self, labels: Mapping[str, str]) -> list[TrainJob]: ...


class TrainerClient:
    """Submit TrainJobs to a backend, read them, wait for them and end them.

    Every method that concerns one TrainJob takes its name or its `TrainJobRef`. A name means the TrainJob that has
    this name now, in the client's namespace. A ref means that TrainJob only: if another TrainJob has the name by
    now, `JobNotFoundError` is raised (or, where "not found" is a success, nothing happens).

    Example:
        ```python
        client = TrainerClient()
        name = client.train(trainer=CustomTrainer(func=train), runtime="torch-distributed")
        outcome = client.wait(name)
        ```

    Args:
        backend_config: Which backend to use and how to reach it: one of the configurations of `trainer_core`,
            such as ``KubernetesBackendConfig(namespace="team-a")``. None (the default) uses the backend named by the
            environment variable ``TRAINJOB_BACKEND``, or ``local`` (processes on this machine) if it is not set.
        tracking: The MLflow server on which TrainJobs are tracked. None (the default) uses the one that
            ``MLFLOW_TRACKING_URI`` names; without it only a TrainJob with the option `Tracking` is tracked.
        retry_seconds: Seconds for which each request except `cancel` is repeated while a cluster cannot be reached;
            after the first one that failed for so long, each further request is sent once. None (the default): a
            submit is repeated for 120 seconds, and other requests are sent once. The environment variable
            ``TRAINJOB_SUBMIT_RETRY_SECONDS`` replaces both numbers.

    Attributes:
        config: The configuration that is used.
        backend: The backend.
        runs: The MLflow runs of TrainJobs, for orchestrators that report to them.

    Raises:
        ValueError: The argument is not a backend configuration, or one of its `default_options` is invalid.
        BackendUnavailableError: The backend needs an extra that is not installed, or cannot be reached.
    """

    def __init__(
        self,
        backend_config: BackendConfig | None = None,
        tracking: MlflowServer | None = None,
        retry_seconds: float | None = None,
    ) -> None:
        if backend_config is None:
            backend_config = config_from_dict(os.environ.get("TRAINJOB_BACKEND") or "local", {})
        if not isinstance(backend_config, BackendConfig):
            raise ValueError(
                f"backend_config must be a backend configuration such as {LocalProcessBackendConfig.__name__}() "
                f"(backends: {', '.join(list_backends())}), got {redact(backend_config)}"
            )
        self.config = backend_config
        # Every backend class is constructed from its own configuration.
        self.backend: Backend = backend_class(backend_config.backend)(backend_config)  # type: ignore[call-arg]
        self.runs = JobRuns(self.backend, tracking, self.get_job_request)
        if retry_seconds is not None and not 0 <= retry_seconds <= TIMEOUT_MAX:
            raise ValueError(f"retry_seconds must be a number of seconds, at least 0, got {retry_seconds}")
        self._retry_seconds = retry_seconds
        #: A request was repeated for so long in vain.
        self._has_given_up = False
        self._default_options = default_options.read_fields(backend_config, self.backend)
        #: Outcomes of earlier TrainJobs that trained the same, by name: `train` returns only that, and the TrainJob can
        #: be deleted before its outcome is asked for.
        self._reused: dict[str, Outcome] = {}
        #: Functions whose imports were checked, with the digest of their files.
        self._checked: set[tuple[str, str]] = set()

    def list_runtimes(self) -> list[Runtime]:
        """Return the runtimes that a TrainJob can refer to."""
        return self.backend.list_runtimes()

    def get_runtime(self, name: str) -> Runtime:
        """Return one runtime.

        Args:
            name: Name of the runtime, such as ``"torch-distributed"``.

        Raises:
            RuntimeNotFoundError: No runtime has this name; the message lists the known ones.
        """
        return self.backend.get_runtime(name)

    def get_runtime_packages(self, runtime: Runtime) -> list[str]:
        """Print and return the Python packages of a runtime.

        Args:
            runtime: The runtime, from `get_runtime` or `list_runtimes`.

        Returns:
            The packages as ``name==version``.

        Raises:
            ValueError: The runtime has a built-in trainer, which runs no Python function.
        """
        packages = self.list_runtime_packages(runtime)
        print("\n".join(packages))
        return packages

    def list_runtime_packages(self, runtime: Runtime) -> list[str]:
        """Return the Python packages of a runtime as ``name==version``, without printing them.

        Args:
            runtime: The runtime, from `get_runtime` or `list_runtimes`.

        Raises:
            ValueError: The runtime has a built-in trainer, which runs no Python function.
        """
        return self.backend.get_runtime_packages(runtime)

    def train(
        self,
        runtime: str | Runtime | None = None,
        initializer: Initializer | None = None,
        trainer: Trainer | None = None,
        options: list[Option] | None = None,
    ) -> str:
        """Create a TrainJob and return its name, without waiting for it.

        Example:
            ```python
            name = client.train(
                runtime="torch-distributed",
                trainer=CustomTrainer(func=train, func_args={"epochs": 3}, num_nodes=2),
                options=[Name("mnist"), Labels({"team": "vision"})],
            )
            ```

        Args:
            runtime: Runtime or name of a runtime (``spec.runtimeRef``). None (the default) uses the backend's default
                runtime, ``torch-distributed``.
            initializer: Dataset and model to fetch before training (``spec.initializer``). None fetches nothing.
            trainer: Function, image or built-in recipe to run (``spec.trainer``). None runs the runtime unchanged.
            options: Changes to the TrainJob, such as ``[Name("my-job"), Labels({"team": "vision"})]``. None for none.

        Returns:
            The name of the TrainJob: the one from the option `Name`, otherwise a random one.

        Raises:
            ValueError: An argument is invalid. Nothing was created.
            RuntimeError: The TrainJob could not be created.
        """
        request = self.build_request(runtime=runtime, initializer=initializer, trainer=trainer, options=options)
        waiting.check_restarts(request)
        created: list[bool] = []
        ref = self.submit(request, before_create=lambda: created.append(True))
        if not created and not ref.reused:
            _log.warning("%s", adoption.describe_existing(ref.name, self.observe(ref).status))
        return ref.name

    def initialize(self, initializer: Initializer, options: list[Option] | None = None) -> str:
        """Create a TrainJob that only fetches a dataset, a model or both, and return its name.

        The result of the TrainJob holds the locations as ``{"dataset": uri, "model": uri}``.

        Args:
            initializer: What to fetch.
            options: As in `train`.

        Raises:
            ValueError: The initializer has neither a dataset nor a model. Nothing was created.
        """
        if (initializer.dataset or initializer.model) is None:
            raise ValueError("initializer must have a dataset, a model or both: Initializer(dataset=…, model=…)")
        return self.submit(self.build_request(initializer=initializer, options=options)).name

    def build_request(
        self,
        *,
        runtime: str | Runtime | None = None,
        initializer: Initializer | None = None,
        trainer: Trainer | Mapping[str, Any] | None = None,
        options: Sequence[Option] | None = None,
        owner: Owner | None = None,
        folder: Path | None = None,
    ) -> TrainJobRequest:
        """Build the request that `train` would submit, for this backend. Creates nothing.

        Args:
            runtime: As in `train`.
            initializer: As in `train`.
            trainer: As in `train`, or a dict of the trainer's fields.
            options: As in `train`.
            owner: What the TrainJob belongs to, such as a task of a DAG run. The name is derived from it. None: the
                name is the one from the option `Name`, otherwise a random one that begins with the function's.
            folder: Folder of relative paths in the trainer's `code`. None: the working directory.

        Raises:
            ValueError: An argument is invalid.
        """
        from trainer_core.definition import (
            request_builder,  # Loads the packaging code, which reading and waiting do not need.
        )

        request = request_builder.build_request(
            backend=self.backend,
            runtime=runtime,
            trainer=trainer,
            initializer=initializer,
            options=options,
            owner=owner,
            folder=folder,
        )
        if request.context.name or request.context.owner:
            return request
        code = request.work.trainer.code if request.work.trainer else None
        return request.with_name(naming.generate_name(code.entry if code else None))

    def render(self, request: TrainJobRequest) -> dict[str, Any]:
        """Return exactly what submitting the request would create, as plain data. Creates nothing.

        Args:
            request: The request, from `build_request`.
        """
        return self.backend.render(default_options.apply(request, self._default_options))

    def dry_run(self, request: TrainJobRequest) -> None:
        """Check whether the backend would accept the request. Creates nothing.

        Args:
            request: The request, from `build_request`.

        Raises:
            TrainerError: The backend would refuse the request.
        """
        request = default_options.apply(request, self._default_options)
        self.backend.dry_run(request if request.context.name else request.with_name(naming.generate_name()))
        self._warn_of_imports(request)

    def submit(
        self,
        request: TrainJobRequest,
        *,
        before_create: Callable[[], None] | None = None,
        retry_seconds: float | None = None,
    ) -> TrainJobRef:
        """Get or create the TrainJob of a request. Submitting the same request again returns the same TrainJob.

        While a cluster cannot be reached, the submit is repeated for 120 seconds, or as many as the environment
        variable ``TRAINJOB_SUBMIT_RETRY_SECONDS`` says, with a warning every ten seconds. A refusal is final at once.

        Args:
            request: The request, from `build_request`.
            before_create: Called when no job exists and one is about to be created. If it raises, nothing is created.
                None (the default) calls nothing.
            retry_seconds: Maximum time for which it is repeated. None (the default) for no other limit.

        Raises:
            TrainerError: The request was refused. Nothing was created.
            BackendUnavailableError: The backend cannot be reached.
        """
        request = default_options.apply(request, self._default_options)
        send = partial(self._submit, request, before_create)
        return repeat_while_failing(send, **self._build_retries("The submit", retry_seconds))

    def _submit(self, request: TrainJobRequest, before_create: Callable[[], None] | None) -> TrainJobRef:
        if request.policy.reuse is not None:
            from trainer_core.client import reuse  # Loads the modules of HTTP.

            request, earlier = reuse.look_up(self, request)
            if earlier is not None:
                self._reused[earlier.job.name] = earlier
                return earlier.job
        submit = self.runs.submit if self.runs.tracks_request(request) else self.backend.submit

        def check() -> None:
            self._warn_of_imports(request)
            if before_create is not None:
                before_create()

        ref = submit(request, before_create=check)
        self._reused.pop(ref.name, None)
        return ref

    def _warn_of_imports(self, request: TrainJobRequest) -> None:
        """Warn of imports that will fail, once for each function: some do after the last epoch only."""
        trainer = request.work.trainer
        if trainer is None or trainer.code is None:
            return
        from trainer_core.packaging.project_imports import find_import_problems  # Reads what is installed.

        key = trainer.code.digest, trainer.code.project.digest if trainer.code.project else ""
        if key in self._checked:
            return
        self._checked.add(key)
        try:
            for problem in find_import_problems(trainer.model_dump(), self.backend.name):
                _log.warning("%s", problem)
        except Exception:  # noqa: BLE001 -- what is installed here may be in any state, and a warning must not cost the submit
            _log.debug("The imports of %s could not be checked", trainer.code.entry, exc_info=True)

    def _get_reused(self, job: str | TrainJobRef) -> Outcome | None:
        """Return the outcome that this client has found for a name, or for the ref that it has returned with it."""
        if isinstance(job, str):
            return self._reused.get(job)
        found = self._reused.get(job.name) if job.reused else None
        return found if found is not None and found.job == job else None

    def repeat_while_unavailable(self, what: str, send: Callable[[], _T]) -> _T:
        """Return what a call returns that is repeated while a cluster cannot be reached, as long as a submit."""
        return repeat_while_failing(send, **self._build_retries(what))

    def _build_retries(self, what: str, limit: float | None = None) -> Retries:
        default = _SUBMIT_SECONDS if self._retry_seconds is None else self._retry_seconds
        seconds = read_limit(default) if isinstance(self.config, ClusterConfig) else 0.0
        return {
            "may_pass": lambda error: isinstance(error, BackendUnavailableError) and error.transient,
            "limit": seconds if limit is None else min(limit, seconds),
            "report": lambda error, remaining: _log.warning("%s is repeated for %.0f s: %s", what, remaining, error),
        }

    def _ask(self, send: Callable[[], _T]) -> _T:
        """Return the answer to a request that has the same effect twice; a patient client repeats it."""
        if self._retry_seconds is None or self._has_given_up:
            return send()
        try:
            return self.repeat_while_unavailable("A request", send)
        except BackendUnavailableError as error:
            self._has_given_up = error.transient
            raise

    def get_run(self, job: str | TrainJobRef) -> TrackedRun | None:
        """Return the MLflow run of a TrainJob; None if it is not tracked, or has no run yet.

        Args:
            job: Its name or ref.

        Raises:
            JobNotFoundError: The TrainJob does not exist.
        """
        return self.runs.get_run(self.get_job_ref(job))

    def retry(self, job: str | TrainJobRef) -> TrainJobRef:
        """Start the next attempt of a failed TrainJob, which continues from its last checkpoint if it has one.

        It runs the same request, under the name of the TrainJob and a number: ``nightly-1`` after ``nightly``. If a
        later attempt exists that has not failed, its ref is returned, and nothing is started. Tokens that were given
        as text are not stored; submit such a TrainJob again instead. With the option `RestartPolicy` it has a new
        budget of restarts.

        Args:
            job: Its name or ref.

        Raises:
            JobNotFoundError: The TrainJob does not exist.
            InvalidRequestError: It has not failed.
        """
        from trainer_core.client.attempts import start_next_attempt  # Only for a person who retries.

        return start_next_attempt(self.backend, self.submit, self.get_job_ref(job))

    def attempts(
        self,
        job: str | TrainJobRef,
        *,
        timeout: float | None = None,
        rules: RestartRules | None = None,
        submit: Callable[[Outcome], TrainJobRef] | None = None,
    ) -> Attempts:
        """Return an iterator over a TrainJob and those that follow it after failures, with one budget of time.

        The next attempt is started once the delay of its restart is over. Any number of processes can do this for one
        TrainJob: they get the same attempts.

        Example:
            ```python
            for attempt in client.attempts(name, timeout=3600):
                outcome = attempt.wait()
            ```

        Args:
            job: Its name or ref.
            timeout: Maximum time for all attempts and the delays between them, in seconds. None (the default) for no
                limit. `WaitTimeoutError` is raised afterwards.
            rules: When a TrainJob without rules of its own is started again, and how often. None (the
                default): never.
            submit: Called with the outcome of an attempt to submit the next one, by an orchestrator that has its own
                request. None (the default): the stored request is submitted.

        Raises:
            JobNotFoundError: The TrainJob does not exist.
        """
        from trainer_core.client.attempts import Attempts  # A process that only submits does not need it.

        found = self._get_reused(job)
        ref = self.get_job_ref(job) if found is None else found.job
        return Attempts(self, ref, timeout, rules, submit)

    def debug(
        self,
        job: str | TrainJobRef,
        *,
        from_checkpoint: bool | int = False,
        dataset: str | Path | None = None,
        break_at: str | None = None,
        pdb: bool = True,
        on: str = "debug",
        nodes: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> DebugResult:
        """Run the function of a TrainJob on this machine under a debugger, and compare how it ends.

        The function, the files of its project and its arguments are those of the TrainJob. It runs as the only process,
        rank 0, and an exception starts ``pdb`` at the line that raised it. Nothing of the TrainJob changes: checkpoints
        are copied, and what the function writes goes into a temporary folder. What this machine lacks is printed.
        The code of the TrainJob runs with your rights.

        Example:
            ```python
            client = TrainerClient(KubernetesBackendConfig(namespace="team"))
            result = client.debug("nightly-1", from_checkpoint=True, dataset="./sample")
            ```

        Args:
            job: Its name or ref.
            from_checkpoint: True starts from a copy of its newest complete checkpoint, a number from that of this step.
                False (the default) starts from the beginning.
            dataset: File or folder that replaces its dataset. None (the default) fetches its own.
            break_at: ``FILE:LINE`` of a breakpoint, such as ``"train.py:12"``. None (the default) for none.
            pdb: False only runs the function. Default True.
            on: ``debug`` (the default), or ``local`` to run it as a job of several processes, without a debugger.
            nodes: With ``local``: number of nodes, one process each. None (the default) for 1.
            env: Environment variables, such as secrets that the TrainJob refers to. Secrets that this process does not
                have are asked for on a terminal. None (the default) for those of this process.

        Raises:
            JobNotFoundError: The TrainJob does not exist.
            UnsupportedError: It runs no function, or another version of Python; or its checkpoints cannot be read here.
            InvalidRequestError: An argument is invalid, a secret is missing, or its code was changed or is lost.
        """
        from trainer_core.client import debugging  # Only for a person who debugs.

        options = debugging.DebugOptions(from_checkpoint, dataset, break_at, pdb, on, nodes, env)
        local = self.config if isinstance(self.config, LocalProcessBackendConfig) else LocalProcessBackendConfig()
        return debugging.debug(self.backend, self.get_job_ref(job), options, local.state_home)

    def flush_tracking(self, timeout: float = 5.0) -> None:
        """Wait until the MLflow runs of submitted TrainJobs have their parameters and tags.

        `submit` does not wait for them. The end of a process does, unless it ends by `os._exit`, as tasks of Airflow
        and steps of KFP do. What is not sent in time, or by a process that is killed, is sent by the next process that
        waits for the TrainJob or submits it again.

        Args:
            timeout: Maximum time to wait, in seconds. Default 5.

        Raises:
            ValueError: The timeout is not a number of seconds.
        """
        self.runs.flush(timeout)

    def promote(
        self,
        job: str | TrainJobRef,
        *,
        model: str,
        metric: str,
        mode: Literal["max", "min"] = "max",
        min_delta: float = 0.0,
        alias: str = "champion",
        partition: str | None = None,
        artifact: str = "model",
        registry: str | None = None,
        replace_metric: bool = False,
    ) -> Promotion:
        """Register the model of a TrainJob, and move the alias to it if it is better than the model that has the alias.

        Repeating it changes nothing and returns the same. See `ModelRegistry.promote`.

        Example:
            ```python
            client.promote(name, model="digits", metric="accuracy")
            ```

        Args:
            job: Name or ref of a TrainJob that is Complete.
            model: Name of the model in the registry.
            metric: Name of the metric by which models are compared.
            mode: ``max`` (default): the largest value is best; ``min``: the smallest.
            min_delta: By how much the metric must be better. Default 0: any difference counts.
            alias: The alias. Default ``champion``.
            partition: Key of a partition: the alias is that of this partition, such as ``champion-emea`` for
                ``"emea"``; a key with other characters than lower-case letters, digits and hyphens ends with a hash.
                Only models of this alias are compared. None (the default): the alias as it is.
            artifact: Name of the job's artifact that is the model. Default ``model``.
            registry: URI of an MLflow server, or a folder. None (the default): the server on which this client tracks,
                or the folder ``registry`` in ``TRAINJOB_HOME``.
            replace_metric: True to promote the model although the alias compares another metric or mode, and to
                compare this one from now on. Default False: refused.

        Raises:
            JobNotFoundError: The TrainJob does not exist.
            WaitTimeoutError: The TrainJob has not ended.
            InvalidRequestError: The TrainJob failed, or lacks the metric or artifact; an argument is invalid; or the
                alias compares another metric.
            TrackingError: The registry cannot be reached, or refuses.
        """
        from trainer_core.tracking.model_registry import build_partition_alias  # Only for promotion.
        from trainer_core.tracking.registries import open_registry

        ref = self.get_job_ref(job)
        outcome = self.get_job_outcome(ref)
        request = self.get_job_request(ref)
        tracking, own = request.policy.tracking, request.context.partition
        if None not in (own, partition) and own != partition:
            _log.warning("TrainJob %r of partition %r is promoted for partition %r", ref.name, own, partition)
        with open_registry(registry, self.runs.server) as target:
            is_same_server = bool(tracking and tracking.uri and target.has_origin_of(tracking.uri))
            return target.promote(
                outcome,
                model=model,
                metric=metric,
                mode=mode,
                min_delta=min_delta,
                alias=build_partition_alias(alias, partition),
                artifact=artifact,
                run_id=tracking.run_id if tracking and is_same_server else None,
                replace_metric=replace_metric,
            )

    def find_jobs(self, request: TrainJobRequest) -> Sequence[ExistingJob]:
        """Return the existing TrainJobs that have the name of a request or belong to its owner.

        Args:
            request: The request, from `build_request`.
        """
        return self._ask(lambda: self.backend.find_jobs(request))

    def list_jobs(
        self,
        runtime: Runtime | None = None,
        labels: Mapping[str, str] | None = None,
        partition: str | None = None,
    ) -> list[TrainJob]:
        """Return the TrainJobs, newest first.

        Args:
            runtime: Return only the TrainJobs of this runtime. None (the default) returns all.
            labels: Return only the TrainJobs with these labels; a cluster lists no others. None (the default) returns
                all.
            partition: Return only the TrainJobs of this partition. None (the default) returns all.

        Raises:
            ValueError: A partition cannot have this key.
        """
        if partition is not None:
            validation.check_partition(partition)
        wanted = {**(labels or {}), **build_partition_labels(partition)}
        if wanted and isinstance(self.backend, _SelectsByLabels):
            select = self.backend.list_jobs_by_labels
            jobs = self._ask(lambda: select(wanted))
        else:
            jobs = [job for job in self._ask(self.backend.list_jobs) if wanted.items() <= job.labels.items()]
        if not wanted:  # A record of a search trains nothing.
            jobs = [job for job in jobs if SEARCH_RECORD_LABEL not in job.labels]
        return [job for job in jobs if runtime is None or job.runtime.name == runtime.name]

    def get_job(self, name: str | TrainJobRef) -> TrainJob:
        """Return one TrainJob.

        Args:
            name: Its name or ref.

        Raises:
            JobNotFoundError: The TrainJob does not exist.
        """
        if isinstance(name, str):
            return self._ask(lambda: self.backend.get_job(name))
        return self._ask(lambda: self.backend.get_job_by_ref(name))

    def get_job_ref(self, name: str | TrainJobRef) -> TrainJobRef:
        """Return the ref of a TrainJob: small JSON data by which any process finds this TrainJob.

        Args:
            name: Its name. A ref is returned unchanged.

        Raises:
            JobNotFoundError: The TrainJob does not exist.
        """
        return name if isinstance(name, TrainJobRef) else self._ask(lambda: self.backend.get_ref(name))

    def get_job_request(self, name: str | TrainJobRef) -> TrainJobRequest:
        """Return the request that a TrainJob was created from.

        Args:
            name: Its name or ref.

        Raises:
            JobNotFoundError: The TrainJob does not exist.
        """
        ref = self.get_job_ref(name)
        return self._ask(lambda: self.backend.get_request(ref))

    def get_job_logs(
        self, name: str | TrainJobRef, step: str = "node-0", follow: bool | None = False, *, raw: bool = False
    ) -> Iterator[str]:
        """Yield the log lines of one step.

        Args:
            name: Name or ref of the TrainJob.
            step: Name of the step, such as ``"node-0"`` (the default) or ``"dataset-initializer"``.
            follow: True yields new lines until the TrainJob has ended. False (the default) yields the existing lines.
            raw: True yields each line as it is in the log. False (the default) yields the progress of the training as
                text, such as ``progress 50% (5/10) loss=0.1``, and leaves out the lines that programs read.

        Raises:
            JobNotFoundError: The TrainJob does not exist.
            ValueError: The TrainJob has no such step; the message lists its steps.
        """
        lines = self.backend.logs(self.get_job_ref(name), step, bool(follow))
        return lines if raw else readable_log.format_log_lines(lines)

    def tail_job_logs(
        self,
        name: str | TrainJobRef,
        cursor: Mapping[str, Any] | None = None,
        job_ended: bool = False,
        max_lines: int = MAX_LOG_LINES,
        step: str | None = None,
    ) -> LogChunk:
        """Return the log lines of the steps after a cursor, and the next cursor. Does not wait for new lines.

        Reading from cursor to cursor returns every line once and in order, from any process.

        Args:
            name: Name or ref of the TrainJob.
            cursor: `LogChunk.cursor` of the previous chunk. None (the default) starts at the beginning.
            job_ended: True if the TrainJob has ended: the last line counts even without a line end. Default False.
            max_lines: Approximate limit of lines to return. Default 1,000.
            step: Name of the only step to read. None (the default) reads all steps.

        Raises:
            JobNotFoundError: The TrainJob does not exist.
            ValueError: The TrainJob has no such step, and the message lists its steps; or the cursor is no dict.
        """
        validation.check_mapping("cursor", cursor, "the cursor of a LogChunk")
        return self.backend.tail(self.get_job_ref(name), cursor or {}, job_ended, max_lines, step)

    def get_job_events(self, name: str | TrainJobRef) -> list[Event]:
        """Return the events of a TrainJob and its steps, oldest first.

        Args:
            name: Name or ref of the TrainJob.

        Raises:
            JobNotFoundError: The TrainJob does not exist.
        """
        return self.backend.events(self.get_job_ref(name))

    def wait_for_job_status(
        self,
        name: str | TrainJobRef,
        status: set[str] = {"Complete"},  # noqa: B006 - the reference's signature; never changed here
        timeout: int = 600,
        polling_interval: int = 2,
        callbacks: list[Callable[[TrainJob], None]] | None = None,
    ) -> TrainJob:
        """Wait until a TrainJob has one of the statuses, and return the TrainJob.

        Unless ``Failed`` is one of them, it starts the next attempts as `wait` does.

        Args:
            name: Name or ref of the TrainJob.
            status: Any of ``Created``, ``Suspended``, ``Running``, ``Complete``, ``Failed``. Default ``{"Complete"}``.
            timeout: Maximum time to wait, in seconds. Default 600.
            polling_interval: Time between two observations, in seconds, less than the timeout. Default 2.
            callbacks: Called with the TrainJob after each observation. None (the default) for none.

        Raises:
            ValueError: An argument is invalid.
            JobNotFoundError: The TrainJob does not exist.
            JobFailedError: The TrainJob failed, and ``Failed`` is not one of the statuses.
            JobEndedError: The TrainJob is Complete, so it cannot reach any of the statuses.
            WaitTimeoutError: The TrainJob did not reach any of the statuses within the timeout.
        """
        waiting.check_arguments(status, timeout, polling_interval)
        for attempt in self.attempts(name, timeout=timeout):
            try:
                return self._ask(partial(attempt.wait_for_status, status, polling_interval, callbacks or ()))
            except JobFailedError as error:
                failure = error
        raise failure

    def delete_job(self, name: str | TrainJobRef) -> None:
        """Delete a TrainJob and end its processes. Succeeds if it does not exist.

        Its MLflow run gets the rest of its log and how it ended before.

        Args:
            name: Its name or ref. With a ref, another TrainJob that has the same name now is not deleted.
        """
        ref = self._find_ref(name)
        if ref is not None and not _is_reused(ref, "deleted"):
            with self.runs.report_deletion(ref):
                self._ask(lambda: self.backend.delete(ref))

    def list_checkpoints(self, job: str | TrainJobRef) -> list[SavedCheckpoint]:
        """Return the complete checkpoints of a TrainJob and of the earlier attempts that share them, oldest first.

        Those on ``s3://`` are read with the credentials of this process, from its ``AWS_*`` variables.

        Args:
            job: Its name or ref.

        Raises:
            JobNotFoundError: The TrainJob does not exist.
            InvalidRequestError: It has no option `Checkpoints`.
            UnsupportedError: They are in a claim or a volume, which only nodes can read.
            BackendUnavailableError: The bucket cannot be read.
        """
        from trainer_core.client import saved_checkpoints  # It loads the modules of HTTP.

        return saved_checkpoints.list_of_job(self.backend, self.get_job_ref(job))

    def prune_checkpoints(self, job: str | TrainJobRef) -> list[SavedCheckpoint]:
        """Delete the checkpoints of an ended TrainJob except the newest and the best one, and return the deleted ones.

        Args:
            job: Its name or ref.

        Raises:
            JobNotFoundError: The TrainJob does not exist.
            InvalidRequestError: It has no option `Checkpoints`, or has not ended.
            UnsupportedError: They are in a claim or a volume, which only nodes can read.
            BackendUnavailableError: The bucket cannot be read.
        """
        from trainer_core.client import saved_checkpoints  # It loads the modules of HTTP.

        return saved_checkpoints.prune_of_job(self.backend, self.get_job_ref(job))

    def reap(self) -> list[str]:
        """Delete the ended TrainJobs whose `DeleteAfter` time has passed, and return their names.

        Call `end_abandoned_runs` before: afterwards a run of a deleted TrainJob can only be ended as KILLED.
        """
        return self.backend.reap()

    def end_abandoned_runs(self, on_ended: Callable[[EndedRun], None] | None = None) -> list[EndedRun]:
        """End the MLflow runs of TrainJobs that have ended, or were deleted, while no process waited for them.

        A TrainJob that ended gives its run the points of its log, its final metrics and its status; that of a deleted
        one is KILLED. Other runs stay as they are: those without a TrainJob, of other backends, of active TrainJobs,
        and of TrainJobs that are not found but live elsewhere: on another machine, engine or API server (also the same
        one by another address). Repeating it changes nothing.

        Args:
            on_ended: Called after each run was ended. None (the default) calls nothing.

        Returns:
            The ended runs. Empty if no tracking server is configured.

        Raises:
            TrackingError: The server cannot be reached; or, after all others were ended, it refuses to end some.
        """
        ended = []
        for run in self.runs.end_abandoned():
            ended.append(run)
            if on_ended is not None:
                on_ended(run)
        return ended

    def observe(self, job: str | TrainJobRef) -> Observation:
        """Return the status of a TrainJob now, with its progress and, if it has ended, its outcome.

        Args:
            job: Its name or ref.

        Raises:
            JobNotFoundError: The TrainJob does not exist.
        """
        ref = self.get_job_ref(job)
        return self._ask(lambda: self.backend.observe(ref))

    def get_job_outcome(self, job: str | TrainJobRef) -> Outcome:
        """Return the outcome of a TrainJob that has ended.

        Args:
            job: Its name or ref.

        Raises:
            WaitTimeoutError: The TrainJob has not ended.
            JobNotFoundError: The TrainJob does not exist.
        """
        if self._retry_seconds is not None:
            self.observe(job)  # A wait of no time has no patience.
        return self.wait(job, timeout=0, restarts=False)

    def wait(
        self,
        job: str | TrainJobRef,
        timeout: float | None = None,
        on_observation: Callable[[Observation], None] | None = None,
        fail_fast: bool = True,
        restarts: bool = True,
    ) -> Outcome:
        """Wait until a TrainJob has ended, and return its outcome, whether it succeeded or failed.

        Tolerates 30 minutes without a connection to the backend. After a failure to which the option `RestartPolicy`
        answers with a restart, it submits the next attempt and waits for that one: `Outcome.job` is the last.

        Args:
            job: Its name or ref.
            timeout: Maximum time to wait, in seconds. None (the default) for no limit.
            on_observation: Called after each observation, for progress bars and log lines. None for none.
            fail_fast: True (the default) cancels a TrainJob that cannot start or recover (an image that does not
                exist, a crash loop, half an hour without a node that fits), instead of waiting until the backend
                reports the failure.
            restarts: True (the default) starts the training again as its `RestartPolicy` demands. False returns the
                outcome of this TrainJob.

        Raises:
            WaitTimeoutError: The TrainJob has not ended within the timeout. It is not stopped.
            JobNotFoundError: The TrainJob does not exist.
        """
        if restarts:
            for attempt in self.attempts(job, timeout=timeout):
                outcome = attempt.wait(on_observation, fail_fast)
            return outcome
        found = self._get_reused(job)
        if found is not None:
            if on_observation is not None:
                on_observation(Observation(found.status, outcome=found))
            return found
        ref = self.get_job_ref(job)
        outcome = waiting.wait_for_outcome(self.backend, self.runs, ref, timeout, on_observation, fail_fast)
        return mark_reused(outcome) if ref.reused else outcome

    def follow(self, job: str | TrainJobRef, progress: bool = False) -> Follower:
        """Return a follower, which observes one TrainJob repeatedly. Close it, or use it as a context manager.

        All followers of a process share one watch, or one poll of each TrainJob.

        Args:
            job: Its name or ref.
            progress: True to include the reported progress in observations, which may be in the log only. Default
                False.

        Raises:
            JobNotFoundError: No TrainJob has this name.
        """
        return self.backend.follow(self.get_job_ref(job), progress)

    def suspend(self, job: str | TrainJobRef) -> None:
        """End the running steps of a TrainJob and keep the TrainJob (``spec.suspend: true``).

        Succeeds if it is suspended already or has ended.

        Args:
            job: Its name or ref.

        Raises:
            JobNotFoundError: The TrainJob does not exist.
        """
        ref = self.get_job_ref(job)
        self._ask(lambda: self.backend.suspend(ref))

    def resume(self, job: str | TrainJobRef) -> None:
        """Start a suspended TrainJob again (``spec.suspend: false``).

        It continues from its last checkpoint, without one from its beginning. Succeeds if it is not suspended.

        Args:
            job: Its name or ref.

        Raises:
            JobNotFoundError: The TrainJob does not exist.
        """
        ref = self.get_job_ref(job)
        self._ask(lambda: self.backend.resume(ref))

    def cancel(self, job: str | TrainJobRef) -> None:
        """End a TrainJob permanently and keep its logs and outcome. Succeeds if it has ended or does not exist.

        Args:
            job: Its name or ref.
        """
        ref = self._find_ref(job)
        if ref is not None and not _is_reused(ref, "cancelled"):
            self.backend.cancel(ref)

    def get_pod(self, name: str, uid: str, namespace: str | None = None) -> dict[str, Any] | None:
        """Return a pod, such as the pod that this process runs in.

        Args:
            name: Name of the pod.
            uid: Uid of the pod.
            namespace: Namespace of the pod. None (the default) for the namespace of the client.

        Returns:
            The pod as Kubernetes returns it, with ``metadata`` and ``spec``. None if the namespace has no such pod,
            and on a backend that does not run on Kubernetes.

        Raises:
            BackendUnavailableError: The cluster cannot be reached, or denies to list pods.
        """
        return self._ask(lambda: self.backend.get_pod(name, uid, namespace))

    def set_job_owner(
        self,
        job: str | TrainJobRef,
        kind: str,
        owner: OwnerReference | None,
        labels: Mapping[str, str | None] | None = None,
        only_with: Mapping[str, str] | None = None,
    ) -> Mapping[str, str]:
        """Set or remove the Kubernetes ownerReference of one kind on a TrainJob (``metadata.ownerReferences``).

        Kubernetes deletes the TrainJob when its owner is deleted. The owner must be in the TrainJob's namespace.

        Args:
            job: Its name or ref.
            kind: Kind of the owner, such as ``"Workflow"``. Existing references to owners of this kind are removed.
            owner: The new owner of this kind. None removes only.
            labels: Labels to set with the same request; the value None removes a label. None (the default) for none.
                Without an owner, a TrainJob that has these labels keeps its owners.
            only_with: Labels without which the TrainJob is not changed. None (the default) for none.

        Returns:
            The labels that the TrainJob had before.

        Raises:
            JobNotFoundError: The TrainJob does not exist.
            UnsupportedError: The backend does not run on Kubernetes.
        """
        ref = self.get_job_ref(job)
        if _is_reused(ref, "given an owner"):
            return {}
        return self._ask(lambda: self.backend.set_owner(ref, kind, owner, labels or {}, only_with or {}))

    @property
    def searches(self) -> Searches:
        """The searches of this client: it lists, reads, awaits, cancels and deletes them as `OptimizerClient` does."""
        from trainer_core.search.searches import Searches  # Only for searches.

        return Searches(self)

    def optimize(
        self,
        trial_template: TrainJobTemplate | Mapping[str, Any],
        *,
        search_space: Mapping[str, Any],
        objectives: Sequence[Any] | None = None,
        trial_config: Any = None,
        algorithm: Any = None,
        stop: Any = None,
        options: Sequence[Option] | None = None,
        owner: Owner | None = None,
    ) -> str:
        """Start a hyperparameter search and return its name. The same call again continues it.

        It starts the first trials and returns. The search moves on while a process waits for it; trials that run
        continue without one.

        Example:
            ```python
            name = client.optimize(
                TrainJobTemplate(trainer=CustomTrainer(func=train), runtime="python"),
                search_space={"lr": Search.loguniform(1e-4, 1e-1), "batch": Search.choice([16, 32])},
                objectives=[Objective("val_loss")],
                trial_config=TrialConfig(num_trials=20, parallel_trials=4),
                options=[Name("tune")],
            )
            outcome = client.wait_for_search(name)
            ```

        Args:
            trial_template: The TrainJob of each trial, without the parameters: a template, or a dict of the arguments
                of `train`.
            search_space: Distributions by the name of the parameter: an argument of the function, a field of the
                recipe, or a variable of the image. See `Search`.
            objectives: The metric by which trials are compared, and further ones that are collected. None (the
                default) minimizes ``loss``.
            trial_config: The limits. None (the default) for ten trials, one after the other.
            algorithm: How parameters are chosen: `RandomSearch` (the default), `GridSearch` or `OptunaSampler`.
            stop: The rule by which losers end early: `Asha` or `MedianStop`. None (the default) ends none.
            options: As in `train`, for each trial. `Name` is the name of the search.
            owner: What the search belongs to, such as a task of a DAG run. None: it is identified by its name.

        Raises:
            ValueError: An argument is invalid. Nothing was created.
            ConflictError: A search of this name exists with another definition; the message names the fields.
        """
        from trainer_core.search.definition import SearchDefinition  # Only for searches.

        definition = SearchDefinition.parse(search_space, objectives, trial_config, algorithm, stop)
        return self.searches.start(trial_template, definition, options, owner)

    def wait_for_search(
        self,
        name: str,
        timeout: float | None = None,
        on_change: Callable[[SearchState], None] | None = None,
    ) -> SearchOutcome:
        """Drive a search until it has ended, and return how it ended.

        Args:
            name: Name of the search.
            timeout: Maximum time to wait, in seconds. None (the default) for no limit.
            on_change: Called with the state of the search after each change. None (the default) for none.

        Raises:
            JobNotFoundError: The search does not exist.
            WaitTimeoutError: It has not ended within the timeout. Its trials continue.
        """
        return self.searches.wait(name, timeout, on_change)

    def _find_ref(self, job: str | TrainJobRef) -> TrainJobRef | None:
        found = self._get_reused(job)
        if found is not None:
            return found.job
        try:
            return self.get_job_ref(job)
        except JobNotFoundError:
            return None
