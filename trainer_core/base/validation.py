"""Validation of single values, shared by the constructors of public classes and by the request.

Each `check_…` function raises a plain `ValueError` with one line: the field, what is wrong with it, and what to do.
Values of environment variables and credentials never appear in a message.

A text that contains a brace may be a template that an orchestrator renders later. The constructors accept it, and
`TrainJobRequest.parse` validates the rendered value.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from trainer_core.base import naming
from trainer_core.base.errors import InvalidRequestError
from trainer_core.base.secrets import SecretRef, has_credentials, redact
from trainer_core.base.text import MAX_MESSAGE, shorten
from trainer_core.node.env import RESOURCE_INTERVAL

if TYPE_CHECKING:
    from pydantic import ValidationError

#: Variables of torch.distributed that describe the rank of a process and the address of the master.
RESERVED_TORCH_ENV = re.compile(r"MASTER_(ADDR|PORT)|WORLD_SIZE|RANK|PET_.+")

#: Levels of mappings and lists in plain data. The manifests of Kubernetes have about 20.
MAX_DEPTH = 100
#: Values in plain data. Each place that refers to the same list counts, as aliases in YAML do.
MAX_VALUES = 100_000
#: Texts that are no number, by what they stand for in YAML 1.2.
_CONSTANTS: dict[str, bool | None] = dict.fromkeys(("~", "null", "Null", "NULL"))
_CONSTANTS.update(true=True, TRUE=True, false=False, FALSE=False)
_CONSTANTS |= {"True": True, "False": False}
_PLAIN_TYPES = frozenset((str, int, float, bool, type(None)))
#: Bytes of the value of an environment variable: Linux accepts 131,072 with the name.
MAX_ENV_VALUE = 100_000
#: Bytes of all environment variables of a job. Linux accepts 2 MiB with the arguments, etcd 1.5 MiB with the manifest.
_MAX_ENV = 500_000
_MAX_ENV_NAME = 1000
#: Names in a list of names in a message.
_MAX_LISTED = 10
_MAX_LISTED_LENGTH = 60
#: Variables of Trainer's initializers that have fields of their own, and those that backends set.
RESERVED_INITIALIZER_ENV = frozenset(
    {"STORAGE_URI", "ROLE", "LINK", "IGNORE_PATTERNS", "CACHE", "TARGET", "PRIVATE", "TERMINATION_LOG"}
)

#: Words in the names of metrics that grow as a model gets better, and of those that do not whatever else they contain.
_GROWING = re.compile(
    "acc|accuracy|ap|auc|auprc|auroc|bleu|correct|dice|f1|hits|iou|kappa|map|mcc|miou|mrr|ndcg|precision|psnr|r2|recall|"
    "return|reward|rouge|score|sensitivity|specificity|ssim|top1|top5"
)
_SHRINKING = re.compile("err|error|loss|mae|mse|nll|perplexity|ppl|rmse")
_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+")
#: Counts are int32 in the Kubernetes API.
_MAX_COUNT = 2**31 - 1
#: As in Airflow's database.
_MAX_PARTITION = 250
_MAX_ANNOTATIONS_BYTES = 256 * 1024
_INDEX_URL = re.compile(r"(https?|file)://\S+")
#: Beginning of a requirement by name, as pip accepts it in a requirements file.
_REQUIREMENT = re.compile(r"\s*[A-Za-z0-9][\w.-]*\s*(\[[^\]]*\]\s*)?($|==|[~!]=|[<>(;@#]|--)")
_ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_PLACE_URI = re.compile(r"(pvc|s3)://[^/@\s\0?#]+(/[^\s\0?#]*)?|file:///[^\0?#]+")
#: The longest key of an object in S3. Python creates the parents of a folder recursively.
_MAX_PLACE_URI = 1024
_LOADS = ("fresh", "owner", "never")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

#: A reference to an image, by the grammar of https://github.com/distribution/reference.
_IMAGE_DOMAIN = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
_IMAGE_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:{_IMAGE_DOMAIN}/)?{_IMAGE_PART}(?:/{_IMAGE_PART})*(?::\w[\w.-]{{0,127}})?(?:@[A-Za-z][\w+.-]*:[0-9a-fA-F]{{32,}})?",
    re.ASCII,
)

#: Units of a duration, in seconds.
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*([smhd])")
_MAX_DURATION = 10 * 365 * 86400


def check_tracking_uri(field: str, value: object) -> None:
    """Check the tracking URI of a server: http or https, without credentials."""
    if value is None or is_placeholder(value):
        return
    if not isinstance(value, str) or not re.fullmatch(r"https?://[!-~]+", value):
        raise ValueError(f"{field} must be the http(s) URL of an MLflow server, got {redact(value)}")
    if has_credentials(value):
        raise ValueError(
            f"{field} contains a user or password, which would be readable; use an Airflow connection, or "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        )


def iterate_leaves(value: Any) -> Iterator[Any]:
    """Yield the values of plain data that are neither mappings nor lists."""
    if not isinstance(value, (Mapping, list, tuple)):
        yield value
        return
    for item in value.values() if isinstance(value, Mapping) else value:
        yield from iterate_leaves(item)


def check_size(what: str, value: object) -> None:
    """Check that plain data are neither nested too deeply nor too many. A list that contains itself is both."""
    count = 1
    pending: list[tuple[object, int]] = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        inner = item.values() if isinstance(item, Mapping) else item if isinstance(item, (list, tuple)) else ()
        count += len(inner)
        if inner and depth == MAX_DEPTH:
            raise ValueError(f"{what} contains itself, or is nested more than {MAX_DEPTH} levels deep; flatten it")
        if count > MAX_VALUES:
            raise ValueError(f"{what} has more than {MAX_VALUES} values; pass large data as a file or dataset")
        pending.extend((each, depth + 1) for each in inner if type(each) not in _PLAIN_TYPES)


def parse_json(what: str, text: str | bytes) -> Any:
    """Return the value of a JSON text."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise InvalidRequestError(f"{what} is nested too deeply; flatten it") from error
    except ValueError as error:
        raise InvalidRequestError(f"{what} is not JSON: {error}") from error


