"""DecodeMemory: what steps that decode take of a GPU's own memory, beside weights and pools.

Attention leaves partial states of softmax from one launch to the next, and a captured step keeps
what it computes with in memory of its own, which no other step can have. Reckoned from shapes; what
captured steps really took is measured, and no more are captured than there is room for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pagedrun.paged.cache.kv_cache_spec import KVCacheSpec
from pagedrun.paged.models.network.kv_groups import AttentionHeads
from pagedrun.paged.models.network.network import Network
from pagedrun.paged.planning.sizing.memory import MemoryBudget
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.precision import DTYPE_BYTES

# As the kernels of `pagedrun.kernels.gpu.attention` have them: a test compares.
_UNIT_TOKENS = 1024  # keys of a prefix that give one state
_OWN_TOKENS = 512  # keys of a row's own that do
SINGLE_PASS_DIM = 256  # heads up to this size need no states of a row's own, given many rows
FEW_PROGRAMS = 2 * 304  # what are not many rows times kv heads, on the largest GPU there is
_LEAST_TOKENS = 2048  # of the block tables that captured steps have
# For what a driver and torch's allocator keep besides. Nobody has measured it yet.
_GRAPH_BYTES = 128 * 2**20
_MOST_KEPT = 64  # of a small memory one part in so many
_MOST_OF_POOL = 0.5  # of what the pool would have: what is captured beyond is computed as well


@dataclass(frozen=True, slots=True)
class DecodeMemory:
    """Bytes. states: of one layer's attention at its most. graphs: of all captured steps, which
    share what they compute with."""

    states: int = 0
    graphs: int = 0

    @classmethod
    def of(
        cls,
        network: Network,
        dtype: str,
        config: EngineConfig,
        budget: MemoryBudget,
        specs: Sequence[KVCacheSpec],
        longest: int,
    ) -> "DecodeMemory":
        """Return what a run may need whose pool has the `budget` and holds rows up to `longest`.

        dtype: of the model, torch's name. specs: of the pools. No graphs where none are captured.
        """
        tokens = budget.pool // max(sum(spec.bytes_per_token for spec in specs), 1)
        states = most_state_bytes(network.attention_heads, config, tokens, longest)
        if not network.is_capturable or config.enforce_eager:
            return cls(states)
        rows = config.max_num_seqs
        step = network.activation_bytes(DTYPE_BYTES[dtype], rows, rows) + states
        logits = 4 * rows * network.vocab_size  # the sampler's copy, where it makes one
        kept = min(_GRAPH_BYTES, budget.total // _MOST_KEPT)
        return cls(states, step + logits + kept)


def leave_for_decoding(
    budget: MemoryBudget,
    network: Network,
    dtype: str,
    config: EngineConfig,
    specs: Sequence[KVCacheSpec],
    longest: int,
) -> MemoryBudget:
    """Return a budget whose pool leaves what steps that decode need; arguments as `DecodeMemory`
    has them. A pool in the host's memory leaves a fifth of it already, and has no graphs."""
    if not budget.is_filled:
        return budget
    needed = DecodeMemory.of(network, dtype, config, budget, specs, longest)
    most = int(budget.pool * _MOST_OF_POOL)
    states = min(needed.states, most)
    return budget.leaving(states, min(needed.graphs, most - states))


def most_state_bytes(
    attentions: Iterable[AttentionHeads], config: EngineConfig, pool_tokens: int, longest: int
) -> int:
    """Return the most bytes of states that rows in a pool of so many tokens can leave.

    The longer their contexts are, the more states each has, and the fewer rows there are beside
    what they share. Contexts are reckoned with at powers of two, as captured steps have room.
    """
    heads, most = list(attentions), 0
    num_tokens = _LEAST_TOKENS
    while num_tokens < 2 * max(min(longest, pool_tokens), _LEAST_TOKENS):
        least = num_tokens // 2 if num_tokens > _LEAST_TOKENS else 0
        room = (pool_tokens - least) // config.block_size
        num_rows = max(min(config.max_num_seqs, room), 1)
        most = max([most, *(state_bytes(each, num_rows, num_tokens) for each in heads)])
        num_tokens *= 2
    return most


def state_bytes(heads: AttentionHeads, num_rows: int, num_tokens: int) -> int:
    """Return the bytes of the states that a layer's attention leaves: of rows of so many tokens
    that all read them together, and of what each reads for itself."""
    per_state = 4 * heads.num_heads * (heads.head_dim + 2)
    num_units = -(-num_tokens // _UNIT_TOKENS)
    together = num_rows * (num_units + 1) if heads.window is None else 0
    num_own = -(-num_tokens // _OWN_TOKENS)
    alone = num_rows
    if heads.head_dim <= SINGLE_PASS_DIM:
        alone = min(num_rows, -(-FEW_PROGRAMS // heads.num_kv_heads))
    if heads.window is not None:
        num_own = min(num_own, -(-heads.window // _OWN_TOKENS) + 1)
    return (together + alone * num_own) * per_state
