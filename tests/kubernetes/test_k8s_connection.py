from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import ssl
import subprocess
import sys
import threading
import traceback
from base64 import b64decode
from contextlib import aclosing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from aiohttp import web

from trainer_core.base.errors import BackendUnavailableError
from trainer_core.k8s import async_client
from trainer_core.k8s.client import ApiClient
from trainer_core.k8s.config import ClusterConfigError
from trainer_core.k8s.connection import Connection
from trainer_core.k8s.resources import PODS
from trainer_core.model.config import KubernetesBackendConfig

SECRET = "hunter2"


@pytest.fixture
def account(tmp_path):
    """Folder of a pod's service account; it does not exist yet."""
    return tmp_path / "serviceaccount"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch, tmp_path):
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def build_connection(account, **settings):
    return Connection(KubernetesBackendConfig(**settings), account)


def kubeconfig(path, url, user, **cluster):
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "there", "context": {"cluster": "c", "user": "u"}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(yaml.safe_dump(content))
    return str(path)


def plugin(tmp_path, status):
    """A credential plugin that returns the content of a file and counts its runs."""
    answer = tmp_path / "credentials.json"
    answer.write_text(json.dumps(status))
    script = tmp_path / "plugin.py"
    script.write_text(
        "import json, pathlib\n"
        f"status = json.loads(pathlib.Path({str(answer)!r}).read_text())\n"
        f"with open({str(tmp_path / 'asked')!r}, 'a') as asked: asked.write('.')\n"
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential',"
        " 'status': status}))\n"
    )
    return {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(script)],
        "interactiveMode": "Never",
    }


def make_account(account, token):
    account.mkdir()
    (account / "token").write_text(token)
    (account / "ca.crt").write_text("a certificate")
    (account / "namespace").write_text("pods-own")


def list_pods(connection):
    return ApiClient(connection).list(PODS)


def list_pods_async(connection):
    """List pods with the async client."""

    async def pages():
        async with connection.open_session() as session:
            listing = async_client.list_pages(
                connection, session, async_client.ResourceCollection(PODS, connection.namespace)
            )
            async with aclosing(listing):
                return [page async for page in listing]

    return asyncio.run(pages())[0]["items"]


BOTH = pytest.mark.parametrize("list_with", [list_pods, list_pods_async], ids=["sync", "async"])


@BOTH
def test_a_given_configuration_is_used(cluster, account, list_with):
    assert list_with(build_connection(account, client_configuration=cluster.configuration())) == []


@BOTH
def test_the_refresh_hook_of_a_given_configuration_renews_its_token(cluster, account, list_with):
    def renew(configuration):
        configuration.api_key["authorization"] = "Bearer newer"

    configuration = cluster.configuration()
    configuration.refresh_api_key_hook = renew
    cluster.tokens = {"newer"}

    assert list_with(build_connection(account, client_configuration=configuration)) == []


def test_a_given_configuration_is_not_modified(cluster, account, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    configuration = cluster.configuration()
    before = dict(vars(configuration))

    build_connection(account, client_configuration=configuration)

    assert vars(configuration) == before


@BOTH
def test_a_kubeconfig_is_loaded_from_its_path(cluster, account, tmp_path, list_with):
    assert list_with(build_connection(account, config_file=str(cluster.kubeconfig(tmp_path / "config")))) == []


@BOTH
def test_a_kubeconfig_is_loaded_from_the_environment(cluster, account, tmp_path, monkeypatch, list_with):
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'absent'}:{cluster.kubeconfig(tmp_path / 'config')}")

    assert list_with(build_connection(account)) == []


def test_several_kubeconfigs_are_merged(cluster, account, tmp_path, monkeypatch):
    one = cluster.kubeconfig(tmp_path / "one")
    other = kubeconfig(tmp_path / "other", "http://127.0.0.1:9", {"token": SECRET})
    monkeypatch.setenv("KUBECONFIG", f"{other}:{one}")

    assert list_pods(build_connection(account, context="fake")) == []


