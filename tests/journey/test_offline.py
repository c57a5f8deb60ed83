"""Nothing that Shoal runs calls home: not its own code, and none of the libraries below it."""

import os
import socket
import subprocess
import sys
import threading

import pytest

from journey.process import RECIPE, environment, result_of, shoal
from journey.tiny import write_text

# Loaded by every Python process of the test: a connection to anywhere but this machine ends it.
_GUARD = """
import os, sys
def guard(event, details):
    if event == "socket.connect":
        place = details[1]
        if isinstance(place, tuple) and place[0] not in ("127.0.0.1", "::1", "localhost"):
            with open(os.environ["GUARD_LOG"], "a") as log:
                log.write(f"{place}\\n")
            raise OSError(f"the guard refuses {place}")
    if event == "socket.getaddrinfo" and details[0] not in (None, "127.0.0.1", "::1", "localhost"):
        with open(os.environ["GUARD_LOG"], "a") as log:
            log.write(f"{details[0]}\\n")
        raise OSError(f"the guard resolves no {details[0]}")
sys.addaudithook(guard)
"""
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@pytest.fixture
def proxy():
    """A proxy that answers nobody and counts: compiled libraries ask it, whatever they want."""
    calls = []
    listener = socket.create_server(("127.0.0.1", 0))

    def listen():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.settimeout(5)
            with connection:
                calls.append(connection.recv(200))

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", calls
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def watched(tmp_path, proxy):
    (tmp_path / "guard").mkdir()
    (tmp_path / "guard" / "sitecustomize.py").write_text(_GUARD)
    seen = environment(tmp_path / "home", text=write_text(tmp_path / "text"))
    url, calls = proxy
    log = tmp_path / "reached"
    log.touch()
    seen |= dict.fromkeys(_PROXIES, url)
    seen |= {"GUARD_LOG": str(log), "PYTHONPATH": str(tmp_path / "guard"), "NO_PROXY": ""}
    return seen, log, calls


def test_prepare_train_and_report_reach_for_nothing(tmp_path, proxy):
    seen, log, calls = watched(tmp_path, proxy)
    made = shoal("prepare", RECIPE, "--json", seen=seen)
    assert result_of(made)["reused"] is False
    few = ("--set", "train.num_steps=2", "--set", "eval.every_steps=0")
    assert result_of(shoal("train", RECIPE, *few, "--json", seen=seen))["step"] == 2
    assert result_of(shoal("report", "tiny", "--json", seen=seen))
    assert log.read_text() == ""
    assert calls == []


def test_the_guard_sees_a_call(tmp_path, proxy):
    seen, log, calls = watched(tmp_path, proxy)
    asks = "import urllib.request as u\ntry: u.urlopen('http://example.invalid/x')\n"
    asks += "except OSError: pass"
    subprocess.run(
        [sys.executable, "-c", asks], env=seen | {"PATH": os.environ["PATH"]}, check=True
    )
    assert calls[0].startswith(b"GET http://example.invalid/x")
    direct = {name: value for name, value in seen.items() if name not in _PROXIES}
    subprocess.run([sys.executable, "-c", asks], env=direct, check=True)
    assert "example.invalid" in log.read_text()
