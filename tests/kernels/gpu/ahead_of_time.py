"""Compiles what an op launches for a GPU that is not here, and reports what became of it.

A case calls a public function on small CPU tensors. Its launches are compiled instead of run, with
the types, alignments, constants and options that the runtime itself would take from these
arguments. That must happen in a process where Triton does not interpret: run as a program, this
file reads jobs from stdin, one JSON array [file of the case, its name, chip] in each line, and
answers each with a line of JSON.
"""

import contextlib
import hashlib
import importlib.util
import io
import json
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pagedrun.kernels.gpu.chip import Chip

CASES_FOLDER = Path(__file__).parent / "cases"
CHIPS = {
    "sm_80": Chip("cuda", 80, 108, 163 << 10),
    "sm_86": Chip("cuda", 86, 84, 99 << 10),
    "sm_89": Chip("cuda", 89, 128, 99 << 10),
    "sm_90": Chip("cuda", 90, 132, 227 << 10),
    "sm_100": Chip("cuda", 100, 148, 227 << 10),
    "sm_120": Chip("cuda", 120, 170, 99 << 10),
    "gfx942": Chip("hip", "gfx942", 304, 64 << 10),
}
# Each counts an instruction in the text of the assembler: in PTX, or in that of AMD.
INSTRUCTIONS = {
    "mma": r"\bmma\.sync",
    "wgmma": r"\bwgmma\.mma_async",
    "tcgen05": r"\btcgen05\.mma",
    "mfma": r"\bv_mfma",
    "cp.async": r"\bcp\.async\.c[ag]",
    "bulk copy": r"\bcp\.async\.bulk",
    "arrival": r"\bmbarrier\.arrive\.shared",
    # Behind a barrier of a group of warps: all that they did with a stage lies before it.
    "arrival of a group": (
        r"\bbar\.sync\s+\d+, 128;(?:(?!mbarrier\.|wgmma\.|bar\.)[\s\S])*?\bmbarrier\.arrive\.shared"
    ),
    "wide load": r"\bld\.global\S*\.v[48]|\bglobal_load_dwordx4|\bbuffer_load_dwordx4",
    "atomic": r"\b(?:atom|red)\.|\bglobal_atomic",
}


@dataclass(frozen=True, slots=True)
class Case:
    """A call whose launches are compiled ahead of time.

    call: runs a public function of `pagedrun.kernels.gpu` on small CPU tensors of real head sizes.
    short: names of the chips for which it is compiled in every test run; the rest are `long`.
    is_one: all launches of a kernel are of one compiled form: a run does not stop to compile.
    matrix: which matrix instructions at least one launch must hold: "wide" means those that only
    whole warp groups use (wgmma on sm_90), "any" is for narrow tiles.
    """

    name: str
    call: Callable[[], object]
    short: tuple[str, ...] = ()
    matrix: Literal["any", "wide"] | None = None
    is_one: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """One compiled launch.

    form: a digest of the kernel's source and of what of the arguments it was compiled for. fuses:
    whether a product and a sum may become one operation, None if that is left to the version of
    Triton. shared: bytes. registers: of one thread. spilled: bytes or registers.
    """

    kernel: str
    form: str
    fuses: bool | None
    num_warps: int
    num_stages: int
    shared: int
    registers: int
    spilled: int
    instructions: dict[str, int]


def load_cases(path: Path) -> list[Case]:
    """Return the list `CASES` of a file of `cases`."""
    # Found under its usual name, this file is not loaded a second time by the cases.
    sys.modules.setdefault("tests.kernels.gpu.ahead_of_time", sys.modules[__name__])
    spec = importlib.util.spec_from_file_location(f"gpu_cases_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cases: list[Case] = module.CASES
    return cases


def compile_case(case: Case, chip: Chip, known: Sequence[Launch] = ()) -> list[Launch]:
    """Return the launches of one case, compiled for a chip, in the order of the calls.

    known: launches of that chip which need not be compiled again.
    """
    from triton.runtime.jit import JITFunction

    from pagedrun.kernels.gpu import chip as chip_module

    launches: list[Launch] = []

    def compile_instead(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if callable(grid):
            raise TypeError("a grid must follow from shapes: give a tuple")
        launches.append(_compile_launch(self, args, kwargs, chip, [*known, *launches]))

    genuine = JITFunction.run, chip_module.chip_of
    JITFunction.run, chip_module.chip_of = compile_instead, lambda device: chip  # type: ignore
    try:
        case.call()
    finally:
        JITFunction.run, chip_module.chip_of = genuine
    return launches


def _compile_launch(
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    chip: Chip,
    before: Sequence[Launch],
) -> Launch:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.experimental.gluon._runtime import GluonASTSource
    from triton.runtime.jit import create_function_from_signature

    target = GPUTarget(chip.backend, chip.arch, 64 if chip.backend == "hip" else 32)
    backend = make_backend(target)
    bind = create_function_from_signature(function.signature, function.params, backend)
    bound, specialization, unbound = bind(*args, debug=False, **kwargs)
    options, signature, constants, attributes = function._pack_args(
        backend, {**kwargs, "debug": False}, bound, specialization, unbound
    )
    name = function.fn.__name__
    # The source too: what was compiled of another one is not the same.
    facts = repr((function.cache_key, signature, constants, attributes, options))
    form = hashlib.sha256(facts.encode()).hexdigest()[:16]
    same = next((each for each in before if (each.kernel, each.form) == (name, form)), None)
    if same is not None:
        return same
    log = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(log):
        # A folder of its own: what lies in a cache already is not assembled, and leaves no log.
        triton.knobs.cache.dir = folder
        triton.knobs.nvidia.dump_ptxas_log = True
        kind = GluonASTSource if function.is_gluon() else ASTSource
        source = kind(function, signature, constants, attributes)
        compiled = triton.compile(source, target=target, options=options.__dict__)
    text = compiled.asm["amdgcn" if chip.backend == "hip" else "ptx"]
    measured = _of_amd(text) if chip.backend == "hip" else _of_nvidia(log.getvalue())
    return Launch(
        name,
        form,
        kwargs.get("enable_fp_fusion"),
        compiled.metadata.num_warps,
        compiled.metadata.num_stages,
        compiled.metadata.shared,
        *measured,
        {name: len(re.findall(pattern, text)) for name, pattern in INSTRUCTIONS.items()},
    )


def _of_nvidia(log: str) -> tuple[int, int]:
    """Return registers and spilled bytes from what ptxas says with -v."""
    registers = re.findall(r"Used (\d+) registers", log)
    spilled = re.findall(r"(\d+) bytes spill (?:stores|loads)", log)
    assert spilled, f"ptxas says nothing of its registers: {log}"
    return max(map(int, registers)), sum(map(int, spilled))


def _of_amd(assembly: str) -> tuple[int, int]:
    """Return vector registers and how many of them spilled, from the metadata of the assembly.

    Scalar registers spill into lanes of vector registers, not into memory, and are not counted.
    """
    numbers = {
        name: int(value)
        for name, value in re.findall(r"\.(vgpr_count|vgpr_spill_count):\s+(\d+)", assembly)
    }
    return numbers["vgpr_count"], numbers["vgpr_spill_count"]


def main() -> None:
    """Serve jobs from stdin until it ends."""
    for line in sys.stdin:
        file_name, name, chip = json.loads(line)
        try:
            case = next(each for each in load_cases(CASES_FOLDER / file_name) if each.name == name)
            answer = {"launches": [asdict(each) for each in compile_case(case, CHIPS[chip])]}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}  # type: ignore[dict-item]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
