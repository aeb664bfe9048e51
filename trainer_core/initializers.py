"""Initializers: what to fetch before training, from where, and with which credentials."""

from __future__ import annotations

import re
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args
from urllib.parse import urlsplit

from trainer_core import checks, resources
from trainer_core.inside import contract
from trainer_core.secrets import SecretRef, secret_from

__all__ = [
    "DATASET_PATH",
    "MODEL_PATH",
    "BaseInitializer",
    "DataCacheInitializer",
    "FileDatasetInitializer",
    "FileModelInitializer",
    "HuggingFaceDatasetInitializer",
    "HuggingFaceModelInitializer",
    "Initializer",
    "S3DatasetInitializer",
    "S3ModelInitializer",
    "VolumeDatasetInitializer",
    "VolumeModelInitializer",
    "initializer_from_dict",
]

#: Where the fetched dataset and model lie inside a training container.
DATASET_PATH = contract.DEFAULTS[contract.DATASET_PATH]
MODEL_PATH = contract.DEFAULTS[contract.MODEL_PATH]

#: Weights in formats that training does not read; left out of pre-trained models.
_MODEL_IGNORE_PATTERNS = ["*.msgpack", "*.h5", "*.bin", "*.pt", "*.pth"]
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+")
_MAX_URI_LENGTH = 2048
_SECRET_FIELDS = ("access_token", "access_key_id", "secret_access_key")


@dataclass
class BaseInitializer(ABC):
    """What all initializers have in common.

    Args:
        storage_uri: Where the data lies, as ``scheme://…``.

    Raises:
        ValueError: It is no URI, or another argument cannot be right.
    """

    storage_uri: str

    def __post_init__(self) -> None:
        """Refuse arguments that cannot be right.

        Raises:
            ValueError: One line that names the argument.
        """
        checks.check_text("storage_uri", self.storage_uri, "hf://owner/name")
        if len(self.storage_uri) > _MAX_URI_LENGTH:
            raise ValueError(f"storage_uri has {len(self.storage_uri)} characters; use at most {_MAX_URI_LENGTH}")
        if not _URI.fullmatch(self.storage_uri) and not checks.is_placeholder(self.storage_uri):
            raise ValueError(f"storage_uri must look like 'scheme://rest', got {self.storage_uri!r}")
        _check_ignore_patterns(getattr(self, "ignore_patterns", None))
        for name in _SECRET_FIELDS:
            _check_secret(name, getattr(self, name, None))

    def _check_scheme(self, scheme: str) -> None:
        # A URI that is still to be filled in may turn out to have any scheme.
        if not self.storage_uri.startswith((scheme, "{")):
            raise ValueError(f"storage_uri must start with '{scheme}', got {self.storage_uri}")


@dataclass
class _HuggingFaceInitializer(BaseInitializer):
    ignore_patterns: list[str] | None = None
    access_token: str | SecretRef | None = field(default=None, repr=False)


@dataclass
class HuggingFaceDatasetInitializer(_HuggingFaceInitializer):
    """Fetch a dataset from the Hugging Face Hub.

    Args:
        storage_uri: ``hf://<owner>/<dataset>[@<revision>][/<path>]``; Trainer's own images take no more than the name.
        ignore_patterns: Glob patterns of files to leave out.
        access_token: For private or gated datasets; better a `SecretRef` than the token itself.

    Raises:
        ValueError: An argument cannot be right.
    """


@dataclass
class HuggingFaceModelInitializer(_HuggingFaceInitializer):
    """Fetch a pre-trained model from the Hugging Face Hub.

    Args:
        storage_uri: ``hf://<owner>/<model>[@<revision>][/<path>]``; Trainer's own images take no more than the name.
        ignore_patterns: Glob patterns of files to leave out; by default weights that are not safetensors.
        access_token: For private or gated models; better a `SecretRef` than the token itself.

    Raises:
        ValueError: An argument cannot be right.
    """

    ignore_patterns: list[str] | None = field(default_factory=_MODEL_IGNORE_PATTERNS.copy)


@dataclass
class _S3Initializer(BaseInitializer):
    ignore_patterns: list[str] | None = None
    endpoint: str | None = None
    access_key_id: str | SecretRef | None = field(default=None, repr=False)
    secret_access_key: str | SecretRef | None = field(default=None, repr=False)
    region: str | None = None
    role_arn: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_scheme("s3://")
        _check_optional_text("endpoint", self.endpoint, "https://minio.example.com")
        _check_optional_text("region", self.region, "eu-west-1")
        _check_optional_text("role_arn", self.role_arn, "arn:aws:iam::123456789012:role/reader")