def read_value(text: str) -> Any:
    """Return what a text without quotes stands for: a value of JSON or a constant of YAML 1.2, else itself."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    try:
        value = json.loads(text, parse_constant=int)
        check_size("it", value)
    except (ValueError, RecursionError):
        return text
    return value


def list_names(names: Iterable[object]) -> str:
    """Return names for a message: the first ones, shortened, separated by commas."""
    given = [name if isinstance(name, str) else redact(name) for name in names]
    shown = [shorten(name, _MAX_LISTED_LENGTH) for name in given[:_MAX_LISTED]]
    more = [f"and {len(given) - _MAX_LISTED} more"] if len(given) > _MAX_LISTED else []
    return ", ".join([*shown, *more])


def is_placeholder(value: object) -> bool:
    """Return whether a value is a string that an orchestrator may still render."""
    return isinstance(value, str) and "{" in value


def check_count(what: str, value: object, minimum: int = 1) -> None:
    """Check a whole number. Accepts None, and strings, which are validated after rendering."""
    if value is None or isinstance(value, str):
        return
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= _MAX_COUNT:
        raise ValueError(f"{what} must be a whole number of at least {minimum}, got {redact(value)}")


def check_seconds(what: str, value: object) -> None:
    """Check a number of seconds. Accepts None, and strings, which are validated after rendering."""
    if value is None or isinstance(value, str):
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError(f"{what} must be a number of seconds, at least 0, got {redact(value)}")


def parse_duration(value: object) -> float:
    """Return a duration in seconds: a number of seconds, or a text such as ``90s``, ``20m``, ``6h`` or ``2d``."""
    seconds = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        seconds = float(match[1]) * _UNITS[match[2]]
    if not 0 < seconds <= _MAX_DURATION:
        raise ValueError(
            f"must be a number of seconds, or a text such as '90s', '20m', '6h' or '2d', got {redact(value)}"
        )
    return seconds


def check_duration(what: str, value: object) -> None:
    """Check a duration as `parse_duration` reads it. Accepts templates."""
    if not is_placeholder(value):
        try:
            parse_duration(value)
        except ValueError as error:
            raise ValueError(f"{what} {error}") from None


def format_duration(seconds: float) -> str:
    """Return a duration as `parse_duration` reads it, in the largest unit that divides it."""
    unit, size = next(((unit, size) for unit, size in reversed(_UNITS.items()) if seconds % size == 0), ("s", 1))
    return f"{seconds / size:g}{unit}"


def check_fraction(what: str, value: object) -> None:
    """Check a number from 0 to 1. Accepts None, and strings, which are validated after rendering."""
    if value is None or isinstance(value, str):
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError(f"{what} must be a number from 0 to 1, got {redact(value)}")


def check_string(what: str, value: object, example: str) -> None:
    """Check a string that is not blank."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError(f"{what} must be a non-empty string such as {example!r}, got {redact(value)}")


