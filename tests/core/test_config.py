"""Field classes, dotted paths, typed overrides, fingerprints and differences."""

import dataclasses
import json
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.config import (
    KINDS,
    Leaf,
    coerce,
    diff,
    fingerprint,
    from_plain,
    identity,
    leaves,
    numerics,
    override,
    placement,
    plain,
    replace,
)
from shoal.jobs.resolve import recipes
from shoal.train.config import Config

RECIPES = {name: recipe() for name, recipe in recipes().items()}


@dataclass(frozen=True, kw_only=True)
class Part:
    name: str = identity()
    limit: int = identity(0)
    where: str = placement("")


@dataclass(frozen=True, kw_only=True)
class Shape:
    width: int = identity(4)
    rate: float = identity(0.5)
    gate: bool = identity(False)
    cap: int | None = identity(None)
    slope: float | None = identity(None)
    form: Literal["", "wide", "tall"] = identity("wide")
    words: tuple[str, ...] = identity(())
    pair: tuple[str, float] = identity(("a", 1.0))
    weights: tuple[tuple[str, float], ...] = identity(())
    chunk: int = numerics(64)

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"shape.width={self.width} must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Whole:
    name: str = placement("whole")
    shape: Shape = Shape()
    parts: tuple[Part, ...] = identity(())
    notes: Mapping[str, str] = placement(dataclasses.MISSING)


WHOLE = Whole(parts=(Part(name="a"), Part(name="b", limit=3)), notes={"shape.width": "here"})


# --- leaves and field classes -------------------------------------------------------------------


def test_leaves_are_walked_in_order_through_configs_and_tuples_of_configs():
    paths = [leaf.path for leaf in leaves(WHOLE)]
    assert paths[0] == "name"
    assert paths[1:4] == ["shape.width", "shape.rate", "shape.gate"]
    assert paths[-4:] == ["parts.1.name", "parts.1.limit", "parts.1.where", "notes"]
    kinds = {leaf.path: leaf.kind for leaf in leaves(WHOLE)}
    assert kinds["shape.width"] == "identity"
    assert kinds["shape.chunk"] == "numerics"
    assert kinds["parts.0.where"] == "placement"


def test_a_field_without_a_class_is_our_mistake():
    silent = dataclasses.make_dataclass("Silent", [("size", int)], frozen=True, kw_only=True)
    with pytest.raises(TypeError, match=r"Silent\.size declares no field class"):
        list(leaves(silent(size=1)))


# --- one leaf of another value ------------------------------------------------------------------