@dataclass
class S3DatasetInitializer(_S3Initializer):
    """Fetch a dataset from S3, or from storage that speaks its language.

    Args:
        storage_uri: ``s3://<bucket>/<prefix>``.
        ignore_patterns: Glob patterns of keys to leave out.
        endpoint: URL of the storage; None for AWS.
        access_key_id: Better a `SecretRef` than the text itself; None for the credentials found where it runs.
        secret_access_key: Likewise.
        region: Region of the bucket; None to find it out.
        role_arn: Role to assume.

    Raises:
        ValueError: An argument cannot be right.
    """


@dataclass
class S3ModelInitializer(_S3Initializer):
    """Fetch a pre-trained model from S3, or from storage that speaks its language.

    Args:
        storage_uri: ``s3://<bucket>/<prefix>``.
        ignore_patterns: Glob patterns of keys to leave out; by default weights that are not safetensors.
        endpoint: URL of the storage; None for AWS.
        access_key_id: Better a `SecretRef` than the text itself; None for the credentials found where it runs.
        secret_access_key: Likewise.
        region: Region of the bucket; None to find it out.
        role_arn: Role to assume.

    Raises:
        ValueError: An argument cannot be right.
    """

    ignore_patterns: list[str] | None = field(default_factory=_MODEL_IGNORE_PATTERNS.copy)


@dataclass
class DataCacheInitializer(BaseInitializer):
    """Serve a table to the training nodes from a cache in memory, spread over data nodes.

    Args:
        storage_uri: ``cache://<SCHEMA_NAME>/<TABLE_NAME>``.
        metadata_loc: Where the table's metadata file lies, such as ``s3://bucket/path/metadata.json``.
        num_data_nodes: Data nodes, more than 1; a head node is added to them.
        head_cpu: CPU of the head node, as a Kubernetes quantity; None for Trainer's default.
        head_mem: Memory of the head node.
        worker_cpu: CPU of each data node.
        worker_mem: Memory of each data node.
        iam_role: Role that may read `metadata_loc`.

    Raises:
        ValueError: An argument cannot be right.
    """

    metadata_loc: str
    num_data_nodes: int
    head_cpu: str | None = None
    head_mem: str | None = None
    worker_cpu: str | None = None
    worker_mem: str | None = None
    iam_role: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_data_nodes()
        self._check_scheme("cache://")
        parts = self.storage_uri.removeprefix("cache://").split("/")
        if not checks.is_placeholder(self.storage_uri) and (len(parts) != 2 or not all(parts)):
            form = "cache://<SCHEMA_NAME>/<TABLE_NAME>"
            raise ValueError(f"storage_uri must be in format '{form}', got {self.storage_uri}")
        checks.check_text("metadata_loc", self.metadata_loc, "s3://bucket/path/metadata.json")
        for name in ("head_cpu", "head_mem", "worker_cpu", "worker_mem"):
            _check_quantity(name, getattr(self, name))
        _check_optional_text("iam_role", self.iam_role, "arn:aws:iam::123456789012:role/reader")

    def _check_data_nodes(self) -> None:
        # Unlike other counts it cannot be filled in later: the cluster's size is computed from it.
        given: object = self.num_data_nodes
        count = int(given) if isinstance(given, str) and given.isdecimal() else given
        if isinstance(count, bool) or not isinstance(count, int) or count <= 1:
            raise ValueError(f"num_data_nodes must be greater than 1, got {given!r}")


@dataclass
class _FileInitializer(BaseInitializer):
    ignore_patterns: list[str] | None = None
    link: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_scheme("file://")
        parts = urlsplit(self.storage_uri)
        if not checks.is_placeholder(self.storage_uri) and (parts.netloc or not parts.path.startswith("/")):
            raise ValueError(
                "storage_uri must be 'file://' and an absolute path, such as 'file:///data/digits', "
                f"got {self.storage_uri}"
            )
        if not isinstance(self.link, bool):
            raise ValueError(f"link must be True or False, got {self.link!r}")


@dataclass
class FileDatasetInitializer(_FileInitializer):
    """Take a dataset from a folder or file of the machine that runs the job.

    Args:
        storage_uri: ``file:///<absolute path>``.
        ignore_patterns: Glob patterns of files to leave out.
        link: Link instead of copying. Training then reads the source itself, and must not write to it.

    Raises:
        ValueError: An argument cannot be right.
    """


@dataclass
class FileModelInitializer(_FileInitializer):
    """Take a pre-trained model from a folder or file of the machine that runs the job.

    Args:
        storage_uri: ``file:///<absolute path>``.
        ignore_patterns: Glob patterns of files to leave out; by default none: a folder holds what was put there.
        link: Link instead of copying. Training then reads the source itself, and must not write to it.

    Raises:
        ValueError: An argument cannot be right.
    """


@dataclass
class _VolumeInitializer(BaseInitializer):
    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_scheme("pvc://")
        if checks.is_placeholder(self.storage_uri):
            return
        claim, _, path = self.storage_uri.removeprefix("pvc://").partition("/")
        checks.check_object_name("storage_uri: the volume claim", claim)
        # It becomes the subPath of a mount, which Kubernetes wants to stay inside the volume.
        if ".." in path.split("/") or path.startswith("/"):
            raise ValueError(f"storage_uri must be 'pvc://<claim>/<path in it>', got {self.storage_uri}")


