"""What is wrong with a runtime, without a server. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_core.admin import rules_jobs, rules_runtime, rules_steps
from trainer_core.admin.findings import ERROR, Finding
from trainer_core.admin.shape import shape

__all__ = ["findings"]

_RULES = (*rules_runtime.RULES, *rules_jobs.RULES, *rules_steps.RULES)


def findings(runtime: Mapping[str, Any]) -> list[Finding]:
    """Return what is wrong with a runtime, errors first; nothing is a good sign, but the server has the last word.

    Args:
        runtime: A ClusterTrainingRuntime or TrainingRuntime as it stands in YAML.
    """
    found = list(shape(runtime))
    if not found:
        found = [finding for rule in _RULES for finding in rule(runtime)]
    return sorted(found, key=lambda finding: finding.severity != ERROR)
