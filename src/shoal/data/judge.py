"""Judges of quality behind an HTTP endpoint, and the labels that they give.

A labels file is JSON lines, one label each:
  id        string  of the document: xxh3-128 of its text
  control   string  "" or the damage done to the document before it was judged (`data.damage`)
  kind      string  the content type that the judge saw; "" where it says none
  valid     bool    false where nothing can be learned from the text
  score     float   1 to 5 of a rating; the probability of yes, 0 to 1, of a yes-no judge
  level     int     1 to 5; of a yes-no judge the fifth of all documents' scores that it falls in
  rejected  string  "" or why there is no score: what the judge answered instead
  rubric, model, prompt, date  strings  what was asked, of whom, when; prompt is a digest
A label is written when it is given, so that a stopped run goes on; no answer is lost silently.
"""

import json
import math
import os
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import httpx2

from shoal.core.files import read_limited, write_atomic
from shoal.core.progress import Progress
from shoal.data.rubric import KINDS, Form, messages, prompt_digest, rubric_name, yes_no_prompt

KEY = "SHOAL_JUDGE_KEY"
MAX_ANSWER_BYTES = 2**20
MAX_ANSWER_TOKENS = 300
MAX_LABELS_BYTES = 2**30
NUM_LEVELS = 5
MIN_MASS = 0.05
# What is wrong with the request or the key is wrong for every document.
FATAL = (401, 403, 404, 405)
NO_ANSWER = "no answer"
MAX_FAILURES = 5


@dataclass(frozen=True, kw_only=True)
class Label:
    """One line of a labels file."""

    id: str
    control: str = ""
    kind: str = ""
    valid: bool = True
    score: float = 0.0
    level: int = 0
    rejected: str = ""
    rubric: str = ""
    model: str = ""
    prompt: str = ""
    date: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What was judged."""
        return self.id, self.control


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a judge says of a text; level 0 is cut later, from all scores."""

    score: float
    level: int = 0
    kind: str = ""
    valid: bool = True


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """Why a judge's answer is none."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Item:
    """A text to be judged."""

    id: str
    text: str
    control: str = ""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A server, and how patient we are with it.

    Attributes:
        url: up to and including `/v1` for a chat endpoint; the server's root for llama.cpp.
        wait_s: before the second try; each further one waits four times longer.
    """

    url: str
    model: str = ""
    timeout_s: float = 120.0
    tries: int = 3
    wait_s: float = 0.5

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON answer, or why there is none.

        Raises:
            ValueError: the server refuses every request of this kind.
        """
        key = os.environ.get(KEY, "")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        where = f"{self.url.rstrip('/')}{path}"
        problem = ""
        for attempt in range(self.tries):
            if attempt:
                time.sleep(self.wait_s * 4 ** (attempt - 1))
            try:
                status, data = _exchange(where, body, headers, self.timeout_s)
            except httpx2.InvalidURL as error:
                raise ValueError(f"judge endpoint {self.url!r} is no URL: {error}") from error
            except httpx2.HTTPError as error:
                problem = f"{NO_ANSWER}: {type(error).__name__}"
                continue
            if status in FATAL:
                raise ValueError(
                    f"{where} answered with status {status}: {data[:200]!r}; correct the URL, the "
                    f"model's name, or the key in {KEY}"
                )
            if status == 429 or status >= 500:
                problem = f"{NO_ANSWER}: status {status}"
                continue
            return _parsed(status, data)
        return Rejected(reason=problem)


@runtime_checkable
class Judge(Protocol):
    """Gives one verdict per text."""

    @property
    def form(self) -> Form:
        """How it is asked."""
        ...

    @property
    def endpoint(self) -> Endpoint:
        """Who is asked."""
        ...

    def judge(self, text: str) -> Verdict | Rejected:
        """What the judge says of a text."""
        ...


@dataclass(frozen=True, kw_only=True)
class RatingJudge:
    """A model behind an OpenAI-compatible chat endpoint that rates with JSON."""

    endpoint: Endpoint
    form: Form = "rating"

    def judge(self, text: str) -> Verdict | Rejected:
        """Content type, validity and 1 to 5."""
        answer = self.endpoint.post(
            "/chat/completions",
            {
                "model": self.endpoint.model,
                "messages": messages(text),
                "temperature": 0,
                "max_tokens": MAX_ANSWER_TOKENS,
            },
        )
        if isinstance(answer, Rejected):
            return answer
        try:
            content = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            return Rejected(reason=f"no message in {_short(answer)}")
        return parse_rating(content)


@dataclass(frozen=True, kw_only=True)
class YesNoJudge:
    """A small model behind llama.cpp's server: the probability of yes after four examples."""

    endpoint: Endpoint
    form: Form = "yes-no"

    def judge(self, text: str) -> Verdict | Rejected:
        """P(yes) / (P(yes) + P(no))."""
        answer = self.endpoint.post(
            "/completion",
            {
                "prompt": yes_no_prompt(text),
                "n_predict": 1,
                "n_probs": 100,
                "temperature": 0,
                "cache_prompt": True,
            },
        )
        return answer if isinstance(answer, Rejected) else parse_yes_no(answer)


