"""A TrainJob as plain data: request, job, outcome, configuration of a backend."""
