"""A quantization_config with anything at all in it: read, or refused with one sentence."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.quant.registry import LINEAR_METHODS, linear_method
from pagedrun.paged.values.errors import ModelError

NAMES = (
    *("bits", "w_bit", "group_size", "q_group_size", "version", "zero_point", "sym", "fmt"),
    *("checkpoint_format", "dynamic", "is_marlin_format", "weight_block_size", "format"),
    *("config_groups", "weights", "num_bits", "type", "symmetric", "strategy", "block_structure"),
    *(
        "quant_algo",
        "bnb_4bit_quant_storage",
        "quantization_status",
        "sparsity_config",
        "transform_config",
        "\x1b\n",
        "x" * 5000,
    ),
)
WORDS = (
    *("gemm", "gptq", "gptq_v2", "e4m3", "int", "float", "group", "channel", "block", "tensor"),
    *(
        "pack-quantized",
        "nvfp4-pack-quantized",
        "mxfp4-pack-quantized",
        "NVFP4",
        "int-quantized",
        "float-quantized",
        "mixed-precision",
        "compressed",
        "\0\x1b",
    ),
)
NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 4, 8, 32, 128, 2**31, 2**63, 10**30])
SCALARS = st.none() | st.booleans() | NUMBERS | st.sampled_from(WORDS) | st.floats()
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=6)
    ),
    max_leaves=20,
)
METHODS = st.sampled_from([each for each in LINEAR_METHODS if each is not None]) | ANYTHING


@pytest.mark.parametrize("num_examples", [60, pytest.param(4000, marks=pytest.mark.long)])
def test_it_is_read_or_refused(num_examples: int) -> None:
    settings(max_examples=num_examples)(read_or_refused)()


@given(method=METHODS, fields=st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=8))
def read_or_refused(method: Any, fields: dict[str, Any]) -> None:
    quantization = {**fields, "quant_method": method}
    config = JsonObject("config.json", {"quantization_config": quantization})
    try:
        linear_method(config)
        return
    except ModelError as error:
        message = str(error)
    assert message.isprintable()
    assert len(message) < 500
