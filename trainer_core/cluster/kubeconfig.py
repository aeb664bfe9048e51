"""Where a cluster is found: a given Configuration, a kubeconfig, or the service account of the pod this runs in."""

from __future__ import annotations

import copy
import os
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from trainer_core.cluster.account import PodAccount
from trainer_core.cluster.raw import one_line
from trainer_core.errors import BackendUnavailableError

if TYPE_CHECKING:
    from trainer_core.configs import ClusterConfig

__all__ = ["ACCOUNT", "Found", "NoClusterError", "find"]

#: Where a pod has its service account's token, CA and namespace.
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_USUAL_PLACE = "~/.kube/config"
_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")


class NoClusterError(BackendUnavailableError):
    """The configuration leads to no cluster; only a person can help."""

    transient = False


@dataclass(frozen=True)
class Found:
    """How to reach a cluster.

    Attributes:
        configuration: A ``kubernetes.client.Configuration`` of our own, or a `PodAccount`.
        namespace: The namespace that comes with it, None if none does.
        origin: What it was read from: equal origins give equal connections.
        again: Whether reading it again can give newer credentials.
    """

    configuration: Any
    namespace: str | None
    origin: Hashable
    again: bool = True


def find(config: ClusterConfig, account: Path = ACCOUNT) -> Found:
    """Read how to reach the cluster of a configuration.

    The first of these that there is: the Configuration given; with `in_cluster` the service account of this pod; the
    kubeconfig that the configuration or KUBECONFIG names (also if only a context is given); the service account of
    this pod; the kubeconfig in the home folder.

    Args:
        config: Which cluster.
        account: Folder of the pod's service account.

    Raises:
        NoClusterError: The `kubernetes` package is missing, a kubeconfig cannot be read, has no such context, or
            there is nothing to go by.
    """
    if _is_the_pods(config, account):
        found = Found(PodAccount(account), None, ("pod", str(account)))
        _add_environment(found.configuration)
        _take_login(found.configuration)
    else:
        with _library():
            found = _find(config)
            _add_environment(found.configuration)
            _take_login(found.configuration)
    pods_own = _text(account / "namespace")
    return Found(found.configuration, found.namespace or pods_own, found.origin, found.again)


@contextmanager
def _library() -> Iterator[None]:
    """Turn what the `kubernetes` package says of a bad configuration into one line, without credentials."""
    try:
        from kubernetes.config import ConfigException  # Takes a second and 80 MB.
    except ImportError as error:
        raise NoClusterError(
            f"a cluster is reached with the `{error.name}` package, which is not installed: "
            'pip install "trainjob-workflows[kubernetes]"'
        ) from error
    try:
        yield
    except ConfigException as error:
        # Behind the first brace it quotes the entry with its token.
        text = one_line(str(error).split("{")[0], 300)
        raise NoClusterError(f"the configuration of the cluster cannot be used: {text}; correct it") from None
    except OSError as error:
        text = one_line(str(error), 300)
        raise NoClusterError(f"the configuration of the cluster cannot be used: {text}; correct it") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # The library takes every part of it for what it should be.
        raise NoClusterError(
            f"the configuration of the cluster cannot be used: a part of it is of the wrong kind ({error}); correct it"
        ) from error


def _is_the_pods(config: ClusterConfig, account: Path) -> bool:
    in_pod = bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and (account / "token").is_file()
    if config.in_cluster and not in_pod:
        raise NoClusterError(f"in_cluster is set, but this runs in no pod: there is no token in {account}")
    others = (config.client_configuration, config.config_file, config.context, os.environ.get("KUBECONFIG"))
    return in_pod and (config.in_cluster or not any(others))


def _find(config: ClusterConfig) -> Found:
    if config.client_configuration is not None:
        # A copy of our own; its credentials and the hook that renews them are shared with the original.
        given = config.client_configuration
        return Found(copy.copy(given), None, ("configuration", id(given)), again=False)
    named = config.config_file or os.environ.get("KUBECONFIG")
    return _from_kubeconfig(named or _USUAL_PLACE, config.context, named is None)


