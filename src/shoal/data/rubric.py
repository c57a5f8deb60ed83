"""What a judge is asked: two forms, each with a version that is raised when a word of it changes.

`rating` is for a model that follows instructions: the type of content first, whether the text is
usable at all, then 1 to 5 as an example of its own type, as JSON. `yes-no` is for a small model
that cannot rate: four examples with their answers, and the probability of yes as the score.
No prompt says where a text comes from.
"""

import hashlib
import re
from typing import Literal

Form = Literal["rating", "yes-no"]
VERSIONS: dict[str, int] = {"rating": 1, "yes-no": 1}
KINDS = ("prose", "code", "math", "multilingual", "structured", "agentic", "other")
WINDOW_CHARACTERS = 2_000
SHORT_CHARACTERS = 900
GAP = "\n[...]\n"

RATING = """\
You judge documents for the training text of a language model. You see a document, or its
beginning, middle and end with [...] between them. Judge what is there: a cut at [...] is no fault.

Decide in this order.
1. content_type, what the document mainly is:
   prose         connected text in one natural language, of any genre
   code          programs, scripts, configuration
   math          mathematics, formal proofs, exercises with worked steps
   multilingual  not English, or several languages side by side
   structured    tables, lists of records, dictionaries, logs, markup that carries data
   agentic       conversations, calls of tools, traces of a program at work
   other         none of these
2. valid: false if nothing can be learned from it: spam, noise, text that a machine has broken,
   page furniture without a page, an error message instead of a document. Otherwise true.
3. score, an integer from 1 to 5: how good an example of its own type it is.
   1  hardly usable        2  poor: muddled, shallow or mostly filler
   3  ordinary             4  good: clear, correct as far as one can see, worth reading
   5  excellent: one would hand it to a learner as a model of its type

Types have equal standing: a program is compared with programs, a poem with poems, a table with
tables, and no type is worth more than another. Subject, tone, length and age do not count. Use the
whole scale: a 5 is reachable for every type, and about one document in ten deserves it.

Answer with one JSON object and nothing else:
{"content_type": "...", "valid": true, "score": 3}"""

QUESTION = "Is this text educational, well written and easy to follow?"
_PROSE = """\
The heart pumps blood through two loops. In the first, blood with little oxygen travels to the \
lungs, where it takes up oxygen and gives off carbon dioxide. In the second, the oxygen-rich blood \
is pushed through the arteries to every organ. Valves between the chambers keep it from flowing \
backward."""
_SPAM = """\
Click here for best price!!! Home | Login | Cart (0) | Subscribe now. best cheap watches buy cheap \
watches online watches discount. Share Tweet Like. All rights reserved. Cookies policy. Next \
page >>"""
_CODE = '''\
def mean(values):
    """Return the arithmetic mean of a non-empty list of numbers."""
    if not values:
        raise ValueError("mean of an empty list")
    return sum(values) / len(values)'''
_SALAD = """\
of river the 48213 quickly and table seventeen green was under to 7 however lamp the eat because \
blue of of 932 stone into they"""
SHOTS = ((_SALAD, "no"), (_CODE, "yes"), (_SPAM, "no"), (_PROSE, "yes"))
_FENCE = re.compile(r'"""')


def windows(text: str, characters: int = WINDOW_CHARACTERS) -> str:
    """Beginning, middle and end of a long text, each of so many characters; a short one whole."""
    if len(text) <= 3 * characters:
        return text
    middle = (len(text) - characters) // 2
    parts = (text[:characters], text[middle : middle + characters], text[-characters:])
    return GAP.join(parts)


def messages(text: str) -> list[dict[str, str]]:
    """The conversation that asks for a rating."""
    return [
        {"role": "system", "content": RATING},
        {"role": "user", "content": windows(text)},
    ]


def yes_no_prompt(text: str) -> str:
    """The prompt that ends where yes or no comes next; of the text its beginning."""
    shown = [*SHOTS, (text[:SHORT_CHARACTERS], "")]
    asked = [
        f'Text:\n"""\n{_FENCE.sub("'''", one)}\n"""\nQuestion: {QUESTION}\nAnswer: {answer}'
        for one, answer in shown
    ]
    return "\n\n".join(asked).rstrip()


def rubric_name(form: Form) -> str:
    """What labels say: form and version."""
    return f"{form}-{VERSIONS[form]}"


def prompt_digest(form: Form) -> str:
    """12 hex digits of everything that a prompt holds besides the text."""
    prompt = RATING if form == "rating" else yes_no_prompt("")
    return hashlib.sha256(prompt.encode()).hexdigest()[:12]
