"""Job `prepare`: reuses what is there, and after any kill ends with the same corpus."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.core.artifact import verify
from shoal.core.config import plain
from shoal.core.progress import Silent
from shoal.data.config import CorpusConfig
from shoal.jobs.prepare import prepare


class Notes(Silent):
    """Keeps the lines that stay."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


def _contents(root: Path) -> dict[str, bytes]:
    """Every file but the manifests, which hold times."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in ("manifest.json", "corpus.json")
    }


def test_a_second_call_reuses_everything_and_says_so(tmp_path: Path, tiny: CorpusConfig):
    notes = Notes()
    first = prepare(tiny, tmp_path / "home", notes)
    second = prepare(tiny, tmp_path / "home", notes)
    assert not any(first.reused.values())
    assert all(second.reused.values())
    assert notes.lines == [
        f"corpus {first.corpus.ref}: made (0 of 12 artifacts reused)",
        f"corpus {first.corpus.ref}: reused",
    ]
    assert second.facts == first.facts
    assert second.heldout == first.heldout
    verify(second.corpus)


def test_what_is_prepared_names_sets_domains_and_kinds(tmp_path: Path, tiny: CorpusConfig):
    prepared = prepare(tiny, tmp_path / "home", Silent())
    assert prepared.kinds == {
        "sources": {"alpha": "prose", "beta": "prose"},
        "domains": {"letters": "quotes"},
    }
    assert {name: list(domains) for name, domains in prepared.heldout.items()} == {
        "sources": ["alpha", "beta"],
        "domains": ["letters"],
    }
    counts = {source["name"]: source["heldout_documents"] for source in prepared.facts["sources"]}
    assert len(prepared.heldout["sources"]["alpha"]) == counts["alpha"] > 1
    assert prepared.tokenizer_path.is_file()
    assert (prepared.store / "store.json").is_file()


def test_only_what_changed_is_made_again(tmp_path: Path, tiny: CorpusConfig):
    home = tmp_path / "home"
    prepare(tiny, home, Silent())
    again = prepare(replace(tiny, unit_tokens=128), home, Silent())
    assert {name for name, reused in again.reused.items() if not reused} == {"tiny-tokens", "tiny"}


_KILLED = """
import json, os, signal, sys
from pathlib import Path
import pyarrow.parquet as pq
from shoal.core import files
from shoal.core.progress import Silent
stage, home, config = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
real = files.listing
def killed(folder):
    if f"-{stage}@" in folder.name or (stage == "corpus" and ".tiny@" in folder.name) or (
        stage == "source" and "source-beta" in folder.name
    ):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(folder)
files.listing = killed
from shoal.core.config import from_plain
from shoal.data.config import CorpusConfig
from shoal.jobs.prepare import prepare
prepare(from_plain(CorpusConfig, json.loads(config.read_text())), home, Silent())
"""


@pytest.mark.parametrize("stage", ["source", "documents", "heldout", "tokens", "corpus"])
def test_a_kill_in_any_stage_changes_nothing_in_the_end(
    tmp_path: Path, tiny: CorpusConfig, stage: str
):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(plain(tiny)))
    killed = tmp_path / "killed"
    command = [sys.executable, "-c", _KILLED, stage, str(killed), str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    assert any(".tmp-" in path.name for path in (killed / "corpora").iterdir())
    resumed = prepare(tiny, killed, Silent())
    assert any(resumed.reused.values())
    whole = prepare(tiny, tmp_path / "whole", Silent())
    assert resumed.corpus.digest == whole.corpus.digest
    assert _contents(killed / "corpora") == _contents(tmp_path / "whole" / "corpora")


def test_a_damaged_artifact_is_named_with_the_remedy(tmp_path: Path, tiny: CorpusConfig):
    prepared = prepare(tiny, tmp_path / "home", Silent())
    (prepared.store / "cells" / "beta.bin").write_bytes(b"short")
    with pytest.raises(ValueError, match=r"damaged artifact: .*beta\.bin has 5 bytes.*delete"):
        prepare(tiny, tmp_path / "home", Silent())


def test_preparing_loads_no_jax():
    code = "import sys, shoal.jobs.prepare, shoal.recipes.corpus; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
