"""Fields of a request that only one backend has: a workload of Run:ai, a PyTorchJob of the Training Operator."""
