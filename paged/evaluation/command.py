"""Command line of lm-evaluation-harness, with pagedrun among its models."""

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lm_eval._cli import HarnessCLI
from lm_eval.config.evaluate_config import EvaluatorConfig
from lm_eval.utils import setup_logging

from pagedrun.paged.evaluation.harness_model import NAME
from pagedrun.paged.values.errors import PagedrunError


def run_harness(args: Sequence[str]) -> None:
    """Run `lm_eval ARGS`; without --model, pagedrun's engine is used.

    Raises `SystemExit` for arguments that the harness refuses, and `PagedrunError` for other errors
    of it.
    """
    setup_logging()
    try:
        asked = parsed(args)
        asked.func(asked)
    except (PagedrunError, BrokenPipeError, MemoryError):
        raise
    except Exception as error:
        raise PagedrunError(f"lm_eval failed: {type(error).__name__}: {error}") from error


def parsed(args: Sequence[str]) -> Namespace:
    """Return the parsed arguments of the harness; `func` runs the command."""
    with _typed("lm-eval", *args):
        asked: Namespace = HarnessCLI().parse_args()
    if asked.command == "run" and asked.model is None and not _names_model(asked.config):
        asked.model = NAME
    return asked


def _names_model(config: str | None) -> bool:
    """Return whether a configuration file of the harness sets the model."""
    return config is not None and "model" in EvaluatorConfig.load_yaml_config(config)


@contextmanager
def _typed(*words: str) -> Iterator[None]:
    """Set the command line, from which the harness reads its arguments."""
    before, sys.argv = sys.argv, list(words)
    try:
        yield
    finally:
        sys.argv = before
