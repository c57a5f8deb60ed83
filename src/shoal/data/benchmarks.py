"""Stage `benchmarks`: the text of every evaluation that training text is held against.

Table `items.parquet`, one row per text that is looked for:
  benchmark  string  its name; the project's own sets are `sources/NAME` and `domains/NAME`
  item       string  line number of a file, with the item's own id if it has one; the number in its
                     split for lm-eval; the document's id for own sets
  part       string  empty: the whole item; otherwise the field that stands alone
  text       string
  own        bool    held-out text of this corpus, which shares nothing with training text as it is
Facts: items and bytes per benchmark, and the SHA-256 of its file or of its items.

An item is looked for as a whole and without its answer: every field that is not named like an
answer is a text of its own as well.
"""

import gzip
import hashlib
import importlib
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import zstandard

from shoal.core.artifact import Artifact, build
from shoal.core.files import canonical_json, sha256_file
from shoal.core.progress import Progress
from shoal.data import table
from shoal.data.config import CorpusConfig
from shoal.data.normalize import document_id
from shoal.data.settings import Benchmark, DecontamConfig
from shoal.data.training import Split

REVISION = 1
TABLE = "items.parquet"
SCHEMA = pa.schema(
    [
        ("benchmark", pa.string()),
        ("item", pa.string()),
        ("part", pa.string()),
        ("text", pa.string()),
        ("own", pa.bool_()),
    ]
)
# All benchmark text is in memory at once; a bomb of an archive stops here.
LIMIT_BYTES = 2**30
LINE_LIMIT_BYTES = 64 * 2**20
IDS = ("id", "task_id", "question_id", "doc_id", "uid")
ANSWERS = {"answer", "answers", "answerkey", "target", "targets", "label", "labels", "gold"}
ANSWERS |= {"solution", "solutions", "completion", "canonical_solution", "output", "response"}
ANSWERS |= {"choice", "choices", "option", "options", "correct", "incorrect", "distractors"}
ANSWERS |= {"rationale", "explanation", "ideal"}
_NO_HARNESS = (
    "benchmark {name}: form=lm-eval needs the package lm-eval, which is not installed; "
    "run `pip install lm-eval`, or export its items to a JSON-lines file and use form=jsonl"
)

type Row = tuple[str, str, str, str, bool]


def benchmarks(
    root: Path,
    corpus: CorpusConfig,
    config: DecontamConfig,
    split: Split,
    inputs: dict[str, str],
    progress: Progress,
) -> Artifact:
    """Finds or makes the table of benchmark items; `inputs` are the digests behind `split`.

    Raises:
        ValueError: a file is missing, is not the pinned one or cannot be read, a task is unknown,
            or a benchmark has no text.
    """
    digests = {item.name: _digest(item) for item in config.benchmarks}

    def make(folder: Path) -> dict[str, Any]:
        rows = list(own_items(corpus, split))
        with progress.task("benchmarks", len(config.benchmarks), "benchmarks") as task:
            for benchmark in config.benchmarks:
                task.say(benchmark.name)
                rows += read_items(benchmark)
                task.advance()
        found = as_table(rows)
        table.write(folder / TABLE, found)
        return {"benchmarks": _counts(rows), "digests": digests}

    return build(
        root,
        f"{corpus.name}-benchmarks",
        stage="benchmarks",
        revision=REVISION,
        literals={"benchmarks": [[b.name, b.form, list(b.fields)] for b in config.benchmarks]},
        inputs={**inputs, **{f"benchmark {name}": digest for name, digest in digests.items()}},
        make=make,
    )


def as_table(rows: Sequence[Row]) -> pa.Table:
    """Rows in the schema of `items.parquet`."""
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def own_items(corpus: CorpusConfig, split: Split) -> Iterator[Row]:
    """The corpus' own held-out texts: every evaluation that a recipe of it runs by itself."""
    for name, domains in split.heldout_texts(corpus).items():
        for domain, texts in domains.items():
            for text in texts:
                yield f"{name}/{domain}", document_id(text), "", text, True


def read_items(benchmark: Benchmark) -> list[Row]:
    """The items of one benchmark.

    Raises:
        ValueError: as `benchmarks`.
    """
    readers = {"jsonl": _json_items, "text": _text_items, "lm-eval": _harness_items}
    rows = list(readers[benchmark.form](benchmark))
    if not any(row[3].strip() for row in rows):
        fields = f" in fields={list(benchmark.fields)}" if benchmark.fields else ""
        raise ValueError(f"benchmark {benchmark.name}: no text{fields}; correct path or fields")
    return rows


def uncovered(covered: Artifact | None, evaluations: Iterable[Benchmark]) -> list[str]:
    """What a run would evaluate on without its training text having been held against it.

    Args:
        covered: the artifact of stage `benchmarks` behind the corpus; None if it has none.
        evaluations: what the run evaluates on besides the corpus' own sets, which are covered.

    Returns:
        One message per benchmark of which an item is missing, by content and not by name.
    """
    digests = set(covered.facts["digests"].values()) if covered else set()
    known: set[str] | None = None
    messages: list[str] = []
    for benchmark in evaluations:
        if _digest(benchmark) in digests:
            continue
        if known is None:
            texts = table.read(covered.path / TABLE, ["text"])["text"] if covered else pa.array([])
            known = {document_id(text) for text in texts.to_pylist()}
        rows = [row for row in read_items(benchmark) if row[2] == ""]
        missing = sum(document_id(row[3]) not in known for row in rows)
        if missing:
            messages.append(
                f"evaluation {benchmark.name}: {missing} of {len(rows)} items are not in the "
                f"decontamination of {covered.ref if covered else 'this corpus'}; add it to "
                "data.corpus.decontam.benchmarks, or set data.corpus.decontam.allow_uncovered=true"
            )
    return messages


