"""GenerationConfig: sampling settings recommended by the authors of a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pagedrun.paged.files.json_object import JsonObject

FILE_NAME = "generation_config.json"
# Ranges of numbers.
_NUMBERS = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
}
_OF_GREEDY = ("repetition_penalty",)  # applies to greedy decoding too
_MAX_TOP_K = 2**31 - 1
# Settings that change answers, and their neutral values. Others are ignored.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "encoder_repetition_penalty": (1,),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "diversity_penalty": (0,),
    "length_penalty": (1,),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "top_h": (),
    "penalty_alpha": (0,),
    "guidance_scale": (1,),
    "bad_words_ids": (),
    "suppress_tokens": (),
    "begin_suppress_tokens": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "sequence_bias": (),
    "exponential_decay_length_penalty": (),
    "stop_strings": (),
    "max_new_tokens": (),
    "min_new_tokens": (0,),
}


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """Fields of `SamplingParams` in generation_config.json.

    `not_taken`: names of settings that would change answers but are unsupported or do not apply.
    """

    values: Mapping[str, float | int] = field(default_factory=dict)
    not_taken: tuple[str, ...] = ()

    @classmethod
    def from_folder(cls, folder: Path) -> "GenerationConfig":
        """Read `folder`/generation_config.json; without it nothing is set.

        `do_sample` false means greedy decoding, whatever the other fields; true, a temperature of 1
        if none is given. Raises `ModelError` for a value out of range.
        """
        path = folder / FILE_NAME
        if not path.exists():
            return cls()
        given = JsonObject.read(path)
        values: dict[str, float | int] = {
            name: given.number(name, *range_)
            for name, range_ in _NUMBERS.items()
            if given.has(name)
        }
        if values.get("top_p") == 0:
            raise given.error("top_p", "a number above 0 and at most 1")
        if given.has("top_k"):
            values["top_k"] = given.integer("top_k", -1, _MAX_TOP_K)
        not_taken = [
            name
            for name, neutral in _NEUTRAL.items()
            if given.has(name) and given.get(name) not in (*neutral, [], {})
        ]
        if not given.boolean("do_sample", True):
            kept = {name: values.pop(name) for name in _OF_GREEDY if name in values}
            return cls({"temperature": 0.0, **kept}, tuple(sorted([*values, *not_taken])))
        if given.has("do_sample"):
            values.setdefault("temperature", 1.0)
        return cls(values, tuple(not_taken))
