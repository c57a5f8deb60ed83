"""Counts against the published figures, and against formulas written out a second time."""

import dataclasses
import json
from importlib import resources

import pytest

from shoal.model import count
from shoal.model.config import ModelConfig

RUNGS = json.loads((resources.files("shoal") / "recipes" / "published.json").read_text())["rungs"]


def published_model(name: str) -> ModelConfig:
    row = RUNGS[name]
    width = row["embed_dim"]
    shape = {key: row[key] for key in ("num_layers", "embed_dim", "num_heads")}
    heads = {key: row[key] for key in ("kv_heads_local", "kv_heads_global")}
    half = dict.fromkeys(("expert_dim", "latent_dim", "shared_dim"), width // 2)
    return ModelConfig(
        vocab_size=128_256,
        kv_heads_stored_global=row["kv_heads_local"],
        num_experts=384,
        top_k=8,
        **shape,
        **heads,
        **half,
    )


# Every dimension differs from every other, so that no two can be mistaken for each other.
ODD = ModelConfig(
    vocab_size=101,
    num_layers=6,
    embed_dim=32,
    num_heads=12,
    head_dim=4,
    kv_heads_local=6,
    kv_heads_global=2,
    kv_heads_stored_global=3,
    num_experts=11,
    top_k=5,
    expert_dim=13,
    latent_dim=17,
    num_shared=7,
    shared_dim=19,
    gate_rank=8,
    conv_taps=9,
    rotary_dim=2,
)


def tensors_by_hand(m: ModelConfig) -> int:
    gated_norm = m.embed_dim + 2 * m.embed_dim * m.gate_rank
    total = 2 * m.vocab_size * m.embed_dim + 2 * gated_norm
    for layer in range(m.num_layers):
        is_global = layer % 4 == 3 or layer == m.num_layers - 1
        kv = (m.kv_heads_stored_global if is_global else m.kv_heads_local) * m.head_dim
        query = m.num_heads * m.head_dim
        attention = 2 * m.embed_dim * query + 2 * m.embed_dim * kv
        attention += m.conv_taps * kv + m.embed_dim * m.num_heads
        router = m.embed_dim * m.num_experts + m.num_experts
        latent = (2 * m.embed_dim + 1) * (m.latent_dim or 0)
        experts = 3 * m.num_experts * (m.latent_dim or m.embed_dim) * m.expert_dim
        shared = 3 * m.num_shared * m.embed_dim * m.shared_dim
        total += attention + router + latent + experts + shared
        total += 2 * gated_norm + 2 * m.conv_taps * m.embed_dim
    return total


def flops_by_hand(m: ModelConfig, context: int) -> int:
    multiply_adds = m.embed_dim * m.vocab_size
    softmax = 0
    for layer in range(m.num_layers):
        is_global = layer % 4 == 3 or layer == m.num_layers - 1
        kv_heads = m.kv_heads_global if is_global else m.kv_heads_local
        span = context if is_global else min(context, m.window)
        multiply_adds += 2 * m.embed_dim * m.num_heads * m.head_dim
        multiply_adds += 2 * m.embed_dim * kv_heads * m.head_dim
        multiply_adds += 2 * span * m.num_heads * m.head_dim
        multiply_adds += m.embed_dim * m.num_experts + 2 * m.embed_dim * (m.latent_dim or 0)
        multiply_adds += 3 * m.num_shared * m.embed_dim * m.shared_dim
        multiply_adds += 3 * m.top_k * (m.latent_dim or m.embed_dim) * m.expert_dim
        softmax += 3 * span * m.num_heads
    return 3 * (2 * multiply_adds + softmax)


@pytest.mark.parametrize("name", RUNGS)
def test_parameters_equal_the_published_counts_to_the_last_digit(name):
    row, model = RUNGS[name], published_model(name)
    assert count.num_active(model) == row["active_parameters"]
    assert count.num_published_total(model) == row["published_total_parameters"]
    assert count.num_tensors(model) == row["all_tensor_parameters"]
    assert tensors_by_hand(model) == row["all_tensor_parameters"]


@pytest.mark.parametrize("stored", [None, 2, 3, 6])
def test_declared_weights_add_up_to_the_formula(stored):
    model = dataclasses.replace(ODD, kv_heads_stored_global=stored)
    by_hand = dataclasses.replace(ODD, kv_heads_stored_global=stored or ODD.kv_heads_global)
    assert count.num_tensors(model) == tensors_by_hand(by_hand)


def test_experts_without_a_latent_count_at_full_width_and_without_projections():
    model = dataclasses.replace(ODD, latent_dim=None)
    assert count.num_tensors(model) == tensors_by_hand(model)
    assert count.flops_per_token(model, 7) == flops_by_hand(model, 7)
    assert count.num_active(ODD) != count.num_active(model)


@pytest.mark.parametrize("name", RUNGS)
@pytest.mark.parametrize(
    ("key", "head", "digits"), [("flops", True, 2), ("flops_without_head", False, 4)]
)
def test_flops_of_the_whole_run_agree_to_the_printed_digits(name, key, head, digits):
    row = RUNGS[name]
    per_token = count.flops_per_token(
        published_model(name), row["sequence_tokens"], head=head, published=True
    )
    tokens = row["steps"] * row["batch_sequences"] * row["sequence_tokens"]
    assert float(f"{per_token * tokens:.{digits - 1}e}") == row[key]


def test_flagship_flops_per_token_are_the_published_ones():
    model = published_model("flagship")
    assert count.flops_per_token(model, 4096) == 149_736_259_584
    assert count.flops_per_token(model, 4096, published=True) == 149_736_259_584


def test_the_published_form_misses_the_last_global_layer_of_d2048():
    model = published_model("d2048")
    missed = count.flops_per_token(model, 4096) - count.flops_per_token(model, 4096, published=True)
    span = 3 * (4096 - 2048) * 16 * (4 * 128 + 3)
    fewer_kv_heads = 3 * 2 * 2 * 2048 * (4 - 2) * 128
    assert missed == span - fewer_kv_heads


@pytest.mark.parametrize("context", [1024, 2048, 16_384])
def test_flops_are_the_sum_over_layers_written_out(context):
    for model in (ODD, published_model("d2048")):
        assert count.flops_per_token(model, context) == flops_by_hand(model, context)


def test_unused_stored_heads_cost_parameters_but_no_flops():
    lean = dataclasses.replace(published_model("flagship"), kv_heads_stored_global=6)
    full = published_model("flagship")
    dead = 12 * 2 * 6144 * 6 * 128
    assert count.num_active(full) - count.num_active(lean) == dead
    assert count.num_tensors(full) - count.num_tensors(lean) == dead + 12 * 4 * 6 * 128
    assert count.flops_per_token(full, 4096) == count.flops_per_token(lean, 4096)
