"""Types of the fields of a Run:ai workload: scalar types, and models of ports, volumes, repositories and the like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic.alias_generators import to_camel

from trainer_core.base import resources
from trainer_core.base.secrets import SecretRef


def _refuse_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


def _parse_quantity(value: Any) -> Any:
    """Return a quantity as a string; numbers are accepted as well."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError("must be a quantity such as 2, '500m' or '16Gi'")
    return resources.quantity_text(value)


NonEmptyString = Annotated[str, Field(min_length=1)]
Quantity = Annotated[str, BeforeValidator(_parse_quantity)]
NonNegativeInt = Annotated[int, BeforeValidator(_refuse_bool), Field(ge=0, le=2**31 - 1)]
PortNumber = Annotated[int, BeforeValidator(_refuse_bool), Field(ge=1, le=65535)]
ServiceType = Literal["LoadBalancer", "NodePort", "ClusterIP"]


class Removed(BaseModel):
    """Removes an item that the workload would inherit from its base workload or from a policy."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    deleted: Literal[True] = True


def _get_item_tag(value: Any) -> str:
    removed = isinstance(value, Removed) or (isinstance(value, Mapping) and "deleted" in value)
    return "removed" if removed else "item"


def _get_env_tag(value: Any) -> str:
    return "secret" if isinstance(value, SecretRef) else _get_item_tag(value)


_T = TypeVar("_T")
#: An item or its removal. The tags limit error messages to the variant that was given.
Item: TypeAlias = Annotated[
    Annotated[_T, Tag("item")] | Annotated[Removed, Tag("removed")], Discriminator(_get_item_tag)
]
#: Value of an environment variable: a string, a reference to a Secret, or its removal.
EnvValue: TypeAlias = Annotated[
    Annotated[str, Tag("item")] | Annotated[SecretRef, Tag("secret")] | Annotated[Removed, Tag("removed")],
    Discriminator(_get_env_tag),
]


class ItemModel(BaseModel):
    """Base of the items with several members. Members have Python's or Run:ai's names.

    Attributes:
        extra: Members that this model does not have, in Run:ai's format.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, defer_build=True
    )

    extra: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_extra(self) -> ItemModel:
        known = {str(field.alias) for field in type(self).model_fields.values()}
        conflicts = ", ".join(sorted(known & self.extra.keys()))
        if conflicts:
            raise ValueError(f"extra: {conflicts} is a field of this model; set the field instead")
        return self

    def to_wire(self) -> dict[str, Any]:
        """Return the members that are set, by Run:ai's names."""
        return {**self.model_dump(by_alias=True, exclude_none=True, exclude={"extra"}), **self.extra}


class Port(ItemModel):
    """A port of the container that Run:ai exposes.

    Attributes:
        container: Port number in the container. Upstream ``container``.
        external: Port number outside of the cluster; None (the default) to let the cluster choose. Upstream
            ``external``.
        service_type: ``LoadBalancer``, ``NodePort`` or ``ClusterIP``; None (the default) for the `service_type` of the
            workload. Upstream ``serviceType``.
    """

    container: PortNumber
    external: PortNumber | None = None
    service_type: ServiceType | None = None


class ExposedUrl(ItemModel):
    """A port of the container that Run:ai exposes at a URL.

    Attributes:
        container: Port number in the container. Upstream ``container``.
        url: The URL; None (the default) to let Run:ai generate it. Upstream ``url``.
        authorization_type: Who has access, such as ``public`` or ``authenticatedUsers``. Upstream
            ``authorizationType``.
        authorized_users: Users with access. Upstream ``authorizedUsers``.
        authorized_groups: Groups whose members have access. Upstream ``authorizedGroups``.
    """

    container: PortNumber
    url: NonEmptyString | None = None
    authorization_type: NonEmptyString | None = None
    authorized_users: list[str] | None = None
    authorized_groups: list[str] | None = None


class VolumeClaim(ItemModel):
    """A PersistentVolumeClaim to mount. Run:ai creates it unless `existing_pvc` is set.

    Attributes:
        path: Mount path. Upstream ``path``.
        claim_name: Name of the claim; required for an existing one. Upstream ``claimName``.
        existing_pvc: Whether the claim exists. Upstream ``existingPvc``.
        read_only: Whether to mount it read-only. Upstream ``readOnly``.
        size: Size of a new claim, such as ``10Gi``. Upstream ``size``.
        storage_class: StorageClass of a new claim; None (the default) for the default of the cluster. Upstream
            ``storageClass``.
        ephemeral: Whether a new claim is deleted together with the workload. Upstream ``ephemeral``.
    """

    path: NonEmptyString
    claim_name: NonEmptyString | None = None
    existing_pvc: bool | None = None
    read_only: bool | None = None
    size: Quantity | None = None
    storage_class: NonEmptyString | None = None
    ephemeral: bool | None = None

    @model_validator(mode="after")
    def _check_existing_claim(self) -> VolumeClaim:
        if self.existing_pvc and not self.claim_name:
            raise ValueError("claim_name is missing; an existing claim requires it")
        if self.existing_pvc and (self.size or self.storage_class or self.ephemeral):
            raise ValueError("size, storage_class and ephemeral are for a new claim only; remove them")
        return self


