"""What verbs take: each function gives a parser the arguments of one concern."""

import argparse
from pathlib import Path


def recipe(parser: argparse.ArgumentParser) -> None:
    """Which recipe."""
    parser.add_argument(
        "recipe", metavar="RECIPE", help="a recipe's name, such as d512, or path.py:function"
    )


def overrides(parser: argparse.ArgumentParser) -> None:
    """What to override in it."""
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="PATH=VALUE",
        action="append",
        default=[],
        help="override one value of the recipe (repeatable); `shoal show RECIPE` lists the paths",
    )


def corpus_options(parser: argparse.ArgumentParser) -> None:
    """How a corpus is made."""
    parser.add_argument(
        "--engine",
        metavar="ENGINE",
        help="what runs the heavy stages: native (the default), ray or ray://HOST:PORT",
    )
    parser.add_argument(
        "--permissive-only",
        action="store_true",
        help="block every source whose license asks for more than attribution",
    )
    parser.add_argument(
        "--as-found",
        action="store_true",
        help="pin Debian packages to what apt offers now, and say what differs",
    )


def corpus(parser: argparse.ArgumentParser) -> None:
    """Which finished corpus."""
    parser.add_argument(
        "corpus", metavar="CORPUS", help="a corpus' name or NAME@HASH12 under SHOAL_HOME, or a path"
    )


