"""Credentials, roles, regions and certificates of S3 requests."""

from __future__ import annotations

import ssl
import subprocess

import pytest
from aiohttp import web
from fetch_helpers import KEYS, read_files
from s3_storage import serving, static
from s3_storage.faults import Fault, says

from trainer_core.fetch.s3 import credentials
from trainer_core.fetch.source import FetchError

ROLE = "arn:aws:iam::123456789012:role/reader"
NO_KEYS = {"access_key_id": None, "secret_access_key": None}


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """Remove the AWS credentials of this machine from the environment."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ROLE_ARN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CA_BUNDLE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return monkeypatch


@pytest.fixture
def data(bucket):
    bucket("data/a", b"1")
    return f"s3://{bucket.name}/data"


def list_signers(proxy):
    """Return the access keys that signed requests for objects and listings; None for unsigned requests."""
    signed = [headers.get("Authorization") for method, _, headers in proxy.seen if method == "GET"]
    return {text and text.partition("Credential=")[2].partition("/")[0] for text in signed}


def list_sts_requests(proxy):
    return [path for method, path, _ in proxy.seen if method == "POST"]


def test_given_keys_sign_the_requests(data, proxy, fetch):
    fetch(data, proxy.url)
    assert list_signers(proxy) == {KEYS["access_key_id"]}


def test_given_keys_are_used_without_the_session_token_of_the_environment(data, proxy, fetch, machine):
    machine.setenv("AWS_SESSION_TOKEN", "of-another-session")
    fetch(data, proxy.url)
    assert proxy.seen
    assert [headers for _, _, headers in proxy.seen if "X-Amz-Security-Token" in headers] == []


def test_without_given_keys_the_environment_provides_them(data, proxy, fetch, machine):
    machine.setenv("AWS_ACCESS_KEY_ID", "AKIAENVIRONMENT")
    machine.setenv("AWS_SECRET_ACCESS_KEY", "x")
    fetch(data, proxy.url, **NO_KEYS)
    assert list_signers(proxy) == {"AKIAENVIRONMENT"}


def test_without_given_keys_a_profile_provides_them(data, proxy, fetch, tmp_path):
    lines = "[default]\naws_access_key_id = AKIAPROFILE\naws_secret_access_key = x\n"
    (tmp_path / "credentials").write_text(lines)
    fetch(data, proxy.url, **NO_KEYS)
    assert list_signers(proxy) == {"AKIAPROFILE"}


def test_without_credentials_requests_are_not_signed(bucket, moto, proxy, fetch):
    moto[1].put_object(Bucket=bucket.name, Key="data/a", Body=b"1", ACL="public-read")
    assert read_files(fetch(f"s3://{bucket.name}/data", proxy.url, **NO_KEYS)) == {"a": b"1"}
    assert list_signers(proxy) == {None}


def test_the_error_of_a_private_object_reports_missing_credentials(data, proxy, fetch):
    with pytest.raises(FetchError, match="not public, and no credentials were found; set access_key_id") as raised:
        fetch(data, proxy.url, **NO_KEYS)
    assert not raised.value.retryable


def test_a_role_is_assumed_with_the_given_keys(data, proxy, fetch):
    fetch(data, proxy.url, role_arn=ROLE)
    assert list_sts_requests(proxy) == ["/"]
    (signer,) = list_signers(proxy)
    assert signer.startswith("ASIA")


def test_a_role_is_assumed_by_web_identity(data, proxy, fetch, machine, tmp_path):
    (tmp_path / "token").write_text("a-token-of-the-pod")
    machine.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    fetch(data, proxy.url, role_arn=ROLE, **NO_KEYS)
    (signer,) = list_signers(proxy)
    assert signer.startswith("ASIA")


def test_a_denied_role_is_a_permanent_error_in_one_line(data, proxy, fetch):
    proxy.faults.append(Fault(says(403, "AccessDenied"), "/"))
    with pytest.raises(FetchError, match=f"role {ROLE}: the credentials may not assume it") as raised:
        fetch(data, proxy.url, role_arn=ROLE)
    assert not raised.value.retryable
    assert len(str(raised.value).splitlines()) == 1


def test_a_role_without_credentials_to_assume_it_is_rejected(data, proxy, fetch):
    with pytest.raises(FetchError, match="no AWS credentials were found to assume it; set access_key_id"):
        fetch(data, proxy.url, role_arn=ROLE, **NO_KEYS)


def test_expired_credentials_of_the_machine_are_a_retryable_error(data, proxy, fetch, machine):
    machine.setenv("AWS_ACCESS_KEY_ID", "AKIAENVIRONMENT")
    machine.setenv("AWS_SECRET_ACCESS_KEY", "x")
    proxy.faults.append(Fault(says(400, "ExpiredToken"), "data/a"))
    with pytest.raises(FetchError, match=r"the credentials expired during the fetch.*try again") as failed:
        fetch(data, proxy.url, **NO_KEYS)
    assert failed.value.retryable


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"secret_access_key": None}, "access_key_id and secret_access_key must be set together"),
        ({"endpoint": "minio:9000"}, "endpoint must be a URL such as"),
    ],
)
def test_contradicting_settings_are_rejected_without_a_secret_in_the_message(fetch, more, message):
    with pytest.raises(FetchError, match=message) as raised:
        fetch("s3://any/data", **{"endpoint": "http://127.0.0.1:9", **more})
    assert KEYS["secret_access_key"] not in str(raised.value)


@pytest.fixture
def private(tmp_path):
    """URL of storage with a self-signed certificate, and the file of that certificate."""
    key, certificate = tmp_path / "key.pem", tmp_path / "authority.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=storage", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "a").write_text("1")
    with serving.served(static.app(tmp_path / "served"), tls) as url:
        yield url, certificate


def test_a_certificate_of_aws_ca_bundle_is_trusted(private, fetch, machine):
    url, certificate = private
    machine.setenv("AWS_CA_BUNDLE", str(certificate))
    assert read_files(fetch("s3://any", url)) == {"a": b"1"}


def test_an_unknown_certificate_is_not_trusted(private, fetch):
    with pytest.raises(FetchError, match="not trusted; set AWS_CA_BUNDLE") as raised:
        fetch("s3://any", private[0], retries=0)
    assert not raised.value.retryable


@pytest.mark.parametrize("status", [200, 301, 403])
def test_the_region_of_a_bucket_is_read_from_any_answer(status):
    async def answer(request):
        return web.Response(status=status, headers={"x-amz-bucket-region": "eu-west-3"})

    app = web.Application()
    app.router.add_route("HEAD", "/data", answer)
    with serving.served(app) as url:
        assert credentials.find_bucket_region("data", url=url) == "eu-west-3"


def test_the_region_of_the_environment_is_used_if_s3_does_not_answer(machine):
    machine.setenv("AWS_REGION", "eu-central-1")
    assert credentials.find_bucket_region("data", url="http://127.0.0.1:9") == "eu-central-1"
