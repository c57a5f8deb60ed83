import hashlib
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from shoal.data.load import Batch, TokenStore, batch_at
from shoal.data.order import Order, Phase

UNIT = 24
EOS = 0
WEIGHTS = (("web", 0.5), ("code", 0.3), ("law", 0.2))
STREAMS = {"web": (11, 5), "code": (5, 0), "law": (3, 23), "tiny": (0, 7)}


def write_store(
    folder: Path,
    streams: dict[str, np.ndarray],
    *,
    dtype: str = "uint16",
    unit: int = UNIT,
    vocab_size: int = 4096,
) -> None:
    (folder / "cells").mkdir(parents=True)
    cells = {}
    for cell, tokens in streams.items():
        little_endian = {"uint16": "<u2", "uint32": "<u4"}[dtype]
        tokens.astype(little_endian).tofile(folder / "cells" / f"{cell}.bin")
        cells[cell] = {
            "tokens": len(tokens),
            "documents": int((tokens == EOS).sum()),
            "units": len(tokens) // unit,
            "tail_tokens": len(tokens) % unit,
        }
    facts = {"dtype": dtype, "eos": EOS, "vocab_size": vocab_size, "unit_tokens": unit}
    (folder / "store.json").write_text(json.dumps({**facts, "cells": cells}))


def documents(cell: str, num_tokens: int) -> np.ndarray:
    """Documents of 1 to 17 tokens, each followed by EOS; token values tell cell and place."""
    lengths = {"web": [3, 17, 1, 8], "code": [9, 2], "law": [30], "tiny": [2]}[cell]
    base = 1 + 700 * sorted(STREAMS).index(cell)
    stream, turn = [], 0
    while len(stream) < num_tokens:
        stream += [base + len(stream) + n for n in range(lengths[turn % len(lengths)])] + [EOS]
        turn += 1
    return np.array([*stream[: num_tokens - 1], EOS])


def streams() -> dict[str, np.ndarray]:
    return {cell: documents(cell, units * UNIT + tail) for cell, (units, tail) in STREAMS.items()}


@pytest.fixture
def store(tmp_path) -> TokenStore:
    write_store(tmp_path / "store", streams())
    return TokenStore.open(tmp_path / "store")


