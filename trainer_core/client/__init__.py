"""TrainerClient: submits TrainJobs to a backend, reads them, waits for them and ends them.

`trainer_client` has what a user calls. `waiting`, `attempts` and `runs` have the steps behind it, and what only
orchestrators call: the end of a wait of their own, and reports to MLflow.
"""

from trainer_core.backends.follower import Follower
from trainer_core.client.runs import TrackedRun
from trainer_core.client.trainer_client import TrainerClient, backend_for

__all__ = ["Follower", "TrackedRun", "TrainerClient", "backend_for"]
