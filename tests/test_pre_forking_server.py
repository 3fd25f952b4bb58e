"""A pre-forking server: the parent has computed before it forks, and every answer is right."""

import concurrent.futures
import http.client
import importlib.util
import os
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from fast_attention import scaled_dot_product_attention

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system"),
    pytest.mark.skipif(importlib.util.find_spec("gunicorn") is None, reason="gunicorn is absent"),
]

N_REQUEST, N_CLIENT, N_WORKER, N_SEED = 2000, 8, 4, 25
SECONDS = 120

APPLICATION = """
import os
import numpy as np
import fast_attention as f

def attend(seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((4, 120 + seed, 16), dtype="f4")
    with f._backend.using(os.environ["ENGINE"], os.environ["ISA"]):
        return f.scaled_dot_product_attention(x, x, x, is_causal=True, num_threads=3)

attend(0)  # the parent has threads when it forks

def application(environ, start_response):
    body = attend(int(environ["PATH_INFO"].strip("/"))).tobytes()
    start_response("200 OK", [("Content-Length", str(len(body))), ("Worker", str(os.getpid()))])
    return [body]
"""


def attend(seed):
    x = np.random.default_rng(seed).standard_normal((4, 120 + seed, 16), dtype="f4")
    return scaled_dot_product_attention(x, x, x, is_causal=True).tobytes()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(params=["sync", "gthread"])
def server(request, native_engine, tmp_path):
    """(port, process) of a server with the package loaded and used before its workers start."""
    (tmp_path / "served.py").write_text(APPLICATION)
    port = free_port()
    options = ["--preload", "--workers", str(N_WORKER), "--worker-class", request.param]
    options += ["--threads", "1" if request.param == "sync" else "4", "--log-level", "warning"]
    command = [sys.executable, "-m", "gunicorn", "served:application", *options]
    with subprocess.Popen(
        [*command, "--bind", f"127.0.0.1:{port}", "--timeout", str(SECONDS)],
        cwd=tmp_path,
        env=os.environ | {"ENGINE": native_engine[0], "ISA": native_engine[1]},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield port, process
        process.terminate()
        process.wait(SECONDS)


def await_answer(port):
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return get(port, 0)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.1)


def get(port, seed):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.request("GET", f"/{seed}")
        response = connection.getresponse()
        assert response.status == 200
        return response.headers["Worker"], response.read()
    finally:
        connection.close()


def test_two_thousand_requests_to_four_workers_are_all_answered_right(server):
    port, process = server
    expected = [attend(seed) for seed in range(N_SEED)]
    await_answer(port)
    workers = set()
    with concurrent.futures.ThreadPoolExecutor(N_CLIENT) as clients:
        answers = clients.map(lambda i: get(port, i % N_SEED), range(N_REQUEST))
        for i, (worker, body) in enumerate(answers):
            workers.add(worker)
            assert body == expected[i % N_SEED]
    assert len(workers) == N_WORKER
    process.terminate()
    _, messages = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert "Error" not in messages
    assert "Traceback" not in messages
