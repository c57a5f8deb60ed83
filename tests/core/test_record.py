import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core import record
from shoal.core.record import Record

METRIC_LINES = 6


def write_run(folder: Path) -> list[dict]:
    """Two attempts of a small run; returns the links of its checkpoints."""
    links = []
    with Record.open(folder) as run:
        run.event("start", fingerprint="f" * 64)
        for step in range(4):
            run.metric(step, {"loss": 5.0 - step, "router/load_cv": [0.5, 0.25]})
        links.append(run.link())
        run.event("checkpoint", step=4, link_of_checkpoint=links[-1]["link"])
    with Record.open(folder) as run:
        run.event("resume", step=4)
        for step in range(4, METRIC_LINES):
            run.metric(step, {"loss": 5.0 - step})
        links.append(run.link())
        run.event("finish", step=6)
    return links


@pytest.fixture
def folder(tmp_path) -> Path:
    write_run(tmp_path)
    return tmp_path


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


def test_metrics_and_events_read_back(tmp_path):
    with Record.open(tmp_path / "run") as run:
        run.event("start", note="ü")
        run.metric(1, {"loss": 0.1, "router/load": [[1.0, 2.0]], "tokens": 10})
    assert record.read_metrics(tmp_path / "run") == [
        {"step": 1, "attempt": 1, "loss": 0.1, "router/load": [[1.0, 2.0]], "tokens": 10}
    ]
    (event,) = record.read_events(tmp_path / "run")
    assert (event["kind"], event["attempt"], event["note"]) == ("start", 1, "ü")
    assert event["time"].endswith("+00:00")


def test_a_run_without_lines_reads_as_empty(tmp_path):
    assert record.read_metrics(tmp_path) == []
    assert record.read_events(tmp_path) == []


def test_non_finite_numbers_and_arrays_survive_as_plain_json(tmp_path):
    with Record.open(tmp_path) as run:
        values = {"loss": math.nan, "max": [math.inf, -math.inf], "norm": np.float32(0.5)}
        run.metric(0, {**values, "load": np.array([[1.0, math.nan]])})
        run.event("nonfinite", loss=math.nan)
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    (line,) = record.read_metrics(tmp_path)
    assert math.isnan(line["loss"])
    assert line["max"] == [math.inf, -math.inf]
    assert line["norm"] == 0.5
    assert line["load"][0][0] == 1.0
    assert math.isnan(line["load"][0][1])
    assert record.verify_chain(tmp_path) == []


def test_every_opening_is_one_more_attempt(tmp_path):
    for attempt in (1, 2):
        with Record.open(tmp_path) as run:
            assert run.attempt == attempt
            run.metric(attempt, {})
    with Record.open(tmp_path, attempt=7) as run:
        run.event("start")
    with Record.open(tmp_path) as run:
        assert run.attempt == 8


def test_of_several_attempts_at_a_step_the_highest_counts_and_steps_ascend(tmp_path):
    for first, last, loss in ((0, 5, 1.0), (2, 4, 2.0), (3, 4, 3.0)):
        with Record.open(tmp_path) as run:
            for step in range(first, last):
                run.metric(step, {"loss": loss})
    found = [
        (line["step"], line["attempt"], line["loss"]) for line in record.read_metrics(tmp_path)
    ]
    assert found == [(0, 1, 1.0), (1, 1, 1.0), (2, 2, 2.0), (3, 3, 3.0), (4, 1, 1.0)]


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl"])
@pytest.mark.parametrize("torn", [b'{"step": 9, "att', b"\x00\x00\x00", b'{"step": 9}', b"}{\n"])
def test_a_torn_last_line_is_cut_on_opening_and_told(folder, name, torn):
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole + torn)
    before = record.read_metrics(folder), record.read_events(folder)
    assert len(before[0]) == METRIC_LINES
    with Record.open(folder) as run:
        run.metric(6, {"loss": 0.0})
    assert (folder / name).read_bytes().startswith(whole)
    assert torn not in (folder / name).read_bytes()
    event = record.read_events(folder)[-1]
    assert (event["kind"], event["file"], event["bytes"]) == ("torn", name, len(torn))
    assert event["attempt"] == 3
    assert record.verify_chain(folder) == []