def plan(
    store: TokenStore,
    *changes: tuple[int, int, tuple],
    sequence: int = 8,
    batch: int = 6,
    weights: tuple = WEIGHTS,
) -> Order:
    first = Phase(start_step=0, batch_sequences=batch, sequence_tokens=sequence, weights=weights)
    later = [
        Phase(start_step=start, batch_sequences=48 // size, sequence_tokens=size, weights=mix)
        for start, size, mix in changes
    ]
    return Order(
        phases=(first, *later), units=store.units, unit_tokens=UNIT, seed=3, table_lanes=10
    )


def digest(batch: Batch) -> str:
    """Of values and shapes, little-endian."""
    found = hashlib.sha256()
    for array in batch:
        found.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
    return found.hexdigest()


def test_a_store_opens_with_the_facts_that_an_order_needs(store):
    assert store.units == {"web": 11, "code": 5, "law": 3, "tiny": 0}
    assert (store.eos, store.vocab_size, store.unit_tokens) == (EOS, 4096, UNIT)
    assert not store.streams["web"].flags.writeable


def test_shapes_and_types_are_fixed(store):
    batch = batch_at(store, plan(store), 0)
    assert [array.shape for array in batch] == [(6, 8)] * 4
    assert [array.dtype.name for array in batch] == ["int32", "int32", "int32", "float32"]
    assert batch.weights.min() == batch.weights.max() == 1.0


def test_every_token_is_a_target_once_per_epoch(store):
    order = plan(store, (6, 4, WEIGHTS), (12, 8, (("web", 0.8), ("law", 0.2))), (21, 24, WEIGHTS))
    seen: Counter[tuple[str, int, int]] = Counter()
    for step in range(33):
        batch = batch_at(store, order, step)
        size = batch.targets.shape[1]
        for row, targets in enumerate(batch.targets):
            where = order.locate(step, row)
            start = where.unit * UNIT + where.slice * size
            assert np.array_equal(targets, store.streams[where.cell][start : start + size])
            seen.update((where.cell, where.epoch, start + n) for n in range(size))
    assert set(seen.values()) == {1}
    consumed = order.consumed(33)
    for cell, units in consumed.items():
        for epoch in range(units // store.units[cell] if units else 0):
            assert {place for c, e, place in seen if (c, e) == (cell, epoch)} == set(
                range(store.units[cell] * UNIT)
            )
    assert len(seen) == sum(consumed.values()) * UNIT


def test_an_input_is_the_token_before_its_target_in_the_stream(store):
    order = plan(store)
    starts = set()
    for step in range(30):
        batch = batch_at(store, order, step)
        for row in range(6):
            where = order.locate(step, row)
            start = where.unit * UNIT + where.slice * 8
            starts.add(start)
            before = np.concatenate([[EOS], store.streams[where.cell]])
            assert np.array_equal(batch.inputs[row], before[start : start + 8])
    assert 0 in starts
    assert UNIT in starts


def test_a_segment_is_what_one_document_has_in_a_row(store):
    order = plan(store)
    for step in range(30):
        batch = batch_at(store, order, step)
        for row in range(6):
            where = order.locate(step, row)
            stream = store.streams[where.cell]
            # The document of each token: the number of EOS before it.
            document = np.cumsum(stream == EOS) - (stream == EOS)
            start = where.unit * UNIT + where.slice * 8
            expected = document[start : start + 8] - document[start]
            assert np.array_equal(batch.segments[row], expected)


def test_segments_start_at_zero_and_restart_exactly_where_the_input_is_eos(store):
    order = plan(store)
    cuts = 0
    for step in range(30):
        batch = batch_at(store, order, step)
        assert (batch.segments[:, 0] == 0).all()
        restarts = np.diff(batch.segments, axis=1)
        assert np.array_equal(restarts, batch.inputs[:, 1:] == EOS)
        cuts += int(restarts.sum())
    assert cuts > 100


def test_the_batch_is_a_function_of_the_step_alone(store, tmp_path):
    forward = [digest(batch_at(store, plan(store), step)) for step in range(12)]
    for step in (11, 3, 7, 3):
        again = TokenStore.open(tmp_path / "store")
        assert digest(batch_at(again, plan(again), step)) == forward[step]
    assert len(set(forward)) == 12


def test_a_fresh_process_continues_with_the_same_batches(store, tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from shoal.data.load import TokenStore, batch_at\n"
        "from shoal.data.order import Order, Phase\n"
        f"phase = Phase(start_step=0, batch_sequences=6, sequence_tokens=8, weights={WEIGHTS!r})\n"
        "store = TokenStore.open(Path(sys.argv[1]))\n"
        "order = Order(\n"
        "    phases=(phase,), units=store.units, unit_tokens=24, seed=3, table_lanes=10)\n"
        "for step in (5, 6):\n"
        "    print(*batch_at(store, order, step).inputs.ravel())\n"
        "assert 'jax' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=True,
    )
    expected = [batch_at(store, plan(store), step).inputs.ravel() for step in (5, 6)]
    assert done.stdout == "".join(" ".join(map(str, row)) + "\n" for row in expected)


def test_a_cell_of_weight_zero_keeps_batches_bit_equal(store, tmp_path):
    write_store(tmp_path / "more", {"aaa": documents("web", 99), **streams()})
    more = TokenStore.open(tmp_path / "more")
    for weights in (WEIGHTS, (("aaa", 0.0), *WEIGHTS, ("tiny", 0.0))):
        for step in (0, 1, 29, 1_000_000):
            mine = batch_at(store, plan(store), step)
            assert digest(batch_at(more, plan(more, weights=weights), step)) == digest(mine)


def test_batches_are_golden(store):
    order = plan(store, (6, 4, WEIGHTS), (12, 8, (("web", 0.8), ("law", 0.2))))
    first = batch_at(store, order, 0)
    assert first.inputs[0].tolist() == [724, 725, 726, 727, 728, 729, 730, 0]
    assert first.targets[0].tolist() == [725, 726, 727, 728, 729, 730, 0, 732]
    assert first.segments[0].tolist() == [0, 0, 0, 0, 0, 0, 0, 1]
    assert [digest(batch_at(store, order, step)) for step in (0, 7, 1_000_000)] == [
        "6bac42c72b603c150997039ebcb20a8f6a252365c290f740bbed0cb84ef79faf",
        "272d4714b81d2d508b5fe7b361c048c2f8211b6ff7350663d8f877fad6da3db1",
        "cd293f595e276a6226644af878e7943698df47545cb8f9ca90578b57a4f96dff",
    ]


def test_wide_tokens_read_as_narrow_ones_do(store, tmp_path):
    write_store(tmp_path / "wide", streams(), dtype="uint32", vocab_size=128_256)
    wide = TokenStore.open(tmp_path / "wide")
    assert digest(batch_at(wide, plan(wide), 4)) == digest(batch_at(store, plan(store), 4))


def test_a_batch_takes_under_two_milliseconds(tmp_path):
    rng = np.random.default_rng(0)
    names = ["web", "code", "law", "maths", "drama", "docs"]
    write_store(
        tmp_path / "s", {cell: rng.integers(0, 4096, 4096 * 20) for cell in names}, unit=4096
    )
    store = TokenStore.open(tmp_path / "s")
    first = Phase(
        start_step=0,
        batch_sequences=16,
        sequence_tokens=256,
        weights=tuple((cell, 1.0) for cell in names),
    )
    order = Order(phases=(first,), units=store.units, unit_tokens=4096, seed=0, table_lanes=256)
    best = 1.0
    for step in range(60):
        started = time.process_time()
        batch_at(store, order, step)
        best = min(best, time.process_time() - started)
    assert best < 0.002


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "store.json").unlink(), r"cannot read .*store.json"),
        (lambda f: (f / "store.json").write_text("{"), r"store.json is not a token store"),
        (lambda f: (f / "store.json").write_text("[]"), r"store.json is not a token store"),
        (
            lambda f: edit(f, dtype="int8"),
            r"store.json is not a token store \(KeyError\('int8'\)\)",
        ),
        (lambda f: (f / "cells" / "web.bin").unlink(), r"web.bin is missing; prepare the corpus"),
        (
            lambda f: (f / "cells" / "web.bin").write_bytes(b"xy"),
            r"web.bin has 2 bytes, not 538; prepare the corpus again",
        ),
        (
            lambda f: edit(f, unit_tokens=48),
            r"cell 'web' has 269 tokens, which is not 11 units of 48",
        ),
        (
            lambda f: edit(f, cells={"../web": {"tokens": 0, "units": 0}}),
            r"'../web' is not a cell name",
        ),
    ],
)
def test_a_damaged_store_is_refused_by_name(store, tmp_path, damage, message):
    damage(tmp_path / "store")
    with pytest.raises(ValueError, match=message):
        TokenStore.open(tmp_path / "store")


