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


def run(parser: argparse.ArgumentParser) -> None:
    """Which run."""
    parser.add_argument(
        "run", metavar="RUN", help="a run's name under SHOAL_HOME/runs, or its path"
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


def step(parser: argparse.ArgumentParser) -> None:
    """Which checkpoint."""
    parser.add_argument(
        "--step", type=int, metavar="N", help="the checkpoint's step (default: the newest)"
    )


def prompt(parser: argparse.ArgumentParser) -> None:
    """What to write, and how."""
    parser.add_argument("--prompt", default="", metavar="TEXT", help="what the text starts with")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="how many (128)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="T", help="0 is greedy (0.8)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws (0)")
