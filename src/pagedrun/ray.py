"""Ray Data: answers to the prompts of a dataset, a block of rows at a time.

For one file with one writer, resume and a plan of the whole, `pagedrun generate --replicas` is the
better choice: here prefixes are shared within a block only, and Ray recomputes a block whose actor
dies.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pagedrun import LLM, Completion, SamplingParams, UsageError

BATCH_ROWS = 4096

Batch = Mapping[str, NDArray[Any]]


class Dataset(Protocol):
    """Part of the interface of `ray.data.Dataset`."""

    def map_batches(self, fn: type, **options: Any) -> Any:
        """Return the dataset of the results of `fn` for each batch."""


class BatchAnswers:
    """Callable class for `Dataset.map_batches`: holds a model, answers batches."""

    def __init__(
        self,
        model: str | Path,
        params: SamplingParams | None = None,
        prompt_column: str = "prompt",
        engine: Mapping[str, Any] | None = None,
        *,
        raw: bool = False,
    ) -> None:
        """engine: further arguments of `LLM`. raw: as in `LLM.generate`. Raises as `LLM` does."""
        self._llm = LLM(model, **(engine or {}))
        self._params = params
        self._column = prompt_column
        self._raw = raw

    def __call__(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Return the batch with the columns of its answers.

        `text`, `finish_reason` and `error` are str or None, `prompt_tokens` and `completion_tokens`
        int64; each [num_rows]. The batch is planned as a whole; its prompts are texts, token ids or
        chat messages. Raises `UsageError` if the column of prompts is missing.
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
    """Return a dataset with the answers to the prompts of another; see `BatchAnswers` for columns.

    batch_size: rows that are planned together. engine: further arguments of `LLM`. raw: texts are
    completed unchanged, even if the model has a chat template. options: those of
    `Dataset.map_batches`, such as `concurrency` (number of actors), `num_cpus` (threads of each)
    and `num_gpus`.
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
    """Return a prompt as Python objects: token ids and messages arrive as arrays."""
    return prompt.tolist() if isinstance(prompt, np.ndarray | np.generic) else prompt


def _text(answer: Completion) -> str | None:
    return None if answer.error is not None else answer.text


def _finish_reason(answer: Completion) -> str | None:
    return str(answer.outputs[0].finish_reason) if answer.outputs else None


def _objects(values: list[Any]) -> NDArray[Any]:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found