def another(leaf: Leaf) -> object:
    """Return a value of the leaf's type that its class may refuse, but that differs."""
    value = leaf.value
    if typing.get_origin(leaf.annotation) is Literal:
        return next(option for option in typing.get_args(leaf.annotation) if option != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 2 + 2
    if value is None:
        return 7
    if isinstance(value, tuple):
        return (*value, value[-1] if value else "more")
    if isinstance(value, Mapping):
        return {**value, "more": "more"}
    return "e" * 64 if leaf.path.endswith("sha256") else f"{value}more"


def put(config: object, path: str, value: object) -> object:
    """As `replace`, but past every check: some single changes make no sense by themselves."""
    head, _, rest = path.partition(".")
    if isinstance(config, tuple):
        at = int(head)
        return (*config[:at], put(config[at], rest, value), *config[at + 1 :])
    inner = put(getattr(config, head), rest, value) if rest else value
    made = object.__new__(type(config))
    for field in dataclasses.fields(config):
        object.__setattr__(made, field.name, getattr(config, field.name))
    object.__setattr__(made, head, inner)
    return made


def test_a_changed_leaf_changes_the_fingerprint_exactly_when_it_is_identity():
    config = RECIPES["quickstart"]
    config = put(config, "data.corpus.sources", config.data.corpus.sources[-1:])
    before = {kind: fingerprint(config, (kind,)) for kind in KINDS}
    for leaf in leaves(config):
        changed = put(config, leaf.path, another(leaf))
        assert [d.path for d in diff(config, changed)] == [leaf.path]
        altered = [kind for kind in KINDS if fingerprint(changed, (kind,)) != before[kind]]
        assert altered == [leaf.kind], leaf.path
    assert fingerprint(config) == before["identity"]


def test_the_classes_of_a_run_are_what_they_are_for():
    kinds = {leaf.path: leaf.kind for leaf in leaves(RECIPES["quickstart"])}
    for path in (
        "model.embed_dim", "optimizer.muon_lr", "train.seed", "train.num_steps", "data.seed",
        "data.corpus.sources.0.archive.sha256", "data.corpus.tokenizer.vocab_size",
    ):  # fmt: skip
        assert kinds[path] == "identity", path
    for path in ("model.remat", "model.compute_dtype", "train.accumulation", "model.layer_loop"):
        assert kinds[path] == "numerics", path
    for path in ("name", "notes", "train.checkpoint_every_steps", "data.corpus.sources.0.origin"):
        assert kinds[path] == "placement", path


def test_fingerprints_do_not_depend_on_the_order_of_declaration_or_on_python_types():
    again = from_plain(Whole, json.loads(json.dumps(plain(WHOLE))))
    assert fingerprint(again) == fingerprint(WHOLE)
    turned = dataclasses.make_dataclass(
        "Turned",
        [("limit", int, identity(0)), ("name", str, identity())],
        frozen=True,
        kw_only=True,
    )
    assert fingerprint(turned(name="a")) == fingerprint(Part(name="a"))


def test_the_order_of_sources_is_part_of_what_a_run_is():
    swapped = dataclasses.replace(WHOLE, parts=WHOLE.parts[::-1])
    assert fingerprint(swapped) != fingerprint(WHOLE)


# --- plain and back -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_written_as_json_and_read_again_is_equal(name):
    text = json.dumps(plain(RECIPES[name]), allow_nan=False)
    assert from_plain(Config, json.loads(text)) == RECIPES[name]


@settings(deadline=None, max_examples=60)
@given(
    width=st.integers(1, 10**9),
    rate=st.floats(allow_nan=False, allow_infinity=False),
    cap=st.none() | st.integers(),
    slope=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    words=st.lists(st.text(), max_size=3).map(tuple),
    weights=st.lists(st.tuples(st.text(), st.floats(-1, 1)), max_size=3).map(tuple),
)
def test_any_config_survives_json(**values):
    shape = Shape(**values)
    again = from_plain(Shape, json.loads(json.dumps(plain(shape), allow_nan=False)))
    assert again == shape
    assert fingerprint(again) == fingerprint(shape)
    given_as_text = override(
        Shape(), [f"{leaf.path}={json.dumps(plain(leaf.value))}" for leaf in leaves(shape)
                  if not isinstance(leaf.value, str)],
    )  # fmt: skip
    assert given_as_text == shape


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"widht": 3}, r"Shape has no setting 'widht'; did you mean 'width'\?"),
        ({"zzz": 3}, r"Shape has no setting 'zzz'$"),
        ({"width": "3"}, r"Shape\.width: '3' is not a whole number"),
        ({"pair": ["a"]}, r"Shape\.pair: .* needs 2 items"),
        ({"rate": math.inf}, r"Shape\.rate: inf is not a number"),
        ({"width": 0}, "must be at least 1"),
    ],
)
def test_a_wrong_key_or_value_is_refused_by_name(values, says):
    with pytest.raises(ValueError, match=says):
        from_plain(Shape, values)


def test_a_missing_key_without_default_is_refused_by_name():
    with pytest.raises(ValueError, match=r"Part\.name is missing; add it"):
        from_plain(Part, {"limit": 1})
    assert from_plain(Part, {"name": "a"}) == Part(name="a")


# --- replace ------------------------------------------------------------------------------------


def test_replace_changes_one_value_and_shares_the_rest():
    changed = replace(WHOLE, "parts.1.limit", 9)
    assert changed.parts[1] == Part(name="b", limit=9)
    assert changed.parts[0] is WHOLE.parts[0]
    assert changed.shape is WHOLE.shape
    assert WHOLE.parts[1].limit == 3