@pytest.mark.parametrize("size", range(1, 40, 6))
def test_a_kill_at_any_byte_of_the_last_event_leaves_a_sound_record(folder, size):
    path = folder / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-size])
    assert record.verify_chain(folder) == []
    with Record.open(folder) as run:
        run.event("finish")
    assert [event["kind"] for event in record.read_events(folder)][-2:] == ["torn", "finish"]
    assert record.verify_chain(folder) == []


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(folder):
    path = folder / "metrics.jsonl"
    text = lines(path)
    path.write_text("".join([*text[:2], "{broken\n", *text[3:]]))
    with pytest.raises(ValueError, match=r"metrics.jsonl line 3 is not a JSON object"):
        record.read_metrics(folder)
    (folder / "events.jsonl").write_bytes((folder / "events.jsonl").read_bytes() + b"torn")
    before = path.read_bytes(), (folder / "events.jsonl").read_bytes()
    with pytest.raises(ValueError, match="line 3"):
        Record.open(folder)
    assert (path.read_bytes(), (folder / "events.jsonl").read_bytes()) == before


def test_an_event_without_link_cannot_be_continued(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"kind": "start", "attempt": 1}\n')
    with pytest.raises(ValueError, match="the last event has no link"):
        Record.open(tmp_path)


def test_a_sound_record_has_no_problems_and_its_links_run_across_openings(folder):
    assert record.verify_chain(folder) == []
    links = [event["link"] for event in record.read_events(folder)]
    assert [link["previous"] for link in links] == ["", *(link["link"] for link in links[:-1])]


def test_what_is_written_after_the_last_event_is_no_problem(folder):
    with Record.open(folder) as run:
        run.metric(6, {"loss": 0.0})
    assert record.verify_chain(folder) == []


def edit_metric(folder: Path) -> None:
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace('"loss": 4.0', '"loss": 3.0'))


def add_metric(folder: Path) -> None:
    path = folder / "metrics.jsonl"
    path.write_text('{"step": 0, "attempt": 9, "loss": 0.0}\n' + path.read_text())


def drop_metric(folder: Path) -> None:
    path = folder / "metrics.jsonl"
    path.write_text("".join(lines(path)[:-1]))


def reorder_metrics(folder: Path) -> None:
    path = folder / "metrics.jsonl"
    text = lines(path)
    path.write_text("".join([text[1], text[0], *text[2:]]))


def remove_metrics(folder: Path) -> None:
    (folder / "metrics.jsonl").unlink()


def edit_event(folder: Path) -> None:
    path = folder / "events.jsonl"
    path.write_text(path.read_text().replace('"fingerprint": "f', '"fingerprint": "e'))


def edit_last_event(folder: Path) -> None:
    path = folder / "events.jsonl"
    path.write_text(path.read_text().replace('"step": 6', '"step": 7'))


def drop_first_event(folder: Path) -> None:
    path = folder / "events.jsonl"
    path.write_text("".join(lines(path)[1:]))


def drop_middle_event(folder: Path) -> None:
    path = folder / "events.jsonl"
    text = lines(path)
    path.write_text("".join([*text[:1], *text[2:]]))


def reorder_events(folder: Path) -> None:
    path = folder / "events.jsonl"
    text = lines(path)
    path.write_text("".join([text[0], text[2], text[1], text[3]]))


def repeat_event(folder: Path) -> None:
    path = folder / "events.jsonl"
    text = lines(path)
    path.write_text("".join([*text, text[-1]]))