def test_a_kubeconfig_is_loaded_from_the_home_folder(cluster, account, tmp_path):
    kubeconfig(tmp_path / "home" / ".kube" / "config", cluster.url, {"token": cluster.token})

    assert list_pods(build_connection(account)) == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"namespace": "asked"}, "asked"),
        ({}, "team"),
        ({"context": "there"}, "default"),
    ],
)
def test_the_namespace_comes_from_the_configuration_or_the_context(account, tmp_path, settings, expected):
    path = kubeconfig(tmp_path / "config", "http://127.0.0.1:9", {"token": SECRET})

    assert build_connection(account, config_file=path, **settings).namespace == expected


def test_the_namespace_of_a_pod_is_the_default(account, monkeypatch):
    make_account(account, SECRET)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")

    connection = build_connection(account)

    assert (connection.namespace, connection.host) == ("pods-own", "https://127.0.0.1:6443")


def test_a_named_kubeconfig_takes_precedence_over_the_service_account(cluster, account, tmp_path, monkeypatch):
    make_account(account, SECRET)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")

    assert list_pods(build_connection(account, config_file=str(cluster.kubeconfig(tmp_path / "config")))) == []


def test_in_cluster_takes_precedence_over_the_environment(account, tmp_path, monkeypatch):
    make_account(account, SECRET)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path / "config", "http://127.0.0.1:9", {"token": "other"}))

    assert build_connection(account, in_cluster=True).host == "https://127.0.0.1:6443"


def test_in_cluster_is_refused_outside_of_a_pod(account):
    with pytest.raises(ClusterConfigError, match="in_cluster is set, but this process does not run in a pod"):
        build_connection(account, in_cluster=True)


def test_a_refused_service_account_token_is_read_again(account, monkeypatch):
    make_account(account, "first")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    connection = build_connection(account)
    (account / "token").write_text("second")

    assert connection.reload_credentials(connection.credentials_generation)
    assert connection.build_headers()["authorization"] == "Bearer second"


@BOTH
def test_a_refused_token_file_is_read_again(cluster, account, tmp_path, list_with):
    token = tmp_path / "token"
    token.write_text(cluster.token)
    connection = build_connection(
        account, config_file=kubeconfig(tmp_path / "c", cluster.url, {"tokenFile": str(token)})
    )
    list_with(connection)
    cluster.tokens = {"rotated"}
    token.write_text("rotated")

    assert list_with(connection) == []


@BOTH
def test_a_credential_plugin_provides_the_token(cluster, account, tmp_path, list_with):
    user = {"exec": plugin(tmp_path, {"token": cluster.token})}

    assert list_with(build_connection(account, config_file=kubeconfig(tmp_path / "c", cluster.url, user))) == []


@BOTH
def test_the_credential_plugin_runs_again_when_its_token_is_refused(cluster, account, tmp_path, list_with):
    user = {"exec": plugin(tmp_path, {"token": cluster.token})}
    connection = build_connection(account, config_file=kubeconfig(tmp_path / "c", cluster.url, user))
    list_with(connection)
    cluster.tokens = {"rotated"}
    (tmp_path / "credentials.json").write_text(json.dumps({"token": "rotated"}))

    assert list_with(connection) == []


@BOTH
def test_the_credential_plugin_runs_again_when_its_token_expires(cluster, account, tmp_path, list_with):
    expired = {"token": cluster.token, "expirationTimestamp": "2020-01-01T00:00:00Z"}
    user = {"exec": plugin(tmp_path, expired)}
    connection = build_connection(account, config_file=kubeconfig(tmp_path / "c", cluster.url, user))
    cluster.tokens = {"rotated"}
    (tmp_path / "credentials.json").write_text(json.dumps({**expired, "token": "rotated"}))

    assert list_with(connection) == []


