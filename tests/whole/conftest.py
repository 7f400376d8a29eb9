"""What several tests of whole runs change about the engine."""

from collections.abc import Iterator

import pytest

from pagedrun.kernels.kernel_set import KernelSet
from pagedrun.kernels.read_once import ReadOnce


@pytest.fixture(scope="module")
def short_prefixes_are_read_once() -> Iterator[None]:
    """Sixteen rows take shared-prefix attention however short the prefix is that they share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KernelSet, "read_once", ReadOnce(16, 1))
        yield
