"""Texts as vectors of unit length: by their words, by a sentence model, or by a server.

`lexical` needs nothing but the text (`data.lexical`). `onnx` runs a sentence model: a folder with
`model.onnx` and `tokenizer.json`; its last hidden state is averaged over tokens. `endpoint` asks a
server for `/embeddings`, as OpenAI's interface has it. The first `MAX_CHARACTERS` of a text count.
"""

import importlib
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from jaxtyping import Float32

from shoal.core.files import sha256_file
from shoal.data.lexical import unit
from shoal.data.settings import TopicsConfig

MAX_CHARACTERS = 20_000
MAX_TOKENS = 512
BATCH_TEXTS = 32
TIMEOUT_S = 120.0
TRIES = 4
KEY = "SHOAL_EMBEDDINGS_KEY"

type Embed = Callable[[Sequence[str]], Float32[np.ndarray, "N E"]]


def shorten(texts: Sequence[str]) -> list[str]:
    """What of each text is embedded."""
    return [text[:MAX_CHARACTERS] for text in texts]


def embedder(config: TopicsConfig) -> Embed:
    """The function of a sentence model or a server.

    Raises:
        ValueError: the model or its tokenizer is not there, or onnxruntime is not installed.
    """
    if config.embedding == "onnx":
        return _sentence_model(Path(config.model))
    assert config.embedding == "endpoint", "lexical embeddings are fitted, not loaded"
    return _endpoint(config.model, config.model_name)


def model_digest(config: TopicsConfig) -> str:
    """What decides the embeddings besides the settings: the SHA-256 of a model's file."""
    return sha256_file(Path(config.model) / "model.onnx") if config.embedding == "onnx" else ""


def _sentence_model(folder: Path) -> Embed:
    for name in ("model.onnx", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ValueError(
                f"{folder / name} is not there; a sentence model is a folder with both"
            )
    try:
        onnxruntime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise ValueError(
            "embedding=onnx needs onnxruntime, which is not installed; install 'shoal[onnx]', or "
            "use embedding=lexical"
        ) from error
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding()
    session = onnxruntime.InferenceSession(
        str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    wanted = {one.name for one in session.get_inputs()}

    def embed(texts: Sequence[str]) -> Float32[np.ndarray, "N E"]:
        found = [
            _averaged(session, wanted, tokenizer, texts[start : start + BATCH_TEXTS])
            for start in range(0, len(texts), BATCH_TEXTS)
        ]
        return unit(np.concatenate(found)) if found else np.zeros((0, 1), np.float32)

    return embed


def _averaged(
    session: Any, wanted: set[str], tokenizer: Any, texts: Sequence[str]
) -> Float32[np.ndarray, "N E"]:
    """The last hidden state of each text, averaged over its tokens."""
    coded = tokenizer.encode_batch(shorten(texts))
    given = {
        "input_ids": np.array([one.ids for one in coded], np.int64),
        "attention_mask": np.array([one.attention_mask for one in coded], np.int64),
        "token_type_ids": np.array([one.type_ids for one in coded], np.int64),
    }
    states = session.run(None, {name: given[name] for name in wanted if name in given})[0]
    mask = given["attention_mask"][:, :, None].astype(np.float32)
    total = (np.asarray(states, np.float32) * mask).sum(1)
    return np.asarray(total / np.maximum(mask.sum(1), 1.0), np.float32)


def _endpoint(url: str, model: str) -> Embed:
    key = os.environ.get(KEY, "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    client = httpx2.Client(timeout=TIMEOUT_S, headers=headers)

    def embed(texts: Sequence[str]) -> Float32[np.ndarray, "N E"]:
        found = [
            _asked(client, url, model, texts[start : start + BATCH_TEXTS])
            for start in range(0, len(texts), BATCH_TEXTS)
        ]
        return unit(np.concatenate(found)) if found else np.zeros((0, 1), np.float32)

    return embed


def _asked(
    client: httpx2.Client, url: str, model: str, texts: Sequence[str]
) -> Float32[np.ndarray, "N E"]:
    """One batch; a server that fails is asked again, each time after a longer wait.

    Raises:
        ValueError: it never answered, or what it answered is not one vector per text.
    """
    # Some servers refuse empty text.
    body = {"model": model, "input": [text or " " for text in shorten(texts)]}
    problem = ""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(0.25 * 4**attempt)
        try:
            answer = client.post(f"{url.rstrip('/')}/embeddings", json=body)
        except httpx2.HTTPError as error:
            problem = f"{type(error).__name__}: {error}"
            continue
        if answer.status_code < 500 and answer.status_code != 429:
            return _vectors(url, answer, len(texts))
        problem = f"status {answer.status_code}"
    raise ValueError(
        f"no embeddings from {url} in {TRIES} tries ({problem}); start the server, correct "
        "topics.model, or use embedding=lexical"
    )


def _vectors(url: str, answer: httpx2.Response, count: int) -> Float32[np.ndarray, "N E"]:
    try:
        rows = sorted(json.loads(answer.content)["data"], key=lambda row: row["index"])
        found = np.array([row["embedding"] for row in rows], np.float32)
        whole = [row["index"] for row in rows] == list(range(count))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{url} answered with status {answer.status_code} and no embeddings: "
            f"{answer.text[:200]!r}"
        ) from error
    if not whole or found.ndim != 2 or not np.isfinite(found).all():
        raise ValueError(f"{url} answered with {len(rows)} embeddings for {count} texts, or others")
    return found
