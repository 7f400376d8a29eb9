"""OutputRow: what is written for a row, with the same keys whatever became of it."""

from dataclasses import dataclass

from pagedrun.paged.job.inputs.row import Columns
from pagedrun.paged.job.output.usage import Usage
from pagedrun.paged.job.prompts.requests import JobRow
from pagedrun.paged.values.errors import RowError, WrittenError, as_flag
from pagedrun.paged.values.logprobs import Score, TokenLogprob
from pagedrun.paged.values.request import Completion, FinishReason, SampleOutput
from pagedrun.paged.values.vote import VoteResult


@dataclass(frozen=True, slots=True)
class Output:
    """One of a row's answers; see `SampleOutput`."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None
    cumulative_logprob: float | None
    logprobs: tuple[TokenLogprob, ...] | None
    reasoning: str | None = None
    beam_score: float | None = None

    @classmethod
    def of(cls, output: SampleOutput) -> "Output":
        """Return the answer as it is written."""
        return cls(
            index=output.index,
            text=output.text,
            token_ids=output.token_ids,
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
            cumulative_logprob=output.cumulative_logprob,
            logprobs=output.logprobs,
            reasoning=output.reasoning,
            beam_score=output.beam_score,
        )


@dataclass(frozen=True, slots=True)
class OutputRow:
    """A line of the output, written as `json_fields` does: a key that only some rows have is a
    field with a default.

    `text` and `finish_reason` are those of `Completion.answer`, or of the likeliest continuation; a
    row without an answer has neither text nor outputs but an `error`. `input` are the columns that
    come back; in a journal they are all there are, and `used` names those that do not come back
    elsewhere. `vote` is what the outputs of a row with a vote voted for.
    """

    index: int
    id: str | int
    text: str | None
    finish_reason: FinishReason
    outputs: tuple[Output, ...]
    usage: Usage
    input: Columns
    error: WrittenError | None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    scores: tuple[Score, ...] = ()
    vote: VoteResult | None = None
    used: tuple[str, ...] | None = None

    @classmethod
    def answered(cls, row: JobRow, completion: Completion) -> "OutputRow":
        """Return the line of a row that has answers."""
        return cls(
            index=row.index,
            id=row.id,
            text=completion.text,
            finish_reason=completion.finish_reason,
            outputs=tuple(map(Output.of, completion.outputs)),
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
        """Return the line of a row that has none."""
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
