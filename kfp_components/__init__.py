"""Kubeflow Pipelines: container components and the one program their image runs."""
