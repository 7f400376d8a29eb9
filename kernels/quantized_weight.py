"""Quantized matrices: integer or float codes, with scales for groups of them.

Every format of quantized weights that is read becomes a `PackedWeight`. A backend packs it
further, into a layout of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from pagedrun.kernels.quantized_form import E2M1, CodeForm, CodeKernels

MODERATE = 2.0**100
MODERATE_HALF = 2.0**6  # of float16: times codes of eight bits it stays below the largest number


@dataclass(frozen=True, slots=True, eq=False)
class GroupScales:
    """A number for each group, [num_scale_rows, num_groups]: `values`, float or of eight bits,
    times `factors` [num_scale_rows, num_groups / n] float16, each for n neighbors.
    Powers of two are float8_e8m0fnu.
    """

    values: Tensor
    factors: Tensor | None = None

    def to_float32(self) -> Tensor:
        """Return [num_scale_rows, num_groups]; products of the two are exact."""
        if self.factors is None:
            return self.values.float()
        neighbors = self.values.shape[1] // self.factors.shape[1]
        return self.factors.float().repeat_interleave(neighbors, dim=1) * self.values.float()

    def are_within(self, limit: float) -> bool:
        """Return whether all are finite and none is above a limit, which many factors alone show,
        since the other numbers have eight bits."""
        if self.factors is not None and bool(self.factors.float().abs().max() * 255 <= limit):
            return True
        return bool((self.to_float32().abs() <= limit).all())

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "GroupScales":
        """Return it with both tensors changed."""
        factors = None if self.factors is None else change(self.factors)
        return GroupScales(change(self.values), factors)

    @property
    def form(self) -> tuple[object, ...]:
        """Properties that two matrices must share to be stored side by side."""
        return self.values.dtype, self.values.shape[1], self.factors is None


class CodeRows(Protocol):
    """Codes [out_features, in_features], read by rows: a tensor or `DeferredCodes`."""

    @property
    def shape(self) -> torch.Size:
        """Rows and columns."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of a code."""
        ...

    def __getitem__(self, rows: slice, /) -> Tensor:
        """Return neighboring rows."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DeferredCodes:
    """Codes that are unpacked when they are read, each time; implements `CodeRows`.

    A byte for each code of a large matrix takes more memory than the packed matrix, and is written
    and read at the speed of memory; some rows at a time stay in the cache. `unpack(start, end)`
    returns those rows.
    """

    shape: torch.Size
    dtype: torch.dtype
    unpack: Callable[[int, int], Tensor]

    def __getitem__(self, rows: slice, /) -> Tensor:
        """Return neighboring rows, unpacked."""
        start, end, _ = rows.indices(self.shape[0])
        return self.unpack(start, end)


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """Weight `(code - zero) * scale - minimum`, in float32, rounded once to a model's dtype.

    codes: [out_features, in_features] float8_e4m3fn; or int8 of which each takes `num_bits`, 2 to
    8: signed, or from 0 on where there are minima; or uint8 of which each is the four bits of a
    float, see `E2M1`. Row n has row n // rows_per_scale of the scales,
    `group_size` neighboring columns have a group. `group_of` [in_features] int64 is the group of
    each column where these are scattered. zeros: [num_scale_rows, num_groups] int8, or None.
    """

    codes: CodeRows
    num_bits: int
    scales: GroupScales
    group_size: int
    rows_per_scale: int = 1
    zeros: Tensor | None = None
    minima: GroupScales | None = None
    group_of: Tensor | None = None

    @property
    def out_features(self) -> int:
        """Rows of the matrix."""
        return self.codes.shape[0]

    @property
    def in_features(self) -> int:
        """Columns of the matrix."""
        return self.codes.shape[1]

    @property
    def device(self) -> torch.device:
        """Device of the numbers."""
        return self.scales.values.device

    @property
    def form(self) -> CodeForm:
        """Form of the weight: everything but its numbers."""
        num_groups, factors = self.scales.values.shape[1], self.scales.factors
        return CodeForm(
            self.num_bits,
            None if num_groups == 1 else self.group_size,
            self.scales.values.itemsize,
            0 if factors is None else num_groups // factors.shape[1],
            is_float=self.codes.dtype is not torch.int8,
            has_zeros=self.zeros is not None,
            has_minima=self.minima is not None,
            is_scattered=self.group_of is not None,
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of codes and what belongs to them, as kernels hold these, without padding."""
        return self.form.num_bytes(self.out_features, self.in_features)

    def can_be_held(self, kernels: CodeKernels, dtype: torch.dtype) -> bool:
        """Return whether kernels hold it as it is, for a linear layer of a model in `dtype`."""
        return kernels.hold(self.form, self.in_features, dtype_name(dtype))

    def is_moderate(self, dtype: torch.dtype) -> bool:
        """Return whether all numbers are finite and so far from the largest of a model's dtype that
        weights must be, too."""
        limit = MODERATE_HALF if dtype is torch.float16 else MODERATE
        scales = [self.scales] if self.minima is None else [self.scales, self.minima]
        has_codes = self.codes.dtype is not torch.float8_e4m3fn or not self._has_nan()
        return has_codes and all(each.are_within(limit) for each in scales)

    def with_numbers(self) -> "PackedWeight":
        """Return the weight with floats of four bits as float8."""
        if self.codes.dtype is not torch.uint8:
            return self
        table = torch.tensor(E2M1, device=self.device).to(torch.float8_e4m3fn)
        codes = table.view(torch.uint8)[self.codes[:].long()].view(torch.float8_e4m3fn)
        return replace(self, codes=codes, num_bits=8)

    def between(self, start: int, end: int, step: int = 1) -> "PackedWeight":
        """Return each `step`-th row from start to end, views where there are scales for each."""
        whole, rows = self.by_row(), slice(start, end, step)
        codes = whole.codes[start:end][::step]
        return replace(whole._with_scales(lambda each: each[rows]), codes=codes)

    def _has_nan(self) -> bool:
        return bool(((self.codes[:].view(torch.uint8) & 0x7F) == 0x7F).any())

    def groups(self) -> Tensor:
        """Return the group of each column, [in_features] int64."""
        if self.group_of is not None:
            return self.group_of
        return torch.arange(self.in_features, device=self.device) // self.group_size

    def in_blocks(self) -> "PackedWeight":
        """Return the weight without `group_of` where that equals groups of `group_size`."""
        if self.group_of is None or not torch.equal(
            self.group_of,
            torch.arange(self.in_features, device=self.device) // self.group_size,
        ):
            return self
        return replace(self, group_of=None)

    def by_row(self) -> "PackedWeight":
        """Return it with scales for each row."""
        if self.rows_per_scale == 1:
            return self
        rows = torch.arange(self.out_features, device=self.device) // self.rows_per_scale
        return self._with_scales(lambda each: each[rows])

    def rows(self, chosen: Tensor) -> "PackedWeight":
        """Return some rows, [num_rows] int64, in their order."""
        whole = self.by_row()
        codes = whole.codes[:][chosen]
        return replace(whole._with_scales(lambda each: each[chosen]), codes=codes)

    def _with_scales(self, change: Callable[[Tensor], Tensor]) -> "PackedWeight":
        return replace(
            self,
            rows_per_scale=1,
            scales=self.scales.mapped(change),
            zeros=None if self.zeros is None else change(self.zeros),
            minima=None if self.minima is None else self.minima.mapped(change),
        )


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype, such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def all_alike(weights: Sequence[PackedWeight]) -> bool:
    """Return whether matrices of the same inputs could lie side by side as one."""
    return all(_are_alike(weights[0], each) for each in weights[1:])


