"""From rows to engine requests."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from pagedrun.paged.job.inputs.row import LINE, Columns, Row, at_line, place_of
from pagedrun.paged.job.prompts.batch_call import BatchCall
from pagedrun.paged.job.prompts.prompts import PromptBuilder
from pagedrun.paged.text.prompts.encoding import ENCODE_BATCH_ROWS, EncodedPrompt, PromptEncoder
from pagedrun.paged.text.prompts.prompt import Prompt
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.request import Request


@dataclass(frozen=True, slots=True)
class JobRow:
    """What the job keeps of a row until it is written: either a `request` or an `error`.

    The request's `index` is the row's. `input` are the columns that come back in the output, or all
    where tables are made of the rows: then `used` names those that were used. `expected` is the
    answer that the row itself names, if any. `call` is set if the row is one of an OpenAI batch
    file, and is answered as such.
    """

    index: int
    line: int
    id: str | int
    input: Columns
    expected: str | None
    request: Request | None
    error: RowError | None
    num_prompt_tokens: int = 0
    unit: str = LINE  # what `line` counts
    call: BatchCall | None = None
    clamped: bool = False  # max_tokens was cut to the room that the prompt leaves
    num_truncated_tokens: int = 0  # of the prompt, dropped because it was too long
    file: str | None = None  # the input, if there are several
    misspelt: tuple[tuple[str, str], ...] = ()  # columns that are near a key, each with that
    used: tuple[str, ...] | None = None
    is_chat: bool = False  # the prompt is what the chat template made; elsewhere it is raw

    @property
    def place(self) -> str:
        """Where the row is, for messages."""
        return place_of(self.unit, self.line, self.file)


class RequestBuilder:
    """Turns rows into `JobRow`s, in input order; never raises for what a row holds."""

    def __init__(
        self, prompts: PromptBuilder, encoder: PromptEncoder, *, keeps_columns: bool = False
    ) -> None:
        self._prompts = prompts
        self._keeps_columns = keeps_columns
        self._encoder = encoder

    def build(self, rows: Iterable[Row]) -> Iterator[JobRow]:
        """Yield one `JobRow` for each row."""
        rows = iter(rows)
        while batch := list(islice(rows, ENCODE_BATCH_ROWS)):
            prompts = [self._prompt(row) for row in batch]
            encoded = self._encoder.encode([row.index for row in batch], prompts)
            yield from map(self._job_row, batch, prompts, encoded)

    def _prompt(self, row: Row) -> Prompt | RowError:
        if row.error is not None:
            return row.error
        try:
            call = BatchCall.of(row.columns)
            return self._prompts.build(row.columns if call is None else call.columns())
        except RowError as error:
            return error

    def _job_row(self, row: Row, prompt: Prompt | RowError, encoded: EncodedPrompt) -> JobRow:
        asked = encoded.asked
        expected = row.columns.get("expected")
        call = BatchCall.of(row.columns)
        carried: Columns = self._prompts.carried_columns(row.columns)
        misspelt = self._prompts.misspelt_keys(carried, row.columns) if call is None else ()
        used = None
        if self._keeps_columns:
            given = row.columns if row.written is None else row.written
            used = tuple(name for name in given if name not in carried)
            carried = given
        return JobRow(
            index=row.index,
            line=row.line,
            id=row.id,
            input=carried,
            expected=expected if isinstance(expected, str) else None,
            request=asked if isinstance(asked, Request) else None,
            error=at_line(asked, row.line) if isinstance(asked, RowError) else None,
            num_prompt_tokens=encoded.num_prompt_tokens,
            unit=row.unit,
            file=row.file,
            call=call,
            clamped=encoded.clamped,
            num_truncated_tokens=encoded.num_truncated_tokens,
            misspelt=misspelt,
            used=used,
            is_chat=isinstance(prompt, Prompt) and prompt.is_chat,
        )
