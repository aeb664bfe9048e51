"""What may be shown of a manifest."""

from __future__ import annotations

from airflow.sdk._shared.secrets_masker import redact

from airflow_provider.ui import view


def shown(manifest):
    return view.manifest(manifest, lambda text, name: str(redact(text, name)))


def test_a_variable_whose_name_speaks_of_a_secret_has_no_value():
    env = [{"name": "API_KEY", "value": "s3cr3t"}, {"name": "EPOCHS", "value": "3"}]
    assert shown({"env": env}) == {"env": [{"name": "API_KEY", "value": "***"}, {"name": "EPOCHS", "value": "3"}]}


def test_the_same_holds_where_the_variables_are_a_dict():
    assert shown({"env": {"HF_TOKEN": "hf_1", "X": "1"}}) == {"env": {"HF_TOKEN": "***", "X": "1"}}


def test_a_secret_has_entries_but_no_values():
    secret = {"kind": "Secret", "metadata": {"name": "one"}, "stringData": {"model": "hf_literal"}}
    assert shown(secret)["stringData"] == {"model": "***"}


def test_a_reference_to_a_secret_is_shown():
    reference = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "one", "key": "k"}}}
    assert shown(reference) == reference


def test_code_and_data_for_programs_are_only_counted():
    assert shown({"args": ["torchrun", "x" * 1234]}) == {"args": ["torchrun", "(1,234 characters, not shown)"]}
    assert shown({"annotations": {"request": '{"password": "p"}'}}) == {
        "annotations": {"request": "(17 characters, not shown)"}
    }
