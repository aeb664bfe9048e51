"""OptimizerClient: hyperparameter searches under the names of `kubeflow.optimizer`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainer_core.client.trainer_client import TrainerClient

if TYPE_CHECKING:
    from trainer_core.config import BackendConfig
    from trainer_core.jobs import Event
    from trainer_core.search.definition import Algorithm, Objective, TrialConfig
    from trainer_core.search.results import OptimizationJob, Result
    from trainer_core.template import TrainJobTemplate
    from trainer_core.tracking.server import MlflowServer

__all__ = ["OptimizerClient"]


class OptimizerClient:
    """Run hyperparameter searches with the API of the Kubeflow SDK's optimizer: change the import line.

    It is a view of `TrainerClient`, whose `optimize` has more: early stop, options, and the other backends' features.
    There is no service that continues a search: it moves on in `wait_for_job_status`.

    Example:
        ```python
        client = OptimizerClient()
        name = client.optimize(
            TrainJobTemplate(trainer=CustomTrainer(func=train), runtime="python"),
            search_space={"lr": Search.loguniform(1e-4, 1e-1)},
        )
        client.wait_for_job_status(name)
        best = client.get_best_results(name)
        ```

    Args:
        backend_config: As for `TrainerClient`. None (the default) uses the backend named by the environment variable
            ``TRAINJOB_BACKEND``, or ``local`` (processes on this machine) if it is not set.
        tracking: As for `TrainerClient`: the MLflow server on which searches and trials are tracked. None (the default)
            uses the one that ``MLFLOW_TRACKING_URI`` names.

    Attributes:
        client: The client of the trials' TrainJobs.

    Raises:
        ValueError: The argument is not a backend configuration.
        BackendUnavailableError: The backend needs an extra that is not installed, or cannot be reached.
    """

    def __init__(self, backend_config: BackendConfig | None = None, tracking: MlflowServer | None = None) -> None:
        self.client = TrainerClient(backend_config, tracking)

    def optimize(
        self,
        trial_template: TrainJobTemplate | Mapping[str, Any],
        *,
        trial_config: TrialConfig | None = None,
        search_space: Mapping[str, Any],
        objectives: Sequence[Objective] | None = None,
        algorithm: Algorithm | None = None,
    ) -> str:
        """Start a search under a new name, and return the name.

        Args:
            trial_template: The TrainJob of each trial, without the parameters.
            trial_config: The limits. None (the default) for ten trials, one after the other.
            search_space: Distributions by the name of the parameter. See `Search`.
            objectives: The metric by which trials are compared, and further ones that are collected. None (the
                default) minimizes ``loss``.
            algorithm: `RandomSearch` (the default), `GridSearch` or `OptunaSampler`.

        Raises:
            ValueError: An argument is invalid. Nothing was created.
            RuntimeError: The first trials could not be created.
            TimeoutError: The backend did not answer.
        """
        return self.client.optimize(
            trial_template,
            search_space=search_space,
            objectives=objectives,
            trial_config=trial_config,
            algorithm=algorithm,
        )

    def list_jobs(self) -> list[OptimizationJob]:
        """Return all searches, newest first."""
        return self.client.list_optimization_jobs()

    def get_job(self, name: str) -> OptimizationJob:
        """Return a search with its trials.

        Args:
            name: Name of the search.

        Raises:
            JobNotFoundError: The search does not exist.
        """
        return self.client.get_optimization_job(name)

    def get_job_logs(self, name: str, trial_name: str | None = None, follow: bool = False) -> Iterator[str]:
        """Yield the log lines of a trial.

        Args:
            name: Name of the search.
            trial_name: Name of the trial, or its number. None (the default) for the best one so far, or the first one.
            follow: True yields new lines until the trial has ended. Default False.

        Raises:
            JobNotFoundError: The search or the trial does not exist.
        """
        return self.client.get_optimization_job_logs(name, trial_name, follow)

    def get_best_results(self, name: str) -> Result | None:
        """Return the parameters and metrics of the best trial so far; None while none has a value.

        Args:
            name: Name of the search.

        Raises:
            JobNotFoundError: The search does not exist.
        """
        return self.client.get_best_results(name)

    def wait_for_job_status(
        self,
        name: str,
        status: set[str] = {"Complete"},  # noqa: B006 - the reference's signature; never changed here
        timeout: int = 3600,
        polling_interval: int = 2,
        callbacks: list[Callable[[OptimizationJob], None]] | None = None,
    ) -> OptimizationJob:
        """Continue a search until it has one of the statuses, and return it.

        Args:
            name: Name of the search.
            status: Any of ``Created``, ``Running``, ``Complete``, ``Failed``. Default ``{"Complete"}``.
            timeout: Maximum time to wait, in seconds. Default 3600.
            polling_interval: Not used: changes are noticed when they happen.
            callbacks: Called with the search after each change. None (the default) for none.

        Raises:
            ValueError: An argument is invalid.
            RuntimeError: The search ended with another status.
            WaitTimeoutError: It has none of the statuses within the timeout. Its trials continue.
        """
        return self.client.wait_for_optimization_job_status(name, status, timeout, polling_interval, callbacks)

    def delete_job(self, name: str) -> None:
        """End a search and delete its TrainJobs. Succeeds if it does not exist.

        Args:
            name: Name of the search.
        """
        self.client.delete_optimization_job(name)

    def get_job_events(self, name: str) -> list[Event]:
        """Return the events of the TrainJobs of a search, oldest first.

        Args:
            name: Name of the search.

        Raises:
            JobNotFoundError: The search does not exist.
        """
        return self.client.get_optimization_job_events(name)
