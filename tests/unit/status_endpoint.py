"""A double of the status server of Trainer's controller."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer


class Endpoint(HTTPServer):
    """Answers like Trainer's status endpoint and keeps what it was sent.

    The path is that of the controller, which has TLS: `context`. While `gate` is not set, no request is answered.
    """

    path = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team-a/trainjobs/a-job/status"

    def __init__(self, context=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = 200
        self.requests = []
        self.arrived = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.scheme = "http"
        if context is not None:
            self.scheme = "https"
            self.socket = context.wrap_socket(self.socket, server_side=True)

    @property
    def url(self):
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}{self.path}"

    @property
    def bodies(self):
        return [body for _, _, body in self.requests]

    @property
    def reported(self):
        return [json.loads(body)["trainerStatus"].get("progressPercentage") for body in self.bodies]

    @contextlib.contextmanager
    def running(self):
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self.gate.set()
            self.shutdown()
            thread.join()
            self.server_close()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, self.headers["Authorization"], body))
        self.server.arrived.release()
        self.server.gate.wait()
        self.send_response(self.server.answer)
        self.send_header("Location", f"http://127.0.0.1:{self.server.server_address[1]}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass
