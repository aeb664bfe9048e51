"""PyTorchJob: what the option `PyTorchJobSpec` sets in a request."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, model_validator

from trainer_core.base import validation
from trainer_core.model.request import Extension, TrainJobRequest
from trainer_core.model.run_policy import (
    CLEAN_POD_POLICIES,
    RestartPolicy,
    check_elastic_policy,
    check_keys,
    check_scheduling_policy,
)


class PyTorchJob(Extension):
    """The fields that `PyTorchJobSpec` sets. Dicts use Kubernetes' field names."""

    option: ClassVar[str] = "PyTorchJobSpec"
    backend: ClassVar[str] = "training-operator"

    elastic_policy: dict[str, Any] = Field(default_factory=dict)
    restart_policy: RestartPolicy | None = None
    run_policy: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_policies(self) -> PyTorchJob:
        check_elastic_policy("elastic_policy", self.elastic_policy)
        check_scheduling_policy("run_policy.schedulingPolicy", self.run_policy.get("schedulingPolicy") or {})
        check_keys("run_policy", self.run_policy, ("backoffLimit", "cleanPodPolicy", "schedulingPolicy"))
        validation.check_count("run_policy.backoffLimit", self.run_policy.get("backoffLimit"), minimum=0)
        if "cleanPodPolicy" in self.run_policy:
            validation.check_one_of("run_policy.cleanPodPolicy", self.run_policy["cleanPodPolicy"], CLEAN_POD_POLICIES)
        return self


def get_pytorch_job(request: TrainJobRequest) -> PyTorchJob:
    """Return what `PyTorchJobSpec` sets; nothing without it."""
    found: PyTorchJob = request.work.extensions.get("pytorch_job") or PyTorchJob()
    return found
