"""SIGTERM of a step, wherever its program is at that instant."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from pydantic_core import SchemaError, SchemaValidator

from kfp_components.step.owner_reference import Run
from kfp_components.step.sigterm import Terminated, cancel_on_sigterm, handle_sigterm
from trainer_core import LocalProcessBackendConfig, TrainerClient


class SendsSigterm:
    """A value whose repr, which pydantic asks for while it builds a schema, sends SIGTERM to this process."""

    def __repr__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        return ""


def test_sigterm_while_pydantic_builds_a_schema_cancels_the_job(tmp_path, capsys):
    client = TrainerClient(LocalProcessBackendConfig(home=tmp_path))
    cancelled = []
    on_sigterm = cancel_on_sigterm(client, "TrainJob x", lambda: cancelled.append("x"), "cancel", Run(None))
    with pytest.raises(Terminated) as raised, handle_sigterm(), on_sigterm:
        SchemaValidator({"type": "literal", "expected": [SendsSigterm()]})
    assert (cancelled, type(raised.value.__cause__)) == (["x"], SchemaError)
    assert capsys.readouterr().err == "terminated: TrainJob x is cancelled\n"


def test_an_error_without_sigterm_stays_what_it_is():
    with pytest.raises(SchemaError), handle_sigterm():
        SchemaValidator({"type": "no such type"})


class Finalized:
    """An object whose finalizer, in which Python drops exceptions, sends SIGTERM to this process."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def test_sigterm_where_python_drops_exceptions_still_ends_the_wait():
    def wait():
        Finalized()
        threading.Event().wait(300)

    with pytest.raises(Terminated), handle_sigterm():
        wait()
