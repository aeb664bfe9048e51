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
from contextlib import aclosing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from aiohttp import web

from trainer_core.cluster import aio, connect
from trainer_core.cluster.api import Api
from trainer_core.cluster.kinds import PODS
from trainer_core.cluster.kubeconfig import NoClusterError
from trainer_core.configs import KubernetesBackendConfig
from trainer_core.errors import BackendUnavailableError

SECRET = "hunter2"


@pytest.fixture
def account(tmp_path):
    """Where a pod would have its service account; there is none yet."""
    return tmp_path / "serviceaccount"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch, tmp_path):
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def connected(account, **settings):
    return connect.connect(KubernetesBackendConfig(**settings), account)


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
    """A credential plugin that gives what a file says at the time, and counts how often it was asked."""
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
    return Api(connection).list(PODS)


def list_pods_async(connection):
    """List pods as a watcher does, and return how many pages there were."""

    async def pages():
        async with connection.session() as session:
            listing = aio.list_pages(connection, session, aio.Collection(PODS, connection.namespace))
            async with aclosing(listing):
                return [page async for page in listing]

    return asyncio.run(pages())[0]["items"]


BOTH = pytest.mark.parametrize("ask", [list_pods, list_pods_async], ids=["sync", "async"])


@BOTH
def test_a_configuration_is_used_as_it_is(cluster, account, ask):
    assert ask(connected(account, client_configuration=cluster.configuration())) == []


@BOTH
def test_the_hook_of_a_configuration_renews_its_token(cluster, account, ask):
    def renew(configuration):
        configuration.api_key["authorization"] = "Bearer newer"

    configuration = cluster.configuration()
    configuration.refresh_api_key_hook = renew
    cluster.tokens = {"newer"}

    assert ask(connected(account, client_configuration=configuration)) == []


def test_a_configuration_is_not_changed(cluster, account, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    configuration = cluster.configuration()

    connected(account, client_configuration=configuration)

    assert configuration.proxy is None


@BOTH
def test_a_kubeconfig_is_found_by_its_path(cluster, account, tmp_path, ask):
    assert ask(connected(account, config_file=str(cluster.kubeconfig(tmp_path / "config")))) == []


@BOTH
def test_a_kubeconfig_is_found_in_the_environment(cluster, account, tmp_path, monkeypatch, ask):
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'absent'}:{cluster.kubeconfig(tmp_path / 'config')}")

    assert ask(connected(account)) == []


def test_several_kubeconfigs_are_one(cluster, account, tmp_path, monkeypatch):
    one = cluster.kubeconfig(tmp_path / "one")
    other = kubeconfig(tmp_path / "other", "http://127.0.0.1:9", {"token": SECRET})
    monkeypatch.setenv("KUBECONFIG", f"{other}:{one}")

    assert list_pods(connected(account, context="fake")) == []


def test_a_kubeconfig_is_found_at_home(cluster, account, tmp_path):
    kubeconfig(tmp_path / "home" / ".kube" / "config", cluster.url, {"token": cluster.token})

    assert list_pods(connected(account)) == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"namespace": "asked"}, "asked"),
        ({}, "team"),
        ({"context": "there"}, "default"),
    ],
)
def test_the_namespace_is_the_configurations_or_the_contexts(account, tmp_path, settings, expected):
    path = kubeconfig(tmp_path / "config", "http://127.0.0.1:9", {"token": SECRET})

    assert connected(account, config_file=path, **settings).namespace == expected


def test_the_namespace_of_a_pod_is_its_own(account, monkeypatch):
    make_account(account, SECRET)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")

    connection = connected(account)

    assert (connection.namespace, connection.host) == ("pods-own", "https://127.0.0.1:6443")


def test_a_kubeconfig_that_is_named_counts_more_than_the_pods_account(cluster, account, tmp_path, monkeypatch):
    make_account(account, SECRET)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")

    assert list_pods(connected(account, config_file=str(cluster.kubeconfig(tmp_path / "config")))) == []


def test_in_cluster_the_pods_account_counts_whatever_the_environment_names(account, tmp_path, monkeypatch):
    make_account(account, SECRET)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path / "config", "http://127.0.0.1:9", {"token": "other"}))

    assert connected(account, in_cluster=True).host == "https://127.0.0.1:6443"


def test_in_cluster_is_refused_outside_of_a_pod(account):
    with pytest.raises(NoClusterError, match="in_cluster is set, but this runs in no pod"):
        connected(account, in_cluster=True)


def test_a_pods_token_is_read_anew_when_it_is_no_longer_taken(account, monkeypatch):
    make_account(account, "first")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    connection = connected(account)
    (account / "token").write_text("second")

    assert connection.renew(connection.turn)
    assert connection.headers()["authorization"] == "Bearer second"


@BOTH
def test_a_token_in_a_file_is_read_anew_when_it_is_no_longer_taken(cluster, account, tmp_path, ask):
    token = tmp_path / "token"
    token.write_text(cluster.token)
    connection = connected(account, config_file=kubeconfig(tmp_path / "c", cluster.url, {"tokenFile": str(token)}))
    ask(connection)
    cluster.tokens = {"rotated"}
    token.write_text("rotated")

    assert ask(connection) == []


