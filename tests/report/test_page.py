import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from report import fake_run
from shoal.report import folder, page, training

HOSTILE = "</script><img src=x onerror=alert(1)>\"'><script>alert(2)</script>\x00\ud800\u202e"
VOID = {"br", "col", "link", "meta"}


class Outline(HTMLParser):
    """What a browser would see: elements, attributes that load or run things, text."""

    def __init__(self, document: str):
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(document)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in {"script", "style"}:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return fake_run.make(tmp_path_factory.mktemp("runs") / "full")


@pytest.fixture(scope="module")
def seen(run) -> Outline:
    return Outline(page.render(run))


def test_the_fake_run_is_the_same_on_every_call(run, tmp_path):
    again = fake_run.make(tmp_path / "again")
    for path in sorted(run.rglob("*.json*")):
        assert path.read_bytes() == (again / path.relative_to(run)).read_bytes()


def test_the_page_is_written_into_the_run_folder_and_repeats_itself(run):
    path = page.write(run)
    assert path == run / "report.html"
    assert path.read_text(encoding="utf-8") == page.render(run)


def test_the_page_asks_for_nothing(seen):
    for _, attributes in seen.elements:
        for key in ("src", "href", "srcset", "action", "data", "style", "onload"):
            value = attributes.get(key)
            assert value is None or value == "data:," or value.startswith("#")
    policy = seen.named("meta")[1]["content"]
    assert policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for name in ("page.css", "page.js"):
        asset = files("shoal.report").joinpath(name).read_text(encoding="utf-8")
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(", asset)


def test_the_headline_gives_the_numbers(seen):
    assert "4.41M parameters, 1.20M of them active" in seen.text
    assert "1.97M tokens of 8 sources" in seen.text
    assert "Finished after 480 steps" in seen.text
    assert "2.20 bits per byte" in seen.text
    assert "0.36 below xz -9e (2.56)" in seen.text
    assert "4,412,672; 1,204,224 active" in seen.text


@pytest.mark.parametrize(
    "words",
    [
        "Loss", "Loss over time", "Learning rate", "Held-out text", "Expert load",
        "Load imbalance", "Router entropy", "ln 16 = 2.773", "Gradient norm", "Weight norm",
        "Update norm", "Throughput", "Macro mean", "Without code", "shown, not gated",
        "CC-BY-SA-3.0", "LicenseRef-public-domain", "Overlap", "tokenizer@", "BSD-3-Clause",
        "The harbor", "temperature 0.8", "ours: 16 is the most that two cores feed",
        "published: the same at every size", "corpus.sources[0] name owt, reader (lines )",
        "Sources that are only evaluated", "c4-evaluation", "sources 2.195 bits per byte",
        "checkpoint", "each link was recomputed", "5f2d5f2d", "No assignment", "all gradients",
    ],
)  # fmt: skip
def test_every_section_shows_its_records(seen, words):
    assert words in seen.text


def test_domains_show_the_difference_and_mark_code(seen):
    assert "github-code code; shown, not gated 3.887 2.200 2.260 +1.687" in seen.text
    assert "c4 web 2.481 3.010 3.050 \N{MINUS SIGN}0.529" in seen.text


def test_tables_and_drawings_say_what_they_are(seen):
    assert len(seen.named("caption")) == len(seen.named("table"))
    for svg in seen.named("svg"):
        assert svg.get("aria-label") or svg.get("aria-hidden") or svg.get("viewbox")
    assert seen.named("html")[0]["lang"] == "en"
    targets = {attributes.get("id") for _, attributes in seen.elements}
    assert {link["href"] for link in seen.named("a")} <= {f"#{target}" for target in targets}


def test_a_run_in_progress_says_what_is_missing(tmp_path):
    seen = Outline(page.render(fake_run.make(tmp_path / "run", steps=37, finished=False)))
    assert "Unfinished: the record ends at step 37 of 480" in seen.text
    assert "152k of 1.97M tokens" in seen.text
    assert "No data: bits per byte appear here after the first evaluation" in seen.text
    assert "No data: no text has been generated yet" in seen.text
    assert "Expert load" in seen.text


def test_a_single_evaluation_is_no_curve(tmp_path):
    seen = Outline(page.render(fake_run.make(tmp_path / "run", steps=20, evaluate=20)))
    assert "Macro mean" in seen.text
    assert "Held-out text" not in seen.text


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_run_of_hardly_a_step_has_a_page(tmp_path, steps):
    seen = Outline(page.render(fake_run.make(tmp_path / "run", steps=steps, finished=False)))
    assert ("No step has been recorded yet" in seen.text) == (steps == 0)


def test_a_folder_with_nothing_but_run_json_has_a_page(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    seen = Outline(page.render(tmp_path))
    assert "Unnamed run" in seen.text
    assert seen.text.count("No data:") >= 10


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no run\.json"):
        page.render(tmp_path)


def test_unknown_keys_and_wrong_types_are_left_out(tmp_path):
    made = fake_run.make(tmp_path / "run", steps=20, finished=False, evaluate=10)
    metrics = [
        {"step": 21, "attempt": 1, "loss": "nan", "odd": {"a": 1}, "router/load": [[1], [2, 3]]},
        {"step": 22, "attempt": 1, "loss": 4.0, "router/entropy": ["x"], "router/load_cv": [1.0]},
        {"step": "many", "attempt": 1},
    ]  # fmt: skip
    with (made / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in metrics[:2])
    (made / "evals" / "30.json").write_text(
        json.dumps({"step": "x", "sets": {"odd": {"domains": 3}}})
    )
    (made / "samples" / "late.json").write_text('[3, {"text": 5}]')
    corpus = fake_run.corpus() | {"sources": [{"name": 3, "tokens": "few"}, "what"], "stages": 7}
    (made / "corpus.json").write_text(json.dumps(corpus))
    (made / "run.json").write_text('{"config": [], "derived": 3, "notes": "x", "parameters": []}')
    seen = Outline(page.render(made))
    assert "1 source " in seen.text
    assert "No data: run.json holds no configuration" in seen.text
    assert folder.columns(metrics).layers.keys() == {"router/load_cv"}


def test_files_that_cannot_be_read_are_named(tmp_path):
    made = fake_run.make(tmp_path / "run", steps=20, finished=False, evaluate=10)
    (made / "evals" / "20.json").write_text("{torn")
    (made / "corpus.json").write_text("[]")
    lines = (made / "metrics.jsonl").read_text().splitlines()
    (made / "metrics.jsonl").write_text("\n".join([*lines[:5], "{torn", *lines[6:]]) + "\n")
    seen = Outline(page.render(made))
    assert "Some records could not be read" in seen.text
    assert "20.json cannot be read" in seen.text
    assert "corpus.json holds no object" in seen.text
    assert "metrics.jsonl" in seen.text


def test_a_changed_record_breaks_the_chain_on_the_page(tmp_path):
    made = fake_run.make(tmp_path / "run", steps=20, evaluate=10)
    text = (made / "metrics.jsonl").read_text()
    (made / "metrics.jsonl").write_text(text.replace('"step": 3,', '"step": 3 ,', 1))
    seen = Outline(page.render(made))
    assert "The chain of events does not fit" in seen.text


def test_a_resumed_run_is_not_finished_by_an_earlier_finish(tmp_path):
    made = fake_run.make(tmp_path / "run", steps=5)
    assert folder.read(made).finished
    with (made / "events.jsonl").open("a") as file:
        file.write(
            json.dumps({"kind": "resume", "time": "2026-11-04T09:00:00", "attempt": 2}) + "\n"
        )
    assert not folder.read(made).finished


def test_hostile_text_stays_text(tmp_path):
    made = fake_run.make(tmp_path / "run", steps=20, evaluate=10)
    run = json.loads((made / "run.json").read_text())
    run["name"] = run["notes"]["optimizer.beta2"] = run["config"][HOSTILE] = HOSTILE
    run["environment"]["devices"] = [HOSTILE]
    (made / "run.json").write_text(json.dumps(run))
    corpus = fake_run.corpus()
    for key in ("name", "kind", "license", "origin", "license_evidence"):
        corpus["sources"][0][key] = HOSTILE
    corpus["stages"][0] |= {"ref": HOSTILE, "stage": HOSTILE, "facts": {HOSTILE: HOSTILE}}
    (made / "corpus.json").write_text(json.dumps(corpus))
    evaluation = fake_run.evaluation(20)
    domains = evaluation["sets"]["domains"]["domains"]
    domains[HOSTILE] = domains["c4"] | {"kind": HOSTILE}
    evaluation["sets"][HOSTILE] = evaluation["sets"]["domains"]
    (made / "evals" / "20.json").write_text(json.dumps(evaluation))
    (made / "samples" / "20.json").write_text(json.dumps([{"prompt": HOSTILE, "text": HOSTILE}]))
    line = {"step": 21, "attempt": 1, "loss": 3.0, f"grad_norm/{HOSTILE}": 2.0, HOSTILE: 1.0}
    with (made / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    event = {"kind": HOSTILE, "time": HOSTILE, "attempt": 1, HOSTILE: HOSTILE}
    with (made / "events.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")

    document = page.write(made).read_text(encoding="utf-8")
    seen = Outline(document)
    assert not seen.named("img")
    scripts = [one.get("type") for one in seen.named("script")]
    assert scripts.count(None) == 1
    assert set(scripts) == {None, "application/json"}
    assert "\x00" not in document
    assert seen.text.count("alert(1)") >= 12


def test_a_long_history_shows_its_ends(tmp_path):
    made = fake_run.make(tmp_path / "run", steps=3)
    run = folder.read(made)
    events = [{"kind": "checkpoint", "step": step, "attempt": 1} for step in range(900)]
    seen = Outline(page.document(replace(run, events=events)))
    assert "700 events in between are in events.jsonl" in seen.text
    assert "step 899" in seen.text


def test_a_smoothed_curve_ends_with_the_mean_of_the_last_steps():
    values = np.arange(500.0)
    assert training.window(500) == 11
    assert training.smooth(values)[-1] == values[-11:].mean()
    assert training.smooth(values)[250] == 250
    assert training.smooth(values)[0] == 0
    values[100:200] = np.nan
    assert np.isnan(training.smooth(values)[150])
    assert training.smooth(np.array([2.0])) == [2.0]


def test_an_early_fall_of_the_loss_is_cut_off_and_told(tmp_path):
    run = folder.read(fake_run.make(tmp_path / "run", steps=3))
    steps = np.arange(1, 5_001)
    loss = 2 + 9 * np.exp(-steps / 25)
    metrics = folder.Metrics(steps=steps, scalars={"loss": loss}, layers={})
    seen = Outline(page.document(replace(run, metrics=metrics)))
    assert "lies above the frame" in seen.text


@pytest.mark.parametrize("place", [0, 1], ids=["light", "dark"])
def test_colors_have_contrast_and_layers_an_order(place):
    css = files("shoal.report").joinpath("page.css").read_text(encoding="utf-8")
    block = re.findall(r":root \{(.*?)\}", css, re.DOTALL)[place]
    colors = {name: _luminance(value) for name, value in re.findall(r"--([\w-]+): (#\w+)", block)}

    def contrast(name: str) -> float:
        bright, dark = sorted((colors[name], colors["paper"]), reverse=True)
        return (bright + 0.05) / (dark + 0.05)

    for name in ("ink", "soft", "link", "better", "worse"):
        assert contrast(name) >= 4.5, name
    for name in [f"c{n}" for n in range(1, 7)] + [f"r{n}" for n in range(8)]:
        assert contrast(name) >= 3, name
    ramp = [contrast(f"r{n}") for n in range(8)]
    assert ramp == sorted(ramp)


def _luminance(color: str) -> float:
    digits = color.lstrip("#")
    digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))
