"""OptimizerClient: hyperparameter searches under the names of `kubeflow.optimizer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainer_core.client.trainer_client import TrainerClient
from trainer_core.search.definition import SearchDefinition
from trainer_core.search.searches import Searches

if TYPE_CHECKING:
    from trainer_core.definition.template import TrainJobTemplate
    from trainer_core.model.config import BackendConfig
    from trainer_core.search.definition import Algorithm, Objective, TrialConfig
    from trainer_core.tracking.server import MlflowServer


class OptimizerClient(Searches):
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

    client: TrainerClient

    def __init__(self, backend_config: BackendConfig | None = None, tracking: MlflowServer | None = None) -> None:
        super().__init__(TrainerClient(backend_config, tracking))

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
        definition = SearchDefinition.parse(search_space, objectives, trial_config, algorithm)
        return self.start(trial_template, definition)