@BOTH
def test_a_plugin_gives_the_token(cluster, account, tmp_path, ask):
    user = {"exec": plugin(tmp_path, {"token": cluster.token})}

    assert ask(connected(account, config_file=kubeconfig(tmp_path / "c", cluster.url, user))) == []


@BOTH
def test_a_plugin_is_asked_again_when_its_token_is_no_longer_taken(cluster, account, tmp_path, ask):
    user = {"exec": plugin(tmp_path, {"token": cluster.token})}
    connection = connected(account, config_file=kubeconfig(tmp_path / "c", cluster.url, user))
    ask(connection)
    cluster.tokens = {"rotated"}
    (tmp_path / "credentials.json").write_text(json.dumps({"token": "rotated"}))

    assert ask(connection) == []


@BOTH
def test_a_plugin_is_asked_again_when_its_token_expires(cluster, account, tmp_path, ask):
    expired = {"token": cluster.token, "expirationTimestamp": "2020-01-01T00:00:00Z"}
    user = {"exec": plugin(tmp_path, expired)}
    connection = connected(account, config_file=kubeconfig(tmp_path / "c", cluster.url, user))
    cluster.tokens = {"rotated"}
    (tmp_path / "credentials.json").write_text(json.dumps({**expired, "token": "rotated"}))

    assert ask(connection) == []


def test_threads_that_are_refused_together_ask_the_plugin_once(cluster, account, tmp_path):
    user = {"exec": plugin(tmp_path, {"token": cluster.token})}
    connection = connected(account, config_file=kubeconfig(tmp_path / "c", cluster.url, user))
    turn = connection.turn
    (tmp_path / "asked").write_text("")

    threads = [threading.Thread(target=connection.renew, args=(turn,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (tmp_path / "asked").read_text() == "."


@BOTH
def test_requests_go_through_the_proxy_of_the_environment(cluster, account, monkeypatch, ask):
    monkeypatch.setenv("HTTP_PROXY", cluster.url)
    configuration = cluster.configuration()
    configuration.host = "http://cluster.invalid"

    assert ask(connected(account, client_configuration=configuration)) == []


@BOTH
def test_a_proxy_is_passed_by_where_the_environment_says_so(cluster, account, monkeypatch, ask):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.0/8")

    assert ask(connected(account, client_configuration=cluster.configuration())) == []


@BOTH
def test_the_proxy_of_a_kubeconfig_counts_more_than_the_environments(cluster, account, tmp_path, monkeypatch, ask):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    path = kubeconfig(tmp_path / "c", "http://cluster.invalid", {"token": cluster.token}, **{"proxy-url": cluster.url})

    assert ask(connected(account, config_file=path, namespace="default")) == []


class _Gate(BaseHTTPRequestHandler):
    """A proxy that lets nobody through and keeps who asked."""

    def do_CONNECT(self):
        self.server.asked.append(self.headers["Proxy-Authorization"])
        self.send_error(403)

    def log_message(self, *_):
        """Say nothing."""


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
def test_a_proxy_hears_who_asks_and_a_traceback_does_not_say_it(cluster, gate, account, monkeypatch, ask):
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:{SECRET}@127.0.0.1:{gate.server_port}")
    configuration = cluster.configuration()
    configuration.host = "https://cluster.invalid"

    with pytest.raises(BackendUnavailableError) as refused:
        ask(connected(account, client_configuration=configuration))

    assert b64decode(gate.asked[0].removeprefix("Basic ")) == f"me:{SECRET}".encode()
    assert SECRET not in "".join(traceback.format_exception(refused.value))


class Away:
    """Settings and files that lead to no cluster, and what the error says of each."""

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
        return {"config_file": str(tmp_path / "c")}, "is no kubeconfig"

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
        return {"config_file": path}, "a part of it is of the wrong kind"

    @staticmethod
    def no_proxy_at_all(tmp_path):
        path = kubeconfig(tmp_path / "c", "http://127.0.0.1:9", {"token": SECRET}, **{"proxy-url": "http://[x"})
        return {"config_file": path}, "a part of it is of the wrong kind"

    @staticmethod
    def absent_plugin(tmp_path):
        user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "absent-plugin"}}
        path = kubeconfig(tmp_path / "c", "http://127.0.0.1:9", user)
        return {"config_file": path}, "the credential plugin 'absent-plugin'"


@pytest.mark.parametrize("away", [value for name, value in vars(Away).items() if not name.startswith("_")])
def test_a_configuration_that_leads_nowhere_says_so_in_one_line(account, tmp_path, away):
    settings, message = away.__func__(tmp_path)

    with pytest.raises(NoClusterError) as caught:
        connected(account, **settings)
    said = str(caught.value)
    assert (message in said, said.isprintable(), SECRET in said, caught.value.transient) == (True, True, False, False)


def test_the_contexts_there_are_are_named(account, tmp_path):
    path = kubeconfig(tmp_path / "c", "http://127.0.0.1:9", {"token": SECRET})

    with pytest.raises(NoClusterError, match="here, there"):
        connected(account, config_file=path, context="nowhere")


def test_a_missing_package_is_named_with_the_way_to_install_it(tmp_path):
    program = (
        "import sys; sys.modules['kubernetes.config'] = None; sys.modules['kubernetes'] = None\n"
        "from trainer_core.cluster import connect; from trainer_core.configs import KubernetesBackendConfig\n"
        "try: connect.connect(KubernetesBackendConfig())\n"
        "except Exception as error: print(type(error).__name__, error)"
    )

    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert said.startswith("NoClusterError")
    assert 'pip install "trainjob-workflows[kubernetes]"' in said


def test_the_modules_can_be_imported_without_any_client_library():
    program = (
        "import sys; import trainer_core.cluster.api, trainer_core.cluster.watch\n"
        "print([name for name in ('kubernetes', 'kubernetes_asyncio', 'aiohttp', 'urllib3') if name in sys.modules])"
    )

    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def _list_in_child(connection, results):
    results.put(list_pods(connection))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_connection_can_be_used_in_a_forked_child(cluster, account):
    connection = connected(account, client_configuration=cluster.configuration())
    list_pods(connection)
    context = multiprocessing.get_context("fork")
    results = context.Queue()

    child = context.Process(target=_list_in_child, args=(connection, results))
    child.start()

    assert results.get(timeout=60) == []
    child.join()


def test_equal_configurations_give_equal_connections(cluster, account, tmp_path):
    path = str(cluster.kubeconfig(tmp_path / "config"))

    assert connected(account, config_file=path).identity == connected(account, config_file=path).identity


def test_other_users_have_other_connections(cluster, account):
    one, other = cluster.configuration(), cluster.configuration()

    identities = [connected(account, client_configuration=each).identity for each in (one, other)]

    assert identities[0] != identities[1]


# Over TLS.


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A CA's certificate, and a server's with its key."""
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", *usage)
    names = ("-addext", "subjectAltName=IP:127.0.0.1,DNS:cluster.example")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key")
    openssl("req", "-x509", *curve, *signed, "-keyout", "tls.key", "-out", "tls.pem", "-subj", "/CN=server", *names)
    return folder


@pytest.fixture
def tls_url(certificates):
    """A server that has no pods, for whoever trusts it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "tls.pem", certificates / "tls.key")
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
    assert started.wait(60)
    yield f"https://127.0.0.1:{ports[0]}"
    stopped.set()
    thread.join()


