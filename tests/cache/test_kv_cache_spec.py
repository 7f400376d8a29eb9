"""What a group of layers keeps of each token."""

from dataclasses import replace

import pytest

from pagedrun.paged.cache.cache_spec import KVCacheSpec, KVLayerIndex
from pagedrun.paged.models.decoder_spec import DecoderLayerSpec, DecoderSpec
from pagedrun.paged.models.layer_spec import LayerSpec
from tests.support.tiny_models import tiny_config

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
    assert layer.attention is not None
    return replace(layer, mixer=replace(layer.attention, window=window))


def tiny(*windows: int | None) -> DecoderSpec:
    network = tiny_config().network
    layers = tuple(with_window(network.layers[0], window) for window in windows)
    return replace(network, layers=layers)


def layers_of(network: DecoderSpec) -> tuple[tuple[int, ...], ...]:
    return tuple(group.layers for group in network.kv_groups)


@pytest.mark.parametrize(
    ("windows", "groups"),
    [
        ((None, None), ((0, 1),)),
        ((50, None), ((1,), (0,))),  # the group that is planned by comes first
        ((50, 70, 50, None), ((3,), (0, 2), (1,))),
        ((50, 50), ((), (0, 1))),  # nothing is kept whole, but blocks have names
    ],
)
def test_layers_with_the_same_window_are_a_group(
    windows: tuple[int | None, ...], groups: tuple[tuple[int, ...], ...]
) -> None:
    network = tiny(*windows)
    assert layers_of(network) == groups
    for layer, place in enumerate(network.cache_indices):
        assert isinstance(place, KVLayerIndex)
        assert groups[place.group][place.layer] == layer
    specs = network.kv_cache_specs("bfloat16")
    assert [spec.num_layers for spec in specs] == [len(layers) for layers in groups]
    assert [spec.window for spec in specs] == [
        windows[layers[0]] if layers else None for layers in groups
    ]
    assert [spec.reads_together for spec in specs] == [
        bool(layers) and windows[layers[0]] is None for layers in groups
    ]


def test_layers_with_other_heads_are_a_group_of_their_own() -> None:
    network = tiny(None, None, 50)
    first, second, third = network.layers
    assert isinstance(second, DecoderLayerSpec)
    assert second.attention is not None
    attention = replace(second.attention, num_kv_heads=1, head_dim=32)
    network = replace(network, layers=(first, replace(second, mixer=attention), third))
    assert layers_of(network) == ((0,), (1,), (2,))
    one, other, sliding = network.kv_cache_specs("float32")
    assert (other.num_kv_heads, other.bytes_per_token) == (1, 2 * 32 * 4)
    bytes_read = network.bytes_read([one, other, sliding])
    assert bytes_read == {
        None: one.bytes_per_token + other.bytes_per_token,
        50: sliding.bytes_per_token,
    }


def test_layers_that_read_the_keys_of_others_have_none() -> None:
    network = tiny(None, 50, None, 50)
    *own, third, fourth = network.layers
    readers = [reading(third, 0), reading(fourth, 1)]
    network = replace(network, layers=(*own, *readers))
    assert layers_of(network) == ((0,), (1,))
    assert network.cache_indices == ((0, 0), (1, 0)) * 2
    full, sliding = specs = network.kv_cache_specs("float32")
    assert (full.num_layers, sliding.num_layers) == (1, 1)
    # They are read once more all the same.
    assert network.bytes_read(specs) == {
        None: 2 * full.bytes_per_layer,
        50: 2 * full.bytes_per_layer,
    }


def reading(layer: LayerSpec, source: int) -> DecoderLayerSpec:
    assert isinstance(layer, DecoderLayerSpec)
    assert layer.attention is not None
    return replace(layer, mixer=replace(layer.attention, source=source))
