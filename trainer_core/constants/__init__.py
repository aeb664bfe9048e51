"""By the name that the Kubeflow SDK has for it: ``from trainer_core.constants import constants``."""
