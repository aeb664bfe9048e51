"""Client configuration of a Kubernetes cluster: a given Configuration, a kubeconfig, or a pod's service account.

The service account is read without the `kubernetes` package. That package takes one second and 80 MB to load, and a
pipeline has one pod for each step that waits.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies

from trainer_core.base.errors import BackendUnavailableError
from trainer_core.base.text import missing_extra
from trainer_core.k8s.parsing import to_single_line

if TYPE_CHECKING:
    from trainer_core.model.config import ClusterConfig

#: Folder in every pod with the token, the CA and the namespace of its service account.
SERVICE_ACCOUNT_PATH = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: Packages of the extra `kubernetes` that every use of a cluster needs.
_PACKAGES = ("aiohttp", "kubernetes")
_DEFAULT_KUBECONFIG = "~/.kube/config"
_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
_HOST_VARIABLE, _PORT_VARIABLE = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"


class ClusterConfigError(BackendUnavailableError):
    """The configuration leads to no cluster. Retrying does not help: the user must correct it."""

    transient = False


class InClusterConfig:
    """Service account of this pod, with the attributes of `kubernetes.client.Configuration` that a connection reads."""

    def __init__(self, folder: Path) -> None:
        host, port = os.environ.get(_HOST_VARIABLE, ""), os.environ.get(_PORT_VARIABLE, "")
        if not host or not port:
            raise ClusterConfigError(
                f"{_HOST_VARIABLE} or {_PORT_VARIABLE} is not set, as it is in every pod; name a kubeconfig instead"
            )
        self.host = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self.ssl_ca_cert: str | None = str(_require_text(folder / "ca.crt"))
        self.proxy: str | None = None
        self.proxy_headers: dict[str, str] | None = None
        self.tls_server_name: str | None = None
        self.cert_file: str | None = None
        self.key_file: str | None = None
        self.verify_ssl = True
        self.assert_hostname: bool | None = None
        self._token = _require_text(folder / "token")
        self.auth_settings()

    def auth_settings(self) -> dict[str, dict[str, str]]:
        """Return the authorization header. The token is read each time: the kubelet replaces the file."""
        return {"token": {"key": "authorization", "value": f"Bearer {self._token.read_text('utf-8').strip()}"}}


@dataclass(frozen=True)
class LoadedClientConfig:
    """A loaded client configuration."""

    #: A copy of a ``kubernetes.client.Configuration``, or an `InClusterConfig`.
    configuration: Any
    namespace: str | None
    #: Where it was loaded from; equal for equal credentials.
    origin: Hashable
    #: Whether loading it again can return newer credentials.
    reloadable: bool = True
    #: File with the CAs. `configuration.ssl_ca_cert` loses that of the environment when the package renews a token.
    ca_file: str | None = None


def load_client_config(config: ClusterConfig, service_account: Path = SERVICE_ACCOUNT_PATH) -> LoadedClientConfig:
    """Load the client configuration of a cluster.

    The first that applies: the given Configuration; with `in_cluster`, the pod's service account; the kubeconfig named
    by the configuration or by KUBECONFIG (also if only a context is given); the pod's service account; the kubeconfig
    in the home folder.
    """
    for package in _PACKAGES:
        if find_spec(package) is None:
            raise ClusterConfigError(missing_extra("the connection to a Kubernetes cluster", package, "kubernetes"))
    if _uses_service_account(config, service_account):
        loaded = LoadedClientConfig(InClusterConfig(service_account), None, ("pod", str(service_account)))
        _set_proxy(loaded.configuration)
        _move_proxy_login(loaded.configuration)
    else:
        with _translate_library_errors():
            loaded = _load_with_library(config)
            _set_proxy(loaded.configuration)
            _move_proxy_login(loaded.configuration)
    namespace = loaded.namespace or _read_text(service_account / "namespace")
    environment = (os.environ[name] for name in _CA_VARIABLES if os.environ.get(name))
    return replace(loaded, namespace=namespace, ca_file=loaded.configuration.ssl_ca_cert or next(environment, None))


@contextmanager
def _translate_library_errors() -> Iterator[None]:
    """Raise an error of the `kubernetes` package as a ClusterConfigError of one line, without credentials."""
    from kubernetes.config import ConfigException  # Takes a second and 80 MB.

    problem = "the configuration of the cluster cannot be used"
    try:
        yield
    except ConfigException as error:
        # After the first brace the text quotes the entry with its token.
        text = to_single_line(str(error).split("{")[0], 300)
        raise ClusterConfigError(f"{problem}: {text}; correct it") from None
    except OSError as error:
        raise ClusterConfigError(f"{problem}: {to_single_line(str(error), 300)}; correct it") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # The package does not check the types of a kubeconfig's parts.
        raise ClusterConfigError(f"{problem}: a part of it has the wrong type ({error}); correct it") from error


def _uses_service_account(config: ClusterConfig, service_account: Path) -> bool:
    in_pod = bool(os.environ.get(_HOST_VARIABLE)) and (service_account / "token").is_file()
    if config.in_cluster and not in_pod:
        raise ClusterConfigError(
            f"in_cluster is set, but this process does not run in a pod: there is no token in {service_account}"
        )
    files = (config.config_file, config.context, os.environ.get("KUBECONFIG"))
    others = (config.client_configuration, config.kube_config, *files)
    return in_pod and (config.in_cluster or not any(others))


def _load_with_library(config: ClusterConfig) -> LoadedClientConfig:
    if config.client_configuration is not None:
        # A shallow copy: its credentials, and the hook that renews them, are shared with the original.
        origin = ("configuration", id(config.client_configuration))
        configuration = copy.copy(config.client_configuration)
        if configuration.proxy in getproxies().values():
            configuration.proxy = None  # Taken from the environment, by version 34 and later without NO_PROXY.
        return LoadedClientConfig(configuration, None, origin, reloadable=False)
    if config.kube_config is not None:
        return _load_kubeconfig_content(config.kube_config.get_secret_value(), config.context)
    given = config.config_file or os.environ.get("KUBECONFIG")
    paths = given or _DEFAULT_KUBECONFIG
    merged = _merge_kubeconfigs(paths, is_default=given is None)
    return _build_client_config(merged, config.context, paths, ("kubeconfig", paths))


def _load_kubeconfig_content(text: str, context: str | None) -> LoadedClientConfig:
    from kubernetes.config.kube_config import ConfigNode

    merged = SimpleNamespace(config=ConfigNode("kube_config", json.loads(text)), save_changes=None)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return _build_client_config(merged, context, "in kube_config", ("kube_config", digest))


def _build_client_config(merged: Any, context: str | None, paths: str, origin: tuple[str, str]) -> LoadedClientConfig:
    from kubernetes.client import Configuration
    from kubernetes.config.kube_config import KubeConfigLoader

    contexts = _index_by_name(merged, "contexts", "context")
    name = _check_context(context or merged.config.value.get("current-context") or "", contexts, paths)
    cluster = _index_by_name(merged, "clusters", "cluster").get(str(contexts[name].get("cluster")), {})
    if not cluster.get("server"):
        raise ClusterConfigError(
            f"context {name!r} of the kubeconfig {paths} names no cluster with a server; correct it"
        )
    configuration = Configuration()
    loader = KubeConfigLoader(
        config_dict=merged.config, active_context=name, config_base_path=None, config_persister=merged.save_changes
    )
    loader.load_and_set(configuration)
    user = _index_by_name(merged, "users", "user").get(str(contexts[name].get("user")), {})
    _check_credential_plugin(user, configuration, paths)
    configuration.proxy = cluster.get("proxy-url")
    return LoadedClientConfig(configuration, contexts[name].get("namespace"), (*origin, name))


def _merge_kubeconfigs(paths: str, is_default: bool) -> Any:
    import yaml
    from kubernetes.config.kube_config import KubeConfigMerger

    try:
        merged = KubeConfigMerger(paths)
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ClusterConfigError(
            f"the kubeconfig {paths} cannot be read: {to_single_line(str(error), 300)}; correct it"
        ) from error
    except (AttributeError, KeyError, TypeError) as error:
        raise ClusterConfigError(
            f"the kubeconfig {paths} is not valid: it lacks clusters, contexts or users; correct it"
        ) from error
    if merged.config is not None:
        return merged
    if is_default:
        raise ClusterConfigError(
            f"no cluster is configured: there is no config_file, no KUBECONFIG, no service account of a pod and no "
            f"{_DEFAULT_KUBECONFIG}; log in to a cluster, or name a kubeconfig in the backend's configuration"
        )
    raise ClusterConfigError(f"there is no kubeconfig at {paths}; correct config_file or KUBECONFIG")


def _index_by_name(merged: Any, section: str, key: str) -> dict[str, Mapping[str, Any]]:
    # The entries of merged files are nodes that know their file.
    nodes = [node if isinstance(node, Mapping) else node.value for node in merged.config.value[section]]
    return {str(node.get("name")): node.get(key) or {} for node in nodes}


def _check_context(name: str, contexts: Mapping[str, Any], paths: str) -> str:
    if name in contexts:
        return name
    names = ", ".join(sorted(contexts)) or "none"
    problem = f"no context {name!r}" if name else "no current context"
    raise ClusterConfigError(f"the kubeconfig {paths} has {problem}; name one of these as the context: {names}")


def _check_credential_plugin(user: Mapping[str, Any], configuration: Any, paths: str) -> None:
    """Refuse a failed plugin here: the package ignores the failure, and the server's 401 would not name the plugin."""
    plugin = user.get("exec")
    if isinstance(plugin, Mapping) and not configuration.api_key and not configuration.cert_file:
        raise ClusterConfigError(
            f"the credential plugin {plugin.get('command')!r} of the kubeconfig {paths} returned no credentials; "
            "check that it is installed and logged in: run `kubectl get pods`"
        )


def _set_proxy(configuration: Any) -> None:
    """Set the proxy of the environment where the configuration has none."""
    if configuration.proxy is None and any(name.lower().endswith("_proxy") for name in os.environ):
        # A dependency of `kubernetes`. It supports CIDRs in NO_PROXY; the standard library does not.
        from requests import utils

        configuration.proxy = utils.select_proxy(configuration.host, utils.get_environ_proxies(configuration.host))


def _move_proxy_login(configuration: Any) -> None:
    """Move the proxy's login into a header: messages contain the address, and urllib3 would ignore the login."""
    parts = urlsplit(configuration.proxy or "")
    if parts.username is None:
        return
    import urllib3

    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    configuration.proxy_headers = configuration.proxy_headers or urllib3.make_headers(proxy_basic_auth=login)
    configuration.proxy = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _require_text(path: Path) -> Path:
    try:
        empty = not path.read_text("utf-8").strip()
    except OSError as error:
        raise ClusterConfigError(f"the pod's service account has no {path.name}: {error}") from error
    if empty:
        raise ClusterConfigError(f"the pod's service account has an empty {path.name} at {path}")
    return path


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8").strip() or None
    except OSError:
        return None
