"""Rollouts become text by one template, from either form of tool call, and nothing is invented."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.data.archive import records
from shoal.data.config import Reader, Source
from shoal.data.rollouts import text_of

CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"p": "a.txt"}'}}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What is in a.txt?"}, {"type": "image"}]},
    {"role": "assistant", "content": None, "reasoning_content": "I look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "one\ntwo"},
    {"role": "assistant", "content": "Two words."},
]
TEXT = """System:
Be brief.

User:
What is in a.txt?

Assistant (thinking):
I look.

Assistant calls read:
{"p": "a.txt"}

Tool read:
one
two

Assistant:
Two words."""


def test_a_rollout_is_written_by_the_template():
    assert text_of(MESSAGES) == TEXT
    assert text_of(json.dumps(MESSAGES)) == TEXT


def test_other_shapes_of_the_same_rollout_give_the_same_text():
    flat = {"id": "c1", "name": "read", "input": {"p": "a.txt"}}
    other = [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "What is in a.txt?"},
        {"role": "assistant", "thinking": "I look.", "content": "", "tool_calls": [flat]},
        {"role": "function", "name": "read", "content": "one\ntwo"},
        {"from": "gpt", "value": "Two words."},
    ]
    assert text_of(other) == TEXT


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ("not json", "its messages are no JSON"),
        ({"role": "user"}, "its messages are no list but dict"),
        (["hello"], "message 1 is no object"),
        ([{"role": "narrator", "content": "x"}], "message 1 has role 'narrator'"),
        ([{"role": "user", "content": 5}], "message 1 has content that is no text"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{}]}],
         "message 2 has a tool call without a name"),
        ([{"role": "assistant", "tool_calls": "read"}], "tool_calls that are no list"),
    ],
)  # fmt: skip
def test_what_is_no_rollout_says_why(messages: object, why: str):
    with pytest.raises(ValueError, match=why):
        text_of(messages)


def test_rollouts_are_read_from_lines_and_from_parquet_and_bad_ones_are_counted(
    tmp_path: Path, source: Callable[..., Source]
):
    rows = [{"id": "a", "messages": MESSAGES}, {"id": "b", "messages": [{"role": "x"}]}]
    lines = tmp_path / "rollouts.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = tmp_path / "rollouts.parquet"
    pq.write_table(pa.table({"messages": [json.dumps(row["messages"]) for row in rows]}), table)
    native = tmp_path / "native.parquet"
    simple = [{"role": m["role"], "content": "x"} for m in MESSAGES]
    pq.write_table(pa.table({"messages": [simple]}), native)
    options = {"template": "rollout", "text_field": "messages"}
    for path, kind in ((lines, "json"), (table, "parquet")):
        good, bad = records(source(path, lines=kind, **options), path)
        assert good.data.decode() == TEXT
        assert bad.problem.startswith("no rollout: message 1 has role 'x'")
    (whole,) = records(source(native, lines="parquet", **options), native)
    assert whole.data.decode().startswith("System:\nx\n\nUser:\nx")


def test_a_template_without_rows_is_refused():
    with pytest.raises(ValueError, match="use lines='json' or lines='parquet'"):
        Reader(members=("*",), template="rollout")
