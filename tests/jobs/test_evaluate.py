"""`shoal eval`: the held-out text of a run scored at a checkpoint, and samples written."""

import json
import math
from dataclasses import replace
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from journey.process import RECIPE, environment, result_of, shoal
from oracles.bridge import quick_jit
from shoal.cli import main
from shoal.core.progress import Silent
from shoal.core.record import Record, read_events, verify_chain
from shoal.eval.domains import compressors
from shoal.jobs import evaluate as job
from shoal.jobs.evaluate import evaluate_run, evaluator, samples
from shoal.jobs.prepare import prepare
from shoal.jobs.resolve import resolve
from shoal.jobs.sampler import sampler
from shoal.model.lm import forward, logits
from shoal.train import checkpoint
from shoal.train.derive import peak_rates
from shoal.train.state import abstract_state


class Notes(Silent):
    def __init__(self):
        self.lines = []

    def note(self, text):
        self.lines.append(text)


@pytest.fixture
def opened(copied):
    """(run folder, config, prepared corpus) of a copy of the trained run."""
    run = copied()
    config = resolve(RECIPE)
    return run, config, prepare(config.data.corpus, run.parents[1], Silent())


def evaluated(run, config, prepared, progress=None):
    """Evaluate a state that only knows its step: the parameters are never looked at."""
    state = type("State", (), {"step": 7, "params": None})()
    with Record.open(run) as record:
        evaluator(config, run, prepared, record, progress or Silent())(state)
    return json.loads((run / "evals/7.json").read_text())


@pytest.fixture
def one_nat(monkeypatch):
    """A model to which every token is one nat, and that says nothing."""

    def scorer(*_):
        return lambda params, inputs, targets, segments: np.ones(inputs.shape, np.float32)

    monkeypatch.setattr(job, "scorer", scorer)
    monkeypatch.setattr(job, "samples", lambda *_: [])


# --- the whole job --------------------------------------------------------------------------------


def test_scores_are_those_of_every_document_by_itself(opened, text):
    """Once through the job in a process of its own, once document by document here."""
    run, config, prepared = opened
    seen = environment(run.parents[1], text=text)
    found = result_of(shoal("eval", "tiny", "--json", seen=seen))
    assert found == json.loads((run / "evals/12.json").read_text())
    assert (found["step"], found["tokens"]) == (12, 12 * 5 * 32)
    assert list(found["sets"]) == ["sources"]
    domain = found["sets"]["sources"]["domains"]["text"]
    texts, tokenizer = prepared.heldout["sources"]["text"], prepared.tokenizer()
    documents = [tokenizer.encode(text).ids for text in texts]
    assert domain["documents"] == len(texts) > 1
    assert domain["tokens"] == sum(map(len, documents))
    assert domain["bytes"] == sum(len(text.encode()) for text in texts)
    assert (domain["kind"], domain["code"]) == ("own text", False)
    assert domain["bpb"] == pytest.approx(
        domain["loss"] * domain["tokens"] / math.log(2) / domain["bytes"]
    )
    assert {key: domain[key] for key in ("xz_bpb", "zstd_bpb")} == compressors(texts)
    macro = found["sets"]["sources"]["macro"]
    assert macro == {key: domain[key] for key in macro}

    state = checkpoint.restore(run, 12, abstract_state(config, peak_rates(config)))
    rows = []
    for ids in documents:
        for start in range(0, len(ids), 32):
            part = [ids[start - 1] if start else 0, *ids[start : start + 32]]
            rows.append(part + [0] * (33 - len(part)))
    block = np.array(rows, np.int32)
    real = np.concatenate([np.arange(len(ids)) for ids in documents])
    hidden, _ = quick_jit(partial(forward, config=config.model, context=32))(
        state.params, jnp.asarray(block[:, :-1]), jnp.zeros(block[:, 1:].shape, jnp.int32)
    )
    scores = np.asarray(logits(state.params, hidden), np.float64)
    picked = np.take_along_axis(scores, block[:, 1:, None], axis=-1)[..., 0]
    nats = np.log(np.exp(scores).sum(-1)) - picked
    lengths = [min(32, len(ids) - s) for ids in documents for s in range(0, len(ids), 32)]
    total = sum(row[:length].sum() for row, length in zip(nats, lengths, strict=True))
    assert sum(lengths) == len(real)
    assert domain["loss"] == pytest.approx(total / len(real), rel=1e-5)

    drawn = json.loads((run / "samples/12.json").read_text())
    assert [sample["prompt"] for sample in drawn] == ["Liver ", ""]
    assert all(sample.keys() == {"prompt", "text", "temperature", "seed"} for sample in drawn)
    event = read_events(run)[-1]
    assert (event["kind"], event["step"]) == ("evaluate", 12)
    assert event["macro"] == {"sources": macro}
    assert verify_chain(run) == []

    before = (run / "evals/12.json").read_bytes(), (run / "samples/12.json").read_bytes()
    result_of(shoal("eval", "tiny", "--json", seen=seen))
    assert before == ((run / "evals/12.json").read_bytes(), (run / "samples/12.json").read_bytes())