def check_image(what: str, value: object) -> None:
    """Check a reference to a container image, such as ``ghcr.io/team/train:1.0``. Accepts None and templates."""
    if value is None or is_placeholder(value):
        return
    check_string(what, value, "ghcr.io/team/train:1.0")
    if not _IMAGE.fullmatch(str(value)):
        raise ValueError(
            f"{what} must be [registry/]name[:tag][@digest] with a lower-case name, such as 'ghcr.io/team/train:1.0', "
            f"got {redact(value)}"
        )


def check_strings(what: str, values: object, example: str) -> None:
    """Check a list of strings. Accepts None. Refuses a single string, which would be read letter by letter."""
    if values is None:
        return
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise ValueError(f"{what} must be a list of strings such as [{example!r}], got {redact(values)}")
    for index, value in enumerate(values):
        check_string(f"{what}[{index}]", value, example)


def check_mapping(what: str, value: object, example: str) -> None:
    """Check a dict with strings as keys. Accepts None."""
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} must be a dict such as {example}, got {type(value).__name__}")
    for key in value:
        if not isinstance(key, str):
            raise ValueError(f"{what} must have strings as keys, got {redact(key)}; write a dict such as {example}")


def check_partition(key: object) -> str:
    """Return the key of a partition if it is one that Airflow takes and an environment variable can hold."""
    is_text = isinstance(key, str) and not re.search("[\0-\x1f\x7f\ud800-\udfff]", key)
    if not isinstance(key, str) or not is_text or not key.strip() or len(key) > _MAX_PARTITION:
        raise ValueError(
            f"partition must be a string of 1 to {_MAX_PARTITION} characters, not only blanks and without control "
            f"characters and lone surrogates, got {redact(key)}"
        )
    return key


def check_one_of(what: str, value: object, known: Sequence[str]) -> None:
    """Check that a value is one of the known ones."""
    if value not in known:
        raise ValueError(f"{what} must be one of {', '.join(known)}; got {redact(value)}")


def check_object_name(what: str, value: object) -> None:
    """Check the name of a Kubernetes object, such as a queue. Accepts a template."""
    if not naming.is_object_name(value) and not is_placeholder(value):
        raise ValueError(
            f"{what} must be a name of at most 253 lower-case letters, digits, '-' and '.', got {redact(value)}"
        )


def check_env(what: str, env: object) -> None:
    """Check environment variables, whose values are strings or `SecretRef`. Accepts None."""
    check_mapping(what, env, "{'LOG_LEVEL': 'debug'}")
    size = 0
    for name, value in env.items() if isinstance(env, Mapping) else ():
        if not _ENV_NAME.fullmatch(name) or len(name) > _MAX_ENV_NAME:
            raise ValueError(
                f"{what} name {redact(name)} is not a variable name: use letters, digits, '_', '-' and '.'"
            )
        if isinstance(value, SecretRef):
            continue
        if not isinstance(value, str):
            raise ValueError(f"{what}[{redact(name)}] must be a string, got {type(value).__name__}; put it in quotes")
        if "\0" in value or not _is_encodable(value):
            raise ValueError(
                f"{what}[{redact(name)}] contains a character that an environment variable cannot have, such as NUL; "
                "remove it"
            )
        length = len(value.encode())
        if length > MAX_ENV_VALUE:
            raise ValueError(
                f"{what}[{redact(name)}] has {length} bytes; use at most {MAX_ENV_VALUE}, and a dataset for large data"
            )
        size += length
        if name == RESOURCE_INTERVAL and not is_placeholder(value):
            _check_resource_interval(f"{what}[{redact(name)}]", value)
    if size > _MAX_ENV:
        raise ValueError(f"{what} has {size} bytes in all values; use at most {_MAX_ENV}, and a dataset for large data")


