"""Every test runs on 8 fake CPU devices, with strict arrays, checked shapes, no network, no skips.

Everything before the first import of jax is set as environment variables, so that the processes
that tests start have it too.
"""

import functools
import gc
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
FAKE_DEVICES = "--xla_force_host_platform_device_count"
LOCAL_HOSTS = {"127.0.0.1", "::1", "localhost"}


def _set_environment() -> None:
    flags = os.environ.get("XLA_FLAGS", "")
    if FAKE_DEVICES not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {FAKE_DEVICES}=8".strip()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(REPOSITORY / ".cache" / "xla"))
    os.environ.update(
        JAX_ENABLE_COMPILATION_CACHE="true",
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
        JAX_NUMPY_DTYPE_PROMOTION="strict",
        JAX_NUMPY_RANK_PROMOTION="raise",
    )


_set_environment()
# Kept for the whole session: modules of shoal imported from here on have their shapes checked.
_HOOK = jaxtyping.install_import_hook("shoal", "typecheck.check")

_not_run: list[str] = []


class NetworkBlockedError(OSError):
    """What a test gets instead of a connection, as behind a firewall."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note every test that was skipped or was let fail."""
    if report.skipped or hasattr(report, "wasxfail"):
        _not_run.append(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note every file that skipped itself."""
    if report.skipped:
        _not_run.append(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """No test is skipped silently: a skip or an expected failure fails the session."""
    if _not_run and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which tests failed the session by not running."""
    for nodeid in _not_run:
        terminalreporter.write_line(f"SKIPPED COUNTS AS FAILED {nodeid}", red=True)


@pytest.fixture(autouse=True)
def _no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("network"):
        return
    connect = socket.socket.connect

    def connect_locally(self: socket.socket, address: object) -> None:
        host = address[0] if isinstance(address, tuple) else None
        if self.family != socket.AF_UNIX and host not in LOCAL_HOSTS:
            raise NetworkBlockedError(f"test reached for {address}; mark it `network` if it must")
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", connect_locally)
    monkeypatch.setattr(socket.socket, "connect_ex", connect_locally)


@pytest.fixture(autouse=True, scope="module")
def _programs_go_with_their_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """Free what a module has compiled.

    A program on eight devices is about three thousand memory mappings, and Linux gives a process
    65,530: past them the compiler aborts.
    """
    yield
    for value in vars(request.module).values():
        if isinstance(value, functools._lru_cache_wrapper):
            value.cache_clear()
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
    gc.collect()


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes into the checkout's shoal-home."""
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "shoal-home"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout's root."""
    return REPOSITORY
