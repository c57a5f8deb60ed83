import dataclasses

import pytest

from shoal.model.config import ModelConfig

SIZES = {
    "vocab_size": 64,
    "num_layers": 6,
    "embed_dim": 16,
    "num_heads": 4,
    "kv_heads_local": 2,
    "kv_heads_global": 1,
    "num_experts": 8,
    "top_k": 2,
    "expert_dim": 8,
    "latent_dim": 8,
    "shared_dim": 8,
}


def test_every_constant_is_the_recipes():
    constants = {
        "head_dim": 128,
        "num_shared": 2,
        "gate_rank": 128,
        "conv_taps": 4,
        "window": 2048,
        "global_every": 4,
        "rotary_dim": 64,
        "rope_theta": 10_000.0,
        "qk_scale": 1.3,
        "qk_scale_log": 0.1,
        "base_context": 4096,
        "norm_eps": 1e-5,
        "qk_norm_eps": 1e-6,
        "routed_scale": 2.5,
        "z_loss": 1e-4,
        "init_scale": 0.5,
        "balance_bins": 10_000,
    }
    config = ModelConfig(**SIZES)
    assert {name: getattr(config, name) for name in constants} == constants
    assert config.stored_global == 1
    assert not config.router_round_bf16
    assert not config.rotary_global


@pytest.mark.parametrize(
    ("num_layers", "global_layers"),
    [(1, [0]), (4, [3]), (5, [3, 4]), (6, [3, 5]), (8, [3, 7]), (14, [3, 7, 11, 13])],
)
def test_every_fourth_layer_and_the_last_are_global(num_layers, global_layers):
    config = ModelConfig(**{**SIZES, "num_layers": num_layers})
    found = [i for i, kind in enumerate(config.layer_kinds) if kind == "global"]
    assert found == global_layers


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "num_layers=0"),
        ({"kv_heads_local": 3}, r"kv_heads_local=3.*\[1, 2, 4\]"),
        ({"kv_heads_stored_global": 1, "kv_heads_global": 2}, "kv_heads_stored_global=1"),
        ({"latent_dim": 0}, "latent_dim=0.*none"),
        ({"top_k": 8}, "top_k=8.*num_experts=8"),
        ({"rotary_dim": 7}, "rotary_dim=7"),
        ({"rotary_dim": 256}, "rotary_dim=256.*head_dim=128"),
    ],
)
def test_a_shape_that_cannot_be_is_refused_with_the_number_and_the_remedy(change, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**{**SIZES, **change})


def test_a_config_cannot_be_changed_in_place():
    config = ModelConfig(**SIZES)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.top_k = 3
