"""Output rows of embeddings, reranking and classification.

A row has a vector, documents by their scores, or a label and the probabilities of all. Rows of
OpenAI batch files get the response of /v1/embeddings.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.job.inputs.row import InputFacts, at_line
from pagedrun.paged.job.output.answer_rows import Lines
from pagedrun.paged.job.output.column_types import EMBEDDING, ERROR, row_format
from pagedrun.paged.job.output.kept_tables import KeptTables
from pagedrun.paged.job.output.output_file import OutputFormat
from pagedrun.paged.job.output.output_layout import Conversion, OutputLayout
from pagedrun.paged.job.output.output_row import ANSWERED, BROKEN, REFUSED, failed_row
from pagedrun.paged.job.output.row_columns import VECTOR_DIGEST
from pagedrun.paged.job.output.saved_rows import FinishedRows
from pagedrun.paged.job.output.vector_files import VectorFile
from pagedrun.paged.job.output.writer import Indexed
from pagedrun.paged.job.progress import AnswerPreview
from pagedrun.paged.job.prompts.requests import JobRow, OpenAIRequest
from pagedrun.paged.values.errors import RowError, as_flag
from pagedrun.paged.values.json_value import JSONValue
from pagedrun.paged.values.pooling import PoolingParams, Task
from pagedrun.paged.values.request import Completion

Vector = NDArray[np.float32]
_SHOWN = 4  # numbers of a vector in a preview


class PooledRow(dict[str, object]):
    """Line of the output, with its keys in order."""

    @property
    def index(self) -> int:
        """Row index in the input."""
        index = self["index"]
        assert isinstance(index, int)
        return index


class PooledRows:
    """Rows of a task; implements `ResultRows`.

    Vectors of Parquet files and arrays are in a `VectorFile`, all other results in the lines.
    `labels` are those of a classifier.
    """

    def __init__(
        self, params: PoolingParams, layout: OutputLayout, labels: tuple[str, ...]
    ) -> None:
        self._params = params
        self._layout = layout
        self._labels = labels
        is_table = layout.format in (OutputFormat.PARQUET, OutputFormat.NPY, OutputFormat.CSV)
        # One result a row, in columns: also for rows of OpenAI batch files.
        self._is_table = is_table
        has_file = is_table and params.task is Task.EMBED
        self._vectors = VectorFile(layout, params.vector_type) if has_file else None
        contents = row_format(params).contents
        self._names = tuple(each for each in contents if each != ERROR)  # keys of a result

    @property
    def has_vectors(self) -> bool:
        """True if lines refer to vectors in a file, which `sync` makes durable."""
        return self._vectors is not None

    def begin(self, finished: FinishedRows, read: Callable[[int, int], bytes]) -> None:
        """Open the file of vectors. Raises `UsageError` if it lacks one of a finished row."""
        if self._vectors is not None and not finished.is_all:
            self._vectors.begin(finished, read)

    def answered(self, row: JobRow, completion: Completion) -> Indexed:
        """Return the line of a completion, with its result or an error. Raises `OutputError`."""
        pooled = completion.pooled
        if completion.error is not None or pooled is None:
            error = completion.error or RowError("no_result", "the row has no result")
            return self._failed(row, error, BROKEN)
        if row.call is not None and not self._is_table:
            return _batch_row(row, row.call, pooled)
        if row.call is not None and len(pooled) > 1:
            error = RowError(
                "too_many_inputs",
                f"a row of this output has one vector, and input has {len(pooled)} texts; let the "
                f"name of the output end in {OutputFormat.JSONL}",
                param="input",
            )
            return self._failed(row, error, REFUSED)
        if self._vectors is None:
            return self._line(row, self._result(pooled), None)
        try:
            digest = self._vectors.write(row.index, pooled[0])
        except RowError as error:
            return self._failed(row, error, BROKEN)
        line = self._line(row, dict.fromkeys(self._names), None)
        line[VECTOR_DIGEST] = digest
        return line

    def failed(self, row: JobRow, error: RowError) -> Indexed:
        """Return the line of an invalid row."""
        return self._failed(row, error, REFUSED)

    def preview(self, row: JobRow, completion: Completion) -> AnswerPreview:
        """Return a result in a few words, or the error."""
        if completion.pooled is None:
            return AnswerPreview.of(row, completion)
        return AnswerPreview(row.index, row.id, self._shown(completion.pooled))

    def sync(self) -> None:
        """Make the vectors of the lines so far durable. Raises `OutputError`."""
        if self._vectors is not None:
            self._vectors.sync()

    def convert(
        self, lines: Lines, num_rows: int, facts: InputFacts, kept: KeptTables | None
    ) -> list[str]:
        """Write the output files; return warnings. Raises `OutputError`."""
        vectors, layout = self._vectors, self._layout
        if vectors is None:
            return Conversion(layout, lines, num_rows, facts, kept=kept).write()
        errors = vectors.end(lines, num_rows)
        if layout.format is OutputFormat.NPY:
            vectors.write_arrays(num_rows, errors)
            return []
        return Conversion(layout, lines, num_rows, facts, vectors.columns, kept).write()

    def remove(self) -> None:
        """Remove the file of vectors, without which the lines of the journal cannot be resumed."""
        if self._vectors is not None:
            self._vectors.remove()

    def close(self) -> None:
        """Close the file of vectors."""
        if self._vectors is not None:
            self._vectors.close()

    def _failed(self, row: JobRow, error: RowError, status_code: int) -> PooledRow:
        error = at_line(error, row.row.line)
        if row.call is None or self._is_table:
            return self._line(row, dict.fromkeys(self._names), error)
        line = failed_row(row, error, status_code)
        names = ("index", "id", "custom_id", "response", "error")
        return _with_columns(PooledRow({name: getattr(line, name) for name in names}), row)

    def _shown(self, pooled: Vector) -> str:
        """Return a result in a few words."""
        if self._params.task is Task.EMBED:
            vector = pooled[0]
            shown = ", ".join(f"{each:.4f}" for each in vector[:_SHOWN].tolist())
            return f"[{shown}, …] ({len(vector)} numbers)"
        result = self._result(pooled)
        if self._params.task is Task.CLASSIFY:
            return f"{result['label']} ({float(pooled[0].max()):.4f})"
        best = result["results"]
        assert isinstance(best, list)
        return ", ".join(f"{each['index']}: {each['score']:.4f}" for each in best[:_SHOWN])  # type: ignore[index,call-overload]

    def _result(self, pooled: Vector) -> dict[str, JSONValue]:
        """Return the keys of a result. pooled: [num_parts, size]."""
        match self._params.task:
            case Task.EMBED:
                return {EMBEDDING: numbers(pooled[0])}
            case Task.RERANK:
                scores = pooled[:, 0]
                best = np.argsort(-scores, kind="stable")[: self._params.top_n]
                written = numbers(scores)
                return {
                    "results": [{"index": each, "score": written[each]} for each in best.tolist()]
                }
        own = pooled[0]
        by_label: dict[str, JSONValue] = dict(zip(self._labels, numbers(own), strict=True))
        return {"label": self._labels[int(own.argmax())], "scores": by_label}

    def _line(self, row: JobRow, result: dict[str, JSONValue], error: RowError | None) -> PooledRow:
        encoded = row.encoded
        line = PooledRow(
            {
                "index": row.index,
                "id": row.id,
                **result,
                "usage": {
                    "prompt_tokens": encoded.num_prompt_tokens,
                    "truncated_tokens": encoded.num_truncated_tokens,
                },
                "input": row.input,
                "error": None if error is None else error.to_dict(as_flag),
            }
        )
        if row.used is not None:
            line["used"] = row.used
        return line


def numbers(vector: Vector) -> list[JSONValue]:
    """Return numbers with the fewest digits that are read back as the same float32."""
    found: list[JSONValue] = vector.astype("S16").astype(np.float64).tolist()
    return found


def _batch_row(row: JobRow, call: OpenAIRequest, pooled: Vector) -> PooledRow:
    count = row.encoded.num_prompt_tokens
    body = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": numbers(vector)}
            for index, vector in enumerate(pooled)
        ],
        "model": call.model,
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }
    response = {"status_code": ANSWERED, "request_id": f"req_{row.index}", "body": body}
    line = PooledRow(
        {
            "index": row.index,
            "id": f"batch_req_{row.index}",
            "custom_id": call.custom_id,
            "response": response,
            "error": None,
        }
    )
    return _with_columns(line, row)


def _with_columns(line: PooledRow, row: JobRow) -> PooledRow:
    """Return a row of a batch file with the columns of its input, if they are kept."""
    if row.used is not None:
        line |= {"input": row.input, "used": row.used}
    return line
