"""INT8 quantization of a plain network at load (`--quantization int8`)."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import TypeVar

from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.modules.linear import LinearSpec, Projection
from pagedrun.paged.models.quant.int8 import MAX_IN_FEATURES, Int8, Int8Activations
from pagedrun.paged.models.quant.linear_methods import Dense
from pagedrun.paged.values.errors import ModelError, option

ValueT = TypeVar("ValueT")


def int8_at_load(network: DecoderSpec, origin: object) -> DecoderSpec:
    """Return the network with int8 linear layers, except experts and layers that keep precision.

    A tied head gets codes of its own, quantized from the unchanged embedding table. A network with
    an int8 checkpoint is returned unchanged. Raises `ModelError` naming `origin`, the file of the
    network, for any other quantization.
    """
    parts = [part for layer in network.layers for part in layer.parts]
    methods = [part.method for part in parts if isinstance(part, LinearSpec)]
    if any(isinstance(method, Int8Activations) for method in methods):
        return network
    if not all(isinstance(method, Dense | Int8) for method in methods):
        raise ModelError(
            f"{origin}: its weights are already quantized, so {option('quantization')} int8 "
            "does not apply; leave it out, or use the unquantized model"
        )
    network = _changed(network, _in_int8)
    if network.head is not None:
        return network
    table = network.embedding
    tied = (Projection(table.name, table.vocab_size),)
    head = LinearSpec(tied, table.hidden_size, has_bias=False, method=Dense())
    return replace(network, head=_in_int8(head))


def _in_int8(linear: LinearSpec) -> LinearSpec:
    if linear.keep_precision or linear.in_features > MAX_IN_FEATURES:
        return linear
    return replace(linear, method=Int8())


def _changed(value: ValueT, change: Callable[[LinearSpec], LinearSpec]) -> ValueT:
    """Return a description with `change` applied to all its linear layers, nested ones too."""
    found: object = value
    if isinstance(value, LinearSpec):
        found = change(value)
    elif isinstance(value, tuple):
        found = tuple(_changed(each, change) for each in value)
    elif is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        found = replace(value, **{name: _changed(getattr(value, name), change) for name in names})
    assert isinstance(found, type(value))
    return found
