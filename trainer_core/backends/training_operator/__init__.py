"""The training-operator backend: PyTorchJobs of the Training Operator, the predecessor of Kubeflow Trainer."""
