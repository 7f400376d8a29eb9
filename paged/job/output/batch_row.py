"""BatchRow: the answer to a `BatchCall`, in the format of OpenAI's batch output.

It has one key more, `index`, as every output row has. `created` is 0 and the ids are made of the
index, so that the same input gives the same bytes.
"""

from dataclasses import dataclass

from pagedrun.paged.job.inputs.row import Columns
from pagedrun.paged.job.output.call_logprobs import ChatLogprobs, TextLogprobs
from pagedrun.paged.job.output.usage import Usage
from pagedrun.paged.job.prompts.batch_call import BatchCall
from pagedrun.paged.values.errors import RowError, as_flag
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.logprobs import TokenLogprob
from pagedrun.paged.values.prompt_input import ChatMessage
from pagedrun.paged.values.request import Completion, FinishReason, SampleOutput
from pagedrun.paged.values.vote import VoteResult

ANSWERED, REFUSED, BROKEN = 200, 400, 500  # a status; the request's fault, and the engine's


@dataclass(frozen=True, slots=True)
class ChatChoice:
    """One of the answers to a chat."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    beam_score: float | None = None  # not OpenAI's


@dataclass(frozen=True, slots=True)
class TextChoice:
    """One of the answers to a plain prompt."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason
    reasoning: str | None = None  # not OpenAI's; vLLM has it in messages
    beam_score: float | None = None


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """What is known of a call's prompt tokens."""

    cached_tokens: int


@dataclass(frozen=True, slots=True)
class CallUsage:
    """The tokens of a call; the last two are ours, as in every output row."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens
    truncated_tokens: int
    max_tokens_clamped: bool

    @classmethod
    def of(cls, usage: Usage) -> "CallUsage":
        """Return the tokens of an output row in OpenAI's words."""
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
    """The body of the response to a call that has answers; `prompt_logprobs` as in plain rows."""

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
    """Why a call has no answer, and the line of the input that it is on."""

    message: str
    type: str
    param: str | None
    code: str
    line: int | None


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """The body of the response to a call that has none."""

    error: CallError


@dataclass(frozen=True, slots=True)
class Response:
    """What the service would have sent back; `status_code` says whose fault an error is."""

    status_code: int
    request_id: str
    body: AnswerBody | ErrorBody


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A line of the output for a call, written as `json_fields` does.

    `error` is null: it is for calls that never reached the service. `input` are the columns of the
    row and `used` their names in a journal, of which tables are made; None elsewhere.
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
        cls, index: int, call: BatchCall, completion: Completion, usage: Usage
    ) -> "BatchRow":
        """Return the line of a call that has answers."""
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
    def failed(cls, index: int, call: BatchCall, error: RowError, status_code: int) -> "BatchRow":
        """Return the line of a call that has none."""
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
        cls, index: int, call: BatchCall, status_code: int, body: AnswerBody | ErrorBody
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
