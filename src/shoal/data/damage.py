"""Documents damaged on purpose: what a judge should rank below the document that they came from.

The damage follows from the text and `key` alone, so a label of a damaged document needs to keep
only the document's id and the name of the damage.
"""

import random
from collections.abc import Callable, Sequence

MAX_WORDS = 700
_JUNK = (
    "of river the quickly and table seventeen green was under however lamp eat because blue into "
    "they copper never between slow window said thirty against paper running cold either market "
    "whose light gone several make onto chair yellow not if stone bring over us"
)
JUNK_WORDS = tuple(_JUNK.split())
FURNITURE = (
    "Home | About | Contact | Login",
    "Click here to subscribe to our newsletter!",
    "We use cookies. Accept all cookies",
    "Share on social media | Tweet | Like",
    "Copyright. All rights reserved. Privacy policy. Terms of use.",
    "Buy now! Best price! Free shipping!",
    "Related posts: 1 2 3 4 Next >>",
    "Skip to content. Menu. Search.",
    "Page not found. Back to the front page",
    "0 comments. Leave a reply. Your e-mail address will not be published.",
)
TAGS = ('<div class="c{}">', "</span>", "<td width={}>", "&nbsp;", '<a href="/p?id={}">', "<br/>")


def damaged(text: str, damage: str, key: str) -> str:
    """The text after one kind of damage; `key` seeds what is random in it.

    Raises:
        ValueError: there is no such damage.
    """
    if damage not in DAMAGES:
        raise ValueError(f"damage {damage!r}: use one of {', '.join(DAMAGES)}")
    words = text.split()[:MAX_WORDS]
    return DAMAGES[damage](words, random.Random(f"{damage} {key}"))


def _shuffled(words: Sequence[str], drawn: random.Random) -> str:
    mixed = list(words)
    drawn.shuffle(mixed)
    return " ".join(mixed)


def _junk(words: Sequence[str], drawn: random.Random) -> str:
    """Random words and numbers, as long as the text."""
    return " ".join(
        drawn.choice(JUNK_WORDS)
        if drawn.random() < 0.7
        else str(drawn.randrange(10 ** drawn.randint(1, 6)))
        for _ in range(max(40, len(words)))
    )


def _furniture(words: Sequence[str], drawn: random.Random) -> str:
    """A page's furniture around a few words of the text."""
    lines: list[str] = []
    for start in range(0, max(60, len(words)), 12):
        lines.append(drawn.choice(FURNITURE))
        if drawn.random() < 0.3:
            lines.append(" ".join(words[start : start + 4]))
    return "\n".join(lines)


def _markup(words: Sequence[str], drawn: random.Random) -> str:
    """The text among torn tags, cut off inside one."""
    pieces: list[str] = []
    for word in words:
        if drawn.random() < 0.4:
            pieces.append(drawn.choice(TAGS).format(drawn.randrange(1_000)))
        if drawn.random() < 0.7:
            pieces.append(word)
    return " ".join([*pieces, '<a href="/p?'])


def _repeated(words: Sequence[str], drawn: random.Random) -> str:
    """A few words, again and again."""
    start = drawn.randrange(max(1, len(words) - 12))
    return " ".join(list(words[start : start + 12]) * max(8, len(words) // 12))


DAMAGES: dict[str, Callable[[Sequence[str], random.Random], str]] = {
    "shuffled": _shuffled,
    "junk": _junk,
    "furniture": _furniture,
    "markup": _markup,
    "repeated": _repeated,
}
