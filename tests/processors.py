"""Other processors, as far as this one can play them: tests under fewer instructions.

    python -m tests.processors [--level NAME ...] [--subset] [--processes N] [-- PYTEST ARGUMENTS]

Without `--level`, each feature level below the host's own. The tests are those of kernels, parity
and same bytes, or those of the arguments after `--`. Numba, oneDNN and ATen choose code when they
load, so a level is a set of environment variables; before its tests it is checked that they are
obeyed. Compiled kernels of different levels are kept beside one another.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]

_BASE = "64bit cmov crc32 cx16 cx8 fxsr mmx popcnt sahf sse sse2 sse3 sse4.1 sse4.2 ssse3"
_V3 = f"{_BASE} avx avx2 bmi bmi2 f16c fma lzcnt movbe xsave"
_V4 = f"{_V3} avx512bw avx512cd avx512dq avx512f avx512vl"
_VNNI = f"{_V4} avx512vnni"
_BF16 = f"{_VNNI} avx512bf16"
_AMX = f"{_BF16} amx-bf16 amx-int8 amx-tile avx512fp16 avxvnni"


@dataclass(frozen=True, slots=True)
class Level:
    """A feature level of x86-64.

    examples: processors of this level. cpu: LLVM's name of one, by which Numba tunes. features:
    LLVM's names of all instructions that may be used. onednn, aten: values of
    ONEDNN_MAX_CPU_ISA and ATEN_CPU_CAPABILITY. onednn_says: what oneDNN calls the level.
    """

    name: str
    examples: str
    cpu: str
    features: frozenset[str]
    onednn: str
    aten: str
    onednn_says: str

    def variables(self) -> dict[str, str]:
        """Return the environment variables that hold libraries and kernels to the level."""
        return {
            "NUMBA_CPU_NAME": self.cpu,
            "NUMBA_CPU_FEATURES": ",".join(f"+{name}" for name in sorted(self.features)),
            "ONEDNN_MAX_CPU_ISA": self.onednn,
            "ATEN_CPU_CAPABILITY": self.aten,
        }


def _level(
    name: str, examples: str, cpu: str, features: str, onednn: str, aten: str, onednn_says: str
) -> Level:
    return Level(name, examples, cpu, frozenset(features.split()), onednn, aten, onednn_says)


_AVX512 = "Intel AVX-512 with "
LEVELS = (
    _level("x86-64-v3", "Haswell, Zen 2, Zen 3", "haswell", _V3, "AVX2", "avx2", "Intel AVX2"),
    _level(
        *("x86-64-v3+avx-vnni", "Alder Lake", "alderlake", f"{_V3} avxvnni", "AVX2_VNNI", "avx2"),
        "Intel AVX2 with Intel DL Boost",
    ),
    _level(
        *("x86-64-v4", "Skylake-X", "skylake-avx512", _V4, "AVX512_CORE", "avx512"),
        f"{_AVX512}AVX512BW, AVX512VL, and AVX512DQ extensions",
    ),
    _level(
        *("x86-64-v4+vnni", "Ice Lake", "icelake-server", _VNNI, "AVX512_CORE_VNNI", "avx512"),
        f"{_AVX512}Intel DL Boost",
    ),
    _level(
        *("x86-64-v4+bf16", "Zen 4, Cooper Lake", "znver4", _BF16, "AVX512_CORE_BF16", "avx512"),
        f"{_AVX512}Intel DL Boost and bfloat16 support",
    ),
    _level(
        *("x86-64-v4+amx", "Sapphire Rapids", "sapphirerapids", _AMX, "AVX512_CORE_AMX", "avx512"),
        f"{_AVX512}float16, Intel DL Boost and bfloat16 support and Intel AMX with bfloat16 and "
        "8-bit integer support",
    ),
)

# Kernels, parity, same bytes. Triton's kernels, which are interpreted, know no features of the CPU.
TESTS = (
    *("tests/kernels", "tests/whole/test_equivalence.py", "tests/whole/test_reproducible.py"),
    *("-k", "not gpu"),
)
# For each landing: what has failed on one level only, and seven minutes of CPU time with no
# compiled kernels at hand.
SUBSET = (
    *("tests/kernels/linears", "tests/kernels/attention/test_decode_attention.py"),
    *("tests/kernels/cpu", "tests/whole/test_equivalence.py", "tests/whole/test_reproducible.py"),
    *("tests/models/quant/test_int8.py", "tests/house/test_docs.py"),
    # Of the compiler and its cache, in processes of their own: alike on every level.
    *(f"--ignore=tests/kernels/cpu/test_{name}.py" for name in ("first_run", "jit")),
    *("-k", "not gpu"),
)

# Asks Numba for code with vectors, oneDNN for a layer and ATen for its capability.
_PROBE = """
import numba, numpy, torch
from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.kernel_set import features

@numba.njit(fastmath=True)
def add(x, y, out):
    for i in range(len(x)):
        out[i] = x[i] * y[i]

