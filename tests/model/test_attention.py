from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import attention as oracle
from oracles import layers as oracle_layers
from oracles.bridge import FLOAT32, assert_near, assert_slopes, model_config, quick_jit
from oracles.shape import Shape, packed_segments, random_params
from shoal.model import attention as code
from shoal.model.layers import same_segment

LENGTH = 13
SEGMENTS = packed_segments([[LENGTH, 0], [6, 7]])
QUIRK = Shape(stored_global_kv_heads=2)
LOCAL, GLOBAL = 0, 3
CASES = {
    "local": (Shape(), LOCAL),
    "global": (Shape(), GLOBAL),
    "global with stored heads that nobody reads": (QUIRK, GLOBAL),
}


def inputs_of(shape, layer):
    params = random_params(shape, 7)["layers"][layer]["attn"]
    rng = np.random.default_rng(8)
    x, mix = rng.normal(size=(2, 2, LENGTH, shape.width))
    return {**params, "x": x, "mix": mix}


def oracle_attention(tree, shape, layer):
    rows = zip(tree["x"], SEGMENTS, strict=True)
    run = partial(oracle.attention, params=tree, shape=shape, is_global=layer == GLOBAL)
    return np.stack([run(x, segments=segments) for x, segments in rows])


def code_attention(tree, shape, layer, **changes):
    config = model_config(shape, LENGTH, **changes)
    names = ("w_q", "w_k", "w_v", "w_o", "conv_k", "head_gate")
    segments = jnp.asarray(SEGMENTS)
    return code.attention(
        code.Attention(*(tree[name] for name in names)),
        tree["x"],
        segments,
        same_segment(segments, shape.conv_taps),
        config,
        kind="global" if layer == GLOBAL else "local",
        context=LENGTH,
    )


def as_float32(tree):
    return {key: jnp.asarray(value, jnp.float32) for key, value in tree.items()}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    shape, layer = CASES[request.param]
    inputs = inputs_of(shape, layer)
    return shape, layer, inputs, oracle_attention(inputs, shape, layer)


@pytest.mark.parametrize("chunk", [4, 64])
def test_attention_equals_the_oracle_whatever_the_chunk(case, chunk):
    shape, layer, inputs, expected = case
    run = quick_jit(partial(code_attention, shape=shape, layer=layer, attention_chunk=chunk))
    assert_near(run(as_float32(inputs)), expected, FLOAT32)


@pytest.mark.parametrize("chunk", [1, 5])
def test_chunks_in_a_loop_equal_the_oracle(case, chunk, monkeypatch):
    shape, layer, inputs, expected = case
    monkeypatch.setattr(code, "_MAX_STATIC_CHUNKS", 0)
    run = quick_jit(partial(code_attention, shape=shape, layer=layer, attention_chunk=chunk))
    assert_near(run(as_float32(inputs)), expected, FLOAT32)


@pytest.mark.parametrize("looped", [False, True])
@pytest.mark.parametrize("name", ["local", "global with stored heads that nobody reads"])
def test_attention_gradients_equal_finite_differences(name, looped, monkeypatch):
    shape, layer = CASES[name]
    inputs = inputs_of(shape, layer)
    if looped:
        monkeypatch.setattr(code, "_MAX_STATIC_CHUNKS", 0)
    with jax.enable_x64(True):
        tree = {key: jnp.asarray(value) for key, value in inputs.items()}
        run = partial(code_attention, shape=shape, layer=layer)
        found = quick_jit(jax.grad(lambda t: jnp.sum(t["mix"] * run(t))))(tree)
        del found["mix"]
        # Rotation angles are float32 in any mode; everything else is float64 here.
        assert_slopes(
            lambda t: float(np.sum(t["mix"] * oracle_attention(t, shape, layer))),
            inputs,
            found,
            tolerance=1e-5,
        )
    if shape is QUIRK:
        for leaf in ("w_k", "w_v"):
            assert not np.any(np.asarray(found[leaf])[:, shape.head_dim :])
            assert np.any(np.asarray(found[leaf])[:, : shape.head_dim])


@pytest.mark.parametrize("window", [1, 4, 5, 100])
def test_a_window_reads_exactly_the_last_keys(window):
    """Values are one-hot in their position, so the output shows which keys were read."""
    rng = np.random.default_rng(0)
    q, k = jnp.asarray(rng.normal(size=(2, 1, LENGTH, 1, LENGTH)), jnp.float32)
    v = jnp.eye(LENGTH)[None, :, None, :]
    segments = jnp.zeros((1, LENGTH), jnp.int32)
    run = quick_jit(partial(code.attend, window=window, chunk=4))
    y = np.asarray(run(q, k, v, segments))[0, :, 0]
    lag = np.arange(LENGTH)[:, None] - np.arange(LENGTH)[None, :]
    np.testing.assert_array_equal(y > 0, (lag >= 0) & (lag < window))
    np.testing.assert_allclose(y.sum(axis=1), 1.0, rtol=1e-6)


