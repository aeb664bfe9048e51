"""Connects to a bucket: endpoint, region, and credentials that are renewed during a fetch.

Given keys are used as they are. Otherwise botocore finds credentials as the AWS CLI does (environment, profiles, web
identity, the role of the machine or pod) and assumes roles. Without credentials requests are not signed, which public
buckets accept.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import S3Store

from trainer_core.fetch.s3.errors import Signer, convert_error
from trainer_core.fetch.settings import FetchSettings
from trainer_core.fetch.source import FetchError

if TYPE_CHECKING:
    from obstore.store import S3Credential

_AWS = "https://s3.amazonaws.com"
_DEFAULT_REGION = "us-east-1"
_AUTO = "auto"
_SESSION_NAME = "trainjob-initializer"
_REGION_TIMEOUT = 10
#: obstore asks for credentials again five minutes before they expire; botocore then renews them in time.
_REFRESH_INTERVAL = timedelta(minutes=10)
#: Ends stalled connections, not slow ones.
_TIMEOUTS = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "6h"}


@dataclass(frozen=True)
class Connection:
    """Connection to a bucket."""

    store: S3Store
    #: Origin of the credentials.
    signer: Signer
    #: Creates botocore's S3 client, for requests that obstore does not offer.
    client: Callable[[], Any]


@dataclass(frozen=True)
class _GivenKeys:
    """Keys from the settings, with the attributes of botocore's credentials."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: None = None

    def get_frozen_credentials(self) -> _GivenKeys:
        return self


def connect(settings: FetchSettings, bucket: str, retries: int) -> Connection:
    """Return the connection to a bucket; sends no request to the bucket."""
    endpoint = settings.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    _check_settings(settings, endpoint)
    region = settings.region
    if region is None or (region == _AUTO and not endpoint):
        region = _DEFAULT_REGION if endpoint else find_bucket_region(bucket)
    resolved = _find_credentials(settings, endpoint, region)
    options: dict[str, Any] = (
        {"skip_signature": True} if resolved is None else {"credential_provider": _build_credential_provider(resolved)}
    )
    if endpoint:
        options["endpoint"] = endpoint.rstrip("/")
    client_options = _build_client_options(endpoint)
    try:
        store = S3Store(
            bucket, region=region, client_options=client_options, retry_config={"max_retries": retries}, **options
        )
    except BaseError as error:
        raise convert_error(error, f"s3://{bucket}") from error
    signer: Signer = "none" if resolved is None else "given" if isinstance(resolved, _GivenKeys) else "found"
    return Connection(store, signer, lambda: _create_client("s3", endpoint, region, resolved))


def find_bucket_region(bucket: str, url: str = _AWS) -> str:
    """Ask AWS for the region of a bucket; the request needs no credentials."""
    request = urllib.request.Request(f"{url}/{bucket}", method="HEAD")  # noqa: S310 -- the URL is AWS's
    try:
        with urllib.request.urlopen(request, timeout=_REGION_TIMEOUT) as response:  # noqa: S310
            headers = response.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
    except OSError:
        headers = {}
    default = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _DEFAULT_REGION
    return str(headers.get("x-amz-bucket-region") or default)


def _check_settings(settings: FetchSettings, endpoint: str | None) -> None:
    if (settings.access_key_id is None) != (settings.secret_access_key is None):
        raise FetchError("access_key_id and secret_access_key must be set together; set both or neither")
    if endpoint and (urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc):
        raise FetchError("endpoint must be a URL such as https://minio.example.com:9000")


def _build_client_options(endpoint: str | None) -> Any:
    """Return the HTTP options of obstore, with the certificate authorities that botocore trusts."""
    options: dict[str, Any] = {**_TIMEOUTS, "allow_http": (endpoint or "").startswith("http://")}
    bundle = os.environ.get("AWS_CA_BUNDLE")
    if bundle:
        try:
            options["root_certificate"] = Path(bundle).read_bytes()
        except OSError as error:
            raise FetchError(
                f"AWS_CA_BUNDLE={bundle} cannot be read ({error.strerror}); set it to a file of certificates"
            ) from error
    return options