def _digest(benchmark: Benchmark) -> str:
    """SHA-256 of the file, or of the items where there is no file."""
    if benchmark.form == "lm-eval":
        rows = [list(row) for row in read_items(benchmark)]
        return hashlib.sha256(canonical_json(rows).encode()).hexdigest()
    path = Path(benchmark.path)
    if not path.is_file():
        raise ValueError(f"benchmark {benchmark.name}: {path} is no file; give an existing path")
    found = sha256_file(path)
    if benchmark.sha256 and found != benchmark.sha256:
        raise ValueError(
            f"benchmark {benchmark.name}: {path} has changed (sha256 {found}, expected "
            f"{benchmark.sha256}); put the old file back, or pin the new one"
        )
    return found


def _lines(benchmark: Benchmark) -> Iterator[tuple[int, str]]:
    path = Path(benchmark.path)
    total = 0
    number = 0
    try:
        with _opened(path) as file:
            while line := file.readline(LINE_LIMIT_BYTES + 1):
                number += 1
                total += len(line)
                if len(line) > LINE_LIMIT_BYTES or total > LIMIT_BYTES:
                    raise ValueError(
                        f"benchmark {benchmark.name}: {path}, line {number}: a line above "
                        f"{LINE_LIMIT_BYTES} bytes or a file above {LIMIT_BYTES}; is it the right "
                        "file?"
                    )
                yield number, line.decode()
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, zstandard.ZstdError) as error:
        raise ValueError(
            f"benchmark {benchmark.name}: {path} cannot be read after line {number} ({error}); "
            "give a UTF-8 file, plain, .gz or .zst"
        ) from error


def _opened(path: Path) -> io.BufferedIOBase:
    if path.suffix == ".gz":
        return gzip.GzipFile(path, "rb")
    if path.suffix == ".zst":
        raw = zstandard.ZstdDecompressor().stream_reader(path.open("rb"), closefd=True)
        return io.BufferedReader(raw)
    return path.open("rb")


def _text_items(benchmark: Benchmark) -> Iterator[Row]:
    for number, line in _lines(benchmark):
        if line.strip():
            yield benchmark.name, str(number), "", line.strip(), False


def _json_items(benchmark: Benchmark) -> Iterator[Row]:
    for number, line in _lines(benchmark):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except ValueError as error:
            raise ValueError(
                f"benchmark {benchmark.name}: {benchmark.path}, line {number} is no JSON "
                f"({error}); correct it, or use form=text"
            ) from error
        yield from _rows(benchmark, _name(number, item), item)


def _name(number: int, item: Any) -> str:
    own = [item[key] for key in IDS if key in item] if isinstance(item, dict) else []
    usable = [str(value) for value in own if isinstance(value, str | int)]
    return f"{number}:{usable[0]}" if usable else str(number)


def _rows(benchmark: Benchmark, name: str, item: Any, prompt: str = "") -> Iterator[Row]:
    """The whole item, and each of its texts that is not named like an answer."""
    if benchmark.fields:
        if not isinstance(item, dict) or not set(benchmark.fields) <= item.keys():
            raise ValueError(
                f"benchmark {benchmark.name}, item {name}: not all of fields="
                f"{list(benchmark.fields)} are there; correct them"
            )
        item = {field: item[field] for field in benchmark.fields}
    parts = [(path, text) for path, text in _strings(item, "") if text.strip()]
    yield benchmark.name, name, "", "\n".join(text for _, text in parts), False
    if len(parts) > 1:
        for path, text in parts:
            if ANSWERS.isdisjoint(path.lower().split(".")):
                yield benchmark.name, name, path, text, False
    if prompt.strip():
        yield benchmark.name, name, "prompt", prompt, False


def _strings(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every string in a JSON value with the way to it, except an item's own id."""
    if isinstance(value, str):
        yield path or "text", value
        return
    if isinstance(value, Mapping):
        pairs = [(str(key), inner) for key, inner in value.items() if path or key not in IDS]
    elif isinstance(value, Sequence):
        pairs = [(str(number), inner) for number, inner in enumerate(value)]
    else:
        return
    for key, inner in pairs:
        yield from _strings(inner, f"{path}.{key}" if path else key)


def _harness_items(benchmark: Benchmark) -> Iterator[Row]:
    """The items of an lm-eval task or group: its test split, else validation, else training."""
    try:
        tasks = importlib.import_module("lm_eval.tasks")
    except ImportError as error:
        raise ValueError(_NO_HARNESS.format(name=benchmark.name)) from error
    manager = tasks.TaskManager(include_path=benchmark.path or None)
    if benchmark.name not in manager.all_tasks:
        raise ValueError(
            f"benchmark {benchmark.name}: lm-eval has no such task, group or tag"
            f"{f' in {benchmark.path} or by default' if benchmark.path else ''}; correct the name"
        )
    for name, task in sorted(manager.load([benchmark.name])["tasks"].items()):
        for number, item in enumerate(_harness_documents(task)):
            label = str(number) if name == benchmark.name else f"{name}:{number}"
            text = task.doc_to_text(item)
            # Where choices hold the question, the text is a number; the fields have it anyway.
            yield from _rows(benchmark, label, item, text if isinstance(text, str) else "")


def _harness_documents(task: Any) -> Iterable[Any]:
    for split in ("test", "validation", "training"):
        if getattr(task, f"has_{split}_docs")():
            return getattr(task, f"{split}_docs")()
    return ()


def _counts(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for benchmark, _, part, text, _ in rows:
        mine = counts.setdefault(benchmark, {"items": 0, "bytes": 0})
        if part == "":
            mine["items"] += 1
            mine["bytes"] += len(text.encode())
    return counts
