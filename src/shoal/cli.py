"""The command line: flat verbs, each of which calls one job and prints what it returns.

Nothing here imports jax; a job loads it when it runs: `--help`, `show` and `count` are instant.
Exit status: 0 done, 1 something needed is missing (`doctor`), 2 wrong input, 130 interrupted.
"""

import argparse
import contextlib
import errno
import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal import __version__

type Arguments = argparse.Namespace
type Result = Mapping[str, Any]

# Faults of the machine, not of the program: the system's own sentence says it best.
MACHINE_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}
RESUMABLE = {"quickstart", "prepare", "train"}


@dataclass(frozen=True, kw_only=True)
class Verb:
    """One verb: its help, what it takes, the job it calls and how its result reads."""

    summary: str
    example: str
    takes: tuple[Callable[[argparse.ArgumentParser], None], ...]
    call: Callable[[Arguments], Result]
    show: Callable[[Result], str]


# --- what verbs take ----------------------------------------------------------------------------


def _recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipe", metavar="RECIPE", help="a recipe's name, such as d512, or path.py:function"
    )


def _overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="PATH=VALUE",
        action="append",
        default=[],
        help="override one value of the recipe (repeatable); `shoal show RECIPE` lists the paths",
    )


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", help="a run's name under SHOAL_HOME/runs, or its path"
    )


def _text(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--text",
        type=Path,
        metavar="PATH",
        help="train on your own text: a folder of text files, or a .jsonl file with a `text` field",
    )


def _train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run", metavar="RUN", help="the run's name or path (default: the recipe's own name)"
    )
    parser.add_argument(
        "--change",
        metavar="WHY",
        help="go on although a numeric setting differs from the run's, and record this reason",
    )


def _step(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--step", type=int, metavar="N", help="the checkpoint's step (default: the newest)"
    )


def _prompt(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", default="", metavar="TEXT", help="what the text starts with")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="how many (128)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="T", help="0 is greedy (0.8)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws (0)")


# --- what verbs call ----------------------------------------------------------------------------


def _call_quickstart(given: Arguments) -> Result:
    from shoal.jobs.quickstart import quickstart

    return quickstart(text=given.text, overrides=given.overrides, json=given.json)


def _call_show(given: Arguments) -> Result:
    from shoal.jobs.show import show

    return show(given.recipe, given.overrides)


def _call_count(given: Arguments) -> Result:
    from shoal.jobs.count import count

    return count(given.recipe, given.overrides)


def _call_doctor(_: Arguments) -> Result:
    from shoal.jobs.doctor import doctor

    return doctor()


def _call_prepare(given: Arguments) -> Result:
    from shoal.jobs.prepare import prepare_recipe

    return prepare_recipe(given.recipe, given.overrides)


def _call_train(given: Arguments) -> Result:
    from shoal.jobs.train import train

    return train(given.recipe, given.overrides, given.run, given.change)


def _call_eval(given: Arguments) -> Result:
    from shoal.jobs.evaluate import evaluate_run

    return evaluate_run(given.run, given.step)


def _call_report(given: Arguments) -> Result:
    from shoal.jobs.report import report

    return report(given.run)


def _call_generate(given: Arguments) -> Result:
    from shoal.jobs.generate import generate

    return generate(given.run, given.prompt, given.tokens, given.temperature, given.seed)


def _call_hash(given: Arguments) -> Result:
    from shoal.jobs.hash import hash_run

    return hash_run(given.run)


# --- how results read ---------------------------------------------------------------------------