@dataclass
class VolumeDatasetInitializer(_VolumeInitializer):
    """Take a dataset that lies in a volume of the cluster, such as one that `initialize` fetched. Nothing is copied.

    Args:
        storage_uri: ``pvc://<claim>/<path>``: a PersistentVolumeClaim of the job's namespace and a folder in it; all of
            it without a path. Training can read it and not write to it.

    Raises:
        ValueError: An argument cannot be right.
    """


@dataclass
class VolumeModelInitializer(_VolumeInitializer):
    """Take a pre-trained model that lies in a volume of the cluster, such as one that `initialize` fetched.

    Args:
        storage_uri: ``pvc://<claim>/<path>``: a PersistentVolumeClaim of the job's namespace and a folder in it; all of
            it without a path. Training can read it and not write to it.

    Raises:
        ValueError: An argument cannot be right.
    """


_Dataset: TypeAlias = (
    HuggingFaceDatasetInitializer
    | S3DatasetInitializer
    | DataCacheInitializer
    | FileDatasetInitializer
    | VolumeDatasetInitializer
)
_Model: TypeAlias = HuggingFaceModelInitializer | S3ModelInitializer | FileModelInitializer | VolumeModelInitializer


@dataclass
class Initializer:
    """What to fetch before training starts.

    Args:
        dataset: Lies at `DATASET_PATH` in the training containers; see `dataset_path` for any backend.
        model: Lies at `MODEL_PATH`; see `model_path`.

    Raises:
        ValueError: One of them is no initializer of its kind.
    """

    dataset: _Dataset | None = None
    model: _Model | None = None

    def __post_init__(self) -> None:
        _check_kind("dataset", self.dataset, get_args(_Dataset))
        _check_kind("model", self.model, get_args(_Model))


_BY_SCHEME: dict[str, dict[str, type[BaseInitializer]]] = {
    "dataset": {
        "s3": S3DatasetInitializer,
        "cache": DataCacheInitializer,
        "file": FileDatasetInitializer,
        "pvc": VolumeDatasetInitializer,
    },
    "model": {"s3": S3ModelInitializer, "file": FileModelInitializer, "pvc": VolumeModelInitializer},
}
_ELSE = {"dataset": HuggingFaceDatasetInitializer, "model": HuggingFaceModelInitializer}


def initializer_from_dict(data: Mapping[str, Any]) -> Initializer:
    """Build an initializer from plain data, as a YAML file holds it.

    Args:
        data: ``dataset`` and ``model``, each a URI, or a dict of the fields of the initializer that its scheme names.
            A secret is given as ``{"name": …, "key": …}``.

    Raises:
        ValueError: An unknown field, or a value that the constructor refuses.
    """
    sources = checks.known_fields(Initializer, data)
    made = {role: _source_from(role, given) for role, given in sources.items() if given is not None}
    return Initializer(**made)


def _source_from(role: str, given: Any) -> Any:
    settings = {"storage_uri": given} if isinstance(given, str) else given
    if not isinstance(settings, Mapping) or not isinstance(settings.get("storage_uri"), str):
        raise ValueError(f"initializer {role} must be a URI, or a dict with storage_uri; got {type(given).__name__}")
    scheme = settings["storage_uri"].partition("://")[0]
    kind = _BY_SCHEME[role].get(scheme, _ELSE[role])
    fields = checks.known_fields(kind, settings)
    found = {name: secret_from(fields[name]) for name in _SECRET_FIELDS if name in fields}
    return kind(**{**fields, **found})


def _check_kind(what: str, value: object, kinds: tuple[type[BaseInitializer], ...]) -> None:
    if value is not None and not isinstance(value, kinds):
        known = ", ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"Initializer {what} must be one of {known}; got {type(value).__name__}")


def _check_ignore_patterns(patterns: object) -> None:
    checks.check_texts("ignore_patterns", patterns, "*.bin")
    for pattern in patterns if isinstance(patterns, (list, tuple)) else ():
        if "," in pattern:
            # Trainer's initializers read the patterns from one comma-separated variable.
            raise ValueError(f"ignore_patterns: {pattern!r} has a comma, which separates patterns; write '?' instead")


def _check_secret(what: str, value: object) -> None:
    if value is not None and not isinstance(value, SecretRef) and not (isinstance(value, str) and value.strip()):
        raise ValueError(f"{what} must be SecretRef(name, key), a non-empty text or None, got {type(value).__name__}")


def _check_quantity(what: str, value: Any) -> None:
    if value is None or checks.is_placeholder(value):
        return
    try:
        resources.parse_quantity(value)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


def _check_optional_text(what: str, value: object, example: str) -> None:
    if value is not None:
        checks.check_text(what, value, example)