def proxies(parser: argparse.ArgumentParser) -> None:
    """Which small runs, how many, and how far a mixture may go from the natural one."""
    parser.add_argument(
        "--proxy", default="", metavar="RECIPE", help="the small run; RECIPE-proxy by default"
    )
    for flag, default, says in (
        ("--proxies", 32, "mixtures to try, one small run each"),
        ("--groups", 5, "of topics; each has a low and a high stratum"),
        ("--seeds", 3, "of the comparison with the natural mixture"),
    ):
        parser.add_argument(flag, type=int, default=default, metavar="N", help=says)
    parser.add_argument(
        "--max-divergence",
        type=float,
        default=0.5,
        metavar="NATS",
        help="how far from the natural mixture the chosen one may be",
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where what is found goes")


def rungs(parser: argparse.ArgumentParser) -> None:
    """Which rungs of a ladder, and whether they are trained."""
    parser.add_argument(
        "--rungs",
        type=_widths,
        default=(),
        metavar="WIDTH,...",
        help="their widths; the recipe's by default",
    )
    parser.add_argument(
        "--runs",
        nargs="+",
        default=(),
        metavar="RUN",
        help="finished runs that take the place of rungs with their config",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan, train nothing")


def _widths(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def audited(parser: argparse.ArgumentParser) -> None:
    """What is audited: a corpus, or the stages by planted text."""
    parser.add_argument(
        "corpus", nargs="?", metavar="CORPUS", help="as for `explain`; not with --planted"
    )
    parser.add_argument(
        "--planted",
        action="store_true",
        help="plant copies and benchmark items in a small corpus of its own, and score the stages",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the page there")


def document(parser: argparse.ArgumentParser) -> None:
    """Which document."""
    parser.add_argument(
        "document", metavar="ID", help="a document's id, or SOURCE/SOURCE_ID as `audit` shows it"
    )


def judge(parser: argparse.ArgumentParser) -> None:
    """Who rates documents, and how many."""
    parser.add_argument(
        "--endpoint",
        default="",
        metavar="URL",
        help="a judge's URL; that of a chat endpoint ends in /v1 (key: see docs)",
    )
    parser.add_argument(
        "--model", default="", metavar="NAME", help="the judge, as the endpoint calls it"
    )
    parser.add_argument(
        "--gguf",
        type=Path,
        metavar="FILE",
        help="a model file to serve here instead (extra `judge`); with --form yes-no",
    )
    parser.add_argument(
        "--form",
        choices=("rating", "yes-no"),
        default="rating",
        help="rating: a number from 1 to 5 (the default); yes-no: for small models in llama.cpp",
    )
    parser.add_argument(
        "--count", type=int, default=400, metavar="N", help="how many documents (400)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the labels there")


def evaluations(parser: argparse.ArgumentParser) -> None:
    """Which evaluation sets."""
    parser.add_argument(
        "evaluations",
        nargs="+",
        metavar="EVAL",
        help="a file of items (.jsonl, .txt), an lm-eval task, or a set's name in the corpus",
    )


def run(parser: argparse.ArgumentParser) -> None:
    """Which run."""
    parser.add_argument(
        "run", metavar="RUN", help="a run's name under SHOAL_HOME/runs, or its path"
    )


def reported(parser: argparse.ArgumentParser) -> None:
    """Which run or forecast."""
    parser.add_argument(
        "name", metavar="RUN|FORECAST", help="a run or a forecast under SHOAL_HOME, or its path"
    )


def text(parser: argparse.ArgumentParser) -> None:
    """One's own text."""
    parser.add_argument(
        "--text",
        type=Path,
        metavar="PATH",
        help="train on your own text: a folder of text files, or a .jsonl file with a `text` field",
    )


def train(parser: argparse.ArgumentParser) -> None:
    """Where a run goes on, and why with other numerics."""
    parser.add_argument(
        "--run", metavar="RUN", help="the run's name or path (default: the recipe's own name)"
    )
    parser.add_argument(
        "--change",
        metavar="WHY",
        help="go on although a numeric setting differs from the run's, and record this reason",
    )
    parser.add_argument(
        "--forecast",
        metavar="SEAL",
        help="a sealed forecast of this run, by name or path: put first into a new run's record",
    )


def process(parser: argparse.ArgumentParser) -> None:
    """Which of several processes this is, where the cluster does not say so."""
    group = parser.add_argument_group(
        "several processes", "not needed on Slurm and in what `shoal launch` writes"
    )
    group.add_argument("--coordinator", metavar="HOST:PORT", help="where process 0 listens")
    group.add_argument("--num-processes", type=int, metavar="N", help="how many there are")
    group.add_argument("--process-id", type=int, metavar="I", help="which this is, from 0 on")


def ladder(parser: argparse.ArgumentParser) -> None:
    """Which ladder."""
    parser.add_argument(
        "ladder",
        metavar="LADDER",
        help="a ladder under SHOAL_HOME/forecasts, the path of a ladder.json, or public-535b",
    )


def ladder_or_list(parser: argparse.ArgumentParser) -> None:
    """Which ladder, or all forecasts there are."""
    parser.add_argument(
        "ladder", nargs="?", metavar="LADDER", help="as for `seal`, or public-535b; not with --list"
    )
    parser.add_argument(
        "--list", action="store_true", help="list all forecasts and what became of them"
    )


def contaminated(parser: argparse.ArgumentParser) -> None:
    """What is known of evaluation text in training text."""
    parser.add_argument(
        "--contamination",
        metavar="TABLE",
        help="what `shoal contamination` made, by NAME@HASH12 or path (default: the corpus' own)",
    )


def seal(parser: argparse.ArgumentParser) -> None:
    """Who vouches for a seal."""
    parser.add_argument(
        "--timestamp", metavar="URL", help="have this RFC 3161 authority sign the hash (openssl)"
    )
    parser.add_argument(
        "--authority", type=Path, metavar="FILE", help="certificates to check a timestamp against"
    )
    parser.add_argument(
        "--sign", type=Path, metavar="KEY", help="sign the seal with this SSH key (ssh-keygen)"
    )
    parser.add_argument(
        "--signers", type=Path, metavar="FILE", help="allowed signers to check a signature against"
    )


def settle(parser: argparse.ArgumentParser) -> None:
    """Which forecast, and without which domains."""
    parser.add_argument(
        "--forecast",
        metavar="SEAL",
        help="by name or path (default: the one that the run's record begins with)",
    )
    parser.add_argument(
        "--without",
        nargs="+",
        default=(),
        metavar="SET/DOMAIN",
        help="leave these out of the clean macro too, beside those that the table flags",
    )


def asymptote(parser: argparse.ArgumentParser) -> None:
    """What is known of the law's asymptote."""
    parser.add_argument(
        "--asymptote",
        metavar="E",
        help="the loss that no compute gets below: 1.5, a range 1.3:1.7, or free (the default"
        " where the rungs allow)",
    )


def compared(parser: argparse.ArgumentParser) -> None:
    """What is compared with what."""
    parser.add_argument("first", metavar="A", help="a ladder or a run: the reference")
    parser.add_argument("second", metavar="B", help="a ladder or a run")
    parser.add_argument(
        "--ladder",
        dest="reference",
        metavar="LADDER",
        help="two runs: the ladder whose law turns losses into compute",
    )


def step(parser: argparse.ArgumentParser) -> None:
    """Which checkpoint."""
    parser.add_argument(
        "--step", type=int, metavar="N", help="the checkpoint's step (default: the newest)"
    )


def steps(parser: argparse.ArgumentParser) -> None:
    """How many batches are compared."""
    parser.add_argument(
        "--steps", type=int, metavar="N", help="how many batches after the checkpoint"
    )


def verified(parser: argparse.ArgumentParser) -> None:
    """What is verified, and how much of a run is computed anew."""
    parser.add_argument(
        "target", metavar="RUN|FORECAST|CORPUS", help="a name under SHOAL_HOME, or a path"
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="a run's steps to compute anew (4; 0 is none)"
    )


def prompt(parser: argparse.ArgumentParser) -> None:
    """What to write, and how."""
    parser.add_argument("--prompt", default="", metavar="TEXT", help="what the text starts with")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="how many (128)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="T", help="0 is greedy (0.8)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws (0)")


def cluster(parser: argparse.ArgumentParser) -> None:
    """Which kind of cluster."""
    parser.add_argument("cluster", choices=("slurm", "jobset", "skypilot"), help="what runs it")


def job(parser: argparse.ArgumentParser) -> None:
    """What a cluster's job is to have."""
    parser.add_argument("--nodes", type=int, required=True, metavar="N", help="how many machines")
    parser.add_argument(
        "--gpus-per-node", type=int, required=True, metavar="G", help="GPUs of each machine"
    )
    parser.add_argument("--run", metavar="RUN", help="the run's name (default: the recipe's own)")
    for flag, metavar, says in (
        ("--name", "NAME", "the job's name (default: the run's)"),
        ("--time", "TIME", "Slurm: the time limit (24:00:00); the job requeues itself before it"),
        ("--partition", "NAME", "Slurm: the partition"),
        ("--account", "NAME", "Slurm: the account"),
        ("--image", "IMAGE", "a container image that has `shoal`; a JobSet needs one"),
        ("--gpu", "NAME", "SkyPilot: the accelerator, such as H100"),
        ("--forecast", "SEAL", "a sealed forecast of this run, where the nodes find it"),
        ("--home", "PLACE", "SHOAL_HOME for all nodes: Slurm a folder, else a volume's name"),
    ):
        parser.add_argument(flag, metavar=metavar, help=says)
    parser.add_argument(
        "--restarts", type=int, metavar="N", help="give up after so many failures (100)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write it there instead of printing it"
    )


def chips(parser: argparse.ArgumentParser) -> None:
    """Which chips a plan is for, and how they are laid out."""
    parser.add_argument("--chips", type=int, required=True, metavar="N", help="how many chips")
    parser.add_argument("--chip", default="gb200", metavar="NAME", help="which chip (gb200)")
    parser.add_argument(
        "--mesh",
        metavar="AXIS=N",
        action="append",
        default=[],
        help="the degree of a mesh axis, -1 for the rest (repeatable; default: the recipe's)",
    )
    parser.add_argument(
        "--search", action="store_true", help="rank the layouts that fit, fastest first"
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        default=None,
        help="compile the real step on abstract devices",
    )


def pace(parser: argparse.ArgumentParser) -> None:
    """How fast a planned run is, how long it may take, what it meets and costs."""
    parser.add_argument("--step-s", type=float, metavar="X", help="seconds for a step: gives MFU")
    parser.add_argument("--mfu", metavar="X", help="MFU, as 0.25 or 25%%: gives seconds for a step")
    for flag, metavar, says in (
        ("--deadline", "DATE", "when it must be over: prints the shortened horizon"),
        ("--start", "DATE", "when it began (now)"),
        ("--lost", "SHARE", "share of the chips that is lost, as 25%%"),
    ):
        parser.add_argument(flag, metavar=metavar, help=says)
    parser.add_argument("--at-step", type=int, metavar="N", help="where the run stands (0)")
    for flag, says in (
        ("--failures-per-chip-year", "failures of a chip in a year"),
        ("--restart-minutes", "what one restart takes"),
        ("--price", "dollars for a chip and hour"),
        ("--power", "watts for a chip, all included"),
    ):
        parser.add_argument(flag, type=float, metavar="X", help=says)
