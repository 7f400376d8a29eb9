"""Quantized weights in the layout of the kernels of this folder."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from torch.nn import functional

from pagedrun.kernels.quantized_weight import GroupScales, PackedWeight

# What kernels call the kinds of codes: whole numbers by their bits, and floats.
FLOAT4, FLOAT8 = 1, 2
_NUM_SLABS = 8  # of a step
_WIDEST = 32  # inputs of a slab, or half as many


@dataclass(frozen=True, slots=True, eq=False)
class CodeTensors:
    """One or more weights of the same shape and form, concatenated.

    words: [num_steps, out_features, slab] int32, or [num_steps, out_features, 2 * slab] for codes
    of eight bits. A step is eight slabs of 32 neighboring inputs of all outputs, or of 16 where
    inputs or groups need it, with zeros behind the last; so the tile of a program is contiguous.
    Slabs lie one above the other: word w has input w of a slab in its lowest bits, input w of the
    next slab in the bits above, and so on; of codes of eight bits four slabs are in as many words.
    So a slab is masked where it is multiplied, and no code moves to another thread. above: the
    fifth bit of each code, or the fifth and sixth, in bytes or integers of 16 bits alike. scales,
    zeros (int8), minima: [num_groups, out_features]; of those with factors one byte each, and
    `factors`, `minimum_factors` have a line for every `neighbors` groups. Each tensor has the
    weights as its first dimension.

    kind: the bits of a whole number, or `FLOAT4`, `FLOAT8`. offset: added to whole numbers. group:
    inputs of one scale; 0: all inputs. slab: inputs of a slab.
    """

    words: Tensor
    above: Tensor | None
    scales: Tensor
    factors: Tensor | None
    zeros: Tensor | None
    minima: Tensor | None
    minimum_factors: Tensor | None
    kind: int
    offset: int
    group: int
    slab: int
    neighbors: int

    @classmethod
    def of(cls, weights: Iterable[PackedWeight]) -> "CodeTensors":
        """Return weights in this layout, copied one at a time."""
        remaining = iter(weights)
        first = next(remaining)
        form = first.form
        kind = form.held_bits
        if form.is_float:
            kind = FLOAT8 if form.held_bits == 8 else FLOAT4
        group = 0 if form.group_size is None else form.group_size
        is_even = first.in_features % (_NUM_SLABS * _WIDEST) == 0 and group % _WIDEST == 0
        slab = _WIDEST if is_even else _WIDEST // 2
        pieces = [_Pieces.of(each, kind, slab) for each in chain([first], remaining)]
        return cls(
            words=torch.stack([each.words for each in pieces]),
            above=_stacked([each.above for each in pieces]),
            scales=torch.stack([each.scales for each in pieces]),
            factors=_stacked([each.factors for each in pieces]),
            zeros=_stacked([each.zeros for each in pieces]),
            minima=_stacked([each.minima for each in pieces]),
            minimum_factors=_stacked([each.minimum_factors for each in pieces]),
            kind=kind,
            offset=_offset(first, kind),
            group=group,
            slab=slab,
            neighbors=max(form.groups_per_factor, 1),
        )

    @property
    def num_groups(self) -> int:
        """Groups of a row."""
        return self.scales.shape[1]

    @property
    def step(self) -> int:
        """Inputs whose codes lie together."""
        return _NUM_SLABS * self.slab

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All tensors, in the order in which kernels take them."""
        return (
            *(self.words, self.above, self.scales, self.factors),
            *(self.zeros, self.minima, self.minimum_factors),
        )

    @property
    def constants(self) -> dict[str, int]:
        """Compile-time constants of kernels."""
        return {
            "KIND": self.kind,
            "OFFSET": self.offset,
            "GROUP": self.group,
            "SLAB": self.slab,
            "NEIGHBORS": self.neighbors,
        }


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """The tensors of one weight."""

    words: Tensor
    above: Tensor | None
    scales: Tensor
    factors: Tensor | None
    zeros: Tensor | None
    minima: Tensor | None
    minimum_factors: Tensor | None

    @classmethod
    def of(cls, weight: PackedWeight, kind: int, slab: int) -> "_Pieces":
        weight = weight.by_row()
        codes = weight.codes[:].view(torch.uint8) + _offset(weight, kind)
        codes = functional.pad(codes, (0, -codes.shape[1] % (_NUM_SLABS * slab)))
        scales, minima = weight.scales, weight.minima
        if scales.values.dtype is torch.float8_e8m0fnu:
            scales = GroupScales(scales.values.view(torch.uint8))
        elif kind == FLOAT8:
            scales = GroupScales(scales.to_float32())
        above = None
        if kind in (5, 6):
            above = _stacked_slabs(
                codes >> 4, kind - 4, torch.uint8 if kind == 5 else torch.int16, slab
            )
        is_whole = kind in (FLOAT8, 8)
        low = codes if is_whole else codes & 15
        return cls(
            words=_stacked_slabs(low, 8 if is_whole else 4, torch.int32, slab),
            above=above,
            scales=_by_group(scales.values),
            factors=_if_any(scales.factors, _by_group),
            zeros=_if_any(weight.zeros, _by_group),
            minima=None if minima is None else _by_group(minima.values),
            minimum_factors=None if minima is None else _if_any(minima.factors, _by_group),
        )


def _offset(weight: PackedWeight, kind: int) -> int:
    """Return the offset that makes all codes nonnegative."""
    if kind in (FLOAT4, FLOAT8) or weight.minima is not None:
        return 0
    return 1 << (kind - 1)


def _stacked_slabs(fields: Tensor, num_bits: int, dtype: torch.dtype, slab: int) -> Tensor:
    """Return fields [out_features, in_features] as integers [num_steps, out_features, ...]."""
    per_integer = 8 * dtype.itemsize // num_bits
    shape = len(fields), -1, _NUM_SLABS // per_integer, per_integer, slab
    slabs = fields.view(shape).unbind(3)
    stacked = slabs[0].to(dtype)
    for index, each in enumerate(slabs[1:], start=1):
        stacked |= each.to(dtype) << (index * num_bits)
    return stacked.flatten(2).transpose(0, 1).contiguous()


def _by_group(numbers: Tensor) -> Tensor:
    """Return numbers [out_features, num_groups] with those of a group contiguous."""
    return numbers.T.contiguous()


def _if_any(numbers: Tensor | None, change: Callable[[Tensor], Tensor]) -> Tensor | None:
    return None if numbers is None else change(numbers)


def _stacked(pieces: Sequence[Tensor | None]) -> Tensor | None:
    found = [each for each in pieces if each is not None]
    return torch.stack(found) if found else None
