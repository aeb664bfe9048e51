"""TrainJob, pods and events → what all backends say of a job. Pure."""
