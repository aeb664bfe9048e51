"""The options, by the name that the Kubeflow SDK has for them: ``from trainer_core.options import Labels``."""

from trainer_core.definition.options import *  # noqa: F403
from trainer_core.definition.options import __all__ as __all__  # type: ignore[attr-defined]  # a stub has none
