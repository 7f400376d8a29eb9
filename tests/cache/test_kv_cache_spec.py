"""What a group of layers keeps of each token."""

from dataclasses import replace

import pytest

from pagedrun.paged.cache.kv_cache_spec import KVCacheSpec
from pagedrun.paged.models.network.layer_spec import DecoderLayerSpec, LayerSpec
from pagedrun.paged.models.shapes import Shape

SPEC = KVCacheSpec(num_layers=2, num_kv_heads=3, head_dim=64, dtype="float32")


def test_bytes_of_keys_and_values() -> None:
    vectors = 2 * 2 * 3
    assert SPEC.bytes_per_token == vectors * 256
    assert SPEC.stored_as("bfloat16").bytes_per_token == vectors * 128
    for quantized in ("int8", "fp8", "fp8_e4m3", "float8_e4m3fn"):
        spec = SPEC.stored_as(quantized)
        assert spec.is_quantized
        assert spec.bytes_per_token == vectors * 68  # a scale for each head


def with_window(layer: LayerSpec, window: int | None) -> DecoderLayerSpec:
    assert isinstance(layer, DecoderLayerSpec)
    return replace(layer, attention=replace(layer.attention, window=window))


@pytest.mark.parametrize(
    ("windows", "looks_back"), [((None, None), None), ((50, None), None), ((50, 70), 70)]
)
def test_a_model_is_one_group(windows: tuple[int | None, ...], looks_back: int | None) -> None:
    config = Shape.named("tiny").config
    network = replace(
        config.network, layers=tuple(map(with_window, config.network.layers, windows))
    )
    [spec] = network.kv_cache_specs("bfloat16")
    assert spec.window == looks_back
    assert spec.bytes_per_token == 2 * 2 * config.num_kv_heads * config.head_dim * 2