def _from_kubeconfig(paths: str, context: str | None, is_guess: bool) -> Found:
    from kubernetes.client import Configuration
    from kubernetes.config.kube_config import KubeConfigLoader

    merged = _merged(paths, is_guess)
    contexts = _by_name(merged, "contexts", "context")
    name = _known(context or merged.config.value.get("current-context") or "", contexts, paths)
    cluster = _by_name(merged, "clusters", "cluster").get(str(contexts[name].get("cluster")), {})
    if not cluster.get("server"):
        raise NoClusterError(f"context {name!r} of the kubeconfig {paths} names no cluster with a server; correct it")
    configuration = Configuration()
    loader = KubeConfigLoader(
        config_dict=merged.config, active_context=name, config_base_path=None, config_persister=merged.save_changes
    )
    loader.load_and_set(configuration)
    _check_plugin(_by_name(merged, "users", "user").get(str(contexts[name].get("user")), {}), configuration, paths)
    configuration.proxy = cluster.get("proxy-url")
    return Found(configuration, contexts[name].get("namespace"), ("kubeconfig", paths, name))


def _merged(paths: str, is_guess: bool) -> Any:
    import yaml
    from kubernetes.config.kube_config import KubeConfigMerger

    try:
        merged = KubeConfigMerger(paths)
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise NoClusterError(
            f"the kubeconfig {paths} cannot be read: {one_line(str(error), 300)}; correct it"
        ) from error
    except (AttributeError, KeyError, TypeError) as error:
        raise NoClusterError(
            f"the kubeconfig {paths} is no kubeconfig: it lacks clusters, contexts or users"
        ) from error
    if merged.config is not None:
        return merged
    if is_guess:
        raise NoClusterError(
            f"no cluster is configured: there is no config_file, no KUBECONFIG, no service account of a pod and no "
            f"{_USUAL_PLACE}; log in to a cluster, or name a kubeconfig in the backend's configuration"
        )
    raise NoClusterError(f"there is no kubeconfig at {paths}; correct config_file or KUBECONFIG")


def _by_name(merged: Any, part: str, inner: str) -> dict[str, Mapping[str, Any]]:
    nodes = [node.value for node in merged.config.value[part]]
    return {str(node.get("name")): node.get(inner) or {} for node in nodes}


def _known(name: str, contexts: Mapping[str, Any], paths: str) -> str:
    if name in contexts:
        return name
    known = ", ".join(sorted(contexts)) or "none"
    said = f"no context {name!r}" if name else "no current context"
    raise NoClusterError(f"the kubeconfig {paths} has {said}; name one of these as the context: {known}")


def _check_plugin(user: Mapping[str, Any], configuration: Any, paths: str) -> None:
    """The library goes on without credentials when a plugin fails, and the server's answer would say nothing of it."""
    plugin = user.get("exec")
    if isinstance(plugin, Mapping) and not configuration.api_key and not configuration.cert_file:
        raise NoClusterError(
            f"the credential plugin {plugin.get('command')!r} of the kubeconfig {paths} gave no credentials; "
            "see that it is installed and logged in: run `kubectl get pods`"
        )


def _add_environment(configuration: Any) -> None:
    """Take proxy and CA from the environment where the configuration has none."""
    if configuration.ssl_ca_cert is None:
        configuration.ssl_ca_cert = next((os.environ[name] for name in _CA_VARIABLES if os.environ.get(name)), None)
    if configuration.proxy is None and any(name.lower().endswith("_proxy") for name in os.environ):
        from requests import (
            utils,  # A dependency of `kubernetes`; knows CIDRs in NO_PROXY, which the standard library does not.
        )

        configuration.proxy = utils.select_proxy(configuration.host, utils.get_environ_proxies(configuration.host))


def _take_login(configuration: Any) -> None:
    """Put the login for a proxy into a header: messages show addresses, and urllib3 would leave it out."""
    parts = urlsplit(configuration.proxy or "")
    if parts.username is None:
        return
    import urllib3

    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    configuration.proxy_headers = configuration.proxy_headers or urllib3.make_headers(proxy_basic_auth=login)
    configuration.proxy = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8").strip() or None
    except OSError:
        return None
