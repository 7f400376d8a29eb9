"""Architecture: how llama.cpp writes the models of one type."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pagedrun.paged.files.gguf.gguf_file import GgufFile
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.values.json_value import JSONValue


@dataclass(frozen=True, slots=True)
class Architecture:
    """What differs from a plain decoder in metadata, names and tensors.

    `model_type` is what config.json calls such models. `fields`: further fields of config.json, by
    those of the metadata. `worked_out` returns those that the metadata has otherwise, from its
    fields without the architecture's name, and the file.

    `model_names` and `layer_names`: what our tensors are called, by theirs. `turns_neighbours`:
    rows of queries and keys are ordered so that rotations turn neighbours. `adds_one`: 1 is added
    to the weights of norms. `lost_axes`: the axis of one element that tensors have lost, by the
    ends of our names. `rotates_in_part`: rotations may leave elements of a head as they are.
    """

    model_type: str
    fields: Mapping[str, str] = field(default_factory=dict)
    worked_out: Callable[[JsonObject, GgufFile], Mapping[str, JSONValue]] = lambda own, file: {}
    model_names: Mapping[str, str] = field(default_factory=dict)
    layer_names: Mapping[str, str] = field(default_factory=dict)
    turns_neighbours: bool = False
    adds_one: bool = False
    lost_axes: Mapping[str, int] = field(default_factory=dict)
    rotates_in_part: bool = False
