"""Properties of a GPU that select tile sizes."""

import functools
from dataclasses import dataclass
from typing import Literal

import torch

# Of one warp ("mma"), of a group of four ("wgmma"), of tensor memory ("tcgen05"), and AMD's.
MatrixUnit = Literal["mma", "wgmma", "tcgen05", "mfma"]


@dataclass(frozen=True, slots=True)
class Chip:
    """Properties of a GPU for Triton and the launch tables.

    backend: "cuda" or "hip". arch: the compute capability times ten (80, 90, 100), or the name of
    an AMD chip ("gfx942"). num_processors: streaming multiprocessors or compute units.
    shared_memory: bytes available to one program.
    """

    backend: str
    arch: int | str
    num_processors: int
    shared_memory: int

    @property
    def matrix_unit(self) -> MatrixUnit:
        """Kind of matrix instructions, which decides the layouts of tiles."""
        if self.backend == "hip":
            return "mfma"
        if 90 <= int(self.arch) < 100:
            return "wgmma"
        return "tcgen05" if 100 <= int(self.arch) < 120 else "mma"

    @property
    def has_float8(self) -> bool:
        """True if kernels can load float8_e4m3fn."""
        return self.backend == "hip" or int(self.arch) >= 89


# Without a GPU, under the interpreter: tests use the tables of an H100.
_INTERPRETED = Chip("cuda", 90, 132, 227 << 10)


@functools.cache
def chip_of(device: torch.device) -> Chip:
    """Return the chip of a device; for the CPU (interpreter), an sm_90 with 132 processors."""
    if device.type == "cpu":
        return _INTERPRETED
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        name = properties.gcnArchName.split(":")[0]  # "gfx942:sramecc+:xnack-"
        shared_memory = properties.shared_memory_per_block
        return Chip("hip", name, properties.multi_processor_count, shared_memory)
    return Chip(
        "cuda",
        properties.major * 10 + properties.minor,
        properties.multi_processor_count,
        properties.shared_memory_per_block_optin,  # type: ignore[attr-defined]
    )