def edit(folder: Path, **changes: object) -> None:
    path = folder / "store.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(("dtype", "bad"), [("uint16", 4096), ("uint32", 2**32 - 1)])
def test_a_token_outside_the_vocabulary_is_refused_by_file_and_unit(tmp_path, dtype, bad):
    tokens = streams()
    tokens["law"][30] = bad
    write_store(tmp_path / "bad", tokens, dtype=dtype)
    store = TokenStore.open(tmp_path / "bad")
    order = plan(store, weights=(("law", 1.0),))

    def read_all() -> None:
        for step in range(3):
            batch_at(store, order, step)

    with pytest.raises(ValueError, match=r"law.bin: unit 1 holds token id .* vocabulary has 4096"):
        read_all()


def test_a_thinned_store_reads_its_units_only_and_spreads_them_over_the_cell(store):
    thin = store.thinned({"web": 4, "code": 5, "law": 1, "tiny": 0})
    order = plan(thin)
    seen = {cell: set() for cell in thin.units}
    for step in range(40):
        batch = batch_at(thin, order, step)
        found = order.locate_step(step)
        for row, cell in enumerate(found.cell.tolist()):
            name = found.cells[cell]
            stream = store.streams[name]
            place = (
                int(np.flatnonzero(stream == batch.targets[row, -1])[0])
                if (batch.targets[row, -1] != EOS)
                else None
            )
            if place is not None:
                seen[name].add(place // UNIT)
    assert seen == {"web": {0, 2, 5, 8}, "code": {0, 1, 2, 3, 4}, "law": {0}, "tiny": set()}


def test_a_store_thinned_to_all_of_it_gives_the_same_batches(store):
    whole, order = store.thinned(store.units), plan(store)
    for step in range(12):
        for one, two in zip(
            batch_at(store, order, step), batch_at(whole, order, step), strict=True
        ):
            np.testing.assert_array_equal(one, two)
    rows = slice(2, 5)
    thin = store.thinned({"web": 3, "code": 2, "law": 2, "tiny": 0})
    order = plan(thin)
    part, all_rows = batch_at(thin, order, 3, rows), batch_at(thin, order, 3)
    np.testing.assert_array_equal(part.inputs, all_rows.inputs[rows])
