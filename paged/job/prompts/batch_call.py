"""BatchCall: a row of an OpenAI batch file, and what it asks in this tool's own words."""

from dataclasses import dataclass

from pagedrun.paged.job.inputs.json_line import shown_key
from pagedrun.paged.job.inputs.row import Columns
from pagedrun.paged.job.prompts.foreign_params import is_neutral, not_supported
from pagedrun.paged.job.prompts.prompts import FORBIDDEN_COLUMNS, request_keys
from pagedrun.paged.text.prompts.priority import PRIORITY
from pagedrun.paged.text.prompts.prompt_renderer import RAW
from pagedrun.paged.text.prompts.template_kwargs import TEMPLATE_KWARGS
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.logprobs import MAX_LOGPROBS
from pagedrun.paged.values.rules import integers

CALL_COLUMNS = frozenset({"custom_id", "method", "url", "body"})
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
# What says something about the caller or the service, and nothing about the answer.
_IGNORED = frozenset(
    {
        "metadata",
        "model",
        "prompt_cache_key",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "user",
    }
)


@dataclass(frozen=True, slots=True)
class BatchCall:
    """One call of OpenAI's API: its parts as they are in the row, whatever they are."""

    custom_id: JSONValue
    method: JSONValue
    url: JSONValue
    body: JSONValue

    @classmethod
    def of(cls, columns: Columns) -> "BatchCall | None":
        """Return the call that a row with these columns is, None if it is another kind of row."""
        if not columns.keys() >= CALL_COLUMNS:
            return None
        return cls(columns["custom_id"], columns["method"], columns["url"], columns["body"])

    @property
    def is_chat(self) -> bool:
        """Whether it asks for the next message of a chat."""
        return self.url == CHAT

    @property
    def model(self) -> str:
        """The model that was asked for, repeated in the answer; another one may have answered."""
        model = self.body.get("model") if isinstance(self.body, dict) else None
        return model if isinstance(model, str) else ""

    def columns(self) -> Columns:
        """Return the columns of a plain row that asks the same.

        Raises `RowError`: `invalid_method`, `invalid_url`, `invalid_body`, and `invalid_param` for
        a parameter that this tool does not know, since the answer would not be the one asked for.
        """
        if self.method != "POST":
            raise RowError("invalid_method", 'method must be "POST"', param="method")
        if self.url not in (CHAT, COMPLETIONS):
            raise RowError("invalid_url", f"url must be {CHAT} or {COMPLETIONS}", param="url")
        if not isinstance(self.body, dict):
            raise RowError("invalid_body", "body must be an object", param="body")
        prompt = "messages" if self.is_chat else "prompt"
        known = request_keys().union(FORBIDDEN_COLUMNS, {prompt, PRIORITY, TEMPLATE_KWARGS})
        asked: dict[str, JSONValue] = {}
        for name, value in self.body.items():
            if name in _IGNORED or value is None or is_neutral(name, value):
                continue
            if self.is_chat and name == "top_logprobs":
                continue  # goes with logprobs
            if name not in known:
                raise not_supported(shown_key(name))
            if name == "prompt" and isinstance(value, list):
                asked["prompt_token_ids"] = _checked_token_ids(value)
            else:
                asked[name] = value
        if self.is_chat:
            return asked | _chat_logprobs(asked.get("logprobs"), self.body.get("top_logprobs"))
        return {**asked, RAW: True}


def _chat_logprobs(wants: object, num_top: object) -> dict[str, JSONValue]:
    """Return `logprobs` as a plain row has it: in a chat it is a switch, and the number another."""
    if wants is not None and not isinstance(wants, bool):
        raise RowError("invalid_param", "logprobs must be true or false", param="logprobs")
    name, rule = "top_logprobs", integers(0, MAX_LOGPROBS)
    if num_top is None:
        num_top = 0
    if not isinstance(num_top, int) or not rule.accepts(num_top):
        raise RowError("invalid_param", f"{name} must be {rule.wanted}", param=name)
    if num_top and not wants:
        raise RowError("invalid_param", f"{name} needs logprobs to be true", param=name)
    return {"logprobs": num_top} if wants else {}  # a false one is there already


def _checked_token_ids(prompt: list[JSONValue]) -> list[JSONValue]:
    if any(isinstance(item, str | list) for item in prompt):
        raise RowError(
            "unsupported_content",
            "prompt must be one text or one list of token ids; use a separate row for each prompt",
            param="prompt",
        )
    return prompt
