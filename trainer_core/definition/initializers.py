"""Initializers: what to fetch before training, from where, and with which credentials.

One class for each source and role. A constructor checks its values; `initializer_from_dict` chooses the class by the
scheme of a URI; `request_builder` turns the object into an `InitializerSource` of the request, in which credentials are
references; a step of the job, `trainer_core.fetch` or Trainer's own image, fetches it before the nodes start.
"""

from __future__ import annotations

import re
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args
from urllib.parse import urlsplit

from trainer_core.base import resources, validation
from trainer_core.base.secrets import SecretRef, parse_secret, redact
from trainer_core.model.storage_schemes import SCHEMES, check_scheme
from trainer_core.node import env

#: Mount paths of the fetched dataset and model in a training container.
DATASET_PATH = env.DEFAULTS[env.DATASET_PATH]
MODEL_PATH = env.DEFAULTS[env.MODEL_PATH]

#: Weights in other formats than safetensors, excluded from pre-trained models.
_MODEL_IGNORE_PATTERNS = ["*.msgpack", "*.h5", "*.bin", "*.pt", "*.pth"]
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+")
_MAX_URI_LENGTH = 2048
_SECRET_FIELDS = ("access_token", "access_key_id", "secret_access_key")


@dataclass
class BaseInitializer(ABC):
    """Base class of all initializers.

    Args:
        storage_uri: URI of the data, ``scheme://…``.

    Raises:
        ValueError: Not a URI, or another invalid value.
    """

    storage_uri: str

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            ValueError: One line that names the invalid field.
        """
        validation.check_string("storage_uri", self.storage_uri, "hf://owner/name")
        if len(self.storage_uri) > _MAX_URI_LENGTH:
            raise ValueError(f"storage_uri has {len(self.storage_uri)} characters; use at most {_MAX_URI_LENGTH}")
        if not _URI.fullmatch(self.storage_uri) and not validation.is_placeholder(self.storage_uri):
            raise ValueError(f"storage_uri must look like 'scheme://rest', got {redact(self.storage_uri)}")
        _check_ignore_patterns(getattr(self, "ignore_patterns", None))
        for name in _SECRET_FIELDS:
            _check_secret(name, getattr(self, name, None))

    def _check_scheme(self, scheme: str) -> None:
        # A template may become a URI of any scheme.
        if not self.storage_uri.startswith((scheme, "{")):
            raise ValueError(f"storage_uri must start with '{scheme}', got {redact(self.storage_uri)}")


@dataclass
class _HuggingFaceInitializer(BaseInitializer):
    ignore_patterns: list[str] | None = None
    access_token: str | SecretRef | None = field(default=None, repr=False)


@dataclass
class HuggingFaceDatasetInitializer(_HuggingFaceInitializer):
    """Fetch a dataset from the Hugging Face Hub.

    Upstream: ``spec.initializer.dataset`` of a TrainJob.

    Args:
        storage_uri: ``hf://<owner>/<name>[@<revision>][/<path>]`` (``storageUri``). Trainer's own images support
            neither revision nor path.
        ignore_patterns: Glob patterns of files to exclude. The default is none.
        access_token: Token for private or gated repositories. Prefer a `SecretRef` to the token itself. The default is
            the environment of the initializer.

    Raises:
        ValueError: An invalid value.

    Example:
        ```python
        Initializer(dataset=HuggingFaceDatasetInitializer("hf://team/digits@v1"))
        ```
    """


@dataclass
class HuggingFaceModelInitializer(_HuggingFaceInitializer):
    """Fetch a pre-trained model from the Hugging Face Hub.

    Upstream: ``spec.initializer.model`` of a TrainJob.

    Args:
        storage_uri: ``hf://<owner>/<name>[@<revision>][/<path>]`` (``storageUri``). Trainer's own images support
            neither revision nor path.
        ignore_patterns: Glob patterns of files to exclude. By default weights in other formats than safetensors.
        access_token: Token for private or gated repositories. Prefer a `SecretRef` to the token itself. The default is
            the environment of the initializer.

    Raises:
        ValueError: An invalid value.

    Example:
        ```python
        Initializer(model=HuggingFaceModelInitializer("hf://team/base"))
        ```
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
    """Fetch a dataset from S3 or compatible storage.

    Upstream: ``spec.initializer.dataset`` of a TrainJob.

    Args:
        storage_uri: ``s3://<bucket>/<prefix>`` (``storageUri``).
        ignore_patterns: Glob patterns of keys to exclude. The default is none.
        endpoint: URL of the storage. The default is AWS.
        access_key_id: Prefer a `SecretRef` to the text itself. The default is the credentials of the initializer's
            environment.
        secret_access_key: Prefer a `SecretRef` to the text itself.
        region: Region of the bucket. By default it is determined automatically.
        role_arn: ARN of a role to assume. The default is none.

    Raises:
        ValueError: An invalid value.

    Example:
        ```python
        Initializer(dataset=S3DatasetInitializer("s3://team/digits", region="eu-west-1"))
        ```
    """


