"""PlannedRequest: a request with all that the plan has decided about it."""

from dataclasses import dataclass

from pagedrun.paged.values.block_key import BlockKey
from pagedrun.paged.values.branch_point import BranchPoint
from pagedrun.paged.values.request import Request


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request as the scheduler, the simulation and other processes take it; can be pickled.

    What decides a row's bytes, `num_read_once_tokens` above all, is decided from all rows of the
    window and travels with the row: whoever runs it beside whatever others computes the same.

    `place` counts from 0 in the window's run order. `block_keys` name the prompt's first whole
    blocks, as many as another row may ask for. Of the prompt's leading tokens `num_shared_tokens`
    are those of another row, or sample, as well, and of these attention reads the first
    `num_read_once_tokens` for all their rows together. The first `num_keep_blocks` blocks are
    needed by the row that comes next. `group` is window and subtree of rows whose answers are
    likely to be of like length. `num_common_tokens` are those that it has in common with the row
    before it in the run order, and of its prompt `num_stored_tokens` are to go to the prefix store.
    `branch_point` is where rows to come leave its prompt: first the one that runs next. In a model
    with recurrent layers it begins with the state behind its first `num_state_blocks` blocks, and
    rows to come begin with those at its `state_points`, which it leaves there on its way.
    Of its samples `num_samples` are drawn from `first_sample` on, None for all there are. Its
    answer begins with `begun_token_ids`, which an earlier run has drawn.
    """

    request: Request
    place: int = 0
    block_keys: tuple[BlockKey, ...] = ()
    num_shared_tokens: int = 0
    num_read_once_tokens: int = 0
    num_keep_blocks: int = 0
    group: tuple[int, int] = (0, 0)
    num_common_tokens: int = 0
    num_stored_tokens: int = 0
    branch_point: BranchPoint | None = None
    num_state_blocks: int = 0
    state_points: BranchPoint | None = None
    first_sample: int = 0
    num_samples: int | None = None
    begun_token_ids: tuple[int, ...] = ()

    @property
    def samples(self) -> tuple[int, ...]:
        """The samples to draw, by their indices."""
        count = self.num_samples or self.request.params.num_drawn_samples
        return tuple(range(self.first_sample, self.first_sample + count))
