"""Submitting, where others create and delete at the same time."""

from __future__ import annotations

import pytest

from trainer_core.backends.debug.backend import DebugBackend
from trainer_core.errors import JobNotFoundError
from trainer_core.request import TrainJobRequest

CODE = {"kind": "source", "text": "def train():\n    return 1\n", "entry": "train"}
REQUEST = TrainJobRequest.parse(
    {"name": "job", "runtime": {"name": "python"}, "trainer": {"kind": "custom", "code": CODE}}
)


class DeletedMeanwhile(DebugBackend):
    """Deletes a job between the moments in which it is looked for and taken, once."""

    deletions = 1

    def ref(self, name):
        if self.deletions:
            self.deletions -= 1
            self.delete(super().ref(name))
        return super().ref(name)


def test_a_job_deleted_between_two_looks_is_created_again():
    backend = DeletedMeanwhile()
    first = DebugBackend.submit(backend, REQUEST)

    second = backend.submit(REQUEST)

    assert second.name == first.name
    assert second.uid != first.uid
    with pytest.raises(JobNotFoundError):
        backend.observe(first)
