"""Embeddings of sentence models and of servers."""

import json
import sys
import threading
import types
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from shoal.data import embed
from shoal.data.settings import TopicsConfig


@pytest.fixture
def server(monkeypatch):
    """A loopback server; each answer is (status, function of the request's body)."""
    answers, asked = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, body, self.headers.get("Authorization")))
            status, make = answers.pop(0) if len(answers) > 1 else answers[0]
            said = make(body)
            data = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    web = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    monkeypatch.setattr("time.sleep", lambda _: None)
    yield f"http://127.0.0.1:{web.server_port}/v1", answers, asked
    web.shutdown()
    web.server_close()


def lengths(body):
    rows = [
        {"index": n, "embedding": [float(len(text)), 1.0]} for n, text in enumerate(body["input"])
    ]
    return {"data": rows[::-1]}


def config(url):
    return TopicsConfig(embedding="endpoint", model=url, model_name="some-model")


def test_a_server_gives_unit_rows_in_the_order_of_the_texts(server, monkeypatch):
    url, answers, asked = server
    answers.append((200, lengths))
    monkeypatch.setenv(embed.KEY, "secret")
    texts = ["x" * n for n in range(1, 71)]
    found = embed.embedder(config(url))(texts)
    expected = np.array([[n, 1.0] for n in range(1, 71)])
    np.testing.assert_allclose(
        found, expected / np.linalg.norm(expected, axis=1, keepdims=True), rtol=1e-6
    )
    assert [len(body["input"]) for _, body, _ in asked] == [32, 32, 6]
    assert {(path, body["model"], key) for path, body, key in asked} == {
        ("/v1/embeddings", "some-model", "Bearer secret")
    }


def test_a_server_that_fails_is_asked_again(server):
    url, answers, asked = server
    answers += [(500, lambda _: b"busy"), (429, lambda _: b"slow down"), (200, lengths)]
    assert embed.embedder(config(url))(["abc"]).shape == (1, 2)
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("status", "said", "match"),
    [
        (500, b"broken", "no embeddings from .* in 4 tries"),
        (200, b"<html>", "no embeddings: '<html>'"),
        (404, b"{}", "status 404 and no embeddings"),
        (200, {"data": []}, "0 embeddings for 1 texts"),
        (200, {"data": [{"index": 0, "embedding": [float("nan")]}]}, "or others"),
    ],
)
def test_nonsense_is_refused_in_words(server, status, said, match):
    url, answers, _ = server
    answers.append((status, lambda _: said))
    with pytest.raises(ValueError, match=match):
        embed.embedder(config(url))(["abc"])


def test_no_server_is_refused_in_words(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    with pytest.raises(ValueError, match=r"start the server, correct topics\.model"):
        embed.embedder(config("http://127.0.0.1:9/v1"))(["abc"])


@pytest.fixture
def folder(tmp_path):
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "cat": 2, "dog": 3}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "model.onnx").write_bytes(b"weights")
    return tmp_path


def test_a_sentence_model_is_averaged_over_tokens_without_padding(folder, monkeypatch):
    """The runtime is a stand-in: what is tested is what goes in and what is made of its answer."""
    table = np.eye(4, dtype=np.float32)

    class Session:
        def __init__(self, path, providers):
            assert path.endswith("model.onnx")
            assert providers == ["CPUExecutionProvider"]

        def get_inputs(self):
            return [types.SimpleNamespace(name=n) for n in ("input_ids", "attention_mask")]

        def run(self, names, given):
            assert given.keys() == {"input_ids", "attention_mask"}
            return [table[given["input_ids"]]]

    module = types.SimpleNamespace(InferenceSession=Session)
    monkeypatch.setitem(sys.modules, "onnxruntime", module)
    asked = TopicsConfig(embedding="onnx", model=str(folder))
    found = embed.embedder(asked)(["cat", "cat dog", "dog cat cat cat"])
    expected = np.array([[0, 0, 1, 0], [0, 0, 1, 1], [0, 0, 3, 1]], np.float64)
    np.testing.assert_allclose(
        found, expected / np.linalg.norm(expected, axis=1, keepdims=True), rtol=1e-6
    )
    assert len(embed.model_digest(asked)) == 64


def test_what_a_sentence_model_lacks_is_said(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ValueError, match=r"install 'shoal\[onnx\]'"):
        embed.embedder(TopicsConfig(embedding="onnx", model=str(folder)))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"tokenizer\.json is not there"):
        embed.embedder(TopicsConfig(embedding="onnx", model=str(folder)))
