from types import GenericAlias

import numpy as np

from pagedrun.kernels.array_types import Float32s, Int64s, element_types


def test_elements_of_the_array_types() -> None:
    found = element_types({"a": Int64s, "b": Float32s})
    assert [*found.items()] == [("a", np.int64), ("b", np.float32)]


def test_elements_of_the_array_types_of_newer_numpys() -> None:
    """From 2.5 on `NDArray` is an alias whose one argument is the element."""
    assert element_types({"a": GenericAlias(np.ndarray, (np.int32,))}) == {"a": np.int32}