def judge_of(form: Form, endpoint: Endpoint) -> Judge:
    """The judge that asks in this form."""
    return RatingJudge(endpoint=endpoint) if form == "rating" else YesNoJudge(endpoint=endpoint)


def parse_rating(content: Any) -> Verdict | Rejected:
    """The verdict in an answer that is one JSON object, bare or in one code fence."""
    if not isinstance(content, str):
        return Rejected(reason=f"answer is no text: {_short(content)}")
    bare = content.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    try:
        found = json.loads(bare)
    except ValueError:
        return Rejected(reason=f"answer is not JSON: {_short(content)}")
    if not isinstance(found, dict):
        return Rejected(reason=f"answer is no JSON object: {_short(content)}")
    kind, valid, score = (found.get(name) for name in ("content_type", "valid", "score"))
    if kind not in KINDS:
        return Rejected(reason=f"content_type is {_short(kind)}")
    if not isinstance(valid, bool):
        return Rejected(reason=f"valid is {_short(valid)}")
    if type(score) is not int or not 1 <= score <= NUM_LEVELS:
        return Rejected(reason=f"score is {_short(score)}")
    # What is not valid is at the bottom, whatever number came with it.
    score = score if valid else 1
    return Verdict(kind=kind, valid=valid, score=float(score), level=score)


def parse_yes_no(answer: Any) -> Verdict | Rejected:
    """The share of yes among the next token's yes and no, in llama.cpp's answer."""
    mass = {"yes": 0.0, "no": 0.0}
    try:
        for token in answer["completion_probabilities"][0]["top_logprobs"]:
            word = str(token["token"]).strip().lower()
            if word in mass:
                mass[word] += math.exp(float(token["logprob"]))
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return Rejected(reason=f"no probabilities in {_short(answer)}")
    total = mass["yes"] + mass["no"]
    if not MIN_MASS <= total <= 1.001:
        return Rejected(reason=f"yes and no have probability {total:.3f} together")
    return Verdict(score=round(mass["yes"] / total, 6))


def label(
    items: Iterable[Item], judge: Judge, path: Path, day: str, progress: Progress
) -> list[Label]:
    """Judges what has no label in the file yet, and adds a line for each; all labels of the file.

    At the end the file is written anew: the last label of each text, sorted, with its level.

    Raises:
        ValueError: the file holds labels of another judge, or the endpoint is gone.
    """
    known = {one.key: one for one in read_labels(path)} if path.exists() else {}
    blank = Label(
        id="",
        rubric=rubric_name(judge.form),
        model=judge.endpoint.model,
        prompt=prompt_digest(judge.form),
        date=day,
    )
    _check_same(path, known.values(), blank)
    todo = [
        item
        for item in items
        if known.get((item.id, item.control), _UNASKED).rejected.startswith(NO_ANSWER)
    ]
    # Also takes a torn last line out, so that the next label begins a line.
    write_atomic(path, "".join(_line(one) for one in known.values()))
    failures = 0
    with path.open("a", encoding="utf-8") as file, progress.task("label", len(todo), "") as task:
        for item in todo:
            given = _labelled(item, judge, blank)
            known[given.key] = given
            file.write(_line(given))
            file.flush()
            failures = failures + 1 if given.rejected.startswith(NO_ANSWER) else 0
            if failures == MAX_FAILURES:
                raise ValueError(
                    f"{judge.endpoint.url} gave no answer {failures} times in a row "
                    f"({given.rejected}); start it, and run the same command again: the labels in "
                    f"{path} stay"
                )
            task.advance()
    found = with_levels(sorted(known.values(), key=lambda one: one.key))
    write_atomic(path, "".join(_line(one) for one in found))
    return found


