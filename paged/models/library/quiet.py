"""Silence while the library builds a model: what it prints is about fields, not about answers."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Let the library say nothing but errors, and draw no progress."""
    from transformers.utils import logging

    before, drew = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if drew:
            logging.enable_progress_bar()
