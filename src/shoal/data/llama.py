"""A small model served on this machine by llama.cpp, for judging without an endpoint."""

import importlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

CONTEXT_TOKENS = 2_048


@contextmanager
def serve(gguf: Path, threads: int = 0) -> Generator[str]:
    """The URL of a server of this model file, on a loopback port, for as long as it is needed.

    Args:
        threads: 0 takes every core.

    Raises:
        ValueError: the file is not there, or xllamacpp is not installed.
    """
    if not gguf.is_file():
        raise ValueError(f"{gguf} is not there; give a GGUF model file")
    try:
        llama = importlib.import_module("xllamacpp")
    except ImportError as error:
        raise ValueError(
            "a GGUF file needs xllamacpp, which is not installed; install 'shoal[judge]', or give "
            "the endpoint of a server"
        ) from error
    settings = llama.CommonParams()
    settings.model.path = str(gguf)
    settings.n_ctx = CONTEXT_TOKENS
    settings.n_parallel = 1
    settings.warmup = False
    count = threads or os.cpu_count() or 1
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = count
    server = llama.Server(settings)
    try:
        yield server.listening_address
    finally:
        del server