def read_labels(path: Path) -> list[Label]:
    """The labels of a file in its order; a torn last line is left out.

    Raises:
        ValueError: it cannot be read, or another line is no label.
    """
    lines = read_limited(path, MAX_LABELS_BYTES).split(b"\n")
    found: list[Label] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(_label(json.loads(line)))
        except (ValueError, TypeError) as error:
            if number == len(lines):  # no line end: the writer was stopped here
                break
            raise ValueError(
                f"{path}, line {number} is no label ({error}); take the line out"
            ) from error
    return found


def with_levels(labels: Sequence[Label]) -> list[Label]:
    """Labels of a yes-no judge cut into five at the quantiles of undamaged documents' scores."""
    scores = sorted(one.score for one in labels if not one.control and not one.rejected)
    if not scores or all(one.level or one.rejected for one in labels):
        return list(labels)
    cuts = [scores[min(len(scores) - 1, len(scores) * n // NUM_LEVELS)] for n in range(1, 5)]
    return [
        one if one.rejected else replace(one, level=1 + bisect_right(cuts, one.score))
        for one in labels
    ]


_UNASKED = Label(id="", rejected=NO_ANSWER)


def _labelled(item: Item, judge: Judge, blank: Label) -> Label:
    verdict = judge.judge(item.text)
    mine = replace(blank, id=item.id, control=item.control)
    if isinstance(verdict, Rejected):
        return replace(mine, valid=False, rejected=verdict.reason)
    return replace(
        mine, kind=verdict.kind, valid=verdict.valid, score=verdict.score, level=verdict.level
    )


def _check_same(path: Path, known: Iterable[Label], blank: Label) -> None:
    for one in known:
        if (one.rubric, one.model, one.prompt) != (blank.rubric, blank.model, blank.prompt):
            raise ValueError(
                f"{path} holds labels of {one.model} by {one.rubric} ({one.prompt}), not of "
                f"{blank.model} by {blank.rubric} ({blank.prompt}); choose another file"
            )


def _label(row: Any) -> Label:
    label = Label(**row)
    for name, value in asdict(label).items():
        kind = type(getattr(_UNASKED, name))
        if kind is float and type(value) is int:
            continue
        if type(value) is not kind:
            raise ValueError(f"{name} is {value!r}")
    if not math.isfinite(label.score) or not 0 <= label.level <= NUM_LEVELS:
        raise ValueError(f"score {label.score}, level {label.level}")
    return label


def _line(label: Label) -> str:
    return json.dumps(asdict(label), allow_nan=False) + "\n"


def _exchange(
    where: str, body: dict[str, Any], headers: dict[str, str], timeout_s: float
) -> tuple[int, bytes]:
    """Status and content, as far as it may be long; a slow answer times out as a whole."""
    deadline = time.monotonic() + timeout_s
    data = b""
    with (
        httpx2.Client(timeout=timeout_s, headers=headers) as client,
        client.stream("POST", where, json=body) as answer,
    ):
        for block in answer.iter_bytes():
            data += block
            if len(data) > MAX_ANSWER_BYTES:
                break
            if time.monotonic() > deadline:
                raise httpx2.ReadTimeout(f"no whole answer in {timeout_s} s")
    return answer.status_code, data


def _parsed(status: int, data: bytes) -> Any:
    if status != 200:
        return Rejected(reason=f"status {status}: {data[:200].decode(errors='replace')}")
    if len(data) > MAX_ANSWER_BYTES:
        return Rejected(reason=f"answer is longer than {MAX_ANSWER_BYTES} bytes")
    try:
        return json.loads(data)
    except ValueError:
        return Rejected(reason=f"response is not JSON: {data[:200].decode(errors='replace')!r}")


def _short(value: Any) -> str:
    return repr(value)[:200]
