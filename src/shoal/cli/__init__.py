"""The command line: flat verbs, each of which calls one job and prints what it returns.

Nothing here imports jax; a job loads it when it runs: `--help`, `show` and `count` are instant.
Exit status: 0 done, 1 not ready (`doctor`), no-go (`cutover`) or not verified (`verify`), 2 wrong
input, 130 interrupted.
"""

import argparse
import contextlib
import errno
import json
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from shoal import __version__
from shoal.cli.verbs import VERBS, Arguments
from shoal.core.files import writing

# Faults of the machine, not of the program: no traceback.
MACHINE_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}
# What of a verb's result says whether its answer is yes.
VERDICTS = {"doctor": "ok", "cutover": "go", "verify": "ok"}
RESUMABLE = {"quickstart", "prepare", "train"}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="shoal",
        description="Train open mixture-of-experts language models end to end.",
        epilog="files go under SHOAL_HOME (default ./shoal-home); SHOAL_DEBUG=1 shows tracebacks",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"shoal {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, verb in VERBS.items():
        sub = verbs.add_parser(
            name,
            help=verb.summary,
            description=f"{verb.summary[0].upper()}{verb.summary[1:]}.",
            epilog=f"example: {verb.example}",
            allow_abbrev=False,
        )
        for take in verb.takes:
            take(sub)
        sub.add_argument("--json", action="store_true", help="print the result as one JSON object")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    given = build_parser().parse_args(words)
    try:
        return _run_verb(given)
    except BrokenPipeError:
        _forget_stdout()
        return 128 + 13
    except KeyboardInterrupt:
        print(_on_interrupt(given.verb, words), file=sys.stderr)
        return 130
    except ValueError as error:
        return _refuse(error)
    except OSError as error:
        if error.errno not in MACHINE_FAULTS:
            raise
        return _refuse(_told(error))


def _run_verb(given: Arguments) -> int:
    verb = VERBS[given.verb]
    # With --json stdout carries the object alone: what a job says on its way goes to stderr.
    aside = contextlib.redirect_stdout(sys.stderr) if given.json else contextlib.nullcontext()
    with aside:
        result = verb.call(given)
    if not result:  # another process of the run says it
        return 0
    shown = json.dumps(result, ensure_ascii=False) if given.json else verb.show(result)
    if shown:
        print(shown)
    sys.stdout.flush()
    verdict = VERDICTS.get(given.verb)
    return 1 if verdict and not result[verdict] else 0


def _refuse(error: Exception) -> int:
    if os.environ.get("SHOAL_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
    print(f"error: {error}", file=sys.stderr)
    return 2


def _told(error: OSError) -> OSError:
    """The error of a full disk with the reason and the way out; any other as it is."""
    try:
        with writing(Path(error.filename or os.environ.get("SHOAL_HOME") or "shoal-home")):
            raise error
    except OSError as told:
        return told


def _on_interrupt(verb: str, words: Sequence[str]) -> str:
    if verb not in RESUMABLE:
        return "stopped"
    again = shlex.join(["shoal", *words])
    return f"stopped; nothing finished is lost: `{again}` goes on from there"


def _forget_stdout() -> None:
    # The interpreter flushes stdout once more as it ends, and would complain.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
