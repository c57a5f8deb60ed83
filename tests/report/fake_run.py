"""A run folder as training would leave it, made of arithmetic: the same on every call."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import numpy as np

from shoal.core import record

NUM_LAYERS, NUM_EXPERTS, TOP_K = 6, 16, 4
STEPS, TOKENS_PER_STEP = 480, 4096
GROUPS = ("muonh", "adamh", "adam")
PROSE = "It was the hour when the boats come in, and the men upon the shore were few and silent."

# name, kind, license, documents, bytes, tokens, duplicates, held out, overlap dropped, tail
SOURCES = (
    ("owt", "web", "CC0-1.0", 941, 621_904, 187_320, 12, 47, 2, 3_000),
    ("wikipedia", "encyclopedia", "CC-BY-SA-3.0", 958, 583_117, 170_118, 3, 48, 0, 1_830),
    ("shakespeare", "drama", "LicenseRef-public-domain", 46, 6_120_331, 1_822_404, 1, 3, 0, 612),
    ("kjv", "scripture", "LicenseRef-public-domain", 1_130, 4_015_220, 1_030_993, 0, 59, 4, 417),
    ("django-docs", "technical docs", "BSD-3-Clause", 640, 6_190_442, 1_650_072, 5, 34, 1, 2_744),
    ("django-py", "application code", "BSD-3-Clause", 2_011, 5_731_990, 1_791_550, 160, 106, 9, 94),
    ("sympy-py", "maths code", "BSD-3-Clause", 702, 7_600_110, 2_870_020, 38, 37, 3, 1_204),
    ("sympy-docs", "maths prose", "BSD-3-Clause", 300, 1_822_345, 533_408, 2, 16, 0, 3_812),
)  # fmt: skip
# name, kind, code, documents, ours at the end, xz, zstd
SETS = {
    "sources": (
        ("owt", "web", False, 47, 2.41, 3.14, 3.19),
        ("wikipedia", "encyclopedia", False, 48, 2.44, 3.10, 3.18),
        ("shakespeare", "drama", False, 3, 2.39, 2.95, 2.99),
        ("django-docs", "technical docs", False, 34, 1.79, 2.08, 2.11),
        ("django-py", "application code", True, 106, 1.90, 1.52, 1.55),
    ),
    "domains": (
        ("c4", "web", False, 50, 2.47, 3.01, 3.05),
        ("openwebtext", "web", False, 50, 2.40, 2.96, 2.98),
        ("oscar", "web", False, 50, 2.52, 3.12, 3.14),
        ("wikipedia", "encyclopedia", False, 50, 2.43, 3.04, 3.06),
        ("english_quotes", "quotations", False, 50, 2.46, 3.32, 3.34),
        ("github-code", "code", True, 50, 3.87, 2.20, 2.26),
    ),
}


class Clock(datetime):
    """Thirty seconds pass between two looks."""

    looks = 0

    @classmethod
    def now(cls, tz=None):
        cls.looks += 1
        return datetime(2026, 11, 3, 9, 0, tzinfo=UTC) + timedelta(seconds=30 * cls.looks)


def config() -> dict:
    return {
        "name": "quickstart",
        "model": {
            "num_layers": NUM_LAYERS,
            "model_dim": 192,
            "latent_dim": 96,
            "num_experts": NUM_EXPERTS,
            "top_k": TOP_K,
            "num_shared_experts": 2,
            "vocab_size": 4096,
            "window_tokens": 128,
        },
        "data": {
            "corpus": {"name": "quickstart", "sources": [{"name": "owt", "reader": {"lines": ""}}]},
            "mix": {"rule": "natural", "cooldown_share": 0.0},
            "seed": 17,
        },
        "optimizer": {"muon_lr": 0.012, "adam_lr": 0.004, "beta2": 0.983, "gate_decay": True},
        "train": {"batch_sequences": 16, "sequence_tokens": 256, "steps": STEPS},
    }


def loss(tokens, seed: int = 0):
    noise = np.random.default_rng(seed).normal(0, 0.06, np.shape(tokens))
    return 3.35 + 5.0 * np.exp(-tokens / 9e4) + 1.1 * np.exp(-tokens / 9e5) - 0.04 + noise


def metric(step: int, noise: np.random.Generator) -> dict:
    share = step / STEPS
    settled = math.exp(-step / 12)
    spread = 0.05 + 1.4 * settled
    load = np.exp(noise.normal(0, 1, (NUM_LAYERS, NUM_EXPERTS)) * spread)
    load /= load.mean(axis=1, keepdims=True)
    seconds = 0.36 + noise.gamma(2, 0.012) + (9.0 if step == 1 else 0.0)
    values = {
        "loss": float(loss(step * TOKENS_PER_STEP, step)),
        "z_loss": 0.02 * (1 + settled),
        "tokens": step * TOKENS_PER_STEP,
        "seconds": seconds,
        "tokens_per_s": TOKENS_PER_STEP / seconds,
        "learning_rate/muon": 0.012 * min(1, step / 20) * (1 - 0.9 * share),
        "learning_rate/adam": 0.004 * min(1, step / 20) * (1 - 0.9 * share),
        "grad_norm": 0.9 + 4 * settled + noise.gamma(2, 0.08),
        "router/entropy": [
            2.77 - (0.25 + 0.08 * layer) * (1 - math.exp(-step / 90)) + noise.normal(0, 0.008)
            for layer in range(NUM_LAYERS)
        ],
        "router/load_cv": load.std(axis=1).tolist(),
        "router/load_max": load.max(axis=1).tolist(),
        "router/bias_abs_max": [0.3 * (1 - settled) + 0.05 * layer for layer in range(NUM_LAYERS)],
        "dropped/sender": [0.0] * NUM_LAYERS,
        "dropped/receiver": [0.0] * NUM_LAYERS,
        "applied": 1,
    }
    for place, group in enumerate(GROUPS):
        values[f"grad_norm/{group}"] = (0.8, 0.3, 0.15)[place] * values["grad_norm"]
        values[f"weight_norm/{group}"] = (63.0, 24.0, 15 + 3 * share)[place]
        values[f"update_norm/{group}"] = (63.0, 24.0, 9.0)[place] * values["learning_rate/muon"]
    if step % 10 == 0 or step == 1:
        values["router/load"] = load.round(4).tolist()
    return values


def evaluation(step: int) -> dict:
    rest = 1 + 0.9 * math.exp(-step / 90)
    sets = {}
    for name, rows in SETS.items():
        domains = {
            domain: {
                "loss": ours * rest * 1.49, "bpb": ours * rest, "tokens": documents * 890,
                "bytes": documents * 3_480, "documents": documents, "xz_bpb": xz, "zstd_bpb": zstd,
                "kind": kind, "code": code,
            }
            for domain, kind, code, documents, ours, xz, zstd in rows
        }  # fmt: skip
        macro = {
            key: sum(domain[key] for domain in domains.values()) / len(domains)
            for key in ("loss", "bpb", "xz_bpb", "zstd_bpb")
        }
        sets[name] = {"domains": domains, "macro": macro}
    return {"step": step, "tokens": step * TOKENS_PER_STEP, "sets": sets}


def samples(step: int) -> list[dict]:
    prompts = ("The harbor", "def main(", "In the beginning", "Prove that")
    return [
        {"prompt": prompt, "text": f"{prompt} {PROSE}\n\n{PROSE}", "temperature": 0.8, "seed": seed}
        for seed, prompt in enumerate(prompts, step)
    ]


def corpus() -> dict:
    keys = ("name", "kind", "license", "documents", "bytes", "tokens", "duplicates",
            "heldout_documents", "overlap_dropped")  # fmt: skip
    sources = [
        dict(zip(keys, row[:-1], strict=True))
        | {
            "origin": f"package {row[0]}, member texts/*.txt",
            "license_evidence": "LICENSE in the package",
            "revision": "3.0.1",
            "retrieved": "2026-11-03",
            "usage": "training",
        }
        for row in SOURCES
    ]
    sources += [
        {"name": f"{domain}-evaluation", "kind": kind, "usage": "evaluation", "domain": domain,
         "license": "CC0-1.0", "documents": documents, "bytes": documents * 3_480, "tokens": 0,
         "duplicates": 0, "heldout_documents": documents, "overlap_dropped": 0}
        for domain, kind, _, documents, *_ in SETS["domains"]
    ]  # fmt: skip
    stages = [
        {"ref": f"{name}@{number:012x}", "stage": name, "seconds": seconds, "facts": facts}
        for number, (name, seconds, facts) in enumerate(
            (
                ("source", 11.8, {"documents": 7_120, "bytes": 33_100_000}),
                ("documents", 4.2, {"documents": 6_949, "invalid_utf8": 0}),
                ("duplicates", 1.1, {"dropped": 221}),
                ("heldout", 2.7, {"documents": 350, "overlap_dropped": 19}),
                ("tokenizer", 7.4, {"vocab_size": 4096, "bytes_per_token": 3.31}),
                ("tokens", 6.0, {"tokens": 10_055_885, "units": 2_455}),
            ),
            0xA11CE,
        )
    ]
    tokenizer = {"ref": "tokenizer@0000000a11d0", "vocab_size": 4096, "bytes_per_token": 3.31}
    return {
        "corpus": "quickstart@0000000a11d1", "sources": sources, "tokenizer": tokenizer,
        "unit_tokens": 4096, "stages": stages,
        "cells": [
            {"name": row[0], "tokens": row[5], "units": row[5] // 4096, "tail_tokens": row[-1]}
            for row in SOURCES
        ],
    }  # fmt: skip


def run_json() -> dict:
    return {
        "name": "quickstart",
        "fingerprint": "5f2d" * 16,
        "config": config(),
        "notes": {
            "model.*": "published: the same at every size",
            "model.num_experts": "ours: 16 is the most that two cores feed",
            "optimizer.*": "published: the law of the recipe, at this batch",
        },
        "environment": {"python": "3.12.1", "jax": "0.12.0", "devices": ["cpu:0"], "cores": 2},
        "created": "2026-11-03T09:00:00+00:00",
        "corpus": "quickstart@0000000a11d1",
        "derived": {
            "steps": STEPS, "tokens_per_step": TOKENS_PER_STEP, "tokens": STEPS * TOKENS_PER_STEP,
            "flops": 2.3e13, "muon_lr": 0.012, "adam_lr": 0.004, "beta2": 0.983, "eps": 1.5e-15,
        },
        "parameters": {"tensors": 4_412_672, "active": 1_204_224},
    }  # fmt: skip


def make(folder: Path, *, steps: int = STEPS, finished: bool = True, evaluate: int = 80) -> Path:
    """Writes the folder; an unfinished run stops after `steps` of `STEPS`."""
    for name in ("evals", "samples"):
        (folder / name).mkdir(parents=True)
    _write(folder / "run.json", run_json())
    _write(folder / "corpus.json", corpus())
    noise = np.random.default_rng(7)
    Clock.looks = 0
    with mock.patch.object(record, "datetime", Clock), record.Record.open(folder) as log:
        log.event("start", step=0, cores=2)
        for step in range(1, steps + 1):
            log.metric(step, metric(step, noise))
            if step % evaluate == 0:
                found = evaluation(step)
                macro = {name: one["macro"] for name, one in found["sets"].items()}
                log.event("checkpoint", step=step, digest="c0ffee" * 10)
                log.event("evaluate", step=step, macro=macro)
                _write(folder / "evals" / f"{step}.json", found)
                _write(folder / "samples" / f"{step}.json", samples(step))
        if finished:
            log.event("finish", step=steps)
    return folder


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))
