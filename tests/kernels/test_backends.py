import inspect
import subprocess
import sys

import pytest

from pagedrun.kernels import cpu, reference


def test_backends_export_the_same_names() -> None:
    assert cpu.__all__ == reference.__all__


@pytest.mark.parametrize("name", reference.__all__)
def test_signatures_agree(name: str) -> None:
    mine, theirs = getattr(cpu, name), getattr(reference, name)
    assert inspect.signature(mine) == inspect.signature(theirs)
    if inspect.isclass(mine):
        assert inspect.signature(mine.__call__) == inspect.signature(theirs.__call__)


@pytest.mark.parametrize("module", ["pagedrun.kernels", "pagedrun.kernels.threads"])
def test_top_imports_neither_torch_nor_numba(module: str) -> None:
    code = f"import sys, {module}; print({{'torch', 'numba'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
