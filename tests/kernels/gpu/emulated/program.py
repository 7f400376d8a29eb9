"""An emulator of the few Gluon operations that the kernels use: programs run on the CPU.

The kernel's own Python functions run, with other objects behind the names of Gluon. Partitions are
threads that take turns (see `Turns`); copies land, and products are made, as late as the hardware
may or at once. What a GPU would hang on, or read too early or too late, is a `Fault`, or a result
of other numbers. Warps of one partition are one here: what they do to each other is not emulated.
"""

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.kernels.gpu.emulated.memory import Barrier, Boxes, Pointer, Shared, Stage, View
from tests.kernels.gpu.emulated.turns import Fault, Turns

LAYOUTS = (
    "BlockedLayout",
    "DotOperandLayout",
    "NVMMADistributedLayout",
    "NVMMASharedLayout",
    "SliceLayout",
)


class Layout:
    """Where elements lie among threads or in banks: nothing that a result depends on."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    @classmethod
    def get_default_for(cls, *arguments: Any) -> "Layout":
        return cls(*arguments)


@dataclass(slots=True)
class Product:
    """A product on its way: what it reads must stay what it is until it is waited for."""

    operands: tuple[Any, Any]
    read: tuple[Tensor, Tensor]
    total: Tensor
    is_done: bool = False

    def finish(self) -> Tensor:
        for operand, before in zip(self.operands, self.read, strict=True):
            if isinstance(operand, View):
                if not torch.equal(operand.data.view(torch.int16), before.view(torch.int16)):
                    raise Fault("a stage changed under a product")
                operand.stage.end_read()
        self.is_done = True
        left, right = (each.double() for each in self.read)
        # Not in float32: there a row's bits would depend on its place, unlike a GPU's.
        self.total = (left @ right + self.total.double()).float()
        return self.total


@dataclass(slots=True)
class Program:
    """One program of a grid; its methods are what names of Gluon stand for."""

    index: int
    num_programs: int
    turns: Turns
    products: dict[int, list[Product]] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)

    def names(self) -> dict[str, Any]:
        """Return what stands for the names in a kernel's globals."""
        operations: dict[str, Any] = {
            "program_id": lambda axis: self.index,
            "num_programs": lambda axis: self.num_programs,
            "allocate_shared_memory": self.allocate,
            "warp_specialize": self.warp_specialize,
            "load": lambda pointer, mask=None, other=None: pointer.load(mask, other),
            "store": lambda pointer, value, mask=None: pointer.store(value, mask),
            "arange": lambda start, end, layout=None: torch.arange(start, end, dtype=torch.int32),
            "full": lambda shape, value, dtype, layout=None: torch.full(shape, value, dtype=dtype),
            "convert_layout": lambda value, layout: value,
            "static_range": range,
            "static_assert": _assert,
            "int64": torch.int64,
            "float32": torch.float32,
            "bfloat16": torch.bfloat16,
            "fma": _fma,
            "exp2": torch.exp2,
            "maximum": torch.maximum,
            "minimum": lambda a, b: torch.minimum(torch.as_tensor(a), torch.as_tensor(b)),
            "max": lambda value, axis: value.amax(axis),
            "sum": lambda value, axis: value.sum(axis),
        }
        layouts = dict.fromkeys(LAYOUTS, Layout)
        operations = types.SimpleNamespace(**layouts, **operations)  # type: ignore[assignment]
        return {
            "gl": operations,
            "tl": operations,
            "mbarrier": types.SimpleNamespace(
                MBarrierLayout=lambda: None,
                init=lambda barrier, count: barrier.init(count),
                expect=self.expect,
                arrive=self.arrive,
                wait=self.wait,
            ),
            "copy_box": self.copy_box,
            "fence_async_shared": self.fence,
            "warpgroup_mma": self.multiply,
            "warpgroup_mma_wait": self.wait_for_products,
        }

    def allocate(self, dtype: torch.dtype, shape: Any, layout: Any) -> Shared:
        shared = Shared(tuple(shape), dtype)
        self.stages += [part for part in shared.parts if isinstance(part, Stage)]
        return shared

    def warp_specialize(self, partitions: Any, num_warps: Any, num_registers: Any) -> None:
        assert len(num_warps) == len(num_registers) == len(partitions) - 1
        names = [lambda f=f, args=args: f(*args) for f, args in partitions]
        self.turns.run(names)
        if any(stage.being_read or stage.being_filled for stage in self.stages):
            raise Fault("a program ended before its copies and products")

    def fence(self) -> None:
        for stage in self.stages:
            stage.unfenced = False

    def expect(self, barrier: Barrier, num_bytes: int) -> None:
        self.turns.pause()
        barrier.arrive(1, num_bytes)

    def arrive(self, barrier: Barrier, count: int) -> None:
        self.turns.pause()
        barrier.arrive(count)

    def wait(self, barrier: Barrier, phase: Any) -> None:
        self.turns.pause(lambda: barrier.is_past(phase))

    def copy_box(self, boxes: Boxes, place: Any, barrier: Barrier, into: View) -> None:
        self.turns.pause()
        values = boxes.read(*place)
        if values.shape != into.stage.data.shape:
            raise Fault("a box of another shape than its stage")
        into.stage.begin_copy()

        def land() -> None:
            into.stage.land(values)
            barrier.land(boxes.block_type.nbytes)

        self.turns.copies.append(land)

    def multiply(
        self, a: Any, b: View, total: Tensor, use_acc: bool = True, is_async: bool = False
    ) -> Any:
        self.turns.pause()
        if not isinstance(total, Tensor):
            raise Fault("a product added to one that is on its way")
        for operand in (a, b):
            if isinstance(operand, View):
                operand.stage.begin_read()
        read = tuple(each.data.clone() if isinstance(each, View) else each for each in (a, b))
        start = total if use_acc else torch.zeros_like(total)
        product = Product((a, b), read, start.clone())  # type: ignore[arg-type]
        self.products.setdefault(self.turns.current, []).append(product)
        return product if is_async else self.wait_for_products(0, (product,))

    def wait_for_products(self, num_left: int = 0, deps: tuple[Any, ...] = ()) -> Any:
        self.turns.pause()
        under_way = self.products.get(self.turns.current, [])
        while len(under_way) > num_left:
            under_way.pop(0).finish()
        values = []
        for each in deps:
            if isinstance(each, Product) and not each.is_done:
                raise Fault("the result of a product that was not waited for")
            values.append(each.total.clone() if isinstance(each, Product) else each)
        return values[0] if len(values) == 1 else tuple(values)