def test_threads_with_the_same_refused_token_run_the_plugin_once(cluster, account, tmp_path):
    user = {"exec": plugin(tmp_path, {"token": cluster.token})}
    connection = build_connection(account, config_file=kubeconfig(tmp_path / "c", cluster.url, user))
    turn = connection.credentials_generation
    (tmp_path / "asked").write_text("")

    threads = [threading.Thread(target=connection.reload_credentials, args=(turn,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (tmp_path / "asked").read_text() == "."


@BOTH
def test_requests_go_through_the_proxy_of_the_environment(cluster, account, monkeypatch, list_with):
    monkeypatch.setenv("HTTP_PROXY", cluster.url)
    configuration = cluster.configuration()
    configuration.host = "http://cluster.invalid"

    assert list_with(build_connection(account, client_configuration=configuration)) == []


@BOTH
def test_no_proxy_bypasses_the_proxy(cluster, account, monkeypatch, list_with):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.0/8")

    assert list_with(build_connection(account, client_configuration=cluster.configuration())) == []


@BOTH
def test_the_proxy_of_a_kubeconfig_takes_precedence_over_the_environment(
    cluster, account, tmp_path, monkeypatch, list_with
):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    path = kubeconfig(tmp_path / "c", "http://cluster.invalid", {"token": cluster.token}, **{"proxy-url": cluster.url})

    assert list_with(build_connection(account, config_file=path, namespace="default")) == []


class _Gate(BaseHTTPRequestHandler):
    """A proxy that refuses every request and records the login."""

    def do_CONNECT(self):
        self.server.asked.append(self.headers["Proxy-Authorization"])
        self.send_error(403)

    def log_message(self, *_):
        """Log nothing."""


@pytest.fixture
def gate():
    with ThreadingHTTPServer(("127.0.0.1", 0), _Gate) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@BOTH
def test_the_proxy_login_is_sent_and_is_not_in_the_traceback(cluster, gate, account, monkeypatch, list_with):
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:{SECRET}@127.0.0.1:{gate.server_port}")
    configuration = cluster.configuration()
    configuration.host = "https://cluster.invalid"

    with pytest.raises(BackendUnavailableError) as refused:
        list_with(build_connection(account, client_configuration=configuration))

    assert b64decode(gate.asked[0].removeprefix("Basic ")) == f"me:{SECRET}".encode()
    assert SECRET not in "".join(traceback.format_exception(refused.value))


class UnusableConfigurations:
    """Settings and files that lead to no cluster, each with a part of the expected message."""

    @staticmethod
    def nothing(tmp_path):
        return {}, "no cluster is configured: there is no config_file, no KUBECONFIG, no service account"

    @staticmethod
    def no_file(tmp_path):
        return {"config_file": str(tmp_path / "none")}, "there is no kubeconfig at"

    @staticmethod
    def no_yaml(tmp_path):
        (tmp_path / "c").write_text("{{")
        return {"config_file": str(tmp_path / "c")}, "cannot be read"

    @staticmethod
    def a_folder(tmp_path):
        return {"config_file": str(tmp_path)}, "cannot be read"

    @staticmethod
    def a_list(tmp_path):
        (tmp_path / "c").write_text("[1]")
        return {"config_file": str(tmp_path / "c")}, "is not valid: it lacks clusters"

    @staticmethod
    def empty(tmp_path):
        (tmp_path / "c").write_text("")
        return {"config_file": str(tmp_path / "c")}, "file is empty"

    @staticmethod
    def unknown_context(tmp_path):
        path = kubeconfig(tmp_path / "c", "http://127.0.0.1:9", {"token": SECRET})
        return {"config_file": path, "context": "nowhere"}, "has no context 'nowhere'; name one of these"

    @staticmethod
    def no_server(tmp_path):
        return {"config_file": kubeconfig(tmp_path / "c", "", {"token": SECRET})}, "names no cluster with a server"

    @staticmethod
    def absent_certificate(tmp_path):
        user = {"token": SECRET}
        path = kubeconfig(tmp_path / "c", "https://127.0.0.1:9", user, **{"certificate-authority": "absent.pem"})
        return {"config_file": path}, "File does not exist"

    @staticmethod
    def malformed_user(tmp_path):
        user = {"token": SECRET, "auth-provider": {"name": "oidc", "config": {}}}
        return {"config_file": kubeconfig(tmp_path / "c", "http://127.0.0.1:9", user)}, "Expected key id-token"

    @staticmethod
    def absent_token(tmp_path):
        return {"config_file": kubeconfig(tmp_path / "c", "http://127.0.0.1:9", {"tokenFile": "/absent"})}, "/absent"

    @staticmethod
    def a_text_for_a_cluster(tmp_path):
        path = kubeconfig(tmp_path / "c", "http://127.0.0.1:9", {"token": SECRET})
        content = yaml.safe_load((tmp_path / "c").read_text())
        content["clusters"][0]["cluster"] = "http://127.0.0.1:9"
        (tmp_path / "c").write_text(yaml.safe_dump(content))
        return {"config_file": path}, "a part of it has the wrong type"

    @staticmethod
    def no_proxy_at_all(tmp_path):
        path = kubeconfig(tmp_path / "c", "http://127.0.0.1:9", {"token": SECRET}, **{"proxy-url": "http://[x"})
        return {"config_file": path}, "a part of it has the wrong type"

    @staticmethod
    def absent_plugin(tmp_path):
        user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "absent-plugin"}}
        path = kubeconfig(tmp_path / "c", "http://127.0.0.1:9", user)
        return {"config_file": path}, "the credential plugin 'absent-plugin'"


@pytest.mark.parametrize(
    "unusable", [value for name, value in vars(UnusableConfigurations).items() if not name.startswith("_")]
)
def test_an_unusable_configuration_leads_to_an_error_of_one_line(account, tmp_path, unusable):
    settings, expected = unusable.__func__(tmp_path)

    with pytest.raises(ClusterConfigError) as caught:
        build_connection(account, **settings)

    message = str(caught.value)
    assert expected in message
    assert message.isprintable()
    assert SECRET not in message
    assert not caught.value.transient


def test_an_unknown_context_lists_the_known_ones(account, tmp_path):
    path = kubeconfig(tmp_path / "c", "http://127.0.0.1:9", {"token": SECRET})

    with pytest.raises(ClusterConfigError, match="here, there"):
        build_connection(account, config_file=path, context="nowhere")


def test_a_missing_package_leads_to_the_pip_command(tmp_path):
    program = (
        "import sys; sys.modules['kubernetes.config'] = None; sys.modules['kubernetes'] = None\n"
        "from trainer_core import KubernetesBackendConfig; from trainer_core.k8s.connection import Connection\n"
        "try: Connection(KubernetesBackendConfig())\n"
        "except Exception as error: print(type(error).__name__, error)"
    )

    message = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert message.startswith("ClusterConfigError")
    assert "pip install -e '.[kubernetes]' in a clone" in message


def test_importing_the_modules_imports_no_client_library():
    program = (
        "import sys; import trainer_core.k8s.client, trainer_core.k8s.informer\n"
        "print([name for name in ('kubernetes', 'aiohttp', 'tenacity', 'urllib3') if name in sys.modules])"
    )

    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def _list_in_child(connection, results):
    results.put(list_pods(connection))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_connection_can_be_used_in_a_forked_child_while_its_parent_renews_credentials(cluster, account):
    connection = build_connection(account, client_configuration=cluster.configuration())
    list_pods(connection)
    is_held, release = threading.Event(), threading.Event()

    def hold():
        with connection._lock:
            is_held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_list_in_child, args=(connection, results))
    child.start()
    try:
        assert results.get(timeout=600) == []
    finally:
        release.set()
        thread.join()
        child.kill()
        child.join()


