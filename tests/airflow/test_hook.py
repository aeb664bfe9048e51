"""From a connection to the backend."""

from __future__ import annotations

import json

import pytest

from airflow_provider.compat import AirflowNotFoundException
from airflow_provider.hooks.trainjob import TrainJobHook
from trainer_core import DebugBackendConfig, LocalProcessBackendConfig
from trainer_core.configs import KubernetesBackendConfig


@pytest.fixture
def connection(airflow_db, monkeypatch):
    """Define a connection, as an administrator does in the environment."""

    def define(conn_id="trainjob_default", **extra):
        described = json.dumps({"conn_type": "trainjob", "extra": extra})
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", described)

    return define


def test_without_a_default_connection_jobs_run_on_this_machine(airflow_db, home):
    assert TrainJobHook().config == LocalProcessBackendConfig()


def test_a_connection_that_was_named_must_exist(airflow_db):
    with pytest.raises(AirflowNotFoundException):
        _ = TrainJobHook("elsewhere").config


def test_a_connection_names_backend_and_settings(connection, tmp_path):
    connection("cluster", backend="kubernetes", namespace="ml", context="")
    assert TrainJobHook("cluster").config == KubernetesBackendConfig(namespace="ml")


def test_what_the_dag_says_wins_over_the_connection(connection):
    connection("cluster", backend="kubernetes", namespace="ml", context="prod")
    hook = TrainJobHook("cluster", backend_config={"namespace": "mine"})
    assert hook.config == KubernetesBackendConfig(namespace="mine", context="prod")


def test_a_field_that_the_form_does_not_have_is_refused(connection):
    connection("cluster", backend="kubernetes", client_configuration={"host": "https://evil"})
    with pytest.raises(
        ValueError, match="connection 'cluster': unknown field client_configuration; known are backend, home"
    ):
        _ = TrainJobHook("cluster").config


def test_a_connection_of_another_backend_than_the_dag_names_is_refused(connection):
    connection("cluster", backend="kubernetes")
    with pytest.raises(
        ValueError, match="connection 'cluster' is of backend 'kubernetes', but backend='local' was given"
    ):
        _ = TrainJobHook("cluster", backend="local").config


def test_a_default_connection_of_another_backend_is_not_meant(connection, home):
    connection(backend="kubernetes", namespace="ml")
    assert TrainJobHook(backend="local").config == LocalProcessBackendConfig()


def test_a_configuration_object_is_taken_as_it_is(connection, tmp_path):
    connection(backend="kubernetes")
    config = LocalProcessBackendConfig(home=tmp_path)
    assert TrainJobHook(backend_config=config).config is config


def test_a_configuration_object_of_another_backend_is_refused():
    with pytest.raises(ValueError, match="contradict each other"):
        _ = TrainJobHook(backend="local", backend_config=DebugBackendConfig()).config


def test_another_process_can_make_the_same_hook_from_plain_data(connection, tmp_path):
    connection("here", backend="local", home=str(tmp_path))
    portable = json.loads(json.dumps(TrainJobHook("here").portable()))
    assert TrainJobHook(**portable).config == LocalProcessBackendConfig(home=tmp_path)


def test_a_secret_that_only_this_process_has_stays_here():
    class Configuration:
        host = "https://cluster"

    hook = TrainJobHook(backend_config=KubernetesBackendConfig(client_configuration=Configuration()))
    with pytest.raises(ValueError, match="client_configuration cannot leave this process"):
        hook.portable()


def test_testing_a_connection_says_what_answers(airflow_db, home):
    ok, message = TrainJobHook().test_connection()
    assert ok
    assert "python, torch-distributed" in message


def test_testing_a_connection_says_what_is_wrong(connection):
    connection("broken", backend="nowhere")
    ok, message = TrainJobHook("broken").test_connection()
    assert not ok
    assert "unknown backend 'nowhere'" in message


def test_making_a_hook_looks_nothing_up():
    assert TrainJobHook("does_not_exist").trainjob_conn_id == "does_not_exist"
