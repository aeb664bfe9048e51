"""Docker and Podman: TrainJobs as containers of one engine."""
