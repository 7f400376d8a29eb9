"""From rows to engine requests: prompts encoded in batches, and checked against the limits."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from pagedrun.paged.job.inputs.row import LINE, Columns, Row, at_line
from pagedrun.paged.job.interfaces import RefuseStructures, TokenizerLike
from pagedrun.paged.job.prompts.batch_call import BatchCall
from pagedrun.paged.job.prompts.continuations import CONTINUATIONS, encode_continuations
from pagedrun.paged.job.prompts.overlong import Overlong
from pagedrun.paged.job.prompts.prompts import Prompt, PromptBuilder
from pagedrun.paged.text.bad_words import BadWords
from pagedrun.paged.values.errors import RowError
from pagedrun.paged.values.request import Request

ENCODE_BATCH_ROWS = 512
# No text has this many characters a token on average; longer ones are refused without encoding,
# because a tokenizer may take minutes for them.
MAX_CHARS_PER_TOKEN = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """What the model allows: context in tokens, and the number of token ids.

    `on_overlong` says what becomes of a prompt that is too long for it.
    """

    max_model_len: int
    vocab_size: int
    on_overlong: Overlong = Overlong.ERROR


@dataclass(frozen=True, slots=True)
class JobRow:
    """What the job keeps of a row until it is written: either a `request` or an `error`.

    The request's `index` is the row's. `input` are the columns that come back in the output,
    `expected` the answer that the row itself names, if any. `call` is set if the row is one of an
    OpenAI batch file, and is answered as such.
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


