"""Float64 numpy oracles, one naive loop each, written from the recipe and not from the code.

Dimension letters are the project's: B batch, S sequence, D model, L latent, F ffn, N query heads,
M kv heads, H head dim, E experts, K top-k, V vocab, R rank of a gated norm.
"""
