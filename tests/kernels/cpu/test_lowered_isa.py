"""oneDNN held to fewer instructions than the processor has.

It decides at its first use, so each case is a process of its own, with a cache of its own. All
kernels under fewer instructions: tests/processors.py.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from pagedrun.kernels.environment.threads import cpu_quota
from tests.support.every_pair import long_except

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="x86-64 instructions"
)

LINEARS = """
import pagedrun.kernels.environment.threads
pagedrun.kernels.environment.threads.prepare_environment()
import torch
from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.cpu.linears.onednn_linear import CancellingOperands
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
            generator = torch.Generator().manual_seed(3)
            x = torch.randn(20, shape[1], generator=generator).to(dtype)
            weight = torch.randn(shape, generator=generator).to(dtype)
            exact = x.double() @ weight.double().T
            magnitudes = x.double().abs() @ weight.double().abs().T
            error = (CpuBackend(KernelSet.PORTABLE).pack_linear(weight)(x) - exact).abs()
            # One rounding of the result to bfloat16; of float32, of many that cancel in part.
            bound = 2**-8 * exact.abs() if dtype is torch.bfloat16 else 2**-20 * magnitudes
            assert (error <= bound + 2**-20 * magnitudes).all(), (dtype, shape, error.max())
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


@pytest.mark.parametrize("isa", long_except(["AVX2", "AVX512_CORE", "AVX512_CORE_BF16"], ["AVX2"]))
def test_linears_where_onednn_has_fewer_instructions(isa: str, tmp_path: Path) -> None:
    run(f"{LINEARS}\ncheck_linears()", tmp_path, ONEDNN_MAX_CPU_ISA=isa)
