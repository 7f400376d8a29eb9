"""Offline batch inference that plans: every prompt is known before the first token."""

from importlib import import_module
from typing import TYPE_CHECKING

from pagedrun._version import __version__

if TYPE_CHECKING:
    from pagedrun.paged.evaluation.harness_model import HarnessModel as HarnessModel
    from pagedrun.paged.execution.pooling.pooled_texts import Classification, RankedDocument
    from pagedrun.paged.llm import LLM, CompletionIterator
    from pagedrun.paged.values.engine_config import WindowSize
    from pagedrun.paged.values.errors import (
        EngineError,
        ModelError,
        PagedrunError,
        RowError,
        UsageError,
    )
    from pagedrun.paged.values.logprobs import Score, TokenLogprob, TopLogprob
    from pagedrun.paged.values.prompt_input import (
        ChatPrompt,
        PromptInput,
        TextPrompt,
        TokensPrompt,
    )
    from pagedrun.paged.values.request import Completion, FinishReason, SampleOutput
    from pagedrun.paged.values.sampling_params import SamplingParams
    from pagedrun.paged.values.vote import VoteResult

__all__ = [
    "LLM",
    "ChatPrompt",
    "Classification",
    "Completion",
    "CompletionIterator",
    "EngineError",
    "FinishReason",
    "ModelError",
    "PagedrunError",
    "PromptInput",
    "RankedDocument",
    "RowError",
    "SampleOutput",
    "SamplingParams",
    "Score",
    "TextPrompt",
    "TokenLogprob",
    "TokensPrompt",
    "TopLogprob",
    "UsageError",
    "VoteResult",
    "WindowSize",
    "__version__",
]

_NAMES_OF = {
    "paged.evaluation.harness_model": ("HarnessModel",),  # not in __all__: it needs an extra
    "paged.execution.pooling.pooled_texts": ("Classification", "RankedDocument"),
    "paged.llm": ("LLM", "CompletionIterator"),
    "paged.values.errors": (
        "EngineError",
        "ModelError",
        "PagedrunError",
        "RowError",
        "UsageError",
    ),
    "paged.values.prompt_input": ("ChatPrompt", "PromptInput", "TextPrompt", "TokensPrompt"),
    "paged.values.request": ("Completion", "FinishReason", "SampleOutput"),
    "paged.values.vote": ("VoteResult",),
    "paged.values.logprobs": ("Score", "TokenLogprob", "TopLogprob"),
    "paged.values.sampling_params": ("SamplingParams",),
    "paged.values.engine_config": ("WindowSize",),
}
# Their modules import torch and Numba, which read the environment once.
_HEAVY = ("LLM", "Classification", "CompletionIterator", "HarnessModel", "RankedDocument")


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562): `import pagedrun` stays light."""
    for module, names in _NAMES_OF.items():
        if name in names:
            if name in _HEAVY:
                from pagedrun.kernels.environment.threads import prepare_environment

                prepare_environment()
            return getattr(import_module(f"pagedrun.{module}"), name)
    raise AttributeError(f"module 'pagedrun' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