@dataclass(frozen=True, slots=True)
class EmulatedKernel:
    """A kernel to be launched as Triton's are; `turns` makes the order of each program."""

    function: Any
    turns: Callable[[], Turns]

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        (num_programs,) = grid

        def launch(*args: Any, **constants: Any) -> None:
            for option in ("num_warps", "enable_fp_fusion", "maxnreg"):
                constants.pop(option)
            for index in range(num_programs):
                program = Program(index, num_programs, self.turns())
                of_program = rebound(self.function, program.names(), {})
                of_program(*map(_argument, args), **constants)

        return launch


def rebound(function: Any, names: dict[str, Any], done: dict[Any, Any]) -> Any:
    """Return the Python function of a compiled one, and those it calls, with other globals."""
    plain = getattr(function, "fn", function)
    if plain not in done:
        space = dict(plain.__globals__)
        done[plain] = types.FunctionType(
            plain.__code__, space, plain.__name__, plain.__defaults__, plain.__closure__
        )
        for name in plain.__code__.co_names:
            if name in names:
                space[name] = names[name]
            elif hasattr(space.get(name), "fn") or _is_beside(plain, space.get(name)):
                space[name] = rebound(space[name], names, done)
    return done[plain]


def _is_beside(function: Any, other: Any) -> bool:
    """Whether both are functions of one module."""
    return isinstance(other, types.FunctionType) and other.__globals__ is function.__globals__


def _argument(value: Any) -> Any:
    if isinstance(value, Tensor):
        return Pointer.of(value)
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float32)
    if hasattr(value, "block_shape"):
        return Boxes(value.base, tuple(value.block_shape), value.layout)
    return value


def _fma(a: Any, b: Any, c: Any) -> Tensor:
    """Return a * b + c, rounded once (but for sums that lie between two doubles)."""
    first, second, third = (torch.as_tensor(each).double() for each in (a, b, c))
    return (first * second + third).float()


def _assert(condition: bool) -> None:
    assert condition
