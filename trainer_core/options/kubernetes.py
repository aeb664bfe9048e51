"""The options, by the name that the Kubeflow SDK has for their module."""

from trainer_core.options import *  # noqa: F403
from trainer_core.options import __all__ as __all__
