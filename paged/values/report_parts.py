"""Parts of plans and reports that models and the prefix store fill."""

from typing import Literal, NotRequired, TypedDict


class TransformersPath(TypedDict):
    """`library` section of a plan, known before weights are read.

    `computed_by` is the library with its version. `path` says over what memory it computes: paged
    memory, or caches of its own, sequence by sequence (`plain`), of which no row shares any;
    `why_plain` is why.
    """

    computed_by: str
    path: Literal["paged", "plain"]
    why_plain: NotRequired[str]


class TransformersFigures(TransformersPath):
    """`library` section of a report, with checks of the loaded model.

    `largest_difference` is that between its logits alone and those of the path, as a share of the
    largest logit. `rows_depend_on_batch` says whether a token's last bits were seen to depend on
    what is computed beside it.
    """

    largest_difference: float
    rows_depend_on_batch: bool


class StoreFigures(TypedDict):
    """The report's `prefix_store` object: tokens, bytes, files and seconds of a run."""

    loaded_tokens: int
    stored_tokens: int
    loaded_bytes: int
    stored_bytes: int
    ignored_files: int
    seconds: float
