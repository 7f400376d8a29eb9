from types import GenericAlias

import numpy as np

from pagedrun.kernels.array_types import Float32s, Int64s, element_types


def test_elements_of_the_array_types() -> None:
    found = element_types({"a": Int64s, "b": Float32s})
    assert {name: np.dtype(each).name for name, each in found.items()} == {
        "a": "int64",
        "b": "float32",
    }


def test_elements_of_the_array_types_of_newer_numpys() -> None:
    """From 2.5 on `NDArray` is an alias whose one argument is the element."""
    found = element_types({"a": GenericAlias(np.ndarray, (np.int32,))})
    assert np.dtype(found["a"]).name == "int32"
