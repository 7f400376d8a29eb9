"""Offline batch inference that plans: every prompt is known before the first token."""

from typing import TYPE_CHECKING

from pagedrun._version import __version__

if TYPE_CHECKING:
    from pagedrun.paged.llm import LLM
    from pagedrun.paged.values.sampling.sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> object:
    """Import the engine when it is first asked for (PEP 562): `import pagedrun` stays light."""
    if name == "LLM":
        from pagedrun.kernels.environment.threads import prepare_environment

        prepare_environment()  # before the next line imports torch and numba, which read it once
        from pagedrun.paged.llm import LLM

        return LLM
    if name == "SamplingParams":
        from pagedrun.paged.values.sampling.sampling_params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'pagedrun' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), "LLM", "SamplingParams"])
