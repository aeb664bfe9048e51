"""The training-operator backend: PyTorchJobs of the Training Operator, which came before Trainer."""
