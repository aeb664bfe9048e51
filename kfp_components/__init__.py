"""Kubeflow Pipelines: container components and the one program their image runs.

The package kfp-components of kubeflow/pipelines-components installs the same import name: use one or the other.
"""
