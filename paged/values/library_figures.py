"""LibraryFigures: what a report says of a model that a library computes."""

from typing import TypedDict


class LibraryFigures(TypedDict):
    """`library`: what was seen of the model when it was loaded.

    `computed_by` is the library with its version. `largest_difference` is that between its logits
    alone and over the paged cache, as a share of the largest logit. `rows_depend_on_batch` says
    whether a token's last bits were seen to depend on what is computed beside it.
    """

    computed_by: str
    largest_difference: float
    rows_depend_on_batch: bool