def test_replace_takes_a_whole_group_of_the_same_class():
    assert replace(WHOLE, "shape", Shape(width=8)).shape.width == 8
    assert replace(WHOLE, "parts.0", Part(name="c")).parts[0].name == "c"
    assert replace(WHOLE, "parts", (Part(name="c"),)).parts == (Part(name="c"),)


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("shape.widht", "shape.width"),
        ("shap.width", "shape.width"),
        ("width", "shape.width"),
        ("parts.0.limt", "parts.0.limit"),
        ("parts.7.limit", r"parts\.[01]\.limit"),
        ("shape.width.more", "shape.width"),
    ],
)
def test_an_unknown_path_is_refused_with_the_nearest(path, nearest):
    with pytest.raises(ValueError, match=rf"unknown setting '{path}'; nearest: .*{nearest}"):
        replace(WHOLE, path, 1)
    with pytest.raises(ValueError, match=rf"unknown setting '{path}'; nearest: .*{nearest}"):
        override(WHOLE, [f"{path}=1"])


@pytest.mark.parametrize("path", ["", ".", "qqqqqqq", "parts.-1.limit", "parts.²", "__class__"])
def test_nonsense_is_an_unknown_path(path):
    with pytest.raises(ValueError, match="unknown setting"):
        replace(WHOLE, path, 1)


def test_what_resembles_nothing_says_where_all_paths_are_listed():
    with pytest.raises(ValueError, match="`shoal show RECIPE` lists every path"):
        replace(WHOLE, "qqqqqqq", 1)


@pytest.mark.parametrize(
    ("path", "example"),
    [("shape", "shape.width"), ("parts", "parts.0.name"), ("parts.1", "parts.1.name")],
)
def test_a_group_is_refused_with_one_of_its_values(path, example):
    with pytest.raises(ValueError, match=rf"{path} is a group of settings; .*, as {example}$"):
        override(WHOLE, [f"{path}=1"])


def test_a_group_of_groups_is_refused_with_a_value_that_can_be_set():
    with pytest.raises(ValueError, match=r"as data\.corpus\.name$"):
        override(RECIPES["quickstart"], ["data=1"])


