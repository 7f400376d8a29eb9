"""Network: what the rest of the program asks of a model's description, whoever computes it."""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from pagedrun.paged.cache.cache_spec import KVCacheSpec, StateSpec
from pagedrun.paged.models.network.checkpoint.held_codes import NOTHING_HELD, HeldCodes
from pagedrun.paged.models.network.kv_groups import AttentionHeads


class Network(Protocol):
    """A value; its `repr` says everything that what it computes depends on but the weights."""

    @property
    def vocab_size(self) -> int:
        """Tokens in the embedding, and in the logits."""
        ...

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        ...

    @property
    def max_position_embeddings(self) -> int:
        """The longest context, in tokens."""
        ...

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Each layer's sliding window, in tokens; None for full attention."""
        ...

    @property
    def attention_heads(self) -> tuple[AttentionHeads, ...]:
        """The heads of each layer whose attention pagedrun's kernels compute."""
        ...

    @property
    def is_capturable(self) -> bool:
        """Whether a step that only decodes can be recorded on a GPU and replayed."""
        ...

    def arithmetic(self) -> dict[str, str]:
        """Return what its last bits depend on besides pagedrun's kernels, by name."""
        ...

    @property
    def num_weights(self) -> int:
        """How many numbers all weights are, however they are held; a tied head's count once."""
        ...

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of all weights, in a model whose numbers have `dtype_bytes`."""
        ...

    def held_bytes(self, dtype_bytes: int, *, packs: bool, codes: HeldCodes = NOTHING_HELD) -> int:
        """Return the bytes of all weights where a backend `packs` them in a layout of its own.

        `codes`: which weights of few bits stay such.
        """
        ...

    def activation_bytes(self, dtype_bytes: int, num_tokens: int, num_logits: int) -> int:
        """Return the bytes that a step's tensors take at the widest point of the network.

        dtype_bytes: of one number of the model's dtype. num_logits: tokens that logits are wanted
        of.
        """
        ...

    def kv_cache_specs(self, dtype: str) -> tuple[KVCacheSpec, ...]:
        """Return the groups of layers whose keys and values are stored in `dtype`, torch's name."""
        ...

    def state_specs(self, dtype: str) -> tuple[StateSpec, ...]:
        """Return what each recurrent layer keeps of a sequence, in a model of `dtype`, torch's
        name."""
        ...

    def bytes_read(self, specs: Sequence[KVCacheSpec]) -> Counter[int | None]:
        """Return for each window, or None, the bytes that all layers with it read of a token.

        specs: of the groups of layers.
        """
        ...
