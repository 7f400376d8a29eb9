"""ForwardBatch: the plain tensors that a model reads in one step."""

from dataclasses import dataclass

from torch import Tensor

from pagedrun.kernels.attention.attention import Attention
from pagedrun.kernels.state_inputs import StateInputs

NO_SLOT = -1  # the token's key and value are in the cache already


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """What the layers of one group need: where they write keys and values, and how they attend.

    slots: [num_tokens] int64, `block_id * block_size + offset`. attention: what was prepared for
    the step, for all layers of the group.
    """

    slots: Tensor
    attention: Attention


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """Everything a forward pass needs besides weights and cache, on the model's device.

    The batch's tokens are all prefill tokens, then all decode tokens. Prompt tokens always take
    the prefill path and generated ones the decode path, also when a preempted sequence is
    computed again, since the two do not round alike.

    input_ids, positions: [num_tokens] int64. groups: what differs between groups of layers.
    logits_rows: [num_logits] int64, the tokens whose logits are wanted: the last ones of chunks
    that sample, in their order, then those whose next token is to be scored. states: for recurrent
    layers; None for a model without them.
    """

    input_ids: Tensor
    positions: Tensor
    num_prefill_tokens: int
    groups: tuple[GroupBatch, ...]
    logits_rows: Tensor
    states: StateInputs | None = None

    @property
    def has_prefill(self) -> bool:
        """Whether there are prompt tokens."""
        return self.num_prefill_tokens > 0

    @property
    def has_decode(self) -> bool:
        """Whether there are generated tokens."""
        return self.num_prefill_tokens < len(self.input_ids)