def flat(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Return (dotted path, leaf) pairs in order, spelled as `--set` takes them."""
    if isinstance(value, Mapping) and value:
        items = list(value.items())
    elif isinstance(value, list | tuple) and any(isinstance(v, Mapping | list) for v in value):
        items = list(enumerate(value))
    else:
        return [(prefix, value)]
    return [
        pair
        for key, item in items
        for pair in flat(item, f"{prefix}.{key}" if prefix else f"{key}")
    ]


def as_lines(result: Result) -> str:
    """Return one aligned line for each leaf; whole numbers get thousands separators."""
    pairs = flat(result)
    width = max((len(path) for path, _ in pairs), default=0)
    return "\n".join(f"{path:<{width}}  {_spell(value)}" for path, value in pairs)


def _spell(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _as_config(result: Result) -> str:
    from shoal.jobs.show import render

    return render(dict(result))


def _as_counts(result: Result) -> str:
    from shoal.jobs.count import render

    return render(dict(result))


def _as_checkup(result: Result) -> str:
    from shoal.jobs.doctor import render

    return render(result)


def _as_scores(result: Result) -> str:
    lines = [f"step {result['step']:,}, {result['tokens']:,} tokens; bits per byte"]
    for name, scored in result["sets"].items():
        lines += ["", f"{name:<20} {'model':>7} {'xz':>7} {'zstd':>7}"]
        for domain, row in [*scored["domains"].items(), ("macro mean", scored["macro"])]:
            figures = [f"{row[key]:>7.3f}" for key in ("bpb", "xz_bpb", "zstd_bpb")]
            lines.append(f"{domain:<20} {' '.join(figures)}")
    return "\n".join(lines)


def _as_text(result: Result) -> str:
    return f"{result['prompt']}{result['text']}"


def _as_nothing(_: Result) -> str:
    return ""


VERBS = {
    "quickstart": Verb(
        summary="from raw text to a trained, evaluated and reported model",
        example="shoal quickstart --text my-notes/",
        takes=(_text, _overrides),
        call=_call_quickstart,
        show=_as_nothing,  # the job has said it all along the way
    ),
    "show": Verb(
        summary="print a recipe's whole config and what follows from it",
        example="shoal show d512 --set train.seed=1",
        takes=(_recipe, _overrides),
        call=_call_show,
        show=_as_config,
    ),
    "count": Verb(
        summary="count a recipe's parameters and FLOPs, allocating nothing",
        example="shoal count flagship --json",
        takes=(_recipe, _overrides),
        call=_call_count,
        show=_as_counts,
    ),
    "doctor": Verb(
        summary="look at this machine and say what is missing",
        example="shoal doctor",
        takes=(),
        call=_call_doctor,
        show=_as_checkup,
    ),
    "prepare": Verb(
        summary="make the corpus that a recipe trains on",
        example="shoal prepare quickstart",
        takes=(_recipe, _overrides),
        call=_call_prepare,
        show=as_lines,
    ),
    "train": Verb(
        summary="train a recipe, or go on from its newest checkpoint",
        example="shoal train quickstart --run second --set train.seed=1",
        takes=(_recipe, _train, _overrides),
        call=_call_train,
        show=as_lines,
    ),
    "eval": Verb(
        summary="score a run's checkpoint on its held-out text",
        example="shoal eval quickstart",
        takes=(_run, _step),
        call=_call_eval,
        show=_as_scores,
    ),
    "report": Verb(
        summary="write a run's report.html anew from its record",
        example="shoal report quickstart",
        takes=(_run,),
        call=_call_report,
        show=as_lines,
    ),
    "generate": Verb(
        summary="write text with a run's newest checkpoint",
        example="shoal generate quickstart --prompt 'To be' --tokens 64",
        takes=(_run, _prompt),
        call=_call_generate,
        show=_as_text,
    ),
    "hash": Verb(
        summary="print one digest of a run's newest complete state",
        example="shoal hash quickstart",
        takes=(_run,),
        call=_call_hash,
        show=as_lines,
    ),
}


# --- running ------------------------------------------------------------------------------------


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
        return _refuse(error)


def _run_verb(given: Arguments) -> int:
    verb = VERBS[given.verb]
    # With --json stdout carries the object alone: what a job says on its way goes to stderr.
    aside = contextlib.redirect_stdout(sys.stderr) if given.json else contextlib.nullcontext()
    with aside:
        result = verb.call(given)
    shown = json.dumps(result, ensure_ascii=False) if given.json else verb.show(result)
    if shown:
        print(shown)
    sys.stdout.flush()
    return 1 if given.verb == "doctor" and not result["ok"] else 0


def _refuse(error: Exception) -> int:
    if os.environ.get("SHOAL_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
    print(f"error: {error}", file=sys.stderr)
    return 2


def _on_interrupt(verb: str, words: Sequence[str]) -> str:
    if verb not in RESUMABLE:
        return "stopped"
    again = shlex.join(["shoal", *words])
    return f"stopped; nothing finished is lost: `{again}` goes on from there"


def _forget_stdout() -> None:
    # The interpreter flushes stdout once more as it ends, and would complain.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
