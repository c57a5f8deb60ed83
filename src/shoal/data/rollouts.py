"""Agent rollouts as text: messages and tool calls by one plain template.

A rollout is a list of messages (or its JSON) as chat APIs exchange them. Each message becomes a
block, blocks are parted by a blank line, and nothing else is added:

    System:                 or Developer, User, Assistant; then the content
    ...
    Assistant (thinking):   `reasoning_content`, `reasoning` or `thinking` of a message, before it
    ...
    Assistant calls NAME:   one block per tool call, with its arguments as they were given
    {"path": "a.txt"}
    Tool NAME:              a tool's answer; NAME is its `name`, else the one that its call id has
    ...

Content may be a string or a list of parts, of which `text` parts count. Arguments that are an
object are written as JSON with keys in their order. Blocks without content are left out.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

ROLES = {
    "system": "System",
    "developer": "Developer",
    "user": "User",
    "human": "User",
    "assistant": "Assistant",
    "gpt": "Assistant",
    "tool": "Tool",
    "function": "Tool",
    "observation": "Tool",
}
THOUGHTS = ("reasoning_content", "reasoning", "thinking")


def text_of(messages: object) -> str:
    """The text of a rollout.

    Raises:
        ValueError: it is no list of messages, or a message has no role that is known.
    """
    if isinstance(messages, str):
        try:
            messages = json.loads(messages)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"its messages are no JSON ({error})") from None
    if not isinstance(messages, list):
        raise ValueError(f"its messages are no list but {type(messages).__name__}")
    names: dict[str, str] = {}
    blocks = [
        block
        for number, message in enumerate(cast("list[object]", messages), start=1)
        for block in _blocks(message, number, names)
    ]
    return "\n\n".join(blocks)


def _blocks(message: object, number: int, names: dict[str, str]) -> Iterator[str]:
    if not isinstance(message, Mapping):
        raise ValueError(f"message {number} is no object")
    fields = cast("Mapping[str, Any]", message)
    role = fields.get("role") or fields.get("from")
    speaker = ROLES.get(role) if isinstance(role, str) else None
    if speaker is None:
        raise ValueError(f"message {number} has role {role!r}, not one of {', '.join(ROLES)}")
    thought = next((fields[name] for name in THOUGHTS if fields.get(name)), None)
    if thought:
        yield f"{speaker} (thinking):\n{_content(thought, number)}"
    if speaker == "Tool":
        name = fields.get("name") or names.get(str(fields.get("tool_call_id")), "")
        speaker = f"Tool {name}".rstrip()
    content = _content(fields.get("content", fields.get("value")), number)
    if content.strip():
        yield f"{speaker}:\n{content}"
    calls = fields.get("tool_calls") or ()
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise ValueError(f"message {number} has tool_calls that are no list")
    for call in cast("Sequence[object]", calls):
        yield _call(call, number, speaker, names)


def _call(call: object, number: int, speaker: str, names: dict[str, str]) -> str:
    if not isinstance(call, Mapping):
        raise ValueError(f"message {number} has a tool call that is no object")
    outer = cast("Mapping[str, Any]", call)
    inner = outer.get("function", outer)
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ValueError(f"message {number} has a tool call without a name")
    if outer.get("id") is not None:
        names[str(outer["id"])] = name
    arguments = inner.get("arguments", inner.get("input", ""))
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return f"{speaker} calls {name}:\n{arguments}".rstrip("\n")


def _content(content: object, number: int) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [_part(part) for part in cast("list[object]", content)]
        return "\n".join(part for part in parts if part)
    raise ValueError(f"message {number} has content that is no text")


def _part(part: object) -> str:
    if isinstance(part, str):
        return part
    text = cast("Mapping[str, object]", part).get("text") if isinstance(part, Mapping) else None
    return text if isinstance(text, str) else ""
