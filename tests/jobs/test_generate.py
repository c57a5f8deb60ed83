"""`shoal generate`: text from the newest checkpoint."""

import pytest

from journey.process import environment, result_of, shoal
from shoal.cli import main
from shoal.jobs import generate as job
from shoal.jobs.generate import generate


def test_text_follows_a_prompt(trained, text):
    seen = environment(trained, text=text)
    words = ("--prompt", "Liver ", "--tokens", 5, "--json")
    found = result_of(shoal("generate", "tiny", *words, seen=seen))
    assert (found["step"], found["prompt"], found["seed"]) == (12, "Liver ", 0)
    assert 0 <= found["tokens"] <= 5
    assert isinstance(found["text"], str)


@pytest.fixture
def drawn(copied, monkeypatch):
    """What the job asks of the model, which answers with these columns."""
    asked = []

    def sample(following, prompts, **given):
        asked.append({"prompts": prompts, **given})
        yield from ([40], [41], [0], [42])

    monkeypatch.setattr("shoal.model.sample.sample", sample)
    copied()
    return asked


def test_an_end_of_text_ends_the_text(drawn):
    found = generate("tiny", "ab", tokens=9, temperature=0.5, seed=3)
    assert found["tokens"] == 2
    (asked,) = drawn
    assert (asked["num_tokens"], asked["temperature"], asked["seed"]) == (9, 0.5, 3)
    assert asked["context"] == 32
    assert asked["eos"] == 0


def test_any_text_can_be_a_prompt(drawn):
    for prompt in ("", "<|endoftext|>", "é€😀\n\t\0"):
        generate("tiny", prompt)
        (ids,) = drawn[-1]["prompts"]
        assert all(0 < one < 389 for one in ids)


def test_a_negative_temperature_is_one_line_and_exit_2(copied, capsys):
    copied()
    assert main(["generate", "tiny", "--temperature", "-1"]) == 2
    assert "temperature=-1.0 is negative" in capsys.readouterr().err.splitlines()[-1]


def test_another_tokenizer_than_the_runs_is_refused(copied, monkeypatch):
    """Ids of one tokenizer mean nothing to a model of another."""
    from shoal.data import tokenize

    copied()
    monkeypatch.setattr(tokenize, "REVISION", tokenize.REVISION + 1)
    with pytest.raises(ValueError, match="a stage of the corpus has changed since"):
        job.generate("tiny", "ab")