@dataclass
class S3ModelInitializer(_S3Initializer):
    """Fetch a pre-trained model from S3 or compatible storage.

    Upstream: ``spec.initializer.model`` of a TrainJob.

    Args:
        storage_uri: ``s3://<bucket>/<prefix>`` (``storageUri``).
        ignore_patterns: Glob patterns of keys to exclude. By default weights in other formats than safetensors.
        endpoint: URL of the storage. The default is AWS.
        access_key_id: Prefer a `SecretRef` to the text itself. The default is the credentials of the initializer's
            environment.
        secret_access_key: Prefer a `SecretRef` to the text itself.
        region: Region of the bucket. By default it is determined automatically.
        role_arn: ARN of a role to assume. The default is none.

    Raises:
        ValueError: An invalid value.

    Example:
        ```python
        Initializer(model=S3ModelInitializer("s3://team/base", region="eu-west-1"))
        ```
    """

    ignore_patterns: list[str] | None = field(default_factory=_MODEL_IGNORE_PATTERNS.copy)


@dataclass
class DataCacheInitializer(BaseInitializer):
    """Serve a table to the training nodes from a distributed in-memory cache.

    Only Kubeflow Trainer accepts it. Upstream: Trainer's [data
    cache](https://www.kubeflow.org/docs/components/trainer/user-guides/data-cache/).

    Args:
        storage_uri: ``cache://<SCHEMA_NAME>/<TABLE_NAME>``.
        metadata_loc: Location of the table's metadata file, such as ``s3://bucket/path/metadata.json``.
        num_data_nodes: Number of data nodes, more than 1; a head node is added.
        head_cpu: CPU of the head node, as a Kubernetes quantity. The default is Trainer's.
        head_mem: Memory of the head node. The default is Trainer's.
        worker_cpu: CPU of each data node. The default is Trainer's.
        worker_mem: Memory of each data node. The default is Trainer's.
        iam_role: ARN of a role that may read `metadata_loc`. The default is none.

    Raises:
        ValueError: An invalid value.

    Example:
        ```python
        cache = DataCacheInitializer("cache://sales/orders", "s3://lake/orders/metadata.json", num_data_nodes=4)
        Initializer(dataset=cache)
        ```
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
        if not validation.is_placeholder(self.storage_uri) and (len(parts) != 2 or not all(parts)):
            form = "cache://<SCHEMA_NAME>/<TABLE_NAME>"
            raise ValueError(f"storage_uri must be in format '{form}', got {redact(self.storage_uri)}")
        validation.check_string("metadata_loc", self.metadata_loc, "s3://bucket/path/metadata.json")
        for name in ("head_cpu", "head_mem", "worker_cpu", "worker_mem"):
            _check_quantity(name, getattr(self, name))
        _check_optional_text("iam_role", self.iam_role, "arn:aws:iam::123456789012:role/reader")

    def _check_data_nodes(self) -> None:
        # Unlike other counts it cannot be a template: the size of the cluster is computed from it.
        value: object = self.num_data_nodes
        count = int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 10 else value
        if isinstance(count, bool) or not isinstance(count, int) or count <= 1:
            raise ValueError(f"num_data_nodes must be greater than 1, got {redact(value)}")


@dataclass
class _FileInitializer(BaseInitializer):
    ignore_patterns: list[str] | None = None
    link: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_scheme("file://")
        parts = urlsplit(self.storage_uri)
        if not validation.is_placeholder(self.storage_uri) and (parts.netloc or not parts.path.startswith("/")):
            raise ValueError(
                "storage_uri must be 'file://' with an absolute path, such as 'file:///data/digits', "
                f"got {redact(self.storage_uri)}"
            )
        if not isinstance(self.link, bool):
            raise ValueError(f"link must be True or False, got {redact(self.link)}")


@dataclass
class FileDatasetInitializer(_FileInitializer):
    """Copy a dataset from a folder or file of the machine that runs the job.

    Only backends on one machine accept it (local, debug, container).

    Args:
        storage_uri: ``file:///<absolute path>``.
        ignore_patterns: Glob patterns of files to exclude. The default is none.
        link: Create links instead of copies. Training then reads the source itself and must not write to it. The
            default is False.

    Raises:
        ValueError: An invalid value.

    Example:
        ```python
        Initializer(dataset=FileDatasetInitializer("file:///data/digits"))
        ```
    """


@dataclass
class FileModelInitializer(_FileInitializer):
    """Copy a pre-trained model from a folder or file of the machine that runs the job.

    Only backends on one machine accept it (local, debug, container).

    Args:
        storage_uri: ``file:///<absolute path>``.
        ignore_patterns: Glob patterns of files to exclude. The default is none: the folder is expected to hold only
            what is needed.
        link: Create links instead of copies. Training then reads the source itself and must not write to it. The
            default is False.

    Raises:
        ValueError: An invalid value.

    Example:
        ```python
        Initializer(model=FileModelInitializer("file:///data/digits"))
        ```
    """


@dataclass
class _VolumeInitializer(BaseInitializer):
    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_scheme("pvc://")
        if validation.is_placeholder(self.storage_uri):
            return
        claim, _, path = self.storage_uri.removeprefix("pvc://").partition("/")
        validation.check_object_name("storage_uri: the volume claim", claim)
        # It becomes the subPath of a mount, which Kubernetes restricts to the volume.
        if ".." in path.split("/") or path.startswith("/"):
            raise ValueError(f"storage_uri must be 'pvc://<claim>/<path in it>', got {redact(self.storage_uri)}")


@dataclass
class VolumeDatasetInitializer(_VolumeInitializer):
    """Mount a dataset that is in a volume, such as one that `initialize` fetched; nothing is copied.

    Args:
        storage_uri: ``pvc://<claim>/<path>``: a PersistentVolumeClaim of the job's namespace and a folder in it;
            without a path, all of it. It is mounted read-only.

    Raises:
        ValueError: An invalid value.

    Example:
        ```python
        Initializer(dataset=VolumeDatasetInitializer("pvc://digits/dataset"))
        ```
    """


@dataclass
class VolumeModelInitializer(_VolumeInitializer):
    """Mount a pre-trained model that is in a volume, such as one that `initialize` fetched; nothing is copied.

    Args:
        storage_uri: ``pvc://<claim>/<path>``: a PersistentVolumeClaim of the job's namespace and a folder in it;
            without a path, all of it. It is mounted read-only.

    Raises:
        ValueError: An invalid value.

    Example:
        ```python
        Initializer(model=VolumeModelInitializer("pvc://digits/model"))
        ```
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
        dataset: Mounted at `DATASET_PATH` in training containers; `dataset_path` returns it on every backend.
        model: Mounted at `MODEL_PATH` in training containers; `model_path` returns it on every backend.

    Raises:
        ValueError: Not an initializer of the right kind.

    Example:
        ```python
        fetch = Initializer(dataset=HuggingFaceDatasetInitializer("hf://team/digits"))
        client.train(initializer=fetch, trainer=trainer)
        ```
    """

    dataset: _Dataset | None = None
    model: _Model | None = None

    def __post_init__(self) -> None:
        _check_kind("dataset", self.dataset, get_args(_Dataset))
        _check_kind("model", self.model, get_args(_Model))


_BY_SCHEME: dict[str, dict[str, type[BaseInitializer]]] = {
    "dataset": {
        "hf": HuggingFaceDatasetInitializer,
        "s3": S3DatasetInitializer,
        "cache": DataCacheInitializer,
        "file": FileDatasetInitializer,
        "pvc": VolumeDatasetInitializer,
    },
    "model": {
        "hf": HuggingFaceModelInitializer,
        "s3": S3ModelInitializer,
        "file": FileModelInitializer,
        "pvc": VolumeModelInitializer,
    },
}


def initializer_from_dict(data: Mapping[str, Any]) -> Initializer:
    """Build an initializer from plain data, as in a YAML file.

    Args:
        data: ``dataset`` and ``model``, each a URI or a dict with the fields of the initializer for its scheme. A
            secret is written ``{"name": …, "key": …}``.

    Raises:
        ValueError: An unknown field, or an invalid value.
    """
    sources = validation.known_fields(Initializer, data)
    initializers = {role: _parse_source(role, source) for role, source in sources.items() if source is not None}
    return Initializer(**initializers)


def _parse_source(role: str, source: Any) -> Any:
    settings = {"storage_uri": source} if isinstance(source, str) else source
    if not isinstance(settings, Mapping) or not isinstance(settings.get("storage_uri"), str):
        raise ValueError(f"initializer {role} must be a URI, or a dict with storage_uri; got {type(source).__name__}")
    scheme, separator, _ = settings["storage_uri"].partition("://")
    if separator:
        check_scheme(role, settings["storage_uri"], SCHEMES, "as a source")
    kind = _BY_SCHEME[role].get(scheme, _BY_SCHEME[role]["hf"])  # A template may become any URI; others are refused.
    fields = validation.known_fields(kind, settings)
    secret_fields = {name: parse_secret(fields[name]) for name in _SECRET_FIELDS if name in fields}
    return kind(**{**fields, **secret_fields})


def _check_kind(what: str, value: object, kinds: tuple[type[BaseInitializer], ...]) -> None:
    if value is not None and not isinstance(value, kinds):
        known = ", ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"Initializer {what} must be one of {known}; got {type(value).__name__}")


def _check_ignore_patterns(patterns: object) -> None:
    validation.check_strings("ignore_patterns", patterns, "*.bin")
    for pattern in patterns if isinstance(patterns, (list, tuple)) else ():
        if "," in pattern:
            # Trainer's initializers read the patterns from one comma-separated environment variable.
            raise ValueError(
                f"ignore_patterns: {redact(pattern)} contains a comma, which separates patterns; use '?' instead"
            )


def _check_secret(what: str, value: object) -> None:
    if value is not None and not isinstance(value, SecretRef) and not (isinstance(value, str) and value.strip()):
        raise ValueError(f"{what} must be SecretRef(name, key), a non-empty string or None, got {type(value).__name__}")


def _check_quantity(what: str, value: Any) -> None:
    if value is None or validation.is_placeholder(value):
        return
    try:
        resources.parse_quantity(value)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


def _check_optional_text(what: str, value: object, example: str) -> None:
    if value is not None:
        validation.check_string(what, value, example)
