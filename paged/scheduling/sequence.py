"""Sequence: one sample of one request in flight: its tokens and the blocks that hold them."""

from dataclasses import dataclass, field

from pagedrun.paged.values.block_key import BlockKey
from pagedrun.paged.values.planned_request import PlannedRequest
from pagedrun.paged.values.request import Request

UNKNOWN_TOKEN = -2  # sampled on the device, and not looked at yet


@dataclass(slots=True, eq=False)
class Sequence:
    """The state of one sample.

    Tokens `[0, num_computed_tokens)` need no further forward pass, and tokens
    `[0, num_stored_tokens)` have their keys and values in the cache. The two differ by one token
    in one case only: a prompt found whole in the cache still computes its last token, since its
    logits are wanted, but does not write it.

    `pending_samples` are the samples to draw from the next logits: all `n` of a request while its
    prompt is computed once for them, then the sequence's own.

    The last of `output_token_ids` may be `UNKNOWN_TOKEN`: the next step can be scheduled, and
    computed on the device, before the host has seen it.
    """

    request: Request
    block_keys: list[BlockKey]
    num_shared_tokens: int = 0  # leading prompt tokens that another row, or sample, has as well
    num_read_once_tokens: int = 0  # those of them that attention reads for all rows together
    num_keep_blocks: int = 0  # leading blocks that the next row of the plan needs again
    group: tuple[int, int] = (0, 0)  # window and subtree whose rows teach how long answers get
    sample_index: int = 0
    pending_samples: tuple[int, ...] = (0,)
    output_token_ids: list[int] = field(default_factory=list)
    block_table: list[int] = field(default_factory=list)
    host_blocks: dict[int, int] = field(default_factory=dict)  # table index → host block
    wanted_keys: list[BlockKey] = field(default_factory=list)  # kept in the pool while it waits
    num_computed_tokens: int = 0
    num_stored_tokens: int = 0
    num_hit_blocks: int = 0  # leading blocks that were found in the cache
    num_published_blocks: int = 0  # leading blocks that others can find
    num_cached_tokens: int = 0  # prompt tokens taken from the cache when first admitted
    num_tokens_ever_computed: int = 0  # to tell recomputed tokens from new ones
    num_preemptions: int = 0

    @classmethod
    def start(cls, planned: PlannedRequest) -> "Sequence":
        """Return the sequence that computes the prompt for all of the request's samples."""
        return cls(
            planned.request,
            list(planned.block_keys),
            num_shared_tokens=planned.num_shared_tokens,
            num_read_once_tokens=planned.num_read_once_tokens,
            num_keep_blocks=planned.num_keep_blocks,
            group=planned.group,
            pending_samples=tuple(range(planned.request.params.n)),
        )

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens."""
        return self.num_prompt_tokens + len(self.output_token_ids)

    @property
    def max_num_tokens(self) -> int:
        """Tokens whose keys and values may have to be stored; the last one's never are."""
        return self.request.max_num_tokens

    @property
    def known_output_token_ids(self) -> list[int]:
        """The generated tokens that the host has seen."""
        ids = self.output_token_ids
        return ids[:-1] if ids and ids[-1] == UNKNOWN_TOKEN else ids

    @property
    def is_forked(self) -> bool:
        """Whether the samples of the request have gone their own ways."""
        return bool(self.output_token_ids)

    def token_ids(self, start: int, end: int) -> list[int]:
        """Return the ids at positions `[start, end)`."""
        prompt = self.request.prompt_token_ids
        split = len(prompt)
        if end <= split:
            return list(prompt[start:end])
        generated = self.output_token_ids[max(start - split, 0) : end - split]
        return [*prompt[start:split], *generated] if start < split else generated

    def forget_blocks(self) -> None:
        """Go back to the state of a sequence whose keys and values are nowhere."""
        self.block_table = []
        self.num_computed_tokens = 0
        self.num_stored_tokens = 0
        self.num_hit_blocks = 0
        self.num_published_blocks = 0

    def fork(self, sample_index: int) -> "Sequence":
        """Return a sibling that holds the same blocks. The caller counts the references."""
        return Sequence(
            request=self.request,
            block_keys=self.block_keys,
            num_shared_tokens=self.num_shared_tokens,
            num_read_once_tokens=self.num_read_once_tokens,
            num_keep_blocks=self.num_keep_blocks,
            group=self.group,
            sample_index=sample_index,
            pending_samples=(sample_index,),
            block_table=list(self.block_table),
            num_computed_tokens=self.num_computed_tokens,
            num_stored_tokens=self.num_stored_tokens,
            num_hit_blocks=self.num_hit_blocks,
            num_published_blocks=self.num_published_blocks,
            num_cached_tokens=self.num_cached_tokens,
            num_tokens_ever_computed=self.num_tokens_ever_computed,
        )
