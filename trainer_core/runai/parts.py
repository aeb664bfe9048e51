"""What the itemized fields of a workload consist of: ports, volumes, repositories, tolerations. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic.alias_generators import to_camel

from trainer_core import resources
from trainer_core.secrets import SecretRef

__all__ = [
    "Claim",
    "ExposedUrl",
    "GitRepository",
    "HostPath",
    "Item",
    "Nfs",
    "Part",
    "Port",
    "Quantity",
    "Removed",
    "S3Bucket",
    "ServiceType",
    "Setting",
    "Text",
    "Toleration",
    "WholeNumber",
]


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


def _quantity(value: Any) -> Any:
    """Amounts are texts on the wire, also where they are numbers to whoever writes them."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError("must be a quantity such as 2, '500m' or '16Gi'")
    return resources.quantity_text(value)


Text = Annotated[str, Field(min_length=1)]
Quantity = Annotated[str, BeforeValidator(_quantity)]
WholeNumber = Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=2**31 - 1)]
PortNumber = Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=65535)]
ServiceType = Literal["LoadBalancer", "NodePort", "ClusterIP"]


class Removed(BaseModel):
    """Takes the place of an item that a base workload or policy has, and that this workload shall not have."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    deleted: Literal[True] = True


def _kind(value: Any) -> str:
    removed = isinstance(value, Removed) or (isinstance(value, Mapping) and "deleted" in value)
    return "removed" if removed else "item"


def _kind_of_setting(value: Any) -> str:
    return "secret" if isinstance(value, SecretRef) else _kind(value)


_T = TypeVar("_T")
#: An item of a kind, or its removal; what is wrong with it is told of the one that was meant.
Item: TypeAlias = Annotated[Annotated[_T, Tag("item")] | Annotated[Removed, Tag("removed")], Discriminator(_kind)]
#: The same of an environment variable, which may be a secret by reference.
Setting: TypeAlias = Annotated[
    Annotated[str, Tag("item")] | Annotated[SecretRef, Tag("secret")] | Annotated[Removed, Tag("removed")],
    Discriminator(_kind_of_setting),
]


class Part(BaseModel):
    """One item; fields go by their Python name or by Run:ai's."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    #: Members that this model does not know, as they are to be sent.
    extra: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _extra_is_extra(self) -> Part:
        known = {str(field.alias) for field in type(self).model_fields.values()}
        taken = ", ".join(sorted(known & self.extra.keys()))
        if taken:
            raise ValueError(f"extra: {taken} has a field of its own; set that")
        return self

    def wire(self) -> dict[str, Any]:
        """Return it as Run:ai spells it, without what is not set."""
        return {**self.model_dump(by_alias=True, exclude_none=True, exclude={"extra"}), **self.extra}


class Port(Part):
    """A port of the container that is exposed.

    Attributes:
        container: Its number in the container.
        external: Its number outside; None for one that the cluster picks.
        service_type: How it is exposed: ``LoadBalancer``, ``NodePort`` or ``ClusterIP``; None for the workload's way.
    """

    container: PortNumber
    external: PortNumber | None = None
    service_type: ServiceType | None = None


class ExposedUrl(Part):
    """A port of the container behind a URL.

    Attributes:
        container: The port's number in the container.
        url: The URL; None for one that Run:ai makes up.
        authorization_type: Who may open it, such as ``public`` or ``authenticatedUsers``.
        authorized_users: Users that may.
        authorized_groups: Groups whose members may.
    """

    container: PortNumber
    url: Text | None = None
    authorization_type: Text | None = None
    authorized_users: list[str] | None = None
    authorized_groups: list[str] | None = None


class Claim(Part):
    """A persistent volume claim that is mounted; made for the workload unless it exists.

    Attributes:
        path: Where it is mounted.
        claim_name: Its name; a new one can do without.
        existing_pvc: It exists already.
        read_only: Nothing may be written to it.
        size: How much a new one holds, such as ``10Gi``.
        storage_class: What provides a new one; None for the cluster's default.
        ephemeral: A new one goes with the workload.
    """

    path: Text
    claim_name: Text | None = None
    existing_pvc: bool | None = None
    read_only: bool | None = None
    size: Quantity | None = None
    storage_class: Text | None = None
    ephemeral: bool | None = None

    @model_validator(mode="after")
    def _an_existing_one_has_a_name(self) -> Claim:
        if self.existing_pvc and not self.claim_name:
            raise ValueError("an existing claim needs its claim_name")
        if self.existing_pvc and (self.size or self.storage_class or self.ephemeral):
            raise ValueError("size, storage_class and ephemeral are of a new claim; leave them out")
        return self


class Nfs(Part):
    """A folder of an NFS server that is mounted.

    Attributes:
        path: The folder on the server.
        server: The server.
        mount_path: Where it is mounted.
        read_only: Nothing may be written to it.
    """

    path: Text
    server: Text
    mount_path: Text
    read_only: bool | None = None


class HostPath(Part):
    """A folder of the machine that is mounted.

    Attributes:
        path: The folder on the machine.
        mount_path: Where it is mounted.
        read_only: Nothing may be written to it.
    """

    path: Text
    mount_path: Text
    read_only: bool | None = None


class S3Bucket(Part):
    """A bucket that is mounted.

    Attributes:
        bucket: Its name.
        path: Where it is mounted.
        url: The address of the store; None for AWS.
        access_key_secret: Name of the Secret with its keys.
        secret_key_of_access_key_id: The entry of the Secret that is the access key's id.
        secret_key_of_secret_key: The entry of the Secret that is the secret key.
    """

    bucket: Text
    path: Text
    url: Text | None = None
    access_key_secret: Text | None = None
    secret_key_of_access_key_id: Text | None = None
    secret_key_of_secret_key: Text | None = None


class GitRepository(Part):
    """A git repository that is cloned into the container.

    Attributes:
        repository: Its URL.
        path: Where it is cloned to.
        branch: Which branch of it.
        revision: Which commit or tag of it.
        password_secret: Name of the Secret with user and password.
        secret_key_of_user: The entry of the Secret that is the user.
        secret_key_of_password: The entry of the Secret that is the password.
    """

    repository: Text
    path: Text
    branch: Text | None = None
    revision: Text | None = None
    password_secret: Text | None = None
    secret_key_of_user: Text | None = None
    secret_key_of_password: Text | None = None


class Toleration(Part):
    """A taint of machines that the pods bear.

    Attributes:
        key: The taint's key; None, with ``Exists``, for any.
        operator: ``Equal`` (the default) or ``Exists``.
        value: The taint's value; not with ``Exists``.
        effect: ``NoSchedule``, ``PreferNoSchedule`` or ``NoExecute``; None for all.
        seconds: How long ``NoExecute`` is borne; None for ever.
    """

    key: Text | None = None
    operator: Literal["Equal", "Exists"] | None = None
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    seconds: Annotated[int, BeforeValidator(_no_bool)] | None = None

    @model_validator(mode="after")
    def _it_is_one(self) -> Toleration:
        if self.operator == "Exists" and self.value is not None:
            raise ValueError("operator Exists has no value; leave value out")
        if self.key is None and self.operator != "Exists":
            raise ValueError("give a key, or operator Exists for any")
        if self.seconds is not None and self.effect != "NoExecute":
            raise ValueError("seconds go with effect NoExecute only")
        return self