def _check_resource_interval(what: str, value: str) -> None:
    try:
        valid = 0 <= float(value) < math.inf
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(f"{what} must be a number of seconds such as '10', or '0' for no reports, got {redact(value)}")


def check_reserved_env(what: str, names: Iterable[str], is_reserved: Callable[[str], Any], setter: str) -> None:
    """Check that a request sets no environment variable that the backend or its controller sets."""
    reserved = sorted(name for name in names if is_reserved(name))
    if reserved:
        raise InvalidRequestError(f"{what} must not set {list_names(reserved)}: {setter} sets it; leave it out")


def check_packages(what: str, packages: object) -> None:
    """Check requirements for pip. Accepts None."""
    check_strings(what, packages, "scikit-learn>=1.5")
    for index, package in enumerate(packages if isinstance(packages, (list, tuple)) else ()):
        # `-r` reads files, and `--index-url` sends requests to another server.
        is_option = package.lstrip().startswith("-") or package.splitlines() != [package]
        if is_option or not (_REQUIREMENT.match(package) or "/" in package or is_placeholder(package)):
            raise ValueError(f"{what}: {redact(package)} is not a package; write one such as 'scikit-learn>=1.5'")
        if has_credentials(package):
            raise ValueError(
                f"{what}[{index}] contains a URL with a user, password or token, which would be readable in the job; "
                "write the name of the package alone, and the URL into pip's configuration where the job runs"
            )


def check_index_urls(what: str, urls: object) -> None:
    """Check URLs of package indexes. Accepts None and templates.

    A password is accepted here: the job of the local backend can keep it. Plain data refuse it
    (`request_builder.build_request_data`), and so do containers and clusters (`packaging.argv_payload`).
    """
    check_strings(what, urls, "https://packages.example.com/simple")
    for index, url in enumerate(urls if isinstance(urls, (list, tuple)) else ()):
        if not _INDEX_URL.fullmatch(url) and not is_placeholder(url):
            # Not quoted: the text may contain a password that `redact` does not recognize.
            raise ValueError(f"{what}[{index}] is not a URL; write one such as 'https://packages.example.com/simple'")
        if has_credentials(f"https://host/?{url.partition('?')[2]}"):
            raise ValueError(
                f"{what}[{index}] has a token after '?', which pip writes into its log; write the URL into pip's "
                "configuration where the job runs"
            )


def check_result_uri(what: str, value: object) -> None:
    """Check the place where a training function writes its result. Accepts None and a template."""
    if value is None or is_placeholder(value):
        return
    check_string(what, value, "file:///data/result.json")
    scheme, separator, rest = str(value).partition("://")
    absolute = scheme == "file" and rest.startswith(("/", "localhost/")) if separator else str(value).startswith("/")
    if not absolute:
        raise ValueError(
            f"{what} must be an absolute path, or 'file://' and an absolute path, got {redact(value)}; give a path on "
            "storage that is mounted where the training runs"
        )


def check_labels(what: str, labels: object) -> None:
    """Check Kubernetes labels. Accepts None, and templates as values."""
    check_mapping(what, labels, "{'team': 'vision'}")
    for key, value in labels.items() if isinstance(labels, Mapping) else ():
        _check_label_key(what, key)
        if is_placeholder(value):
            continue
        if not isinstance(value, str) or (value and not _LABEL_NAME.fullmatch(value)):
            raise ValueError(
                f"{what}[{redact(key)}] must be a string of at most 63 letters, digits, '-', '_' and '.', with a "
                f"letter or digit at both ends, got {redact(value)}"
            )


def check_annotations(what: str, annotations: object) -> None:
    """Check Kubernetes annotations. Accepts None."""
    check_mapping(what, annotations, "{'note': 'any text'}")
    size = 0
    for key, value in annotations.items() if isinstance(annotations, Mapping) else ():
        _check_label_key(what, key)
        if not isinstance(value, str) or not _is_encodable(value):
            raise ValueError(f"{what}[{redact(key)}] must be a string, got {redact(value)}; put it in quotes")
        size += len(key.encode()) + len(value.encode())
    if size > _MAX_ANNOTATIONS_BYTES:
        raise ValueError(f"{what} have {size} bytes together; use at most {_MAX_ANNOTATIONS_BYTES}")