arrays = [numpy.zeros(64, numpy.float32)] * 3
add(*arrays)
(code,) = add.inspect_asm().values()
torch.ops.mkldnn._reorder_linear_weight(torch.zeros(64, 64), 64)
print("aten", torch.backends.cpu.get_cpu_capability().lower())
print("features", *sorted(features()))
print("registers", *(name for name in ("ymm", "zmm") if name in code))
print("sets", *KernelSet.supported())
"""
# What a mask that does nothing would leave on.
_TELLING = frozenset(_AMX.split()) - frozenset(_V3.split())


def skip_reason(level: Level, host: frozenset[str]) -> str | None:
    """Return why a level does not run on a processor with the features `host`, None if it does."""
    missing = sorted(level.features - host)
    if missing:
        return f"this processor has no {', '.join(missing)}"
    highest = [each for each in LEVELS if each.features <= host][-1]
    return "this processor's own level, that of make test" if level is highest else None


def probe(environment: Mapping[str, str]) -> str:
    """Return what libraries print of the instructions that they use with these variables."""
    done = subprocess.run(
        [sys.executable, "-c", _PROBE],
        cwd=ROOT,
        env={**environment, "ONEDNN_VERBOSE": "1"},
        capture_output=True,
        text=True,
    )
    return done.stdout if done.returncode == 0 else done.stderr


def mask_fault(level: Level, printed: str) -> str | None:
    """Return in what a process that `printed` this is not held to the level, None if it is."""
    said = {name: value.split() for name, _, value in _words(printed, " ")}
    isa = "".join(value for _, _, value in _words(printed, "cpu,isa:"))
    if not {"aten", "features", "registers"} <= said.keys():
        return f"the check of the mask failed: {printed[-2000:]}"
    if said["aten"] != [level.aten]:
        return f"ATen runs {said['aten']}, not {level.aten}"
    if isa != level.onednn_says:
        return f"oneDNN runs {isa!r}, not {level.onednn_says!r}"
    features = _TELLING & frozenset(said["features"])
    if features != _TELLING & level.features:
        return f"kernels may use {sorted(features)}"
    if "zmm" in said["registers"] and "avx512f" not in level.features:
        return "Numba compiles for AVX-512"
    return None


def _words(printed: str, separator: str) -> list[tuple[str, str, str]]:
    return [line.partition(separator) for line in printed.splitlines()]


@dataclass(slots=True)
class Outcome:
    """Counts of one level's tests."""

    level: Level
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    note: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether anything failed, or nothing ran that should have."""
        return self.failed > 0

    def read(self, report: Path) -> None:
        """Take the counts of pytest's JUnit report."""
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):
            counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors")}
            skipped = int(suite.get("skipped", 0))
            failed = counts["failures"] + counts["errors"]
            self.failed += failed
            self.skipped += skipped
            self.passed += counts["tests"] - failed - skipped


def run_level(level: Level, arguments: Sequence[str]) -> Outcome:
    """Run pytest with these arguments under a level."""
    outcome, began = Outcome(level), time.monotonic()
    environment = {**os.environ, **level.variables()}
    fault = mask_fault(level, probe(environment))
    if fault is not None:
        return Outcome(level, failed=1, note=fault)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments],
            cwd=ROOT,
            env=environment,
        )
        if report.exists():
            outcome.read(report)
    outcome.seconds = time.monotonic() - began
    if done.returncode != 0 and outcome.failed == 0:
        outcome.failed, outcome.note = 1, f"pytest ended with status {done.returncode}"
    return outcome


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as lines of equal columns."""
    rows: list[tuple[str, ...]] = [
        ("level", "processors", "passed", "failed", "skipped", "seconds", "")
    ]
    for each in outcomes:
        counts = (each.passed, each.failed, each.skipped)
        ran = any(counts)
        cells = (*map(str, counts), f"{each.seconds:.0f}") if ran else ("-", "-", "-", "-")
        rows.append((each.level.name, each.level.examples, *cells, each.note))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if 2 <= place < 6 else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def main() -> int:
    """Run the levels that the command line names; 1 if any of them fails."""
    given = sys.argv[1:]
    arguments: Sequence[str] = ()
    if "--" in given:
        arguments = given[given.index("--") + 1 :]
        given = given[: given.index("--")]
    parser = argparse.ArgumentParser(prog="python -m tests.processors", description=__doc__)
    names = [level.name for level in LEVELS]
    parser.add_argument(
        "--level", action="append", choices=names, help="may be given several times"
    )
    parser.add_argument("--subset", action="store_true", help="what runs for each landing")
    parser.add_argument("--processes", type=int, default=1, metavar="N")
    options = parser.parse_args(given)
    arguments = arguments or (SUBSET if options.subset else TESTS)
    if options.processes > 1:
        arguments = ("-n", str(options.processes), "--dist", "loadfile", *arguments)

    from pagedrun.kernels.kernel_set import features

    host, outcomes = features(), []
    for level in LEVELS:
        if options.level and level.name not in options.level:
            continue
        reason = skip_reason(level, host)
        if reason is not None and not (options.level and level.features <= host):
            outcomes.append(Outcome(level, note=f"skipped: {reason}"))
            continue
        print(f"\n{level.name}: {' '.join(arguments)}", flush=True)
        outcomes.append(run_level(level, arguments))
    print(f"\n{table(outcomes)}")
    return int(any(each.is_fault for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
