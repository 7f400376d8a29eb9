import subprocess
import sys
from types import ModuleType

import pytest

from pagedrun.kernels import cpu, gpu, reference


def test_backends_export_the_same_names() -> None:
    assert cpu.__all__ == reference.__all__


def test_gpu_exports_names_of_the_reference_in_its_order() -> None:
    assert gpu.__all__ == [name for name in reference.__all__ if name in gpu.__all__]


@pytest.mark.parametrize("backend", [cpu, gpu])
def test_each_op_has_a_file_of_its_name(backend: ModuleType) -> None:
    for name in backend.__all__:
        stems = {"Int8Linear": "int8_linear", "PackedLinear": "linear"}
        stem = {**stems, "PackedGroupedLinear": "grouped_linear"}.get(name, name)
        assert getattr(backend, name).__module__.split(".")[-1] == stem


@pytest.mark.parametrize("module", ["pagedrun.kernels", "pagedrun.kernels.environment.threads"])
def test_top_imports_no_torch_numba_or_triton(module: str) -> None:
    code = f"import sys, {module}; print({{'torch', 'numba', 'triton'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
