"""Arguments of the harness model (`--model_args`), under the harness's names."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import UsageError, option
from pagedrun.paged.values.flags import Flag, check_fields
from pagedrun.paged.values.rules import Rule, integers

_MODEL = Rule(lambda value: isinstance(value, str) and bool(value), "a model folder or hub name")
_TEXT = Rule(lambda value: isinstance(value, str), "text")
_SWITCH = Rule(lambda value: isinstance(value, bool), "True or False")
_OBJECT = Rule(lambda value: isinstance(value, Mapping), "a mapping of names to values")
_ID_OR_TEXT = Rule(lambda value: isinstance(value, int | str), "a token's text or id")

# Names in other models of the harness.
_ALIASES = {
    "model": "pretrained",
    "max_length": "max_model_len",
    "max_batch_size": "max_num_seqs",
}
_NAMES_AND_TEXTS = ("pretrained", "revision", "tokenizer")  # may look like numbers
# Passed to every model by the harness, without a meaning here: a list is one batch.
_WITHOUT_MEANING = ("batch_size",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArgs:
    """Arguments of the harness's own models under their names, and the engine's in `engine`.

    `add_bos_token`: None leaves it to tokenizer.json. `prefix_token_id`: precedes a text without
    context; None is the tokenizer's BOS, or EOS without one. `think_end_token`: end of a thought,
    which is cut off an answer. Raises `UsageError` naming the field for an invalid value.
    """

    pretrained: Annotated[str, Flag("Model folder, or hub id org/name.", rule=_MODEL)]
    revision: Annotated[str | None, Flag("Branch, tag or commit on the hub.", rule=_TEXT)] = None
    tokenizer: Annotated[str | None, Flag("Folder or hub id of a tokenizer.", rule=_TEXT)] = None
    max_gen_toks: Annotated[
        int, Flag("Maximum number of tokens of an answer if the task sets none.", rule=integers(1))
    ] = 256
    add_bos_token: Annotated[
        bool | None, Flag("Whether texts begin with special tokens.", rule=_SWITCH)
    ] = None
    prefix_token_id: Annotated[
        int | None, Flag("Token before the first token of a text.", rule=integers(0))
    ] = None
    enable_thinking: Annotated[
        bool | None, Flag("Variable of that name for the chat template.", rule=_SWITCH)
    ] = None
    think_end_token: Annotated[str | int | None, Flag("End of a thought.", rule=_ID_OR_TEXT)] = None
    chat_template_args: Annotated[
        Mapping[str, Any] | None, Flag("Variables of the chat template.", rule=_OBJECT)
    ] = None
    engine: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.enable_thinking and self.think_end_token is None:
            raise UsageError(
                f"{option('enable_thinking')} needs {option('think_end_token')}, such as "
                "</think>, so that thoughts do not count as answers"
            )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "ModelArgs":
        """Return the arguments given by the harness; None counts as missing.

        Raises `UsageError` for an unknown name, for two names of one argument, and for an invalid
        value.
        """
        known: dict[str, Any] = {}
        for name, value in given.items():
            if value is None or name in _WITHOUT_MEANING:
                continue
            field_name = _ALIASES.get(name, name)
            if field_name in known:
                raise UsageError(
                    f"{name} and {_other(name, given)} are the same argument; give one of them"
                )
            known[field_name] = str(value) if field_name in _NAMES_AND_TEXTS else value
        if known.pop("trust_remote_code", False):
            raise UsageError(
                "pagedrun never runs code from a model folder; leave trust_remote_code out"
            )
        own = {each.name for each in fields(cls)} - {"engine"}
        engine = {each.name for each in fields(EngineConfig)} - {"model", "fitted"}
        unknown = sorted(known.keys() - own - engine)
        if unknown:
            raise UsageError(
                f"{unknown[0]} is not an argument of this model; it takes "
                f"{', '.join(sorted(own | engine))}"
            )
        if "pretrained" not in known:
            raise UsageError("the model is missing; give pretrained=FOLDER")
        settings = {name: value for name, value in known.items() if name in engine}
        return cls(
            **{name: value for name, value in known.items() if name in own},
            engine={name: _as_engine(name, value) for name, value in settings.items()},
        )

    @property
    def template_variables(self) -> dict[str, Any]:
        """Variables of the chat template."""
        chosen = {} if self.enable_thinking is None else {"enable_thinking": self.enable_thinking}
        return {**(self.chat_template_args or {}), **chosen}


def _as_engine(name: str, value: Any) -> Any:
    match name:
        case "device":  # cuda:0 is the default of the harness
            return "auto" if value == "cuda:0" else value
        case "prefix_store":
            return Path(value)
    return value


def _other(name: str, given: Mapping[str, Any]) -> str:
    mine = _ALIASES.get(name, name)
    return next(each for each in given if each != name and _ALIASES.get(each, each) == mine)