class RequestBuilder:
    """Turns rows into `JobRow`s, in input order; never raises for what a row holds."""

    def __init__(
        self,
        prompts: PromptBuilder,
        tokenizer: TokenizerLike,
        limits: Limits,
        refused: RefuseStructures | None = None,
    ) -> None:
        """refused: tells which structures cannot be had; without it none is looked at."""
        self._prompts = prompts
        self._refused = refused
        self._tokenizer = tokenizer
        self._limits = limits
        self._bad_words = BadWords(tokenizer)
        # One integer object for each id that occurs: a file's tokens take a quarter of the memory.
        self._token_ids: dict[int, int] = {}

    def build(self, rows: Iterable[Row]) -> Iterator[JobRow]:
        """Yield one `JobRow` for each row."""
        rows = iter(rows)
        while batch := list(islice(rows, ENCODE_BATCH_ROWS)):
            prompts = self._possible([self._prompt(row) for row in batch])
            for row, prompt, ids in zip(batch, prompts, self._encode(prompts), strict=True):
                yield self._job_row(row, prompt, ids)

    def _prompt(self, row: Row) -> Prompt | RowError:
        if row.error is not None:
            return row.error
        try:
            call = BatchCall.of(row.columns)
            prompt = self._prompts.build(row.columns if call is None else call.columns())
            self._check_num_chars(prompt)
        except RowError as error:
            return error
        return prompt

    def _possible(self, prompts: Sequence[Prompt | RowError]) -> list[Prompt | RowError]:
        """Return the prompts, or why what one asks for its answer cannot be had."""
        of_prompts = [None if isinstance(p, RowError) else p.params.structure for p in prompts]
        structures = [each for each in of_prompts if each is not None]
        if self._refused is None or not structures:
            return list(prompts)
        refused = self._refused(structures)
        pairs = zip(prompts, of_prompts, strict=True)
        return [prompt if asked is None else refused.get(asked, prompt) for prompt, asked in pairs]

    def _encode(self, prompts: Sequence[Prompt | RowError]) -> list[tuple[int, ...] | RowError]:
        """Return each prompt's ids, in two calls: with special tokens and without."""
        results: list[tuple[int, ...] | RowError] = [
            prompt if isinstance(prompt, RowError) else prompt.token_ids or () for prompt in prompts
        ]
        for special in (True, False):
            texts = {
                place: prompt.text
                for place, prompt in enumerate(prompts)
                if isinstance(prompt, Prompt)
                and prompt.text is not None
                and prompt.add_special_tokens is special
            }
            if texts:
                encoded = self._encode_texts(list(texts.values()), special)
                for place, ids in zip(texts, encoded, strict=True):
                    results[place] = ids
        return results

    def _encode_texts(self, texts: list[str], special: bool) -> list[tuple[int, ...] | RowError]:
        try:
            encoded = self._tokenizer.encode_batch(texts, add_special_tokens=special)
        except RowError as error:
            if len(texts) == 1:
                return [error]
            # One text spoils the call for all: ask for each alone to find it.
            return [self._encode_texts([text], special)[0] for text in texts]
        known = self._token_ids.setdefault
        return [tuple(map(known, ids, ids)) for ids in encoded]

    def _job_row(
        self, row: Row, prompt: Prompt | RowError, ids: tuple[int, ...] | RowError
    ) -> JobRow:
        outcome: Request | RowError
        clamped = False
        num_tokens = 0 if isinstance(ids, RowError) else len(ids)
        if isinstance(prompt, RowError):
            outcome = prompt
        elif isinstance(ids, RowError):
            outcome = ids
        else:
            asked = self._asked(row.index, prompt, ids)
            outcome = asked if isinstance(asked, RowError) else self._fitted(asked)
            if isinstance(asked, Request):
                ids = asked.prompt_token_ids
                clamped = outcome is not asked and isinstance(outcome, Request)
        expected = row.columns.get("expected")
        num_kept = 0 if isinstance(ids, RowError) else len(ids)
        return JobRow(
            index=row.index,
            line=row.line,
            id=row.id,
            input=self._prompts.carried_columns(row.columns),
            expected=expected if isinstance(expected, str) else None,
            request=outcome if isinstance(outcome, Request) else None,
            error=at_line(outcome, row.line) if isinstance(outcome, RowError) else None,
            num_prompt_tokens=num_kept,
            unit=row.unit,
            call=BatchCall.of(row.columns),
            clamped=clamped,
            num_truncated_tokens=num_tokens - num_kept,
        )

    def _asked(self, index: int, prompt: Prompt, ids: tuple[int, ...]) -> Request | RowError:
        """Return the request, its prompt cut if it is too long and that is wanted."""
        try:
            if prompt.continuations:
                return self._scoring(index, prompt, ids)
            params, limits = prompt.params, self._limits
            kept = limits.on_overlong.cut(ids, limits.max_model_len, params.max_tokens)
            return Request(index, kept, params, self._bad_words.token_ids(params.bad_words))
        except RowError as error:
            return error

    def _scoring(self, index: int, prompt: Prompt, ids: tuple[int, ...]) -> Request:
        """Return the request of a row that is to be scored; raises `RowError`."""
        continuations = encode_continuations(
            prompt.continuations,
            self._tokenizer,
            prompt=prompt.text,
            space=prompt.space,
            add_special_tokens=prompt.add_special_tokens,
            num_prompt_tokens=len(ids),
        )
        longest = max(len(each.token_ids) for each in continuations)
        kept = self._limits.on_overlong.cut(ids, self._limits.max_model_len, longest, longest)
        return Request.scoring(index, kept, continuations, prompt.params.prompt_logprobs)

    def _fitted(self, asked: Request) -> Request | RowError:
        try:
            return asked.fitted(self._limits.max_model_len, self._limits.vocab_size)
        except RowError as error:
            return error

    def _check_num_chars(self, prompt: Prompt) -> None:
        limit = self._limits.max_model_len * MAX_CHARS_PER_TOKEN
        longest = max(map(len, prompt.continuations), default=0)
        if longest > limit:
            raise RowError(
                "prompt_too_long",
                f"a continuation has {longest} characters, which cannot fit a max_model_len of "
                f"{self._limits.max_model_len} tokens",
                param=CONTINUATIONS,
            )
        if prompt.text is not None and len(prompt.text) > limit:
            raise RowError(
                "prompt_too_long",
                f"the prompt has {len(prompt.text)} characters, which cannot fit a max_model_len "
                f"of {self._limits.max_model_len} tokens",
                param="prompt",
            )
