"""Other processors, as far as this one can play them: oneDNN and LLVM held to fewer instructions.

Both decide at their first use, so each case is a process of its own, with a cache of its own.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from pagedrun.kernels.environment.threads import cpu_quota
from pagedrun.kernels.processor import has_features

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="x86-64 instructions"
)

LINEARS = """
import pagedrun.kernels.environment.threads
pagedrun.kernels.environment.threads.prepare_environment()
import torch
from pagedrun.kernels import cpu, reference
from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.cpu.linears.cancelling import CancellingOperands
from pagedrun.kernels.kernel_set import KernelSet

def check_linears():
    for dtype in (torch.bfloat16, torch.float32):
        for shape in ((1024, 3072), (1536, 576), (1000, 333)):
            operands = CancellingOperands.make(*shape, 129, dtype, seed=3)
            layer = CpuBackend(KernelSet.PORTABLE).pack_linear(operands.weight)
            y = layer(operands.x)
            assert (y != 0).any()
            for num_rows in (1, 3, 7, 16, 17, 33, 64, 100):
                for rows in (slice(num_rows), slice(-num_rows, None)):
                    assert torch.equal(layer(operands.x[rows]), y[rows]), (dtype, shape, rows)
            x = torch.randn(20, shape[1]).to(dtype)
            weight = (torch.randn(shape) / shape[1] ** 0.5).to(dtype)
            exact = x.double() @ weight.double().T
            error = (CpuBackend(KernelSet.PORTABLE).pack_linear(weight)(x) - exact).abs().max()
            assert error < (3e-2 if dtype is torch.bfloat16 else 1e-5), (dtype, shape, error)

def check_int8():
    codes = torch.randint(-128, 128, (70, 333), dtype=torch.int8)
    scales = torch.rand(70)
    layers = [each.Int8Linear(codes, scales) for each in (cpu, reference)]
    x = torch.randn(9, 333)
    assert torch.equal(layers[0](x), layers[1](x))
"""
# Imports of tests read no conftest, which is not needed here.
ATTENTION = """
from tests.kernels.cpu.order_sensitive import Kind
from tests.kernels.cpu.test_attention_invariance import (
    test_chunks_cut_anywhere_give_the_bytes_of_one as check_chunks,
    test_shared_prefixes_give_the_bytes_of_each_row_alone as check_prefixes,
)

def check_attention():
    for dtype in (torch.bfloat16, torch.float32):
        way = (KernelSet.PORTABLE, dtype)
        for kind in (Kind.SCORES, Kind.VALUES):
            check_chunks(80, 2, way, kind, (None, None), 16)
            check_prefixes(80, 2, way, kind, None, 16)
"""


def run(code: str, tmp_path: Path, **variables: str) -> None:
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path),
        "OMP_NUM_THREADS": str(min(2, cpu_quota())),
        **variables,
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    "isa", ["AVX2", pytest.param("AVX512_CORE", marks=pytest.mark.long), "AVX512_CORE_BF16"]
)
def test_linears_where_onednn_has_fewer_instructions(isa: str, tmp_path: Path) -> None:
    run(f"{LINEARS}\ncheck_linears()", tmp_path, ONEDNN_MAX_CPU_ISA=isa)


@pytest.mark.long
@pytest.mark.skipif(not has_features("avx2", "fma"), reason="needs AVX2")
def test_a_processor_without_avx512(tmp_path: Path) -> None:
    code = f"""{LINEARS}{ATTENTION}
assert KernelSet.supported() == [KernelSet.PORTABLE], KernelSet.supported()
check_linears()
check_int8()
check_attention()
"""
    run(
        code,
        tmp_path,
        ONEDNN_MAX_CPU_ISA="AVX2",
        NUMBA_CPU_NAME="haswell",
        NUMBA_CPU_FEATURES="+avx2,+fma,+f16c,+bmi2,+sse4.2,+popcnt",
        NUMBA_CACHE_DIR=str(tmp_path / "numba"),
    )
