"""Requests of rows, including rows of OpenAI batch files."""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from pagedrun.paged.job.inputs.json_line import shown_key
from pagedrun.paged.job.inputs.row import Columns, Row, at_line
from pagedrun.paged.job.prompts.prompt_builder import (
    FORBIDDEN_COLUMNS,
    PromptBuilder,
    is_neutral,
    not_supported,
    request_keys,
)
from pagedrun.paged.text.prompt import PRIORITY, RAW, TEMPLATE_KWARGS, Prompt
from pagedrun.paged.text.prompt_encoder import ENCODE_BATCH_ROWS, EncodedPrompt, PromptEncoder
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.logprobs import MAX_LOGPROBS
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.rules import integers


@dataclass(frozen=True, slots=True)
class OpenAIRequest:
    """Request of OpenAI's API: its parts, not yet validated."""

    custom_id: JSONValue
    method: JSONValue
    url: JSONValue
    body: JSONValue

    @classmethod
    def of(cls, columns: Columns) -> "OpenAIRequest | None":
        """Return the OpenAI request of a row with these columns, None for another kind of row."""
        if not columns.keys() >= CALL_COLUMNS:
            return None
        return cls(columns["custom_id"], columns["method"], columns["url"], columns["body"])

    @property
    def is_chat(self) -> bool:
        """True for a chat completion."""
        return self.url == CHAT

    @property
    def model(self) -> str:
        """Requested model, repeated in the answer; another one may have answered."""
        model = self.body.get("model") if isinstance(self.body, dict) else None
        return model if isinstance(model, str) else ""

    def embedding_body(self) -> dict[str, JSONValue]:
        """Return the body of a request for embeddings; raises `RowError` as `columns` does."""
        if self.method != "POST":
            raise RowError("invalid_method", 'method must be "POST"', param="method")
        if self.url != EMBEDDINGS:
            raise RowError("invalid_url", f"url must be {EMBEDDINGS}", param="url")
        if not isinstance(self.body, dict):
            raise RowError("invalid_body", "body must be an object", param="body")
        for name, value in self.body.items():
            if name in (*_IGNORED, "input", "dimensions") or value is None:
                continue
            if name != "encoding_format" or value != "float":
                raise not_supported(shown_key(name))
        if self.body.get("input") is None:
            raise RowError("missing_prompt", "no input", param="input")
        return self.body

    def columns(self) -> Columns:
        """Return the columns of an equivalent plain row.

        Raises `RowError`: `invalid_method`, `invalid_url`, `invalid_body`, and `invalid_param` for
        an unknown parameter, which might change the answer.
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
                continue  # used with logprobs
            if name not in known:
                raise not_supported(shown_key(name))
            if name == "prompt" and isinstance(value, list):
                asked["prompt_token_ids"] = _checked_token_ids(value)
            else:
                asked[name] = value
        if self.is_chat:
            return asked | _chat_logprobs(asked.get("logprobs"), self.body.get("top_logprobs"))
        return {**asked, RAW: True}


@dataclass(frozen=True, slots=True)
class JobRow:
    """Row between reading and writing: its prompt as a `request` or an `error`, and its columns.

    It has neither if an earlier run has answered it and nothing else depends on its prompt.

    The request's `index` is the row's. `input` are the columns that come back in the output, or all
    where tables are made of the rows: then `used` names the other ones. `expected` is the answer
    named by the row itself, if any. `call` is set in an OpenAI batch file. `near_misses` pairs
    columns with the parameter whose name is close. `row` is held without its columns.
    """

    row: Row
    encoded: EncodedPrompt
    input: Columns
    expected: str | None = None
    call: OpenAIRequest | None = None
    near_misses: tuple[tuple[str, str], ...] = ()
    used: tuple[str, ...] | None = None
    is_chat: bool = False  # rendered by the chat template

    @property
    def index(self) -> int:
        """Index of the row."""
        return self.row.index

    @property
    def id(self) -> str | int:
        """Id of the row."""
        return self.row.id

    @property
    def place(self) -> str:
        """Position in the input, for messages."""
        return self.row.place

    @property
    def request(self) -> Request | None:
        """Request of a valid row."""
        return self.encoded.request

    @property
    def error(self) -> RowError | None:
        """Error of an invalid row."""
        return self.encoded.error


class RequestBuilder:
    """Builds a `JobRow` for each row, in input order; never raises for a row's contents."""

    def __init__(
        self, prompts: PromptBuilder, encoder: PromptEncoder, *, keeps_columns: bool = False
    ) -> None:
        self._prompts = prompts
        self._keeps_columns = keeps_columns
        self._encoder = encoder

    def build(self, rows: Iterable[Row], done: Container[int] = ()) -> Iterator[JobRow]:
        """Yield one `JobRow` for each row.

        Rows `done` by an earlier run have requests too: the bytes of a row may depend on the
        prefixes of the whole file.
        """
        rows = iter(rows)
        while batch := list(islice(rows, ENCODE_BATCH_ROWS)):
            calls = [OpenAIRequest.of(row.columns) for row in batch]
            prompts = list(map(self._prompt, batch, calls))
            encoded = self._encoder.encode([row.index for row in batch], prompts)
            yield from map(self._job_row, batch, calls, prompts, encoded)

    def _prompt(self, row: Row, call: OpenAIRequest | None) -> Prompt | RowError:
        if row.error is not None:
            return row.error
        try:
            self._prompts.refuse_unreadable(row, () if call is None else CALL_COLUMNS)
            return self._prompts.build(row.columns if call is None else call.columns())
        except RowError as error:
            return error

    def _job_row(
        self,
        row: Row,
        call: OpenAIRequest | None,
        prompt: Prompt | RowError,
        encoded: EncodedPrompt,
    ) -> JobRow:
        if encoded.error is not None:
            encoded = replace(encoded, result=at_line(encoded.error, row.line))
        expected = row.columns.get("expected")
        carried: Columns = self._prompts.carried_columns(row)
        near_misses = self._prompts.near_misses_of(carried, row.columns) if call is None else ()
        used = None
        if self._keeps_columns:
            used = tuple(name for name in row.given if name not in carried)
            carried = row.given
        return JobRow(
            row=row.without_columns(),
            encoded=encoded,
            input=carried,
            expected=expected if isinstance(expected, str) else None,
            call=call,
            near_misses=near_misses,
            used=used,
            is_chat=isinstance(prompt, Prompt) and prompt.is_chat,
        )


CALL_COLUMNS = frozenset({"custom_id", "method", "url", "body"})
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
# Keys about the caller or the service, without effect on the answer.
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


def _chat_logprobs(wants: object, num_top: object) -> dict[str, JSONValue]:
    """Return `logprobs` as in a plain row: in a chat it is a boolean, with a separate number."""
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
