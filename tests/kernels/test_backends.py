import subprocess
import sys

import pytest

from pagedrun.kernels import cpu, gpu, reference


def test_backends_export_the_same_names() -> None:
    assert cpu.__all__ == reference.__all__


def test_gpu_exports_names_of_the_reference_in_its_order() -> None:
    assert gpu.__all__ == [name for name in reference.__all__ if name in gpu.__all__]


@pytest.mark.parametrize("module", ["pagedrun.kernels", "pagedrun.kernels.environment.threads"])
def test_top_imports_no_torch_numba_or_triton(module: str) -> None:
    code = f"import sys, {module}; print({{'torch', 'numba', 'triton'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
