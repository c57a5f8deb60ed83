"""One tiny trained run, made once by a process of its own; tests work on copies of it."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest

from journey.process import RECIPE, environment, result_of, shoal
from journey.tiny import TEXT, write_text


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of text that the tiny recipe trains on."""
    return write_text(tmp_path_factory.mktemp("text") / "text")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    """A home with the finished run `tiny`, which nothing interrupted; not to be changed."""
    home = tmp_path_factory.mktemp("trained")
    result = result_of(shoal("train", RECIPE, "--json", seen=environment(home, text=text)))
    assert result["step"] == 12
    return home


@pytest.fixture
def copied(
    trained: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Make a copy of the home this process' own; returns its run folder.

    `steps` says which checkpoints it keeps: with fewer than all, training is not finished.
    """

    def copy(*steps: int) -> Path:
        home = tmp_path / "home"
        shutil.copytree(trained, home, symlinks=True)
        monkeypatch.setenv("SHOAL_HOME", str(home))
        monkeypatch.setenv(TEXT, str(text))
        run = home / "runs" / "tiny"
        for path in (run / "checkpoints").iterdir():
            if steps and int(path.name) not in steps:
                shutil.rmtree(path)
        return run

    return copy


@pytest.fixture(autouse=True)
def _one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that run in the test process see one device, as the processes that tests start do."""
    monkeypatch.setattr("shoal.jobs.devices.visible_devices", lambda: jax.devices()[:1])


@pytest.fixture(autouse=True)
def _same_jax() -> Iterator[None]:
    """Jobs point jax's cache at their home; the next test's is another."""
    before = jax.config.jax_compilation_cache_dir
    yield
    jax.config.update("jax_compilation_cache_dir", before)
