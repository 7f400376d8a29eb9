import inspect
import subprocess
import sys
from collections.abc import Callable
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
        stem = "linear" if name == "PackedLinear" else name
        assert getattr(backend, name).__module__.split(".")[-1] == stem


@pytest.mark.parametrize(
    ("backend", "name"), [(backend, name) for backend in (cpu, gpu) for name in backend.__all__]
)
def test_signatures_agree(backend: ModuleType, name: str) -> None:
    mine, theirs = getattr(backend, name), getattr(reference, name)
    if backend is gpu and name in ("prefix_attention", "decode_attention"):
        # What passes between these two is a matter of their backend: types of its own.
        assert _without_annotations(mine) == _without_annotations(theirs)
        return
    assert _without_kernel_set(mine) == inspect.signature(theirs)
    if inspect.isclass(mine):
        assert inspect.signature(mine.__call__) == inspect.signature(theirs.__call__)


def _without_kernel_set(function: Callable[..., object]) -> inspect.Signature:
    """A backend is bound to one set of kernels; its ops are then called as all others are."""
    signature = inspect.signature(function)
    kept = [each for each in signature.parameters.values() if each.name != "kernel_set"]
    return signature.replace(parameters=kept)


def _without_annotations(function: Callable[..., object]) -> list[inspect.Parameter]:
    parameters = inspect.signature(function).parameters.values()
    return [each.replace(annotation=inspect.Parameter.empty) for each in parameters]


@pytest.mark.parametrize("module", ["pagedrun.kernels", "pagedrun.kernels.environment.threads"])
def test_top_imports_no_torch_numba_or_triton(module: str) -> None:
    code = f"import sys, {module}; print({{'torch', 'numba', 'triton'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
