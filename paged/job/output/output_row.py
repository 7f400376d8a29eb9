"""Output rows: pagedrun's own format, and OpenAI's batch output for rows of batch files.

A batch row has one key more than OpenAI's, `index`, as every output row has. Its `created` is 0 and
its ids are made of the index, so that the same input gives the same bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from pagedrun.paged.job.inputs.row import Columns, at_line
from pagedrun.paged.job.prompts.requests import JobRow, OpenAIRequest
from pagedrun.paged.values.errors import RowError, WrittenError, as_flag
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.logprobs import Score, TokenLogprob, TopLogprob
from pagedrun.paged.values.prompt_input import ChatMessage
from pagedrun.paged.values.request import Completion, FinishReason, SampleOutput
from pagedrun.paged.values.vote import VoteResult


@dataclass(frozen=True, slots=True)
class Usage:
    """Object under `usage` in an output row."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    truncated_tokens: int
    max_tokens_clamped: bool

    @classmethod
    def of(cls, row: JobRow, completion: Completion | None = None) -> "Usage":
        """Return the usage of a row; without a completion, only its prompt."""
        outputs = () if completion is None else completion.outputs
        return cls(
            prompt_tokens=row.encoded.num_prompt_tokens,
            cached_tokens=0 if completion is None else completion.num_cached_tokens,
            completion_tokens=sum(len(output.token_ids) for output in outputs),
            truncated_tokens=row.encoded.num_truncated_tokens,
            max_tokens_clamped=row.encoded.clamped,
        )


@dataclass(frozen=True, slots=True)
class OutputRow:
    """Line of the output, written as `json_fields` does: a key of only some rows is a field with a
    default.

    `text` and `finish_reason` are those of `Completion.answer`, or of the likeliest continuation; a
    row without an answer has neither text nor outputs but an `error`. `input` are the columns that
    come back; in a journal all columns, and `used` names those that do not come back elsewhere.
    `vote` is the result of a row with a vote.
    """

    index: int
    id: str | int
    text: str | None
    finish_reason: FinishReason
    outputs: tuple[SampleOutput, ...]
    usage: Usage
    input: Columns
    error: WrittenError | None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    scores: tuple[Score, ...] = ()
    vote: VoteResult | None = None
    used: tuple[str, ...] | None = None

    @classmethod
    def answered(cls, row: JobRow, completion: Completion) -> "OutputRow":
        """Return the line of an answered row."""
        return cls(
            index=row.index,
            id=row.id,
            text=completion.text,
            finish_reason=completion.finish_reason,
            outputs=completion.outputs,
            usage=Usage.of(row, completion),
            input=row.input,
            error=None,
            prompt_logprobs=completion.prompt_logprobs,
            scores=completion.scores,
            vote=completion.vote,
            used=row.used,
        )

    @classmethod
    def failed(cls, row: JobRow, error: RowError) -> "OutputRow":
        """Return the line of a failed row."""
        return cls(
            index=row.index,
            id=row.id,
            text=None,
            finish_reason=FinishReason.ERROR,
            outputs=(),
            usage=Usage.of(row),
            input=row.input,
            error=error.to_dict(as_flag),
            used=row.used,
        )


ANSWERED, REFUSED, BROKEN = 200, 400, 500  # status codes: success, invalid request, engine error


@dataclass(frozen=True, slots=True)
class ChatTop:
    """Alternative token in a chat; `bytes` are those of its text in UTF-8."""

    token: str
    logprob: float
    bytes: tuple[int, ...]

    @classmethod
    def of(cls, token: TokenLogprob | TopLogprob) -> "ChatTop":
        """Return the token in OpenAI's format."""
        return cls(token.text, token.logprob, tuple(token.text.encode()))


@dataclass(frozen=True, slots=True)
class ChatToken:
    """Token of an answer in a chat."""

    token: str
    logprob: float
    bytes: tuple[int, ...]
    top_logprobs: tuple[ChatTop, ...]


@dataclass(frozen=True, slots=True)
class ChatLogprobs:
    """Object under `logprobs` in a choice of a chat."""

    content: tuple[ChatToken, ...]
    refusal: None

    @classmethod
    def of(cls, tokens: Sequence[TokenLogprob] | None) -> "ChatLogprobs | None":
        """Return the object for an answer's tokens; None without log-probabilities."""
        if tokens is None:
            return None
        content = []
        for each in tokens:
            own = ChatTop.of(each)
            top = tuple(map(ChatTop.of, each.top))
            content.append(ChatToken(own.token, own.logprob, own.bytes, top))
        return cls(tuple(content), None)


@dataclass(frozen=True, slots=True)
class ChatChoice:
    """Answer to a chat."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    beam_score: float | None = None  # not OpenAI's


@dataclass(frozen=True, slots=True)
class TextLogprobs:
    """Object under `logprobs` in a choice of a plain prompt: lists, one item for each token.

    `text_offset` is the start of the token's text, in characters. `top_logprobs` is null without
    alternatives; of tokens with the same text it has the likeliest.
    """

    tokens: tuple[str, ...]
    token_logprobs: tuple[float, ...]
    top_logprobs: tuple[dict[str, float], ...] | None
    text_offset: tuple[int, ...]

    @classmethod
    def of(cls, tokens: Sequence[TokenLogprob] | None) -> "TextLogprobs | None":
        """Return the object for an answer's tokens; None without log-probabilities."""
        if tokens is None:
            return None
        texts = tuple(each.text for each in tokens)
        top = tuple({one.text: one.logprob for one in reversed(each.top)} for each in tokens)
        return cls(
            tokens=texts,
            token_logprobs=tuple(each.logprob for each in tokens),
            top_logprobs=top if any(top) else None,
            text_offset=tuple(accumulate(map(len, texts[:-1]), initial=0)) if texts else (),
        )