def test_connections_of_equal_configurations_have_the_same_identity(cluster, account, tmp_path):
    path = str(cluster.kubeconfig(tmp_path / "config"))

    assert build_connection(account, config_file=path).identity == build_connection(account, config_file=path).identity


def test_connections_of_different_users_have_different_identities(cluster, account):
    one, other = cluster.configuration(), cluster.configuration()

    identities = [build_connection(account, client_configuration=each).identity for each in (one, other)]

    assert identities[0] != identities[1]


# TLS.


_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_NAMES = "subjectAltName=IP:127.0.0.1,DNS:cluster.example"


def make_certificate(folder, name, *arguments):
    made = ("req", "-x509", *_CURVE, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    subprocess.run(["openssl", *made, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """The certificate of a CA, and a server certificate with its key."""
    folder = tmp_path_factory.mktemp("tls")
    make_certificate(folder, "ca", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    make_certificate(folder, "tls", "-CA", "ca.pem", "-CAkey", "ca.key", "-addext", _NAMES)
    return folder


@contextmanager
def serving(folder):
    """Address of a TLS server with the certificate of the folder and an empty list of pods."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "tls.pem", folder / "tls.key")
    ports, stopped = [], threading.Event()
    started = threading.Event()

    async def no_pods(request):
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    async def serve():
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/{namespace}/pods", no_pods)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        ports.append(runner.addresses[0][1])
        started.set()
        await asyncio.to_thread(stopped.wait)
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(600)
    try:
        yield f"https://127.0.0.1:{ports[0]}"
    finally:
        stopped.set()
        thread.join()


@pytest.fixture
def tls_url(certificates):
    with serving(certificates) as url:
        yield url


@BOTH
def test_the_ca_of_a_kubeconfig_is_trusted(account, tmp_path, certificates, tls_url, list_with):
    ca = {"certificate-authority": str(certificates / "ca.pem")}

    assert (
        list_with(build_connection(account, config_file=kubeconfig(tmp_path / "c", tls_url, {"token": SECRET}, **ca)))
        == []
    )


@BOTH
@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_the_ca_of_the_environment_is_trusted(
    account, tmp_path, certificates, tls_url, monkeypatch, variable, list_with
):
    monkeypatch.setenv(variable, str(certificates / "ca.pem"))

    assert (
        list_with(build_connection(account, config_file=kubeconfig(tmp_path / "c", tls_url, {"token": SECRET}))) == []
    )


@BOTH
def test_an_unknown_ca_is_not_trusted(account, tmp_path, tls_url, list_with):
    connection = build_connection(account, config_file=kubeconfig(tmp_path / "c", tls_url, {"token": SECRET}))

    with pytest.raises(BackendUnavailableError, match="name the cluster's CA") as refused:
        list_with(connection)

    assert not refused.value.transient


_CA = ("-CA", "ca.pem", "-CAkey", "ca.key")
_BARE = ("-addext", "subjectKeyIdentifier=none", "-addext", "authorityKeyIdentifier=none")


@pytest.fixture
def as_python_3_13(monkeypatch):
    """Contexts that verify strictly, as those of Python 3.13 do."""
    create = ssl.create_default_context

    def create_strict(*arguments, **settings):
        context = create(*arguments, **settings)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", create_strict)


@BOTH
@pytest.mark.usefixtures("as_python_3_13")
@pytest.mark.parametrize(
    ("ca", "server"),
    [((), ()), (("-addext", "keyUsage=critical,keyCertSign"), _BARE), ((), _BARE)],
    ids=["a CA without key usage", "a certificate without the key of its CA", "neither"],
)
def test_certificates_are_verified_as_kubectl_does(account, tmp_path, list_with, ca, server):
    make_certificate(tmp_path, "ca", *ca)
    make_certificate(tmp_path, "tls", *_CA, "-addext", _NAMES, *server)
    facts = {"certificate-authority": str(tmp_path / "ca.pem")}

    with serving(tmp_path) as url:
        path = kubeconfig(tmp_path / "c", url, {"token": SECRET}, **facts)
        assert list_with(build_connection(account, config_file=path)) == []


@BOTH
def test_an_intermediate_ca_can_be_trusted(account, tmp_path, list_with):
    make_certificate(tmp_path, "root")
    make_certificate(tmp_path, "ca", "-CA", "root.pem", "-CAkey", "root.key", "-addext", "basicConstraints=CA:TRUE")
    make_certificate(tmp_path, "tls", *_CA, "-addext", _NAMES)
    facts = {"certificate-authority": str(tmp_path / "ca.pem")}

    with serving(tmp_path) as url:
        path = kubeconfig(tmp_path / "c", url, {"token": SECRET}, **facts)
        assert list_with(build_connection(account, config_file=path)) == []


def make_expired(folder):
    make_certificate(folder, "tls")  # Its key is used.
    (folder / "names").write_text(_NAMES)
    request = ("x509", "-x509toreq", "-in", "tls.pem", "-signkey", "tls.key", "-out", "tls.csr")
    ended = ("x509", "-req", "-in", "tls.csr", *_CA, "-days", "-1", "-extfile", "names", "-out", "tls.pem")
    for made in (request, ended):
        subprocess.run(["openssl", *made], cwd=folder, check=True, capture_output=True)


def make_for_another_host(folder):
    make_certificate(folder, "tls", *_CA, "-addext", "subjectAltName=DNS:other.example")


@BOTH
@pytest.mark.parametrize(
    ("make", "advice"),
    [(make_expired, "renew the certificate"), (make_for_another_host, "correct the server's address")],
)
def test_a_refused_certificate_is_final_and_its_cause_is_named(account, tmp_path, list_with, make, advice):
    make_certificate(tmp_path, "ca")
    make(tmp_path)
    facts = {"certificate-authority": str(tmp_path / "ca.pem")}

    with serving(tmp_path) as url:
        connection = build_connection(account, config_file=kubeconfig(tmp_path / "c", url, {"token": SECRET}, **facts))
        with pytest.raises(BackendUnavailableError, match=advice) as refused:
            list_with(connection)

    assert not refused.value.transient


@BOTH
def test_the_ca_of_the_environment_is_trusted_after_the_package_has_renewed_the_token(
    account, tmp_path, certificates, tls_url, monkeypatch, list_with
):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificates / "ca.pem"))
    connection = build_connection(account, config_file=kubeconfig(tmp_path / "c", tls_url, {"token": SECRET}))
    connection.build_headers()

    assert list_with(connection) == []


@BOTH
def test_the_tls_server_name_can_differ_from_the_address(account, tmp_path, certificates, tls_url, list_with):
    facts = {"certificate-authority": str(certificates / "ca.pem"), "tls-server-name": "cluster.example"}

    assert (
        list_with(
            build_connection(account, config_file=kubeconfig(tmp_path / "c", tls_url, {"token": SECRET}, **facts))
        )
        == []
    )


@BOTH
def test_a_client_certificate_is_sent(account, tmp_path, certificates, tls_url, list_with):
    user = {"client-certificate": str(certificates / "tls.pem"), "client-key": str(certificates / "tls.key")}
    ca = {"certificate-authority": str(certificates / "ca.pem")}

    assert list_with(build_connection(account, config_file=kubeconfig(tmp_path / "c", tls_url, user, **ca))) == []


def test_in_a_pod_the_kubernetes_package_is_not_loaded(account):
    make_account(account, SECRET)
    environment = {**os.environ, "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    environment.pop("KUBECONFIG", None)
    program = (
        "import sys; from pathlib import Path; from trainer_core import KubernetesBackendConfig;"
        "from trainer_core.k8s.connection import Connection;"
        "Connection(KubernetesBackendConfig(), Path(sys.argv[1])).build_headers();"
        "sys.exit('kubernetes' in sys.modules)"
    )

    subprocess.run([sys.executable, "-c", program, str(account)], check=True, env=environment)
