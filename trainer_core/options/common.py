"""The options for every backend, by the name that the Kubeflow SDK has for their module."""

from trainer_core.options import Name as Name