def joined_neighbors(weights: Sequence[PackedWeight]) -> Iterator[PackedWeight]:
    """Yield matrices of the same inputs, neighbors of the same form joined."""
    start = 0
    while start < len(weights):
        end = start + 1
        while end < len(weights) and _are_alike(weights[start], weights[end]):
            end += 1
        yield beside(weights[start:end])
        start = end


def beside(weights: Sequence[PackedWeight]) -> PackedWeight:
    """Return matrices of the same inputs and form as one, their outputs side by side."""
    if len(weights) == 1:
        return weights[0]
    by_row = [each.by_row() for each in weights]
    codes = _above_each_other([each.codes for each in by_row])
    scales = _stacked([each.scales for each in by_row])
    zeros = [each.zeros for each in by_row if each.zeros is not None]
    minima = [each.minima for each in by_row if each.minima is not None]
    return replace(
        by_row[0],
        codes=codes,
        scales=scales,
        zeros=torch.cat(zeros) if zeros else None,
        minima=_stacked(minima) if minima else None,
    )


def _above_each_other(parts: Sequence[CodeRows]) -> DeferredCodes:
    """Return the rows of all parts, in their order."""
    starts = [0, *accumulate(each.shape[0] for each in parts)]

    def unpack(start: int, end: int) -> Tensor:
        found = [
            part[max(start - first, 0) : end - first]
            for part, first, last in zip(parts, starts[:-1], starts[1:], strict=True)
            if first < end and start < last
        ]
        return found[0] if len(found) == 1 else torch.cat(found)

    return DeferredCodes(torch.Size([starts[-1], parts[0].shape[1]]), parts[0].dtype, unpack)


def _form(weight: PackedWeight) -> tuple[object, ...]:
    minima = None if weight.minima is None else weight.minima.form
    codes = weight.codes.dtype, weight.num_bits, weight.in_features, weight.group_size
    return *codes, weight.scales.form, minima, weight.zeros is None


def _are_alike(one: PackedWeight, other: PackedWeight) -> bool:
    return _form(one) == _form(other) and _same_groups(one, other)


def _same_groups(one: PackedWeight, other: PackedWeight) -> bool:
    if one.group_of is None or other.group_of is None:
        return one.group_of is other.group_of
    return torch.equal(one.group_of, other.group_of)


def _stacked(scales: Sequence[GroupScales]) -> GroupScales:
    factors = [each.factors for each in scales if each.factors is not None]
    values = torch.cat([each.values for each in scales])
    return GroupScales(values, torch.cat(factors) if factors else None)