def test_any_checkpoint_that_is_there_can_be_scored(copied, one_nat, capsys):
    run = copied()
    attempts = {event["attempt"] for event in read_events(run)}
    assert evaluate_run("tiny", 8)["step"] == 8
    assert {event["attempt"] for event in read_events(run)} == attempts  # it trained nothing
    assert (run / "evals/8.json").is_file()
    assert main(["eval", "tiny", "--step", "9"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "error: run tiny has no checkpoint at step 9; there are: 8, 12"


def test_another_corpus_than_the_runs_is_refused(copied, monkeypatch):
    from shoal.data import normalize

    copied()
    monkeypatch.setattr(normalize, "REVISION", normalize.REVISION + 1)
    with pytest.raises(ValueError, match="a stage of the corpus has changed since"):
        evaluate_run("tiny")


# --- what is held out -----------------------------------------------------------------------------


def test_a_set_without_domains_is_left_out(opened, one_nat):
    run, config, prepared = opened
    heldout = {"sources": {"text": ["some words here", "and more"]}, "domains": {}}
    prepared = replace(prepared, heldout=heldout, kinds={**prepared.kinds, "domains": {}})
    notes = Notes()
    found = evaluated(run, config, prepared, notes)
    assert list(found["sets"]) == ["sources"]
    assert found["sets"]["sources"]["macro"]["loss"] == 1.0
    assert notes.lines == []


def test_nothing_held_out_is_said_and_gives_no_scores(opened, one_nat):
    run, config, prepared = opened
    notes = Notes()
    found = evaluated(run, config, replace(prepared, heldout={}), notes)
    assert found == {"step": 7, "tokens": 7 * 160, "sets": {}}
    assert notes.lines == ["nothing is held out of this corpus, so nothing is scored"]
    assert read_events(run)[-1]["macro"] == {}


def test_text_that_repeats_itself_leaves_nothing_to_hold_out(tmp_path, monkeypatch):
    """Every document shares a long n-gram with training text; training still works on it."""
    folder = tmp_path / "again"
    folder.mkdir()
    body = " ".join(f"word{n % 50}" for n in range(400))
    for number in range(40):
        (folder / f"{number}.txt").write_text(f"number {number}. {body}\n")
    monkeypatch.setenv("TINY_TEXT", str(folder))
    config = resolve(RECIPE)
    notes = Notes()
    prepared = prepare(config.data.corpus, tmp_path / "home", notes)
    assert prepared.heldout == {}
    assert any("nothing of it is left to evaluate on" in line for line in notes.lines)


def test_code_is_marked_as_shown_and_not_gated(opened, one_nat):
    run, config, prepared = opened
    prepared = replace(
        prepared,
        heldout={"sources": {"a": ["x = 1"], "b": ["some prose"]}},
        kinds={"sources": {"a": "code", "b": "web"}},
    )
    domains = evaluated(run, config, prepared)["sets"]["sources"]["domains"]
    assert {name: (d["kind"], d["code"]) for name, d in domains.items()} == {
        "a": ("code", True),
        "b": ("web", False),
    }


# --- samples --------------------------------------------------------------------------------------


def test_scores_are_there_only_when_the_whole_evaluation_is(opened, one_nat, monkeypatch):
    run, config, prepared = opened

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "samples", fail)
    with pytest.raises(KeyboardInterrupt):
        evaluated(run, config, prepared)
    assert not (run / "evals/7.json").exists()


@pytest.mark.parametrize("changes", [{"sample_prompts": ()}, {"sample_tokens": 0}])
def test_no_prompts_or_no_tokens_are_no_samples(opened, changes):
    _, config, prepared = opened
    config = replace(config, eval=replace(config.eval, **changes))
    assert samples(None, config, prepared.tokenizer(), sampler(config)) == []


def test_each_sample_ends_at_its_own_end_of_text(opened, monkeypatch):
    _, config, prepared = opened
    columns = [np.array([40, 41], np.int32), np.array([0, 42], np.int32), np.array([43, 44])]
    monkeypatch.setattr("shoal.model.sample.sample", lambda *_, **__: iter(columns))
    tokenizer = prepared.tokenizer()
    state = type("State", (), {"params": None})()
    drawn = [sample["text"] for sample in samples(state, config, tokenizer, sampler(config))]
    assert drawn == [tokenizer.decode([40]), tokenizer.decode([41, 42, 44])]


@pytest.mark.parametrize(
    "setting", ["eval.batch_sequences=0", "eval.sample_tokens=-1", "eval.sample_temperature=-0.1"]
)
def test_a_setting_that_cannot_be_is_refused(copied, setting):
    copied()
    with pytest.raises(ValueError, match=setting.partition("=")[0].rpartition(".")[2]):
        resolve(RECIPE, [setting])
