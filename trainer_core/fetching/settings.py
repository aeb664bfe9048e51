"""What an initializer is told, from its environment: the same names as Trainer's initializers (specs.md A11).

On a cluster the variables have their plain names. A local process inherits the environment of whoever submits, where
``REGION`` may be anything: there each has our prefix, and the plain names are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainer_core.fetching.source import FetchError

__all__ = ["PREFIX", "ROLES", "Settings"]

PREFIX = "TRAINJOB_INITIALIZE_"
ROLES = ("dataset", "model")


@dataclass(frozen=True)
class Settings:
    """One thing to fetch.

    Attributes:
        role: ``dataset`` or ``model``.
        uri: ``scheme://…``.
        ignore: Glob patterns of files to leave out.
        link: Link to the source's files instead of copying them, where that is possible.
        access_token: Of the Hugging Face Hub.
        endpoint: URL of S3-compatible storage; None for AWS.
        access_key_id: None for the credentials found where it runs.
        secret_access_key: Likewise.
        region: Of the bucket; None to find it out.
        role_arn: Role to assume.
    """

    role: str
    uri: str
    ignore: tuple[str, ...] = ()
    link: bool = False
    access_token: str | None = field(default=None, repr=False)
    endpoint: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    region: str | None = None
    role_arn: str | None = None

    @property
    def scheme(self) -> str:
        """The URI's scheme."""
        return self.uri.partition("://")[0]

    @classmethod
    def from_env(cls, role: str, env: Mapping[str, str]) -> Settings:
        """Read them from environment variables; an empty one counts as not set.

        Raises:
            FetchError: There is no URI.
        """
        prefix = PREFIX if PREFIX + "STORAGE_URI" in env else ""

        def given(name: str) -> str | None:
            return env.get(prefix + name, "").strip() or None

        uri = given("STORAGE_URI")
        if uri is None or "://" not in uri:
            raise FetchError(f"STORAGE_URI must say what to fetch, such as s3://bucket/{role}; got {uri or 'nothing'}")
        return cls(
            role=role,
            uri=uri,
            ignore=tuple(each.strip() for each in (given("IGNORE_PATTERNS") or "").split(",") if each.strip()),
            link=given("LINK") is not None,
            access_token=given("ACCESS_TOKEN"),
            endpoint=given("ENDPOINT"),
            access_key_id=given("ACCESS_KEY_ID"),
            secret_access_key=given("SECRET_ACCESS_KEY"),
            region=given("REGION"),
            role_arn=given("ROLE_ARN"),
        )