def known_fields(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain data as keyword arguments of a dataclass."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{kind.__name__} must be a dict of its fields, got {type(data).__name__}")
    known = [item.name for item in fields(kind) if item.init]
    unknown = [name for name in data if name not in known]
    if unknown:
        raise ValueError(f"unknown field {list_names(unknown)} of {kind.__name__}; known are {', '.join(known)}")
    parameters = inspect.signature(kind).parameters.values()
    named = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    required = [each.name for each in named if each.default is each.empty]
    missing = [name for name in required if name not in data]
    if missing:
        raise ValueError(f"{kind.__name__} needs {', '.join(missing)}")
    return dict(data)


def format_problems(error: ValidationError, hidden: Container[str] = ()) -> str:
    """Return pydantic's report as one line: ``trainer.num_nodes: Input should be greater than 0, got -1``."""
    problems = [text for _, text in list_problems(error, hidden)]
    shown = "; ".join(problems)
    while len(shown) > MAX_MESSAGE and len(problems) > 1:
        problems.pop()
        shown = f"{'; '.join(problems)}; and {error.error_count() - len(problems)} more"
    return shorten(shown)


def list_problems(error: ValidationError, hidden: Container[str] = ()) -> list[tuple[tuple[str, ...], str]]:
    """Return the problems that pydantic reports: for each the path of the value and a message of one line.

    A path begins below `hidden` names, which the data of users do not have.
    """
    problems = []
    for item in error.errors(include_url=False):
        location = item["loc"][1:] if item["loc"][:1] and item["loc"][0] in hidden else item["loc"]
        location = location[1:] if location[1:] and location[0] in hidden else location
        path = tuple(shorten(str(part), _MAX_LISTED_LENGTH) for part in location)
        message = shorten(item["msg"].removeprefix("Value error, "))
        # The value of an unknown field is not quoted: the field may be a misspelt one for a secret.
        is_quotable = isinstance(item["input"], (str, int, float, bool)) and item["type"] != "extra_forbidden"
        quoted = redact(item["input"], path) if is_quotable else ""
        got = f", got {quoted}" if quoted and quoted not in message else ""
        # The message about an argument of the training function has the name that the user wrote.
        is_named = not path or message.startswith("func_args.")
        problems.append((path, message if is_named else f"{'.'.join(path)}: {message}{got}"))
    return problems


def _check_label_key(what: str, key: str) -> None:
    prefix, slash, name = key.rpartition("/")
    if not _LABEL_NAME.fullmatch(name) or (slash and not naming.is_object_name(prefix)):
        raise ValueError(
            f"{what} key {redact(key)} is not a label key: write name or domain.example/name, the name with at most 63 "
            "letters, digits, '-', '_' and '.'"
        )


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_place_uri(what: str, uri: object) -> None:
    """Check the place of checkpoints: a claim, a bucket or a folder."""
    _check_place(what, uri, "pvc://<claim>/<path>, s3://<bucket>/<path> or file:///<folder>")


def check_code_uri(what: str, uri: object) -> None:
    """Check the place of code: a bucket or a folder. A claim is refused by the backends, which give the reason."""
    _check_place(what, uri, "s3://<bucket>/<path> or file:///<folder>")


def _check_place(what: str, uri: object, forms: str) -> None:
    if not isinstance(uri, str) or not _PLACE_URI.fullmatch(uri):
        raise ValueError(f"{what} must be {forms}, got {redact(uri)}")
    # Only the path of a folder is decoded where it is used.
    path = unquote(uri) if uri.startswith("file:") else uri
    if "\0" in path or ".." in path.split("/"):
        raise ValueError(f"{what} must be {forms} without .. and NUL, got {redact(uri)}")
    if len(uri) > _MAX_PLACE_URI:
        raise ValueError(f"{what} must have at most {_MAX_PLACE_URI} characters, got {len(uri)}")


def check_load(load: object) -> None:
    """Check what a TrainJob starts from."""
    if load not in _LOADS:
        check_place_uri(f"Checkpoints load must be {', '.join(_LOADS)} or a URI: it", load)


def is_growing(metric: str) -> bool:
    """Return whether a metric is known by its name to grow as a model gets better."""
    words = [word.lower() for word in _WORDS.findall(metric)]
    return any(map(_GROWING.fullmatch, words)) and not any(map(_SHRINKING.fullmatch, words))
