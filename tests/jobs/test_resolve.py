"""A recipe is found by name or in a file; everything else is refused with the way out."""

import pytest

from shoal.jobs.resolve import OVERRIDDEN, recipes, resolve, resolve_corpus
from shoal.recipes.flagship import flagship


def test_every_shipped_recipe_is_found_by_its_name():
    assert {"d512", "d768", "d1024", "d1280", "d1536", "d2048", "flagship"} <= recipes().keys()
    assert resolve("flagship") == flagship()
    for name in recipes():
        assert resolve(name).name == name.replace("_", "-")


def test_an_override_changes_the_value_and_its_origin():
    config = resolve("d512", ["train.num_steps=7", "optimizer.muon_lr=0.01"])
    assert config.train.num_steps == 7
    assert config.notes["train.num_steps"] == OVERRIDDEN
    assert config.notes["train.batch_sequences"] == resolve("d512").notes["train.batch_sequences"]


def test_an_override_that_does_not_fit_the_rest_is_refused():
    with pytest.raises(ValueError, match=r"data\.corpus\.unit_tokens=65536 is not a multiple of"):
        resolve("d512", ["train.sequence_tokens=5000"])


def test_a_mistyped_setting_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"train\.num_steps"):
        resolve("d512", ["train.num_step=7"])
    with pytest.raises(ValueError, match="whole number"):
        resolve("d512", ["train.num_steps=many"])


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"unknown recipe 'flagshp'; nearest: flagship"):
        resolve("flagshp")
    with pytest.raises(ValueError, match=r"known: .*d512.*flagship"):
        resolve("xyzzy")


FILE = """
from shoal.recipes.ladder import d512
from shoal.train.config import Config

SIZE = 3

def small() -> Config:
    return d512()

def numbered(size: int) -> Config:
    return d512()

def other() -> int:
    return SIZE
"""


def test_a_recipe_in_a_file_is_read(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    assert resolve(f"{file}:small") == resolve("d512")
    assert resolve(f"{file}:small", ["train.seed=3"]).train.seed == 3


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (":smal", r"has no function 'smal'; .* return a Config: \S*mine\.py:small\b"),
        ("", r"given without a function; .*mine\.py:small"),
        (":", r"given without a function"),
        (":SIZE", "has no function 'SIZE'"),
        (":numbered", "needs arguments"),
        (":other", "returned int; return a"),
    ],
)
def test_a_file_without_that_recipe_is_refused_with_what_it_has(tmp_path, name, says):
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    with pytest.raises(ValueError, match=says):
        resolve(f"{file}{name}")


def test_a_file_that_is_absent_or_broken_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"absent\.py does not exist"):
        resolve(f"{tmp_path / 'absent.py'}:small")
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_this_name\n")
    with pytest.raises(ValueError, match=r"broken\.py cannot be read: ModuleNotFoundError"):
        resolve(f"{broken}:small")
    text = tmp_path / "recipe.txt"
    text.write_text("d512")
    with pytest.raises(ValueError, match=r"recipe\.txt is not Python"):
        resolve(f"{text}:small")


def test_a_corpus_has_a_recipe_of_its_own_or_is_a_recipes():
    large = resolve_corpus("corpus-large")
    assert (large.name, large) == ("large", resolve_corpus("corpus_large"))
    assert resolve_corpus("corpus-large", ["near.bands=7"]).near.bands == 7
    assert resolve_corpus("quickstart") == resolve("quickstart").data.corpus
    changed = resolve_corpus("quickstart", ["data.corpus.near.bands=7"])
    assert changed.near.bands == 7
    with pytest.raises(ValueError, match="nearest: corpus_large"):
        resolve_corpus("corpus-lrge")
