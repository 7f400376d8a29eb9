"""Rows with prompts as the text of `bench accuracy`."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pagedrun.paged.bench.accuracy import TokenIds, TokenizedText
from pagedrun.paged.job.inputs.reader import open_rows
from pagedrun.paged.job.inputs.row import Row
from pagedrun.paged.job.prompts.prompt_builder import PromptBuilder
from pagedrun.paged.job.prompts.prompt_config import PromptConfig
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.errors import RowError, UsageError, option
from pagedrun.paged.values.sampling_params import SamplingParams

MAX_ROWS = 100_000
SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True)
class PromptFile:
    """File of rows as `generate` reads them; each prompt is scored, and the first are answered.

    Prompts are used without a chat template; sampling parameters of rows are ignored.
    """

    path: Path

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    def tokenized(self, tokenizer: Tokenizer, chunk: int, num_prompts: int) -> TokenizedText:
        """Return the prompts' tokens; raises `UsageError` for a row that has no prompt."""
        builder = PromptBuilder(PromptConfig(raw=True), SamplingParams(), tokenizer)
        with open_rows(str(self.path)) as source:
            rows = list(islice(source, MAX_ROWS + 1))
        if len(rows) > MAX_ROWS:
            raise UsageError(f"{option('text')} {self.path} has more than {MAX_ROWS:,} rows")
        prompts = tuple(_token_ids(row, builder, tokenizer) for row in rows)
        return TokenizedText(prompts, prompts[:num_prompts])


def _token_ids(row: Row, builder: PromptBuilder, tokenizer: Tokenizer) -> TokenIds:
    try:
        if row.error is not None:
            raise row.error
        prompt = builder.build(row.columns)
        if prompt.token_ids is not None:
            return prompt.token_ids
        [ids] = tokenizer.encode_batch([prompt.text or ""], prompt.add_special_tokens)
    except RowError as error:
        raise UsageError(f"{option('text')}: {row.unit} {row.line}: {error.marked}") from error
    return tuple(ids)