@dataclass(frozen=True, slots=True)
class TextChoice:
    """Answer to a plain prompt."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason
    reasoning: str | None = None  # not OpenAI's; vLLM has it in messages
    beam_score: float | None = None


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Details of a request's prompt tokens."""

    cached_tokens: int


@dataclass(frozen=True, slots=True)
class CallUsage:
    """Tokens of a request; the last two fields are ours, as in every output row."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens
    truncated_tokens: int
    max_tokens_clamped: bool

    @classmethod
    def of(cls, usage: Usage) -> "CallUsage":
        """Return the tokens of an output row in OpenAI's format."""
        return cls(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
            prompt_tokens_details=PromptTokens(usage.cached_tokens),
            truncated_tokens=usage.truncated_tokens,
            max_tokens_clamped=usage.max_tokens_clamped,
        )


@dataclass(frozen=True, slots=True)
class AnswerBody:
    """Response body of an answered request; `prompt_logprobs` as in plain rows."""

    id: str
    object: str
    created: int
    model: str
    choices: tuple[ChatChoice | TextChoice, ...]
    usage: CallUsage
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    vote: VoteResult | None = None  # not OpenAI's


@dataclass(frozen=True, slots=True)
class CallError:
    """Error of a request, and its line in the input."""

    message: str
    type: str
    param: str | None
    code: str
    line: int | None


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """Response body of a failed request."""

    error: CallError


@dataclass(frozen=True, slots=True)
class Response:
    """Response of the service; `status_code` tells an invalid request from an engine error."""

    status_code: int
    request_id: str
    body: AnswerBody | ErrorBody


@dataclass(frozen=True, slots=True)
class BatchRow:
    """Output line of an OpenAI request, written as `json_fields` does.

    `error` is null: it is for requests that never reached the service. `input` are the columns of
    the row and `used` their names in a journal of tables; None elsewhere.
    """

    index: int
    id: str
    custom_id: JSONValue
    response: Response
    error: None
    input: Columns | None = None
    used: tuple[str, ...] | None = None

    @classmethod
    def answered(
        cls, index: int, call: OpenAIRequest, completion: Completion, usage: Usage
    ) -> "BatchRow":
        """Return the line of an answered request."""
        choice = _chat_choice if call.is_chat else _text_choice
        body = AnswerBody(
            id=f"{'chatcmpl' if call.is_chat else 'cmpl'}-{index}",
            object="chat.completion" if call.is_chat else "text_completion",
            created=0,
            model=call.model,
            choices=tuple(map(choice, completion.outputs)),
            usage=CallUsage.of(usage),
            prompt_logprobs=completion.prompt_logprobs,
            vote=completion.vote,
        )
        return cls._of(index, call, ANSWERED, body)

    @classmethod
    def failed(
        cls, index: int, call: OpenAIRequest, error: RowError, status_code: int
    ) -> "BatchRow":
        """Return the line of a failed request."""
        written = CallError(
            message=error.shown(as_flag),
            type="invalid_request_error" if status_code == REFUSED else "server_error",
            param=error.param,
            code=error.code,
            line=error.line,
        )
        return cls._of(index, call, status_code, ErrorBody(written))

    @classmethod
    def _of(
        cls, index: int, call: OpenAIRequest, status_code: int, body: AnswerBody | ErrorBody
    ) -> "BatchRow":
        response = Response(status_code, f"req_{index}", body)
        return cls(index, f"batch_req_{index}", call.custom_id, response, None)


def _chat_choice(output: SampleOutput) -> ChatChoice:
    message = ChatMessage(role="assistant", content=output.text)
    if output.reasoning is not None:
        message["reasoning"] = output.reasoning
    logprobs = ChatLogprobs.of(output.logprobs)
    return ChatChoice(
        output.index, message, logprobs, output.finish_reason, beam_score=output.beam_score
    )


def _text_choice(output: SampleOutput) -> TextChoice:
    logprobs = TextLogprobs.of(output.logprobs)
    return TextChoice(
        output.index,
        output.text,
        logprobs,
        output.finish_reason,
        reasoning=output.reasoning,
        beam_score=output.beam_score,
    )


WrittenRow = OutputRow | BatchRow


def answered_row(row: JobRow, completion: Completion) -> WrittenRow:
    """Return the output row of a completion, with answers or an error."""
    if completion.error is not None:
        return failed_row(row, completion.error, BROKEN)
    if row.call is not None:
        answer = BatchRow.answered(row.index, row.call, completion, Usage.of(row, completion))
        return _with_columns(answer, row)
    return OutputRow.answered(row, completion)


def failed_row(row: JobRow, error: RowError, status_code: int = REFUSED) -> WrittenRow:
    """Return the output row of a failed row; an OpenAI request has a status code too."""
    error = at_line(error, row.row.line)
    if row.call is not None:
        return _with_columns(BatchRow.failed(row.index, row.call, error, status_code), row)
    return OutputRow.failed(row, error)


def _with_columns(answer: BatchRow, row: JobRow) -> BatchRow:
    """Return a row of a batch file with the columns of its input, if they are kept."""
    if row.used is None:
        return answer
    return replace(answer, input=row.input, used=row.used)
