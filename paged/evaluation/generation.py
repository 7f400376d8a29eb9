"""Generation: what a task wants of an answer, from the harness's `gen_kwargs`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)

from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.rules import MAX_STOP_LENGTH, MAX_STOP_STRINGS
from pagedrun.paged.values.sampling_params import FIELD_NAMES, SamplingParams

# A task wants one answer, cut by its stops, and its text is the harness's to say.
_TAKEN = FIELD_NAMES - {
    *("n", "vote", "stop", "stop_token_ids", "logprobs", "prompt_logprobs"),
    *("beam_width", "length_penalty", "early_stopping", "skip_special_tokens"),
    *("include_stop_str_in_output", "reasoning_tags", "thinking_budget"),
}
# What Transformers takes, with the values that say what is done here anyway.
_WITHOUT_MEANING = {"use_cache": (True, False), "num_beams": (1,), "early_stopping": (False,)}


@dataclass(frozen=True, slots=True)
class Generation:
    """How an answer is drawn, and what its text is cut at: texts of `until`, a thought's end."""

    params: SamplingParams
    until: tuple[str, ...]
    think_end: str | None

    @classmethod
    def of(
        cls, gen_kwargs: Mapping[str, Any], max_gen_toks: int, eos: str, think_end: str | None
    ) -> "Generation":
        """Return what `gen_kwargs` says.

        `max_gen_toks` is for those that say nothing of it; `eos` is the text of the
        end-of-sequence token. `do_sample` without a temperature draws at 1. With `think_end`, a
        thought is not stopped by what stops an answer. Raises `RowError` for an argument that is
        unknown or has a bad value.
        """
        asked: dict[str, Any] = dict(normalize_gen_kwargs(dict(gen_kwargs), max_gen_toks))
        until = tuple(text for text in handle_stop_sequences(asked.pop("until"), eos) if text)
        max_tokens = asked.pop("max_gen_toks")
        if asked.pop("do_sample") and gen_kwargs.get("temperature") is None:
            asked["temperature"] = 1.0
        named = {
            name: value
            for name, value in asked.items()
            if value not in _WITHOUT_MEANING.get(name, ())
        }
        unknown = sorted(named.keys() - _TAKEN)
        if unknown:
            raise RowError(
                "invalid_param",
                f"{unknown[0]} is not supported in a task; pagedrun supports "
                f"{', '.join(sorted(_TAKEN))}",
                param=unknown[0],
            )
        # The others are cut off the text all the same.
        stops = [text for text in until if len(text) <= MAX_STOP_LENGTH][:MAX_STOP_STRINGS]
        params = SamplingParams(
            max_tokens=max_tokens,
            stop=() if think_end else tuple(stops),
            skip_special_tokens=think_end is None,
            reasoning_tags="none",
        )
        return cls(params.override(named), until, think_end)

    def cut(self, text: str) -> str:
        """Return the answer in a text: behind the thought, up to the first of `until`."""
        answer: str = postprocess_generated_text(text, list(self.until), self.think_end)
        return answer
