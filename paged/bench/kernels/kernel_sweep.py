"""KernelSweep: the sizes at which kernels are measured."""

import math
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from typing import Literal

from pagedrun.kernels.attention.partition import PARTITION_TOKENS
from pagedrun.paged.values.errors import UsageError, option

Part = Literal["decode", "prefix", "prefill", "ops"]


PARTS: tuple[Part, ...] = ("decode", "prefix", "prefill", "ops")
_POWERS = tuple(2**power for power in range(16))  # 1 to 32,768


@dataclass(frozen=True, slots=True)
class KernelSweep:
    """Every context with every batch, every prefix with every group, every chunk after each of
    `befores` tokens; `parts` says which of these are measured at all."""

    contexts: Seq[int]
    batches: Seq[int]
    prefixes: Seq[int]
    groups: Seq[int]
    chunks: Seq[int]
    befores: Seq[int]
    parts: Seq[str] = PARTS

    @classmethod
    def short(cls) -> "KernelSweep":
        """Return what two CPU cores get through in about a minute."""
        return cls(
            contexts=(512, 2048, 8192, 32_768),
            batches=(1, 8, 32, 128),
            prefixes=(128, 512, 2048, 8192),
            groups=(8, 64, 256),
            chunks=(128, 512, 2048),
            befores=(0, 4096),
        )

    @classmethod
    def full(cls) -> "KernelSweep":
        """Return everything: contexts to 32k, prefixes to 16k, groups to 1024."""
        return cls(
            contexts=_POWERS[9:],
            batches=(1, 8, 32, 128),
            prefixes=_POWERS[7:15],
            groups=_POWERS[3:11],
            chunks=(128, 512, 2048, 8192),
            befores=(0, 4096, 16_384),
        )

    def check(self, block_size: int) -> None:
        """Raise `UsageError` naming the flag for sizes that cannot be measured."""
        for flag, values, least in (
            (option("context"), self.contexts, 1),
            (option("batch"), self.batches, 1),
            (option("prefix"), self.prefixes, 1),
            (option("group"), self.groups, 1),
            (option("chunk"), self.chunks, 1),
            (option("before"), self.befores, 0),
        ):
            if not values:
                raise UsageError(f"{flag} needs at least one value")
            for value in values:
                if value < least:
                    raise UsageError(f"{flag} {value}: it must be at least {least}")
        unit = self.least_prefix(block_size)
        for prefix in self.prefixes:
            if prefix % unit:
                raise UsageError(
                    f"{option('prefix')} {prefix}: only whole partitions and blocks are shared; "
                    f"give a multiple of {unit}"
                )
        for part in self.parts:
            if part not in PARTS:
                raise UsageError(f"{option('only')} {part}: choose from {', '.join(PARTS)}")

    @staticmethod
    def least_prefix(block_size: int) -> int:
        """Return the smallest number of tokens that are whole partitions and whole blocks."""
        return math.lcm(PARTITION_TOKENS, block_size)

    def to_dict(self) -> dict[str, list[int] | list[str]]:
        """Return the fields, as a result states them."""
        return {name: list(values) for name, values in asdict(self).items()}
