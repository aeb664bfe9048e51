"""References to secrets, and what messages may quote of a value."""

from __future__ import annotations

import pytest

from trainer_core import CustomTrainer
from trainer_core.base.secrets import SecretRef, has_credentials, mask_credentials, parse_secret, redact


@pytest.mark.parametrize(("name", "key"), [("hub", "token"), ("team.hub-1", "HF_TOKEN"), ("a", ".netrc")])
def test_a_reference_has_the_name_and_a_key_of_a_secret(name, key):
    ref = SecretRef(name, key)
    assert (ref.name, ref.key) == (name, key)


@pytest.mark.parametrize("name", ["", "Hub", "a/b", "../a", "a b", "a..b", "a" * 254, None])
def test_an_invalid_name_is_refused(name):
    with pytest.raises(ValueError, match="SecretRef name must be the name of a Secret"):
        SecretRef(name, "token")


@pytest.mark.parametrize("key", ["", ".", "..", "a/b", "a b", "ä", "a" * 254, None])
def test_an_invalid_key_is_refused(key):
    with pytest.raises(ValueError, match="SecretRef key must be a key of the Secret"):
        SecretRef("hub", key)


def test_the_message_does_not_quote_a_secret_given_by_mistake():
    with pytest.raises(ValueError, match="SecretRef") as refused:
        SecretRef("Hunter2!", "token")
    assert "Hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "data", [{"name": "hub"}, {"name": "hub", "key": "token", "value": "Hunter2!"}, {}, {"x" * 999: 1}]
)
def test_a_dict_that_is_not_a_reference_is_refused_without_quoting_its_values(data):
    with pytest.raises(ValueError, match="a secret must be a dict of name and key, got") as refused:
        parse_secret(data)
    assert "Hunter2" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_references_are_equal_if_name_and_key_are():
    assert SecretRef("hub", "token") == SecretRef("hub", "token")
    assert len({SecretRef("hub", "token"), SecretRef("hub", "token")}) == 1


@pytest.mark.parametrize(
    ("value", "path", "quoted"),
    [
        ("x", ("trainer", "image"), "'x'"),
        (-1, (), "-1"),
        ("x" * 500, (), "'" + "x" * 98 + "…"),
        (["Hunter2!"], (), "list"),
        ("Hunter2!", ("trainer", "env", "TOKEN"), ""),
        ("Hunter2!", ("initializer", "dataset", "secrets", "HF_TOKEN"), ""),
        ("https://user:Hunter2!@host/simple", ("trainer", "image"), "'https://***@host/simple'"),
    ],
)
def test_a_message_quotes_no_secret(value, path, quoted):
    assert redact(value, path) == quoted


@pytest.mark.parametrize(
    "url",
    [
        "https://token@host/simple",
        "https://user:pw@host",
        "http://:pw@host/x",
        "torch @ https://user:pw@host/x.whl",
        "git+ssh://git:pw@host/x",
        "https://host/simple?token=abc",
        "https://host/x?a=1&X-Amz-Signature=abc",
    ],
)
def test_a_url_with_a_user_or_a_password_has_credentials(url):
    assert has_credentials(url)


def test_credentials_of_urls_are_masked_in_a_text():
    text = "cannot reach tcp://user:pw@host:2376 and https://host/x?rev=1&token=abc&b=2"
    assert mask_credentials(text) == "cannot reach tcp://***@host:2376 and https://host/x?rev=1&token=***&b=2"


@pytest.mark.parametrize(
    "url",
    [
        "https://host/simple",
        "https://host/a@b",
        "file:///a@b",
        "{{ var.value.url }}",
        "git+ssh://git@host/x",
        "https://host/x?rev=1",
    ],
)
def test_a_url_without_a_user_has_no_credentials(url):
    assert not has_credentials(url)


def test_an_index_with_a_token_that_pip_would_write_into_its_log_is_refused():
    with pytest.raises(ValueError, match=r"pip_index_urls\[0\] has a token after") as refused:
        CustomTrainer("a:b", packages_to_install=["x"], pip_index_urls=["https://host/simple?token=Hunter2!"])
    assert "Hunter2!" not in str(refused.value)
