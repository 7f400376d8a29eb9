"""What prefix attention leaves, against the reference: however units were merged."""

import torch
from torch import Tensor

from pagedrun.kernels import reference
from pagedrun.kernels.attention.kv_layer import KVLayer
from pagedrun.kernels.attention.prefix_groups import PrefixGroups
from pagedrun.kernels.attention.softmax import Softmax
from pagedrun.kernels.gpu.attention.prefix_partials import PrefixPartials
from tests.kernels.conftest import Context

TOLERANCE = 1.2e-2  # of bfloat16, relative to the largest element
SCALE = 0.125


def assert_right(
    partials: PrefixPartials,
    q: Tensor,
    context: Context,
    groups: PrefixGroups,
    softcap: float | None = None,
) -> None:
    """Merge the states of each row and compare what its prefix adds up to."""
    layer = KVLayer(context.key_cache.double(), context.value_cache.double())
    softmax = Softmax(SCALE, softcap)
    expected = reference.prefix_attention(q.double(), layer, context.block_tables, groups, softmax)
    peaks, masses, totals = (
        each.cpu().double() for each in (partials.peaks, partials.masses, partials.totals)
    )
    assert any(partials.num_states.tolist()), "nothing to compare"
    for row in range(len(q)):
        count, first = int(partials.num_states[row]), int(partials.first_slots[row])
        if not count:
            continue
        mine = slice(first, first + count)
        factors = (peaks[mine] - peaks[mine].amax(0)).exp2()
        mass = (masses[mine] * factors).sum(0)
        out = (totals[mine] * factors[..., None]).sum(0) / mass[:, None]
        true = expected.totals[row].double() / expected.masses[row].double()[:, None]
        assert (out - true).abs().max() <= TOLERANCE * max(1.0, true.abs().max().item())


def same_states(a: PrefixPartials, b: PrefixPartials) -> bool:
    """Whether all states are the same; slots that nobody writes are not looked at."""
    used = int(a.num_states.sum())
    pairs = ((a.peaks, b.peaks), (a.masses, b.masses), (a.totals, b.totals))
    return all(torch.equal(mine[:used], its[:used]) for mine, its in pairs)
