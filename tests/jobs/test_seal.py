"""`shoal seal`: once, over what follows from the ladder, with a timestamp and a signature."""

import json
import subprocess
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from jobs.sealing import CONFIG, ladder_of, prepared_with, run_of, written
from shoal.cli import main
from shoal.core.artifact import build
from shoal.core.config import override
from shoal.core.files import home
from shoal.core.record import Record, read_events, verify_chain
from shoal.jobs.ladder import write_ladder
from shoal.jobs.runs import begin
from shoal.jobs.seal import render, seal
from shoal.jobs.sealed import find_forecast, find_seal
from shoal.scaling.seal import read_seal

# --- once -----------------------------------------------------------------------------------------


def test_a_seal_is_made_once_and_read_again(capsys):
    folder = written(ladder_of())
    found = seal("small")
    before = (folder / "seal.json").read_bytes()
    assert not found["reused"]
    assert found["sha256"] == read_seal(folder / "seal.json").sha256
    assert main(["seal", "small"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("sealed before, and whole")
    assert said.splitlines()[-1] == found["line"]
    assert (folder / "seal.json").read_bytes() == before
    assert find_seal("small") == find_seal(str(folder)) == find_seal(str(folder / "seal.json"))


def test_a_forecast_that_is_not_made_yet_is_made():
    folder = written(ladder_of(), forecasted=False)
    found = seal("small")
    assert (folder / "forecast.json").is_file()
    assert found["line"] == find_seal("small").line()


def test_another_forecast_is_refused_over_a_seal():
    folder = written(ladder_of())
    seal("small")
    before = (folder / "seal.json").read_bytes()
    tree = json.loads((folder / "forecast.json").read_text())
    tree["series"]["sources/fine/bpb"]["central"][4] += 0.001
    kept = (folder / "forecast.json").read_text()
    (folder / "forecast.json").write_text(json.dumps(tree))
    with pytest.raises(ValueError, match=r"another forecast: .*fine/bpb.central\[4\] is"):
        seal("small")
    (folder / "forecast.json").write_text(kept)
    (folder / "ladder.json").write_text(json.dumps(ladder_of(noise=0.004).plain()))
    with pytest.raises(ValueError, match=r"ladder.json is not the one that was sealed"):
        seal("small")
    assert (folder / "seal.json").read_bytes() == before


def test_a_sealed_ladder_is_written_again_only_if_it_is_the_same():
    folder = written(ladder_of())
    seal("small")
    assert write_ladder(ladder_of()) == folder / "ladder.json"
    assert seal("small")["reused"]
    before = (folder / "ladder.json").read_bytes()
    with pytest.raises(ValueError, match=r"ladder.json is sealed and would change"):
        write_ladder(ladder_of(noise=0.004))
    assert (folder / "ladder.json").read_bytes() == before


def test_an_altered_seal_is_named_by_whoever_reads_it(capsys):
    folder = written(ladder_of())
    seal("small")
    tree = json.loads((folder / "seal.json").read_text())
    tree["forecast"]["target"]["fingerprint"] = "0" * 64
    (folder / "seal.json").write_text(json.dumps(tree))
    for words in (["seal", "small"], ["train", "quickstart", "--forecast", "small"]):
        assert main(words) == 2
        assert "forecast.target.fingerprint was altered" in capsys.readouterr().err


def test_what_is_not_there_is_said():
    with pytest.raises(ValueError, match=r"no forecast 'smal' .* there is none yet"):
        find_forecast("smal")
    folder = written(ladder_of())
    with pytest.raises(ValueError, match=r"no forecast 'smal' .* there are: small"):
        find_forecast("smal")
    with pytest.raises(ValueError, match="forecast small is not sealed; `shoal seal small`"):
        find_seal("small")
    (folder / "ladder.json").unlink()
    with pytest.raises(ValueError, match="a seal names the ladder it was made from"):
        seal("small")
    with pytest.raises(ValueError, match="the run of public-535b is over"):
        seal("public-535b")


def test_a_run_that_has_begun_already_is_told():
    written(ladder_of())
    run_of("early", upto=2)
    assert "run early with this config has begun without the seal" in render(seal("small"))


# --- first in the record --------------------------------------------------------------------------


def started(folder, made, config=CONFIG):
    folder.mkdir(parents=True, exist_ok=True)
    with Record.open(folder) as record:
        begin(folder, config, prepared_with(), record, change=None, seal=made)


def kinds(folder):
    return [event["kind"] for event in read_events(folder)]


def test_the_seals_hash_is_the_first_event_of_its_run_and_stays_it(tmp_path):
    written(ladder_of())
    made = find_seal(seal("small")["seal"])
    folder = tmp_path / "run"
    started(folder, made)
    started(folder, None)
    started(folder, made)
    assert kinds(folder) == ["seal", "start"]
    first = read_events(folder)[0]
    assert (first["sha256"], first["forecast"]) == (made.sha256, "small")
    assert verify_chain(folder) == []
    assert read_seal(folder / "seal.json") == made


def test_a_run_killed_between_its_seal_and_its_start_goes_on(tmp_path):
    written(ladder_of())
    made = find_seal(seal("small")["seal"])
    folder = tmp_path / "run"
    with Record.open(folder) as record:
        record.event("seal", forecast="small", sha256=made.sha256, sealed=made.date)
    started(folder, made)
    assert kinds(folder) == ["seal", "start"]


def test_a_seal_for_another_config_or_too_late_or_another_one_is_refused(tmp_path):
    written(ladder_of())
    written(ladder_of("other", noise=0.002))
    made, other = (find_seal(seal(name)["seal"]) for name in ("small", "other"))
    changed = override(CONFIG, ["train.seed=7"])
    with pytest.raises(ValueError, match="seal small is for quickstart with fingerprint"):
        started(tmp_path / "changed", made, changed)
    assert not (tmp_path / "changed/run.json").exists()
    assert kinds(tmp_path / "changed") == []
    started(tmp_path / "late", None)
    with pytest.raises(ValueError, match="run late began without seal small"):
        started(tmp_path / "late", made)
    assert kinds(tmp_path / "late") == ["start"]
    started(tmp_path / "run", made)
    with pytest.raises(ValueError, match=r"was started with seal .* of forecast small, not with"):
        started(tmp_path / "run", other)
    assert kinds(tmp_path / "run") == ["seal", "start"]
    assert read_seal(tmp_path / "run/seal.json") == made


def test_train_refuses_another_config_before_anything_is_made(capsys):
    written(ladder_of())
    seal("small")
    words = ["train", "quickstart", "--set", "train.seed=7", "--forecast", "small"]
    assert main(words) == 2
    assert "seal small is for quickstart with fingerprint" in capsys.readouterr().err
    assert sorted(path.name for path in home().iterdir()) == ["forecasts"]


# --- contamination --------------------------------------------------------------------------------


def table(name, benchmarks, inputs):
    return build(
        home() / "corpora",
        name,
        stage="overlap",
        revision=1,
        literals={"names": sorted(benchmarks)},
        inputs=inputs,
        make=lambda folder: {"benchmarks": benchmarks},
    )


def corpus_with_stage():
    """A finished corpus of one stage; returns its ref and the stage's digest."""
    root = home() / "corpora"
    stage = build(
        root, "c-documents", stage="documents", revision=1, literals={}, inputs={},
        make=lambda folder: {},
    )  # fmt: skip
    stages = [{"ref": stage.ref, "stage": "documents", "facts": {}}]
    content = json.dumps({"sources": [], "stages": stages})

    def make(folder):
        (folder / "corpus.json").write_text(content)
        return {}

    whole = build(root, "c", stage="corpus", revision=1, literals={}, inputs={}, make=make)
    return whole.ref, stage.digest


def test_the_contamination_table_of_the_ladders_corpus_is_part_of_the_seal():
    ref, digest = corpus_with_stage()
    ladder = ladder_of()
    written(replace(ladder, conditions={**ladder.conditions, "corpus": ref}))
    fine = {"items": 40, "looked_for": 40, "half": 1, "share": 0.01, "longest_run": 14}
    leaked = {**fine, "half": 30}
    inputs = {"documents": digest, "items": "1" * 64}
    table("c-overlap", {"sources/fine": fine}, inputs)
    full = table(
        "c-overlap", {"sources/fine": fine, "sources/leaked": leaked, "mmlu": fine}, inputs
    )
    stale = {"sources/fine": leaked, "sources/leaked": leaked}
    table("c-overlap", stale, {"documents": "2" * 64, "items": "1" * 64})
    found = seal("small")["contamination"]
    assert found["table"] == full.ref
    assert found["flagged"] == ["sources/leaked"]
    assert found["domains"] == {"sources/fine": fine, "sources/leaked": leaked}
    assert f"contamination ({full.ref}), flagged: sources/leaked" in render(seal("small"))


def test_a_table_of_other_text_than_the_corpus_of_the_ladder_does_not_count():
    ref, digest = corpus_with_stage()
    ladder = ladder_of()
    written(replace(ladder, conditions={**ladder.conditions, "corpus": ref}))
    facts = {"items": 4, "looked_for": 4, "half": 4, "share": 1.0, "longest_run": 14}
    whole = {"sources/fine": facts, "sources/leaked": facts}
    table("c-overlap", whole, {"documents": "2" * 64, "items": "1" * 64})
    own = table("c-overlap", {"sources/fine": facts}, {"documents": digest, "items": "1" * 64})
    assert seal("small")["contamination"]["table"] == own.ref


def test_a_named_table_counts_and_one_about_nothing_here_is_refused():
    written(ladder_of())
    facts = {"items": 4, "looked_for": 4, "half": 4, "share": 1.0, "longest_run": 14}
    other = table("x-overlap", {"mmlu": facts}, {})
    with pytest.raises(ValueError, match="says nothing of sources/fine, sources/leaked"):
        seal("small", contamination=other.ref)
    named = table("x-overlap", {"sources/fine": facts}, {})
    assert seal("small", contamination=str(named.path))["contamination"]["flagged"] == [
        "sources/fine"
    ]


def test_without_a_table_that_is_said():
    written(ladder_of())
    found = seal("small")
    assert found["contamination"] is None
    assert "no contamination table is part of it" in render(found)


# --- timestamp and signature ----------------------------------------------------------------------


def tool(*words, cwd, given=None):
    done = subprocess.run(words, cwd=cwd, input=given, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def certified(folder, name, subject, *extra):
    """A key and its own certificate."""
    line = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30"
    words = [*line.split(), "-keyout", "key.pem", "-out", name, "-subj", subject, *extra]
    tool(*words, cwd=folder)


SETTINGS = """
[tsa]
default_tsa = here
[here]
serial = serial
crypto_device = builtin
default_policy = 1.2.3.4.1
digests = sha256
signer_digest = sha256
accuracy = secs:1
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """A timestamp authority on this machine: its URL and its certificate."""
    folder = tmp_path_factory.mktemp("tsa")
    (folder / "settings").write_text(SETTINGS)
    (folder / "serial").write_text("01")
    purpose = ("-addext", "extendedKeyUsage=critical,timeStamping")
    certified(folder, "certificate.pem", "/CN=here", *purpose)

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self):
            query = self.rfile.read(int(self.headers["Content-Length"]))
            (folder / "query").write_bytes(query)
            words = "ts -reply -queryfile query -signer certificate.pem -inkey key.pem"
            words += " -config settings -section here"
            said = tool("openssl", *words.split(), cwd=folder)
            self.send_response(404 if self.path == "/lost" else 200)
            self.end_headers()
            self.wfile.write(b"no reply" if self.path == "/odd" else said)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", folder / "certificate.pem"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_timestamp_is_of_the_seals_hash_and_checked_with_every_reading(authority):
    url, certificate = authority
    folder = written(ladder_of())
    found = seal("small", timestamp=url, authority=certificate)
    assert found["timestamp"]["trusted"]
    assert found["timestamp"]["time"].endswith("GMT")
    assert "authority not checked" in render(seal("small"))
    # As a stranger checks it.
    said = tool(
        *("openssl", "ts", "-verify", "-digest", found["sha256"], "-in", "seal.tsr"),
        *("-CAfile", str(certificate)),
        cwd=folder,
    )
    assert b"Verification: OK" in said
    written(ladder_of("other", noise=0.002))
    other = seal("other", timestamp=url)
    (folder / "seal.tsr").write_bytes((home() / "forecasts/other/seal.tsr").read_bytes())
    with pytest.raises(ValueError, match=f"for hash {other['sha256'][:12]}, and the seal's is"):
        seal("small")


def test_a_timestamp_by_somebody_else_or_damaged_is_refused(authority, tmp_path):
    url, _ = authority
    folder = written(ladder_of())
    seal("small", timestamp=url)
    certified(tmp_path, "other.pem", "/CN=other")
    with pytest.raises(ValueError, match=r"checking .*seal.tsr against .*other.pem failed"):
        seal("small", authority=tmp_path / "other.pem")
    (folder / "seal.tsr").write_bytes((folder / "seal.tsr").read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"reading seal.tsr failed"):
        seal("small")


def test_an_authority_that_is_none_is_said_and_the_seal_stays(authority):
    url, _ = authority
    folder = written(ladder_of())
    with pytest.raises(ValueError, match="answers with status 404"):
        seal("small", timestamp=f"{url}lost")
    with pytest.raises(ValueError, match="reading reply failed"):
        seal("small", timestamp=f"{url}odd")
    with pytest.raises(ValueError, match="does not answer"):
        seal("small", timestamp="http://127.0.0.1:1/")
    assert not (folder / "seal.tsr").exists()
    assert seal("small")["reused"]


def test_a_signature_is_of_the_seals_file_and_of_those_who_are_trusted(tmp_path):
    folder = written(ladder_of())
    tool("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", "key", cwd=tmp_path)
    tool("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", "other", cwd=tmp_path)
    for name in ("key", "other"):
        public = (tmp_path / f"{name}.pub").read_text()
        (tmp_path / f"{name}.signers").write_text(f"me@here {public}")
    found = seal("small", sign=tmp_path / "key", signers=tmp_path / "key.signers")
    assert found["signature"]["who"] == "me@here"
    assert found["signature"]["trusted"]
    assert "ED25519 key SHA256:" in found["signature"]["key"]
    assert "anybody (give --signers" in render(seal("small"))
    with pytest.raises(ValueError, match=r"looking for its signer in .*other.signers failed"):
        seal("small", signers=tmp_path / "other.signers")
    whole = (folder / "seal.json").read_text()
    (folder / "seal.json").write_text(whole + "\n")
    with pytest.raises(ValueError, match=r"checking .*seal.json.sig failed"):
        seal("small")
    (folder / "seal.json").write_text(whole)
    assert seal("small")["signature"]
    with pytest.raises(ValueError, match=r"no SSH key .*lost"):
        seal("small", sign=tmp_path / "lost")
