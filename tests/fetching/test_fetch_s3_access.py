"""Who a request to S3 storage comes from: given keys, a role, what the machine has, or nobody."""

from __future__ import annotations

import ssl
import subprocess

import pytest
from aiohttp import web
from fetching_scene import KEYS, contents
from s3_storage import serving, static
from s3_storage.trouble import Fault, says

from trainer_core.fetching.s3 import access
from trainer_core.fetching.source import FetchError

ROLE = "arn:aws:iam::123456789012:role/reader"
NOBODY = {"access_key_id": None, "secret_access_key": None}


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A machine without AWS credentials of its own."""
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


def signers(proxy):
    """Access key of each request for an object or a listing; None where it is not signed."""
    signed = [headers.get("Authorization") for method, _, headers in proxy.seen if method == "GET"]
    return {text and text.partition("Credential=")[2].partition("/")[0] for text in signed}


def asked_of_sts(proxy):
    return [path for method, path, _ in proxy.seen if method == "POST"]


def test_given_keys_sign_the_requests(data, proxy, fetch):
    fetch(data, proxy.url)
    assert signers(proxy) == {KEYS["access_key_id"]}


def test_given_keys_are_not_mixed_with_a_session_token_of_the_environment(data, proxy, fetch, machine):
    machine.setenv("AWS_SESSION_TOKEN", "of-somebody-else")
    fetch(data, proxy.url)
    assert [headers for _, _, headers in proxy.seen if "X-Amz-Security-Token" in headers] == []


def test_without_keys_those_of_the_environment_sign(data, proxy, fetch, machine):
    machine.setenv("AWS_ACCESS_KEY_ID", "AKIAENVIRONMENT")
    machine.setenv("AWS_SECRET_ACCESS_KEY", "x")
    fetch(data, proxy.url, **NOBODY)
    assert signers(proxy) == {"AKIAENVIRONMENT"}


def test_without_keys_a_profile_of_the_users_signs(data, proxy, fetch, tmp_path):
    lines = "[default]\naws_access_key_id = AKIAPROFILE\naws_secret_access_key = x\n"
    (tmp_path / "credentials").write_text(lines)
    fetch(data, proxy.url, **NOBODY)
    assert signers(proxy) == {"AKIAPROFILE"}


def test_where_no_credentials_are_found_requests_are_not_signed(bucket, moto, proxy, fetch):
    moto[1].put_object(Bucket=bucket.name, Key="data/a", Body=b"1", ACL="public-read")
    assert contents(fetch(f"s3://{bucket.name}/data", proxy.url, **NOBODY)) == {"a": b"1"}
    assert signers(proxy) == {None}


def test_what_is_not_public_says_that_no_credentials_were_found(data, proxy, fetch):
    with pytest.raises(FetchError, match="not public, and no credentials were found; give access_key_id") as refused:
        fetch(data, proxy.url, **NOBODY)
    assert not refused.value.retryable


def test_a_role_is_assumed_with_the_given_keys_and_signs(data, proxy, fetch):
    fetch(data, proxy.url, role_arn=ROLE)
    assert asked_of_sts(proxy) == ["/"]
    (signer,) = signers(proxy)
    assert signer.startswith("ASIA")


def test_a_role_is_assumed_by_web_identity(data, proxy, fetch, machine, tmp_path):
    (tmp_path / "token").write_text("a-token-of-the-pod")
    machine.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    fetch(data, proxy.url, role_arn=ROLE, **NOBODY)
    (signer,) = signers(proxy)
    assert signer.startswith("ASIA")


def test_a_role_that_may_not_be_assumed_is_one_line(data, proxy, fetch):
    proxy.faults.append(Fault(says(403, "AccessDenied"), "/"))
    with pytest.raises(FetchError, match=f"role {ROLE}: these credentials may not assume it") as refused:
        fetch(data, proxy.url, role_arn=ROLE)
    assert not refused.value.retryable
    assert len(str(refused.value).splitlines()) == 1


def test_a_role_without_anybody_to_assume_it_is_refused(data, proxy, fetch):
    with pytest.raises(FetchError, match="no AWS credentials were found; give access_key_id"):
        fetch(data, proxy.url, role_arn=ROLE, **NOBODY)


def test_credentials_of_the_machine_that_expire_on_the_way_are_worth_a_retry(data, proxy, fetch, machine):
    machine.setenv("AWS_ACCESS_KEY_ID", "AKIAENVIRONMENT")
    machine.setenv("AWS_SECRET_ACCESS_KEY", "x")
    proxy.faults.append(Fault(says(400, "ExpiredToken"), "data/a"))
    with pytest.raises(FetchError, match=r"the credentials expired on the way.*try again") as failed:
        fetch(data, proxy.url, **NOBODY)
    assert failed.value.retryable


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"secret_access_key": None}, "access_key_id and secret_access_key belong together"),
        ({"endpoint": "minio:9000"}, "endpoint must be a URL such as"),
    ],
)
def test_settings_that_cannot_be_right_are_refused_without_showing_a_secret(fetch, more, complaint):
    with pytest.raises(FetchError, match=complaint) as refused:
        fetch("s3://any/data", **{"endpoint": "http://127.0.0.1:9", **more})
    assert KEYS["secret_access_key"] not in str(refused.value)


@pytest.fixture
def private(tmp_path):
    """URL of storage whose certificate only its own authority knows, and the file of that authority."""
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


def test_storage_of_an_authority_of_the_users_is_trusted_when_they_say_so(private, fetch, machine):
    url, certificate = private
    machine.setenv("AWS_CA_BUNDLE", str(certificate))
    assert contents(fetch("s3://any", url)) == {"a": b"1"}


def test_storage_of_an_unknown_authority_is_not_trusted(private, fetch):
    with pytest.raises(FetchError, match="not trusted; name its authority in AWS_CA_BUNDLE") as refused:
        fetch("s3://any", private[0], retries=0)
    assert not refused.value.retryable


@pytest.mark.parametrize("status", [200, 301, 403])
def test_the_region_of_a_bucket_is_asked_for_and_told_to_everybody(status):
    async def answer(request):
        return web.Response(status=status, headers={"x-amz-bucket-region": "eu-west-3"})

    app = web.Application()
    app.router.add_route("HEAD", "/data", answer)
    with serving.served(app) as url:
        assert access.bucket_region("data", at=url) == "eu-west-3"


def test_where_nobody_tells_a_region_it_is_that_of_the_environment(machine):
    machine.setenv("AWS_REGION", "eu-central-1")
    assert access.bucket_region("data", at="http://127.0.0.1:9") == "eu-central-1"
