"""The ops of this package, bound to one kernel set."""

from functools import partial
from types import ModuleType

from pagedrun.kernels import cpu
from pagedrun.kernels.kernel_set import KernelSet

_ATTENTION = ("prefill_attention", "prefix_attention")


def backend(kernel_set: KernelSet) -> ModuleType:
    """Return `pagedrun.kernels.cpu` with products in `kernel_set`."""
    bound = ModuleType(cpu.__name__)
    vars(bound).update({name: getattr(cpu, name) for name in cpu.__all__})
    linear = type("PackedLinear", (cpu.PackedLinear,), {"kernel_set": kernel_set})
    vars(bound).update(__all__=cpu.__all__, PackedLinear=linear)
    for name in _ATTENTION:
        setattr(bound, name, partial(getattr(cpu, name), kernel_set=kernel_set))
    return bound