# --- override -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("assignment", "path", "value"),
    [
        ("shape.width=8", "shape.width", 8),
        (" shape.width = 8 ", "shape.width", 8),
        ("shape.width=1_000", "shape.width", 1000),
        ("shape.chunk=-3", "shape.chunk", -3),
        ("shape.rate=1", "shape.rate", 1.0),
        ("shape.rate=1e-3", "shape.rate", 0.001),
        ("shape.rate=-2.5", "shape.rate", -2.5),
        ("shape.gate=true", "shape.gate", True),
        ("shape.gate=True", "shape.gate", True),
        ("shape.gate=false", "shape.gate", False),
        ("shape.cap=3", "shape.cap", 3),
        ("shape.cap=none", "shape.cap", None),
        ("shape.cap=None", "shape.cap", None),
        ("shape.cap=null", "shape.cap", None),
        ("shape.slope=2", "shape.slope", 2.0),
        ("shape.slope=0.25", "shape.slope", 0.25),
        ("shape.form=tall", "shape.form", "tall"),
        ('shape.form="tall"', "shape.form", "tall"),
        ("shape.form=", "shape.form", ""),
        ('shape.words=["a", "b=c"]', "shape.words", ("a", "b=c")),
        ("shape.words=[]", "shape.words", ()),
        ('shape.pair=["b", 2]', "shape.pair", ("b", 2.0)),
        ('shape.weights=[["a", 1], ["b", 0.5]]', "shape.weights", (("a", 1.0), ("b", 0.5))),
        ("parts.1.limit=5", "parts.1.limit", 5),
        ("parts.0.name=true", "parts.0.name", "true"),
        ("parts.0.name=5", "parts.0.name", "5"),
        ("name=a=b", "name", "a=b"),
        ('notes={"a": "b"}', "notes", {"a": "b"}),
    ],
)  # fmt: skip
def test_text_is_read_as_the_type_of_its_field(assignment, path, value):
    changed = override(WHOLE, [assignment])
    found = next(leaf.value for leaf in leaves(changed) if leaf.path == path)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("shape.width=many", "shape.width=many is not a whole number"),
        ("shape.width=1.5", "shape.width=1.5 is not a whole number"),
        ("shape.width=1e3", "is not a whole number"),
        ("shape.width=true", "is not a whole number"),
        ("shape.width=", "shape.width= is not a whole number"),
        ("shape.width=none", "is not a whole number"),
        ("shape.rate=fast", "is not a number"),
        ("shape.rate=true", "is not a number"),
        ("shape.rate=nan", "is not a number"),
        ("shape.rate=NaN", "is not a number"),
        ("shape.rate=-Infinity", "is not a number"),
        ("shape.rate=1e999", "is not a number"),
        ("shape.gate=1", "is not true or false"),
        ("shape.gate=yes", "is not true or false"),
        ("shape.cap=1.5", "is not a whole number or none"),
        ("shape.slope=x", "is not a number or none"),
        ("shape.form=flat", "is not one of .*wide, tall"),
        ("shape.words=a", "in JSON; give a value of that type"),
        ('shape.words=["a", 1]', "in JSON; give a value of that type"),
        ('shape.words={"a": 1}', "in JSON; give a value of that type"),
        ('shape.pair=["a", 1, 2]', "in JSON; give a value of that type"),
        ("notes=3", "in JSON; give a value of that type"),
        ("shape.width=0", "must be at least 1"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_the_right_one(assignment, says):
    with pytest.raises(ValueError, match=says):
        override(WHOLE, [assignment])


@pytest.mark.parametrize("assignment", ["shape.width", "=3", "", " =3"])
def test_what_is_no_assignment_is_refused_with_an_example(assignment):
    with pytest.raises(ValueError, match=r"is not PATH=VALUE; .*--set train\.seed=1"):
        override(WHOLE, [assignment])


def test_of_two_assignments_the_later_holds():
    assert override(WHOLE, ["shape.width=2", "shape.width=3"]).shape.width == 3


def test_a_number_is_never_rounded_or_guessed():
    assert coerce(2**53 + 1, int) == 2**53 + 1
    for value, annotation in ((1.0, int), (True, int), ("1", float), (None, int), (0, bool)):
        with pytest.raises(ValueError, match="is not"):
            coerce(value, annotation)


def test_every_value_of_a_recipe_can_be_given_as_text():
    config = RECIPES["quickstart"]
    given_as_text = []
    for leaf in leaves(config):
        if ".sources." not in leaf.path or ".sources.0." in leaf.path:
            text = leaf.value if isinstance(leaf.value, str) else json.dumps(plain(leaf.value))
            given_as_text.append(f"{leaf.path}={text}")
    assert override(config, given_as_text) == config


# --- diff ---------------------------------------------------------------------------------------


def test_equal_configs_do_not_differ():
    assert diff(WHOLE, from_plain(Whole, plain(WHOLE))) == []


def test_a_difference_names_both_values_and_the_class():
    changed = override(WHOLE, ["shape.chunk=32", "parts.0.where=there", "shape.rate=0.25"])
    found = [(d.path, d.before, d.after, d.kind) for d in diff(WHOLE, changed)]
    assert found == [
        ("parts.0.where", "", "there", "placement"),
        ("shape.chunk", 64, 32, "numerics"),
        ("shape.rate", 0.5, 0.25, "identity"),
    ]


def test_a_source_more_or_less_differs_in_each_of_its_values():
    fewer = dataclasses.replace(WHOLE, parts=WHOLE.parts[:1])
    for before, after, side in ((WHOLE, fewer, "after"), (fewer, WHOLE, "before")):
        found = {d.path: d for d in diff(before, after)}
        assert set(found) == {"parts.1.name", "parts.1.limit", "parts.1.where"}
        assert all(getattr(d, side) is None for d in found.values())
    assert found["parts.1.name"].kind == "identity"
