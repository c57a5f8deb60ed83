"""Shoal trains open mixture-of-experts language models end to end."""

__version__ = "0.1.0"