def _find_credentials(settings: FetchSettings, endpoint: str | None, region: str) -> Any:
    """Return the credentials that sign requests, as botocore has them; None if there are none."""
    if settings.access_key_id and settings.secret_access_key:
        given = _GivenKeys(settings.access_key_id, settings.secret_access_key)
        return _assume_role(settings.role_arn, given, endpoint, region) if settings.role_arn else given
    from botocore import session  # type: ignore[import-untyped]  # slow: a third of a second

    token = os.environ.get("AWS_WEB_IDENTITY_TOKEN_FILE")
    if settings.role_arn and token and os.environ.get("AWS_ROLE_ARN", settings.role_arn) == settings.role_arn:
        return _assume_role_with_token(settings.role_arn, token, endpoint, region)
    try:
        resolved = session.Session().get_credentials()
    except Exception as error:  # botocore has dozens of error classes for its ways of finding credentials
        raise FetchError(
            f"the AWS credentials of this machine cannot be read ({_format_error(error)}); check them"
        ) from error
    if settings.role_arn is None:
        return resolved
    if resolved is None:
        raise FetchError(
            f"role {settings.role_arn}: no AWS credentials were found to assume it; "
            "set access_key_id and secret_access_key"
        )
    return _assume_role(settings.role_arn, resolved, endpoint, region)


def _assume_role(role: str, source: Any, endpoint: str | None, region: str) -> Any:
    from botocore import credentials

    fetcher = credentials.AssumeRoleCredentialFetcher(
        lambda _name, **_keys: _create_client("sts", endpoint, region, source),
        credentials.Credentials(source.access_key, source.secret_key) if isinstance(source, _GivenKeys) else source,
        role,
        extra_args={"RoleSessionName": _SESSION_NAME},
    )
    return _verify_role(role, credentials.DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role"))


def _assume_role_with_token(role: str, token: str, endpoint: str | None, region: str) -> Any:
    from botocore import credentials, utils

    fetcher = credentials.AssumeRoleWithWebIdentityCredentialFetcher(
        lambda _name, **_keys: _create_client("sts", endpoint, region, None),
        utils.FileWebIdentityTokenLoader(token),
        role,
        extra_args={"RoleSessionName": os.environ.get("AWS_ROLE_SESSION_NAME", _SESSION_NAME)},
    )
    return _verify_role(role, credentials.DeferredRefreshableCredentials(fetcher.fetch_credentials, "web-identity"))


def _verify_role(role: str, resolved: Any) -> Any:
    """Assume the role now, because obstore would hide the reason of a failure."""
    try:
        resolved.get_frozen_credentials()
    except Exception as error:
        if "AccessDenied" in str(error):
            why = "the credentials may not assume it; grant them sts:AssumeRole, and name them in its trust policy"
            raise FetchError(f"role {role}: {why}") from error
        raise convert_error(error, f"role {role}") from error
    return resolved


def _create_client(service: str, endpoint: str | None, region: str, resolved: Any) -> Any:
    """Return a client of botocore. S3-compatible storage has its STS at the same endpoint."""
    from botocore import UNSIGNED, credentials, session
    from botocore.config import Config  # type: ignore[import-untyped]

    client_session = session.Session()
    if isinstance(resolved, _GivenKeys):
        resolved = credentials.Credentials(resolved.access_key, resolved.secret_key)
    if resolved is not None:
        client_session._credentials = resolved  # as aiobotocore and s3fs do: there is no public function
    aws = endpoint is None or urlsplit(endpoint).netloc.endswith((".amazonaws.com", ".amazonaws.com.cn"))
    return client_session.create_client(
        service,
        region_name=region,
        endpoint_url=None if service == "sts" and aws else endpoint,
        config=Config(
            **({} if resolved is not None else {"signature_version": UNSIGNED}), s3={"addressing_style": "path"}
        ),
    )


def _build_credential_provider(resolved: Any) -> Callable[[], S3Credential]:
    def credential() -> S3Credential:
        now = resolved.get_frozen_credentials()
        renewed = datetime.now(timezone.utc) + _REFRESH_INTERVAL if hasattr(resolved, "refresh_needed") else None
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": renewed,
        }

    return credential


def _format_error(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
