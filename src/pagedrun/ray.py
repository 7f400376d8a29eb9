"""Ray Data: a dataset's prompts answered inside a pipeline, a block of rows at a time.

For one file with one writer, resume and a plan of the whole, `pagedrun generate --replicas` is the
better choice: here a prefix is shared within a block only, and a block whose actor dies is computed
again by Ray.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pagedrun import LLM, Completion, SamplingParams, UsageError

BATCH_ROWS = 4096  # that are planned together

Batch = Mapping[str, NDArray[Any]]


class Dataset(Protocol):
    """The part of `ray.data.Dataset` that is used."""

    def map_batches(self, fn: type, **options: Any) -> Any:
        """Return the dataset of what `fn` makes of each batch."""


class BatchAnswers:
    """What `Dataset.map_batches` calls in its actors: holds a model, answers batches."""

    def __init__(
        self,
        model: str | Path,
        params: SamplingParams | None = None,
        prompt_column: str = "prompt",
        engine: Mapping[str, Any] | None = None,
        *,
        raw: bool = False,
    ) -> None:
        """engine: further arguments of `LLM`. raw: that of `LLM.generate`. Raises as `LLM` does."""
        self._llm = LLM(model, **(engine or {}))
        self._params = params
        self._column = prompt_column
        self._raw = raw

    def __call__(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Return the batch with the columns of its answers.

        `text`, `finish_reason` and `error` are str or None, `prompt_tokens` and `completion_tokens`
        int64; each [num_rows]. The batch is planned as a whole; its prompts are texts, token ids or
        chat messages. Raises `UsageError` if it has no column of prompts.
        """
        if self._column not in batch:
            raise UsageError(
                f"the batch has no column {self._column}; it has {', '.join(batch)}: pass "
                "prompt_column"
            )
        prompts = [_plain(each) for each in batch[self._column]]
        answers = self._llm.generate(prompts, self._params, raw=self._raw)
        tokens = [sum(len(each.token_ids) for each in answer.outputs) for answer in answers]
        return {
            **batch,
            "text": _objects([_text(each) for each in answers]),
            "finish_reason": _objects([_finish_reason(each) for each in answers]),
            "error": _objects([each.error and str(each.error) for each in answers]),
            "prompt_tokens": np.array([len(each.request.prompt_token_ids) for each in answers]),
            "completion_tokens": np.array(tokens, np.int64),
        }


def map_batches(
    dataset: Dataset,
    model: str | Path,
    params: SamplingParams | None = None,
    *,
    prompt_column: str = "prompt",
    batch_size: int = BATCH_ROWS,
    engine: Mapping[str, Any] | None = None,
    raw: bool = False,
    **options: Any,
) -> Any:
    """Return a dataset with the answers to another one's prompts; see `BatchAnswers` for columns.

    batch_size: rows that are planned together. engine: further arguments of `LLM`. raw: texts are
    completed as they are, also where the model has a chat template. options: those
    of `Dataset.map_batches`, such as `concurrency`, how many actors there are, `num_cpus`, the
    threads of each, and `num_gpus`.
    """
    arguments = {
        "model": str(model),
        "params": params,
        "prompt_column": prompt_column,
        "engine": dict(engine or {}),
        "raw": raw,
    }
    return dataset.map_batches(
        BatchAnswers,
        fn_constructor_kwargs=arguments,
        batch_size=batch_size,
        batch_format="numpy",
        **{"concurrency": 1, **options},
    )


def _plain(prompt: Any) -> Any:
    """Return a prompt as Python has it: token ids and messages come as arrays."""
    return prompt.tolist() if isinstance(prompt, np.ndarray | np.generic) else prompt


def _text(answer: Completion) -> str | None:
    return None if answer.error is not None else answer.text


def _finish_reason(answer: Completion) -> str | None:
    return str(answer.outputs[0].finish_reason) if answer.outputs else None


def _objects(values: list[Any]) -> NDArray[Any]:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found
