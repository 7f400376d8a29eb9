"""Output rows of embeddings, reranking and classification.

A row has a vector, documents by their scores, or a label and the probabilities of all. Rows of
OpenAI batch files get the response of /v1/embeddings.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pagedrun.paged.job.inputs.row import at_line
from pagedrun.paged.job.output.output_row import BROKEN, REFUSED, failed_row
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


@dataclass(frozen=True, slots=True)
class PooledOutput:
    """Rows of a task. `labels` are those of a classifier. `has_vectors`: they are in the rows."""

    params: PoolingParams
    labels: tuple[str, ...]
    has_vectors: bool = True

    def answered(self, row: JobRow, completion: Completion) -> PooledRow:
        """Return the line of a completion, with its result or an error."""
        if completion.error is not None or completion.pooled is None:
            error = completion.error or RowError("no_result", "the row has no result")
            return self.failed(row, error, BROKEN)
        if row.call is not None:
            return _batch_row(row, row.call, completion.pooled)
        return self._line(row, self._result(completion.pooled), None)

    def failed(self, row: JobRow, error: RowError, status_code: int = REFUSED) -> PooledRow:
        """Return the line of a failed row."""
        error = at_line(error, row.row.line)
        if row.call is not None:
            line = failed_row(row, error, status_code)
            names = ("index", "id", "custom_id", "response", "error")
            return PooledRow({name: getattr(line, name) for name in names})
        empty: dict[str, JSONValue] = dict.fromkeys(self.names)
        return self._line(row, empty, error)

    def preview(self, pooled: Vector) -> str:
        """Return a result in a few words."""
        if self.params.task is Task.EMBED:
            vector = pooled[0]
            shown = ", ".join(f"{each:.4f}" for each in vector[:_SHOWN].tolist())
            return f"[{shown}, …] ({len(vector)} numbers)"
        result = self._result(pooled)
        if self.params.task is Task.CLASSIFY:
            return f"{result['label']} ({float(pooled[0].max()):.4f})"
        best = result["results"]
        assert isinstance(best, list)
        return ", ".join(f"{each['index']}: {each['score']:.4f}" for each in best[:_SHOWN])  # type: ignore[index,call-overload]

    @property
    def names(self) -> tuple[str, ...]:
        """Keys of a result in a row."""
        match self.params.task:
            case Task.EMBED:
                return ("embedding",) if self.has_vectors else ()
            case Task.RERANK:
                return ("results",)
        return ("label", "scores")

    def _result(self, pooled: Vector) -> dict[str, JSONValue]:
        """Return the keys of a result. pooled: [num_parts, size]."""
        match self.params.task:
            case Task.EMBED:
                return {"embedding": numbers(pooled[0])} if self.has_vectors else {}
            case Task.RERANK:
                scores = pooled[:, 0]
                best = np.argsort(-scores, kind="stable")[: self.params.top_n]
                written = numbers(scores)
                return {
                    "results": [{"index": each, "score": written[each]} for each in best.tolist()]
                }
        own = pooled[0]
        by_label: dict[str, JSONValue] = dict(zip(self.labels, numbers(own), strict=True))
        return {"label": self.labels[int(own.argmax())], "scores": by_label}

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
    return PooledRow(
        {
            "index": row.index,
            "id": f"batch_req_{row.index}",
            "custom_id": call.custom_id,
            "response": {"status_code": 200, "request_id": f"req_{row.index}", "body": body},
            "error": None,
        }
    )