@pytest.mark.parametrize("looped", [False, True])
def test_nothing_outside_the_document_is_read(looped, monkeypatch):
    if looped:
        monkeypatch.setattr(code, "_MAX_STATIC_CHUNKS", 0)
    q = k = jnp.ones((2, LENGTH, 1, LENGTH))
    v = jnp.broadcast_to(jnp.eye(LENGTH)[None, :, None, :], q.shape)
    run = quick_jit(partial(code.attend, window=None, chunk=4))
    y = run(q, k, v, jnp.asarray(SEGMENTS))
    causal = np.tril(np.ones((LENGTH, LENGTH), bool))
    expected = causal & (SEGMENTS[:, :, None] == SEGMENTS[:, None, :])
    np.testing.assert_array_equal(np.asarray(y)[:, :, 0] > 0, expected)


def test_rotation_equals_the_oracle_and_leaves_the_second_half():
    x = np.random.default_rng(0).normal(size=(1, 40, 2, 16))
    found = code.rotate(jnp.asarray(x, jnp.float32), 8, 10_000.0)
    expected = np.stack(
        [
            [oracle_layers.rotate_half_of_dims(head, t, 10_000.0) for head in x[0, t]]
            for t in range(40)
        ]
    )
    assert_near(found[0], expected, FLOAT32)
    np.testing.assert_array_equal(found[..., 8:], jnp.asarray(x[..., 8:], jnp.float32))


def test_scores_of_ten_thousand_stay_finite_in_value_and_gradient():
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(3, 2, LENGTH, 2, 4))
    q = 1e4 * q
    expected = np.stack(
        [
            np.stack(
                [
                    oracle.attend(2.0 * q[b, :, h], k[b, :, h], v[b, :, h], SEGMENTS[b], None)
                    for h in range(2)
                ],
                axis=1,
            )
            for b in range(2)
        ]
    )

    def run(q, k, v):
        return code.attend(q, k, v, jnp.asarray(SEGMENTS), window=None, chunk=4)

    args = [jnp.asarray(a, jnp.float32) for a in (q, k, v)]
    assert_near(quick_jit(run)(*args), expected, 1e-3)
    slopes = quick_jit(jax.grad(lambda *a: jnp.sum(run(*a)), argnums=(0, 1, 2)))(*args)
    assert all(np.isfinite(slope).all() for slope in slopes)


def test_the_query_scale_follows_the_context_rule():
    config = model_config(Shape(), 4096)
    for tokens in (4096, 8192, 16_384, 65_536, 262_144):
        expected = oracle.context_qk_scale(tokens)
        assert config.query_scale(tokens) == pytest.approx(expected, rel=1e-12)


def test_the_context_sets_the_scale_and_not_the_length_of_the_input():
    shape = Shape()
    tree = as_float32(inputs_of(shape, GLOBAL))
    longer = model_config(shape, 4096)
    assert longer.base_context != LENGTH
    fixed = model_config(shape, LENGTH, qk_scale=longer.query_scale(LENGTH))
    found = quick_jit(partial(code_attention, shape=shape, layer=GLOBAL, base_context=4096))(tree)
    run = partial(code_attention, shape=shape, layer=GLOBAL, qk_scale=fixed.qk_scale)
    assert_near(found, quick_jit(run)(tree), 1e-6)


def test_zero_values_leave_the_exclusion_of_self_finite():
    y, v = jnp.ones((1, 2, 2, 4)), jnp.zeros((1, 2, 1, 4))
    run = quick_jit(
        jax.value_and_grad(lambda y, v: jnp.sum(code.exclude_self(y, v)), argnums=(0, 1))
    )
    value, slopes = run(y, v)
    assert value == 16.0
    assert all(np.isfinite(slope).all() for slope in slopes)


@pytest.mark.parametrize("window", [None, 5])
def test_the_fused_call_computes_what_the_chunked_form_computes(window):
    """Packed documents, grouped heads, both spans, values and gradients, in float32.

    cuDNN itself needs a GPU.
    """
    rng = np.random.default_rng(4)
    q, k, v, mix = (jnp.asarray(rng.normal(size=(2, 16, n, 8)), jnp.float32) for n in (4, 2, 2, 4))
    segments = jnp.asarray(np.cumsum(rng.random((2, 16)) < 0.2, axis=1), jnp.int32)
    forms = (
        partial(code.attend, segments=segments, window=window, chunk=4),
        partial(code.kernel_attend, segments=segments, window=window, implementation="xla"),
    )
    found = [
        quick_jit(jax.value_and_grad(lambda *a, f=f: jnp.sum(f(*a) * mix), argnums=(0, 1, 2)))(
            q, k, v
        )
        for f in forms
    ]
    for one, other in zip(jax.tree.leaves(found[0]), jax.tree.leaves(found[1]), strict=True):
        assert_near(other, np.asarray(one), FLOAT32)


def test_the_kernel_is_taken_on_a_gpu_in_bfloat16_alone(monkeypatch):
    low = model_config(Shape(), 16, compute_dtype="bfloat16")
    wide = model_config(Shape(), 16)
    assert code.attention_kind(low) == code.attention_kind(wide) == "chunks"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert (code.attention_kind(low), code.attention_kind(wide)) == ("kernel", "chunks")
    with pytest.raises(ValueError, match="computes in bfloat16, not float32"):
        model_config(Shape(), 16, attention="kernel")
