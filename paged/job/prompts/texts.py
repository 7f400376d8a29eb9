"""Texts of rows for vectors, scores and labels: read from columns, encoded, cut or in chunks.

A row has a text, or a query and documents. Rows of OpenAI batch files for /v1/embeddings have one
or several inputs. Special tokens are those of the tokenizer; a prompt of the model begins a text.
"""

from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from itertools import islice

from pagedrun.paged.execution.pooling.pairs import Given, pair_texts
from pagedrun.paged.execution.pooling.texts import PooledTextEncoder
from pagedrun.paged.job.inputs.json_line import shown_key
from pagedrun.paged.job.inputs.row import Columns, Row, at_line, id_column
from pagedrun.paged.job.prompts.prompt_builder import NO_COLUMNS, TemplateColumns
from pagedrun.paged.job.prompts.prompt_config import PromptConfig
from pagedrun.paged.job.prompts.requests import CALL_COLUMNS, EMBEDDINGS, JobRow, OpenAIRequest
from pagedrun.paged.models.pooler_spec import PooledModelSpec
from pagedrun.paged.text.prompt_encoder import (
    ENCODE_BATCH_ROWS,
    EncodedPrompt,
)
from pagedrun.paged.values.errors import RowError, option
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.pooling import PoolingParams, Task

TEXT_COLUMNS = ("text", "prompt", "prompt_token_ids")
MAX_TEXTS = 2**16  # of a row
_DONE = EncodedPrompt(None)
_QUERY, _DOCUMENTS, _DOCUMENT, _SECOND = "query", "documents", "document", "text_pair"


