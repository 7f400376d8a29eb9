"""PlainSpec: a model that Transformers computes with its own caches, as a value; knows no torch."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

from pagedrun.paged.cache.cache_spec import KVCacheSpec, StateArray, StateSpec
from pagedrun.paged.models.network.checkpoint.held_codes import NOTHING_HELD, HeldCodes
from pagedrun.paged.models.network.kv_groups import AttentionHeads
from pagedrun.paged.values.engine_config import DTYPE_BYTES


@dataclass(frozen=True, slots=True)
class PlainSpec:
    """What a model of the library was seen to keep of a sequence; implements `Network`.

    `computed_by` is the library with its version, `fields` what it gets to see of config.json, as
    JSON. `why` says why its layers do not run over paged memory. The library's cache goes in and
    out by the name `cache_name`; it holds `num_state_numbers` whatever a sequence's length, and
    `num_token_numbers` more for each token. `width` is how many numbers a token takes at the widest
    point, residual stream left out; `num_heads` of attention keep scores of all pairs of tokens.
    """

    computed_by: str
    fields: str
    why: str
    cache_name: str
    num_layers: int
    vocab_size: int
    hidden_size: int
    max_position_embeddings: int
    num_weights: int
    num_state_numbers: int
    num_token_numbers: int
    num_heads: int
    width: int

    @property
    def windows(self) -> tuple[int | None, ...]:
        """None for each layer: what they see is the library's business."""
        return (None,) * self.num_layers

    @property
    def attention_heads(self) -> tuple[AttentionHeads, ...]:
        """None that pagedrun's kernels compute."""
        return ()

    @property
    def is_capturable(self) -> bool:
        """Never: the library's code may ask the device for numbers."""
        return False

    def arithmetic(self) -> dict[str, str]:
        """Return what its last bits depend on besides pagedrun's kernels: the libraries."""
        return {"computed_by": f"{self.computed_by}, plain, with torch {version('torch')}"}

    def num_bytes(self, dtype_bytes: int) -> int:
        """Return the bytes of all weights, in a model whose numbers have `dtype_bytes`."""
        return self.num_weights * dtype_bytes

    def held_bytes(self, dtype_bytes: int, *, packs: bool, codes: HeldCodes = NOTHING_HELD) -> int:
        """Return the bytes of all weights in memory: they stay as the library holds them."""
        return self.num_bytes(dtype_bytes)

    def activation_bytes(self, dtype_bytes: int, num_tokens: int, num_logits: int) -> int:
        """Return the bytes that a step's tensors take at the widest point; see `Network`.

        One sequence is computed after the other, of which the longest may be all of the step.
        """
        longest = min(num_tokens, self.max_position_embeddings)
        per_token = (self.width + 4 * self.hidden_size) * dtype_bytes + 8 * self.num_heads * longest
        return longest * per_token + num_logits * self.vocab_size * dtype_bytes

    def kv_cache_specs(self, dtype: str) -> tuple[KVCacheSpec, ...]:
        """Return one group without layers: blocks that hold nothing, by which a run is planned."""
        return (KVCacheSpec(0, 1, 16, dtype),)

    def state_specs(self, dtype: str) -> tuple[StateSpec, ...]:
        """Return what the library's cache of a sequence takes at the most: of what does not grow it
        may keep any of it in float32."""
        fixed = StateArray("state", (self.num_state_numbers,), "float32")
        return (StateSpec((fixed,), self.num_token_numbers * DTYPE_BYTES[dtype], is_opaque=True),)

    def bytes_read(self, specs: Sequence[KVCacheSpec]) -> Counter[int | None]:
        """Return nothing: no layer reads from blocks."""
        return Counter()