def remove_link(folder: Path) -> None:
    path = folder / "events.jsonl"
    text = lines(path)
    event = json.loads(text[1])
    del event["link"]
    path.write_text("".join([text[0], json.dumps(event) + "\n", *text[2:]]))


def forge_link(folder: Path) -> None:
    path = folder / "events.jsonl"
    text = lines(path)
    event = json.loads(text[-1])
    event["link"]["previous"] = ""
    path.write_text("".join([*text[:-1], json.dumps(event) + "\n"]))


def break_event(folder: Path) -> None:
    path = folder / "events.jsonl"
    path.write_text("{\n" + path.read_text())


TAMPERS: dict[Callable[[Path], None], str] = {
    edit_metric: "metrics.jsonl was changed",
    add_metric: "metrics.jsonl was changed",
    drop_metric: "metrics.jsonl is shorter than",
    reorder_metrics: "metrics.jsonl was changed",
    remove_metrics: "metrics.jsonl is shorter than",
    edit_event: r"line 1 \(start\): was edited",
    edit_last_event: r"line 4 \(finish\): was edited",
    drop_first_event: "a line before it was added or removed",
    drop_middle_event: "does not follow the event before it",
    reorder_events: "does not follow the event before it",
    repeat_event: "a line before it was added or removed",
    remove_link: r"line 2 \(checkpoint\): has no link",
    forge_link: "its link was edited",
    break_event: "cannot be read",
}


@pytest.mark.parametrize("tamper", TAMPERS, ids=lambda tamper: tamper.__name__)
def test_the_chain_catches(folder, tamper):
    tamper(folder)
    problems = record.verify_chain(folder)
    assert problems
    assert any(re.search(TAMPERS[tamper], problem) for problem in problems), problems


def test_a_record_without_events_is_a_problem(tmp_path):
    assert len(record.verify_chain(tmp_path)) == 1
    (tmp_path / "events.jsonl").write_text("")
    assert record.verify_chain(tmp_path) == ["events.jsonl holds no event"]


@settings(max_examples=30)
@given(position=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 127))
def test_any_changed_byte_before_the_last_event_is_caught(tmp_path_factory, position, flip):
    folder = tmp_path_factory.mktemp("run")
    write_run(folder)
    path = folder / "metrics.jsonl"
    data = bytearray(path.read_bytes())
    data[int(position * len(data))] ^= flip
    path.write_bytes(bytes(data))
    assert record.verify_chain(folder)


def test_a_checkpoints_link_fits_its_record_and_no_shortened_one(tmp_path):
    links = write_run(tmp_path)
    assert [record.verify_link(tmp_path, link) for link in links] == [[], []]
    path = tmp_path / "events.jsonl"
    path.write_text("".join(lines(path)[:1]))
    # Cutting whole events off the end leaves a sound chain: only the checkpoint knows of them.
    assert record.verify_chain(tmp_path) == []
    assert record.verify_link(tmp_path, links[0]) == []
    (problem,) = record.verify_link(tmp_path, links[1])
    assert "events.jsonl is shorter than" in problem


def test_an_edited_or_incomplete_link_is_refused(tmp_path):
    link, _ = write_run(tmp_path)
    assert record.verify_link(tmp_path, {**link, "previous": ""}) == ["link: its link was edited"]
    assert record.verify_link(tmp_path, {"link": "x"}) == ["the link is incomplete"]


def test_a_link_states_what_is_on_disk(tmp_path):
    with Record.open(tmp_path) as run:
        run.event("start")
        run.metric(0, {"loss": 1.0})
        link = run.link()
        for name in ("metrics", "events"):
            assert link[name]["bytes"] == (tmp_path / f"{name}.jsonl").stat().st_size
        assert link == run.link()


def test_reserved_keys_are_our_own_mistake(tmp_path):
    with Record.open(tmp_path) as run:
        with pytest.raises(AssertionError):
            run.metric(0, {"step": 1})
        with pytest.raises(AssertionError):
            run.event("start", link="x")
