import inspect
import subprocess
import sys

import pytest

from pagedrun.kernels.cpu.backend import CpuBackend
from pagedrun.kernels.gpu.backend import GpuBackend
from pagedrun.kernels.ops import Backend


def test_ops_lists_every_operation_and_packs_every_layer() -> None:
    assert {"route", "silu_mul", "sample", "dequantize"} <= set(Backend.OPS)
    packs = {name for name in vars(Backend) if name.startswith("pack_")}
    assert set(Backend.PACKS) == packs


def test_the_cpu_has_a_kernel_for_every_operation() -> None:
    assert [name for name in Backend.OPS if name not in vars(CpuBackend)] == []


@pytest.mark.parametrize("backend", [CpuBackend, GpuBackend])
def test_overrides_begin_with_the_parameters_of_the_reference(backend: type[Backend]) -> None:
    for name in Backend.OPS:
        own, defined = (
            list(inspect.signature(getattr(each, name)).parameters) for each in (backend, Backend)
        )
        assert own[: len(defined)] == defined, name


@pytest.mark.parametrize("module", ["pagedrun.kernels", "pagedrun.kernels.environment.threads"])
def test_top_imports_no_torch_numba_or_triton(module: str) -> None:
    code = f"import sys, {module}; print({{'torch', 'numba', 'triton'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
