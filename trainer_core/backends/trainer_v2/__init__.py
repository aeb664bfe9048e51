"""Backend for Kubeflow Trainer v2 on Kubernetes."""