@BOTH
def test_the_ca_of_a_kubeconfig_is_trusted(account, tmp_path, certificates, tls_url, ask):
    ca = {"certificate-authority": str(certificates / "ca.pem")}

    assert ask(connected(account, config_file=kubeconfig(tmp_path / "c", tls_url, {"token": SECRET}, **ca))) == []


@BOTH
@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_the_ca_of_the_environment_is_trusted(account, tmp_path, certificates, tls_url, monkeypatch, variable, ask):
    monkeypatch.setenv(variable, str(certificates / "ca.pem"))

    assert ask(connected(account, config_file=kubeconfig(tmp_path / "c", tls_url, {"token": SECRET}))) == []


@BOTH
def test_a_ca_that_is_not_known_is_not_trusted(account, tmp_path, tls_url, ask):
    connection = connected(account, config_file=kubeconfig(tmp_path / "c", tls_url, {"token": SECRET}))

    with pytest.raises(BackendUnavailableError, match="name the cluster's CA"):
        ask(connection)


@BOTH
def test_the_servers_name_can_be_another_than_its_address(account, tmp_path, certificates, tls_url, ask):
    facts = {"certificate-authority": str(certificates / "ca.pem"), "tls-server-name": "cluster.example"}

    assert ask(connected(account, config_file=kubeconfig(tmp_path / "c", tls_url, {"token": SECRET}, **facts))) == []


@BOTH
def test_a_client_certificate_can_be_shown(account, tmp_path, certificates, tls_url, ask):
    user = {"client-certificate": str(certificates / "tls.pem"), "client-key": str(certificates / "tls.key")}
    ca = {"certificate-authority": str(certificates / "ca.pem")}

    assert ask(connected(account, config_file=kubeconfig(tmp_path / "c", tls_url, user, **ca))) == []


def test_in_a_pod_the_kubernetes_package_is_not_loaded(account):
    """It takes a second and 80 MB, in each step of a pipeline that waits."""
    make_account(account, SECRET)
    environment = {**os.environ, "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    environment.pop("KUBECONFIG", None)
    program = (
        "import sys; from pathlib import Path; from trainer_core import KubernetesBackendConfig;"
        "from trainer_core.cluster import connect;"
        "connect.connect(KubernetesBackendConfig(), Path(sys.argv[1])).headers();"
        "sys.exit('kubernetes' in sys.modules)"
    )

    subprocess.run([sys.executable, "-c", program, str(account)], check=True, env=environment)