class Nfs(ItemModel):
    """A folder of an NFS server to mount.

    Attributes:
        path: Folder on the server. Upstream ``path``.
        server: Host name of the server. Upstream ``server``.
        mount_path: Mount path. Upstream ``mountPath``.
        read_only: Whether to mount it read-only. Upstream ``readOnly``.
    """

    path: NonEmptyString
    server: NonEmptyString
    mount_path: NonEmptyString
    read_only: bool | None = None


class HostPath(ItemModel):
    """A folder of the Kubernetes node to mount.

    Attributes:
        path: Folder on the node. Upstream ``path``.
        mount_path: Mount path. Upstream ``mountPath``.
        read_only: Whether to mount it read-only. Upstream ``readOnly``.
    """

    path: NonEmptyString
    mount_path: NonEmptyString
    read_only: bool | None = None


class S3Bucket(ItemModel):
    """An S3 bucket to mount.

    Attributes:
        bucket: Name of the bucket. Upstream ``bucket``.
        path: Mount path. Upstream ``path``.
        url: Endpoint of the object store; None (the default) for AWS. Upstream ``url``.
        access_key_secret: Name of the Secret with the credentials. Upstream ``accessKeySecret``.
        secret_key_of_access_key_id: Key of the access key id in the Secret. Upstream ``secretKeyOfAccessKeyId``.
        secret_key_of_secret_key: Key of the secret access key in the Secret. Upstream ``secretKeyOfSecretKey``.
    """

    bucket: NonEmptyString
    path: NonEmptyString
    url: NonEmptyString | None = None
    access_key_secret: NonEmptyString | None = None
    secret_key_of_access_key_id: NonEmptyString | None = None
    secret_key_of_secret_key: NonEmptyString | None = None


class GitRepository(ItemModel):
    """A git repository to clone into the container.

    Attributes:
        repository: URL of the repository. Upstream ``repository``.
        path: Folder in the container. Upstream ``path``.
        branch: Branch; None (the default) for the default branch. Upstream ``branch``.
        revision: Commit or tag. Upstream ``revision``.
        password_secret: Name of the Secret with user name and password. Upstream ``passwordSecret``.
        secret_key_of_user: Key of the user name in the Secret. Upstream ``secretKeyOfUser``.
        secret_key_of_password: Key of the password in the Secret. Upstream ``secretKeyOfPassword``.
    """

    repository: NonEmptyString
    path: NonEmptyString
    branch: NonEmptyString | None = None
    revision: NonEmptyString | None = None
    password_secret: NonEmptyString | None = None
    secret_key_of_user: NonEmptyString | None = None
    secret_key_of_password: NonEmptyString | None = None


class Toleration(ItemModel):
    """A taint that the pods tolerate.

    Attributes:
        key: Key of the taint; None with operator ``Exists`` for every taint. Upstream ``key``.
        operator: ``Equal`` (the default of Kubernetes) or ``Exists``. Upstream ``operator``.
        value: Value of the taint; not allowed with operator ``Exists``. Upstream ``value``.
        effect: ``NoSchedule``, ``PreferNoSchedule`` or ``NoExecute``; None (the default) for all. Upstream ``effect``.
        seconds: Seconds to tolerate a taint with effect ``NoExecute``; None (the default) for no limit. Upstream
            ``seconds``.
    """

    key: NonEmptyString | None = None
    operator: Literal["Equal", "Exists"] | None = None
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    seconds: Annotated[int, BeforeValidator(_refuse_bool)] | None = None

    @model_validator(mode="after")
    def _check_combination(self) -> Toleration:
        if self.operator == "Exists" and self.value is not None:
            raise ValueError("value is not allowed with operator Exists; remove it")
        if self.key is None and self.operator != "Exists":
            raise ValueError("key is missing; set it, or use operator Exists for every taint")
        if self.seconds is not None and self.effect != "NoExecute":
            raise ValueError("seconds requires effect NoExecute; set it, or remove seconds")
        return self
