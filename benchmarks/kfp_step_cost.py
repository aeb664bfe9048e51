"""What a KFP step costs that waits for a TrainJob: seconds to its first request, and memory while it waits.

A pipeline has a pod for each step, so users pay for both. Ours is the component `wait` as its image starts it, in a pod
with a service account; the other does the same with the libraries that the reference SDK loads, polling as it does
(the SDK itself where it is installed). Both use the API double of the tests, ours through TLS as in a cluster. On a
busy machine compare the CPU seconds: on an idle one the first request takes about as long.

    python benchmarks/kfp_step_cost.py            # about a minute; needs the command openssl
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/fakes"))

from fake_cluster import Cluster

JOB, NAMESPACE = "waited-for", "default"
TARGET_SECONDS, TARGET_MEGABYTES = 0.6, 60

OURS = """
import sys
from pathlib import Path
from trainer_core.k8s.connection import Connection
# The folder of the service account is /var/run/secrets in a pod.
Connection.__init__.__defaults__ = (Path(sys.argv[1]),)
from kfp_components.step.entrypoint import main
sys.exit(main(sys.argv[2:]))
"""

THEIRS = """
import sys, time
path, namespace, name = sys.argv[1:]
try:
    from kubeflow.trainer import TrainerClient
    from kubeflow.trainer.types.backend import KubernetesBackendConfig
except ImportError:
    from kubeflow_trainer_api import models
    from kubernetes import client, config
    config.load_kube_config(path)
    jobs, pods = client.CustomObjectsApi(), client.CoreV1Api()
    while True:
        raw = jobs.get_namespaced_custom_object("trainer.kubeflow.org", "v1alpha1", namespace, "trainjobs", name)
        models.TrainerV1alpha1TrainJob.from_dict(raw)
        pods.list_namespaced_pod(namespace, label_selector=f"jobset.sigs.k8s.io/jobset-name={name}")
        time.sleep(2)
TrainerClient(KubernetesBackendConfig(config_file=path, namespace=namespace)).wait_for_job_status(name, timeout=600)
"""


@contextmanager
def tls(address: tuple[str, int], folder: Path) -> Iterator[int]:
    """Stand before a server with TLS; yield the port. The certificate is `ca.crt` in the folder."""
    certificate, key = folder / "ca.crt", folder / "key.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *names]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_accept, args=(listening, context, address), daemon=True).start()
        yield listening.getsockname()[1]


def _accept(listening: socket.socket, context: ssl.SSLContext, address: tuple[str, int]) -> None:
    with suppress(OSError):
        while True:
            plain, _ = listening.accept()
            threading.Thread(target=_pass_on, args=(plain, context, address), daemon=True).start()


def _pass_on(plain: socket.socket, context: ssl.SSLContext, address: tuple[str, int]) -> None:
    with (
        suppress(OSError),
        context.wrap_socket(plain, server_side=True) as near,
        socket.create_connection(address) as far,
    ):
        other = {near: far, far: near}
        while True:
            ready = [near] if near.pending() else select.select(list(other), [], [])[0]
            for each in ready:
                data = each.recv(65536)
                if not data:
                    return
                other[each].sendall(data)


def executor_input(folder: Path, ref: dict[str, Any]) -> str:
    outputs = ("model", "metrics", "report", "classification")
    artifacts = {name: {"artifacts": [{"name": name, "uri": str(folder / name)}]} for name in outputs}
    names = ("status", "result", "metric", "last_job")
    parameters = {name: {"outputFile": str(folder / f"{name}.txt")} for name in names}
    places = {"parameters": parameters, "artifacts": artifacts, "outputFile": str(folder / "output.json")}
    return json.dumps({"inputs": {"parameterValues": {"job": ref, "on_kill": "keep"}}, "outputs": places})


def measure(cluster: Cluster, command: list[str], environment: dict[str, str], seconds: float) -> tuple[float, ...]:
    """Start a step; return seconds and processor seconds to its first request, and the megabytes it holds later."""
    cluster.forget_requests()
    began = time.monotonic()
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        while not cluster.requests and process.poll() is None:
            time.sleep(0.002)
        first = time.monotonic() - began
        used = sum(psutil.Process(process.pid).cpu_times()[:2])
        time.sleep(seconds)
        if process.poll() is not None:
            raise SystemExit(f"it ended with {process.returncode} instead of waiting")
        held = psutil.Process(process.pid).memory_info().rss / 2**20
        process.kill()
    return first, used, held


def main() -> None:
    """Measure both and print the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=5, help="how often each is started")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each waits before it is weighed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, Cluster() as cluster:
        folder = Path(name)
        (folder / "token").write_text(cluster.token)
        (folder / "namespace").write_text(NAMESPACE)
        host, _, port = cluster.url.removeprefix("http://").partition(":")
        with tls((host, int(port)), folder) as secured:
            commands = steps(cluster, folder)
            inside = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(secured)}
            # In an image pip has compiled everything.
            plain = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
            for name in ("KUBECONFIG", "PYTHONDONTWRITEBYTECODE"):
                plain.pop(name, None)
            # In turns, so that both meet the same machine.
            rounds = [
                [
                    measure(cluster, command, {**plain, **extra}, given.seconds)
                    for command, extra in zip(commands, (inside, {}), strict=True)
                ]
                for _ in range(given.times + 1)
            ]
    # The first round compiles.
    report([round_[0] for round_ in rounds[1:]], [round_[1] for round_ in rounds[1:]])


def steps(cluster: Cluster, folder: Path) -> list[list[str]]:
    """Submit a job that runs for long, and return the commands that wait for it: ours and the other."""
    from trainer_core import CustomTrainerContainer, KubernetesBackendConfig, Name, TrainerClient

    cluster.lives.set(JOB, "runs")
    client = TrainerClient(KubernetesBackendConfig(namespace=NAMESPACE, client_configuration=cluster.configuration()))
    trainer = CustomTrainerContainer(image="registry.example/train:1.0")
    client.train(runtime="torch-distributed", trainer=trainer, options=[Name(JOB)])
    given = executor_input(folder, client.get_job_ref(JOB).to_dict())
    kubeconfig = str(cluster.kubeconfig(folder / "kubeconfig"))
    return [
        [sys.executable, "-c", OURS, str(folder), "wait", given],
        [sys.executable, "-c", THEIRS, kubeconfig, NAMESPACE, JOB],
    ]


def report(ours: list[tuple[float, ...]], theirs: list[tuple[float, ...]]) -> None:
    """Print medians beside each other; the machine may be busy, so the best is shown too."""
    print(f"{'':24}{'ours':>10}{'best':>10}{'reference':>12}{'ratio':>8}   target")
    rows = (
        ("first request, s", TARGET_SECONDS),
        ("CPU, s", None),
        ("memory waiting, MB", TARGET_MEGABYTES),
    )
    for index, (what, target) in enumerate(rows):
        mine, other = [each[index] for each in ours], [each[index] for each in theirs]
        middle, reference = statistics.median(mine), statistics.median(other)
        ratio = reference / middle
        goal = f"   <= {target}" if target else ""
        print(f"{what:24}{middle:10.2f}{min(mine):10.2f}{reference:12.2f}{ratio:7.1f}x{goal}")


if __name__ == "__main__":
    main()
