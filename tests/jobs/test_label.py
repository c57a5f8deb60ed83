"""`label` asks about training documents only, and says how far its judge can be trusted."""

import math
import sys
from pathlib import Path

import pytest

from data.fake_judge import FakeJudge, fake_judge, rating, yes_no
from jobs.fake_corpus import TEXTS, id_of, write_corpus
from shoal.core.files import home
from shoal.data.damage import damaged
from shoal.data.judge import read_labels
from shoal.jobs import label as job
from shoal.jobs.label import label_corpus

TRAINED = {
    "alpha": ("keeper.txt", "longest.txt", "quoted.txt", "plain.txt"),
    "beta": ("fine.txt",),
}
IDS = {id_of(TEXTS[source][key]) for source, keys in TRAINED.items() for key in keys}


@pytest.fixture(autouse=True)
def _corpus() -> None:
    write_corpus(home())


@pytest.fixture
def fake():
    with fake_judge() as judge:
        yield judge


def test_only_documents_that_are_trained_on_whole_are_judged(fake: FakeJudge):
    fake.say(rating("prose", valid=True, score=4))
    result = label_corpus("small", endpoint=f"{fake.url}/v1", model="m/1", count=50)
    labels = read_labels(Path(result["labels"]))
    assert {one.id for one in labels} == IDS
    assert result["judged"] == len(IDS)
    assert result["levels"] == [0, 0, 0, len(IDS), 0]
    assert Path(result["labels"]).parent == home() / "labels"
    assert "m-1" in Path(result["labels"]).name
    texts = {body["messages"][1]["content"] for _, body in fake.asked}
    assert texts == {TEXTS[source][key] for source, keys in TRAINED.items() for key in keys}


def test_a_smaller_count_takes_of_every_source_first(fake: FakeJudge, tmp_path: Path):
    out = tmp_path / "labels.jsonl"
    label_corpus("small", endpoint=f"{fake.url}/v1", model="m", count=2, out=out)
    ids = {one.id for one in read_labels(out)}
    assert len(ids) == 2
    assert id_of(TEXTS["beta"]["fine.txt"]) in ids
    label_corpus("small", endpoint=f"{fake.url}/v1", model="m", count=4, out=out)
    assert ids < {one.id for one in read_labels(out)}


def test_damaged_documents_show_whether_the_judge_can_tell(
    fake: FakeJudge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(job, "CONTROL_SHARE", 1.0)
    broken = set()

    def script(body):
        asked = body["prompt"].rpartition("Text:")[2]
        texts = [TEXTS[source][key] for source, keys in TRAINED.items() for key in keys]
        whole = any(asked.startswith(f'\n"""\n{text}\n"""') for text in texts)
        broken.add(whole)
        return yes_no(math.log(0.8 if whole else 0.1), math.log(0.1 if whole else 0.8))

    fake.script = script
    out = tmp_path / "labels.jsonl"
    result = label_corpus("small", endpoint=fake.url, model="m", count=5, form="yes-no", out=out)
    assert broken == {True, False}
    assert (result["judged"], result["controls"], result["rejected"]) == (5, 5, 0)
    assert result["separation"] == 1.0
    assert set(result["separation_by_damage"].values()) == {1.0}
    text = TEXTS["beta"]["fine.txt"]
    (control,) = (one for one in read_labels(out) if one.control and one.id == id_of(text))
    assert any(
        damaged(text, control.control, control.id)[:200] in body["prompt"].replace("'''", '"""')
        for _, body in fake.asked
    )


def test_rejections_are_counted_and_shown(fake: FakeJudge):
    fake.say((200, b"{}"))
    result = label_corpus("small", endpoint=f"{fake.url}/v1", model="m", count=5)
    assert (result["judged"], result["rejected"]) == (0, 5)
    assert result["separation"] is None
    assert result["first_rejected"][0]["reason"].startswith("no message")


def test_an_endpoint_or_a_model_file_is_needed_and_not_both(tmp_path: Path):
    with pytest.raises(ValueError, match="give one of them"):
        label_corpus("small")
    with pytest.raises(ValueError, match="give one of them"):
        label_corpus("small", endpoint="http://localhost", gguf=tmp_path / "m.gguf")
    with pytest.raises(ValueError, match=r"m\.gguf is not there"):
        label_corpus("small", gguf=tmp_path / "m.gguf")


def test_a_model_file_without_llama_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"install 'shoal\[judge\]'"):
        label_corpus("small", gguf=model, form="yes-no")
