"""Asking judges: strict answers, patience, and labels that no accident loses."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from data.fake_judge import FakeJudge, chat, fake_judge, rating, yes_no
from shoal.core.progress import Silent
from shoal.data.damage import DAMAGES, damaged
from shoal.data.judge import (
    KEY,
    Endpoint,
    Item,
    Judge,
    Label,
    RatingJudge,
    Rejected,
    Verdict,
    YesNoJudge,
    label,
    parse_rating,
    read_labels,
    with_levels,
)
from shoal.data.rubric import KINDS, RATING, SHORT_CHARACTERS, windows, yes_no_prompt

DAY = "2026-12-01"


@pytest.fixture
def fake() -> Iterator[FakeJudge]:
    with fake_judge() as judge:
        yield judge


def _rating(fake: FakeJudge, **settings: float) -> RatingJudge:
    defaults = {"timeout_s": 5.0, "tries": 3, "wait_s": 0.001}
    endpoint = Endpoint(url=f"{fake.url}/v1", model="m", **{**defaults, **settings})
    return RatingJudge(endpoint=endpoint)


def _items(count: int) -> list[Item]:
    return [Item(id=f"{n:032x}", text=f"text number {n}") for n in range(count)]


def _label(items: list[Item], judge: Judge, path: Path) -> list[Label]:
    return label(items, judge, path, DAY, Silent())


def test_a_rating_is_taken_as_it_is_said(fake: FakeJudge):
    fake.say(rating("code", valid=True, score=5))
    found = _rating(fake).judge("def f(): pass")
    assert found == Verdict(kind="code", valid=True, score=5.0, level=5)
    path, body = fake.asked[0]
    assert path == "/v1/chat/completions"
    assert body["messages"][1]["content"] == "def f(): pass"
    assert body["temperature"] == 0


def test_what_is_not_valid_is_at_the_bottom_whatever_its_number(fake: FakeJudge):
    fake.say(rating("prose", valid=False, score=5))
    assert _rating(fake).judge("x") == Verdict(kind="prose", valid=False, score=1.0, level=1)


def test_the_key_goes_into_the_header_and_nowhere_else(
    fake: FakeJudge, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(KEY, "secret")
    _rating(fake).judge("x")
    headers = {name.lower(): value for name, value in fake.headers[0].items()}
    assert headers["authorization"] == "Bearer secret"
    assert "secret" not in json.dumps(fake.asked)


@pytest.mark.parametrize(
    "content",
    [
        "I would say four.",
        "",
        None,
        "[1]",
        '{"content_type": "prose", "valid": true}',
        '{"content_type": "novel", "valid": true, "score": 3}',
        '{"content_type": ["prose"], "valid": true, "score": 3}',
        '{"content_type": "prose", "valid": "yes", "score": 3}',
        '{"content_type": "prose", "valid": true, "score": 0}',
        '{"content_type": "prose", "valid": true, "score": 6}',
        '{"content_type": "prose", "valid": true, "score": 3.5}',
        '{"content_type": "prose", "valid": true, "score": true}',
        '{"content_type": "prose", "valid": true, "score": NaN}',
        '{"content_type": "prose", "valid": true, "score": 3} and more',
    ],
)
def test_nonsense_is_rejected_with_what_was_said(content: str | None):
    found = parse_rating(content)
    assert isinstance(found, Rejected)
    assert found.reason


def test_one_code_fence_around_the_object_is_understood():
    fenced = '```json\n{"content_type": "math", "valid": true, "score": 2}\n```'
    assert parse_rating(fenced) == Verdict(kind="math", valid=True, score=2.0, level=2)


def test_a_server_that_stumbles_is_asked_again(fake: FakeJudge):
    fake.say((500, b"oops"), (429, b"slow down"), rating(score=4))
    assert _rating(fake).judge("x") == Verdict(kind="prose", valid=True, score=4.0, level=4)
    assert len(fake.asked) == 3


def test_a_server_that_only_fails_is_no_answer(fake: FakeJudge):
    fake.say((500, b"oops"))
    assert _rating(fake).judge("x") == Rejected(reason="no answer: status 500")
    assert len(fake.asked) == 3


def test_a_silent_server_times_out(fake: FakeJudge):
    fake.say(None)
    found = _rating(fake, timeout_s=0.2, tries=2).judge("x")
    assert found == Rejected(reason="no answer: ReadTimeout")
    assert len(fake.asked) == 2


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_server_that_refuses_everything_ends_the_run(fake: FakeJudge, status: int):
    fake.say((status, b"who are you"))
    with pytest.raises(ValueError, match=rf"status {status}.*who are you.*{KEY}"):
        _rating(fake).judge("x")
    assert len(fake.asked) == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((200, b"<html>"), "response is not JSON"),
        ((200, b'{"choices": []}'), "no message"),
        ((200, b"[]"), "no message"),
        ((400, b"too long"), "status 400: too long"),
        ((200, b" " * (2**20 + 9)), "answer is longer"),
        (chat(7), "answer is no text"),
    ],
)
def test_wrong_json_is_a_rejection(fake: FakeJudge, answer: tuple[int, bytes], reason: str):
    fake.say(answer)
    found = _rating(fake).judge("x")
    assert isinstance(found, Rejected)
    assert found.reason.startswith(reason)


def test_yes_against_no_is_the_share_of_their_probabilities(fake: FakeJudge):
    fake.say(yes_no(math.log(0.6), math.log(0.2), math.log(0.1)))
    judge = YesNoJudge(endpoint=Endpoint(url=fake.url, model="m"))
    assert judge.judge("x") == Verdict(score=0.75)
    path, body = fake.asked[0]
    assert path == "/completion"
    assert body["prompt"] == yes_no_prompt("x")


@pytest.mark.parametrize(
    "answer",
    [
        (200, b"{}"),
        (200, b'{"completion_probabilities": [{"top_logprobs": [{"token": "yes"}]}]}'),
        (200, b'{"completion_probabilities": [{"top_logprobs": []}]}'),
        yes_no(math.log(0.01), math.log(0.01)),
        yes_no(2.0, 1.0),
    ],
)
def test_probabilities_that_are_none_are_rejected(fake: FakeJudge, answer: tuple[int, bytes]):
    fake.say(answer)
    judge = YesNoJudge(endpoint=Endpoint(url=fake.url, model="m"))
    assert isinstance(judge.judge("x"), Rejected)


def test_every_item_ends_as_a_label_or_as_a_rejection(fake: FakeJudge, tmp_path: Path):
    answers = [rating(score=2), chat("nonsense"), (500, b""), rating(score=4), (200, b"?")]
    texts = [item.text for item in _items(5)]

    def script(body):
        return answers[texts.index(body["messages"][1]["content"])]

    fake.script = script
    found = _label(_items(5), _rating(fake), tmp_path / "labels.jsonl")
    assert [one.id for one in found] == [item.id for item in _items(5)]
    assert [one.level for one in found] == [2, 0, 0, 4, 0]
    assert [bool(one.rejected) for one in found] == [False, True, True, False, True]
    assert found == read_labels(tmp_path / "labels.jsonl")
    assert {(one.rubric, one.model, one.date) for one in found} == {("rating-1", "m", DAY)}


def test_a_stopped_run_goes_on_and_ends_as_an_unstopped_one(fake: FakeJudge, tmp_path: Path):
    path, whole = tmp_path / "labels.jsonl", tmp_path / "whole.jsonl"
    _label(_items(6), _rating(fake), whole)
    lines = whole.read_text().splitlines(keepends=True)
    # Three labels and a torn fourth, out of order.
    path.write_text("".join([lines[2], lines[0], lines[1], lines[3][:40]]))
    asked = len(fake.asked)
    _label(_items(6), _rating(fake), path)
    assert len(fake.asked) - asked == 3
    assert path.read_bytes() == whole.read_bytes()


def test_no_answer_is_asked_again_and_nonsense_is_not(fake: FakeJudge, tmp_path: Path):
    path = tmp_path / "labels.jsonl"
    first, second = (item.text for item in _items(2))
    fake.script = lambda body: (
        chat("hm") if body["messages"][1]["content"] == first else (503, b"busy")
    )
    _label(_items(2), _rating(fake), path)
    asked = len(fake.asked)
    fake.say(rating(score=5))
    found = _label(_items(2), _rating(fake), path)
    assert len(fake.asked) - asked == 1
    assert fake.asked[-1][1]["messages"][1]["content"] == second
    assert [one.level for one in found] == [0, 5]


def test_a_judge_that_is_gone_ends_the_run_and_keeps_the_labels(fake: FakeJudge, tmp_path: Path):
    path = tmp_path / "labels.jsonl"
    done = [rating(score=3)] * 2 + [(500, b"")]
    fake.say(*done)
    with pytest.raises(ValueError, match="no answer 5 times in a row"):
        _label(_items(20), _rating(fake, tries=1), path)
    assert [one.level for one in read_labels(path)] == [3, 3, 0, 0, 0, 0, 0]


def test_labels_of_two_judges_do_not_mix(fake: FakeJudge, tmp_path: Path):
    path = tmp_path / "labels.jsonl"
    _label(_items(1), _rating(fake), path)
    other = RatingJudge(endpoint=Endpoint(url=f"{fake.url}/v1", model="other"))
    with pytest.raises(ValueError, match="holds labels of m by rating-1"):
        _label(_items(2), other, path)


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        '{"id": 7}',
        '{"id": "a", "score": "high"}',
        '{"id": "a", "level": 6}',
        '{"id": "a", "score": NaN}',
        '{"id": "a", "surprise": 1}',
        "[]",
    ],
)
def test_a_line_that_is_no_label_is_named(tmp_path: Path, line: str):
    path = tmp_path / "labels.jsonl"
    path.write_text(json.dumps(asdict(Label(id="a"))) + f"\n{line}\n")
    with pytest.raises(ValueError, match=r"labels.jsonl, line 2 is no label"):
        read_labels(path)


def test_scores_are_cut_into_five_equal_parts_by_the_undamaged_documents():
    labels = [Label(id=f"{n:03d}", score=n / 100) for n in range(100)]
    controls = [Label(id="000", control="junk", score=s) for s in (0.05, 0.99)]
    found = with_levels([*labels, *controls, Label(id="x", rejected="no answer: x")])
    counts = [sum(one.level == level for one in found[:100]) for level in range(1, 6)]
    assert counts == [20] * 5
    assert [one.level for one in found[100:]] == [1, 5, 0]
    assert all(a.level <= b.level for a, b in pairwise(found[:100]))


def test_a_judge_never_learns_where_a_text_comes_from(fake: FakeJudge, tmp_path: Path):
    item = Item(id="f" * 32, text="only this", control="junk")
    _label([item], _rating(fake), tmp_path / "labels.jsonl")
    body = fake.asked[0][1]
    assert body["messages"][1]["content"] == "only this"
    assert "junk" not in json.dumps(body["messages"][1])
    assert set(body) == {"model", "messages", "temperature", "max_tokens"}


def test_the_rubric_names_every_type_and_every_score():
    assert all(f"\n   {kind} " in RATING for kind in KINDS)
    assert all(f" {score}  " in RATING for score in range(1, 6))


def test_long_texts_are_shown_by_beginning_middle_and_end():
    text = "a" * 5_000 + "m" * 1_000 + "z" * 5_000
    shown = windows(text, 2_000)
    assert shown == "a" * 2_000 + "\n[...]\n" + "a" * 500 + "m" * 1_000 + "z" * 500 + (
        "\n[...]\n" + "z" * 2_000
    )
    assert windows("short", 2_000) == "short"


def test_the_prompt_of_a_small_judge_ends_at_the_answer_and_holds_the_beginning_only():
    prompt = yes_no_prompt("B" * SHORT_CHARACTERS + "Z")
    assert prompt.endswith("Answer:")
    assert "B" * SHORT_CHARACTERS in prompt
    assert "BZ" not in prompt
    # A text cannot close its own quotation.
    assert yes_no_prompt('a"""b').count('"""') == yes_no_prompt("ab").count('"""')


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_follows_from_text_and_key(damage: str):
    text = " ".join(f"word{n}" for n in range(300))
    assert damaged(text, damage, "k") == damaged(text, damage, "k")
    assert damaged(text, damage, "k") != damaged(text, damage, "l")
    assert damaged(text, damage, "k") != text
    assert damaged("", damage, "k") is not None


def test_an_unknown_damage_is_refused():
    with pytest.raises(ValueError, match="damage 'fire': use one of shuffled"):
        damaged("x", "fire", "k")