class TextBuilder:
    """Builds a `JobRow` for each row of a task, in input order; never raises for its contents."""

    def __init__(
        self,
        encoder: PooledTextEncoder,
        spec: PooledModelSpec,
        params: PoolingParams,
        prompts: PromptConfig,
        *,
        keeps_columns: bool = False,
    ) -> None:
        self._encoder = encoder
        self._spec = spec
        self._params = params
        self._prompts = prompts
        template = prompts.template
        self._template = NO_COLUMNS if template is None else TemplateColumns.of(template.source)
        self._keeps_columns = keeps_columns

    def build(self, rows: Iterable[Row], done: Container[int] = ()) -> Iterator[JobRow]:
        """Yield one `JobRow` for each row; those `done` by an earlier run are not encoded."""
        rows = iter(rows)
        while batch := list(islice(rows, ENCODE_BATCH_ROWS)):
            calls = [OpenAIRequest.of(row.columns) for row in batch]
            left = [i for i, row in enumerate(batch) if row.index not in done]
            texts = [self._texts(batch[i], calls[i]) for i in left]
            encoded = [_DONE] * len(batch)
            asked = self._encoder.requests([batch[i].index for i in left], texts)
            for i, each in zip(left, asked, strict=True):
                encoded[i] = each
            yield from map(self._job_row, batch, calls, encoded)

    def _texts(self, row: Row, call: OpenAIRequest | None) -> list[Given] | RowError:
        if row.error is not None:
            return row.error
        try:
            if row.unreadable or row.unfit:
                also = () if call is None else CALL_COLUMNS
                self._template.refuse_unreadable(row, self._used(row).union(also))
            if call is not None:
                return self._of_call(call)
            return self._of_columns(row.columns)
        except RowError as error:
            return error

    def _of_columns(self, columns: Columns) -> list[Given]:
        if self._params.task is Task.RERANK:
            return self._pairs(columns)
        if self._prompts.template is not None:
            return [self._prompts.template.render(columns)]
        name = self._prompts.field
        if name is None:
            name = next((each for each in TEXT_COLUMNS if columns.get(each) is not None), None)
        if name is None or columns.get(name) is None:
            shown = " or ".join(TEXT_COLUMNS) if name is None else shown_key(name)
            raise RowError(
                "missing_prompt",
                f"no {shown}; {option('prompt_field')} names another column",
                param="text" if name is None else name,
            )
        value = columns[name]
        if name == "prompt_token_ids":
            return [_token_ids(value, name)]
        text, second = _text(value, name), columns.get(_SECOND)
        if second is None or self._params.task is not Task.CLASSIFY:
            return [text]
        return [(text, _text(second, _SECOND))]

    def _pairs(self, columns: Columns) -> list[Given]:
        query, documents = columns.get(_QUERY), columns.get(_DOCUMENTS)
        single = columns.get(_DOCUMENT)
        if query is None or (documents is None and single is None):
            raise RowError(
                "missing_prompt",
                f"a row has a {_QUERY} and a list of {_DOCUMENTS}, or one {_DOCUMENT}",
                param=_QUERY if query is None else _DOCUMENTS,
            )
        if documents is not None and single is not None:
            raise RowError(
                "invalid_param",
                f"a row has {_DOCUMENTS} or {_DOCUMENT}, not both; rename the one that is data",
                param=_DOCUMENT,
            )
        given = [single] if documents is None else documents
        if not isinstance(given, list) or not given or len(given) > MAX_TEXTS:
            raise RowError(
                "invalid_param", f"{_DOCUMENTS} must be a list of texts", param=_DOCUMENTS
            )
        first = _text(query, _QUERY)
        texts = [_text(each, _DOCUMENTS) for each in given]
        return pair_texts(first, texts, self._spec, self._params)

    def _of_call(self, call: OpenAIRequest) -> list[Given]:
        body = call.embedding_body()
        if self._params.task is not Task.EMBED:
            raise RowError(
                "invalid_url", f"{EMBEDDINGS} is answered by pagedrun embed", param="url"
            )
        asked = body.get("dimensions")
        if asked is not None and asked != self._params.dimensions:
            raise RowError(
                "invalid_param",
                f"dimensions must be that of the run; pass {option('dimensions')}",
                param="dimensions",
            )
        given = body["input"]
        if isinstance(given, str):
            return [given]
        if not isinstance(given, list) or not given or len(given) > MAX_TEXTS:
            raise RowError("invalid_param", "input must be a text or a list of them", param="input")
        if isinstance(given[0], int):
            return [_token_ids(given, "input")]
        if isinstance(given[0], list):
            return [_token_ids(each, "input") for each in given]
        return [_text(each, "input") for each in given]

    def _job_row(self, row: Row, call: OpenAIRequest | None, encoded: EncodedPrompt) -> JobRow:
        if encoded.error is not None:
            encoded = replace(encoded, result=at_line(encoded.error, row.line))
        not_carried = self._used(row)
        carried: Columns = {
            name: value for name, value in row.given.items() if name not in not_carried
        }
        used = None
        if self._keeps_columns:
            used = tuple(name for name in row.given if name not in carried)
            carried = row.given
        return JobRow(row.without_columns(), encoded, carried, call=call, used=used)

    def _used(self, row: Row) -> set[str | None]:
        """Return the columns that do not come back."""
        if self._params.task is Task.RERANK:
            return {id_column(row.columns), _QUERY, _DOCUMENTS, _DOCUMENT}
        used: set[str | None] = {id_column(row.columns)}
        if self._prompts.field is not None:
            used.add(self._prompts.field)
        elif self._prompts.template is None:
            used.update(TEXT_COLUMNS)
        return used | ({_SECOND} if self._params.task is Task.CLASSIFY else set())


def _text(value: JSONValue, name: str) -> str:
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        value = value["text"]
    if not isinstance(value, str):
        raise RowError("unsupported_content", f"{shown_key(name)} must be text", param=name)
    return value


def _token_ids(value: JSONValue, name: str) -> tuple[int, ...]:
    given = value if isinstance(value, list) else []
    ids = tuple(each for each in given if isinstance(each, int) and not isinstance(each, bool))
    if not ids or len(ids) != len(given):
        raise RowError("invalid_param", f"{name} must be a list of token ids", param=name)
    return ids
