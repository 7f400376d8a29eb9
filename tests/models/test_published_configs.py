"""The config.json files of published models, in the words of the hub and of transformers 5."""

from collections import Counter

import pytest

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderLayerSpec
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.modules.moe import MoeSpec
from pagedrun.paged.values.json_value import JSONValue
from tests.support.tiny_models import published_config, published_fields

SLIDING, FULL = "sliding_attention", "full_attention"
# Heads of queries and of keys, a head's size; windows with the number of their layers; theta and
# kind of rotations, of full layers first; experts, and how many a token passes.
Facts = tuple[tuple[int, int, int], dict[int | None, int], list[tuple[float, str]], tuple[int, int]]
DENSE = (0, 0)
PUBLISHED: dict[str, Facts] = {
    "qwen3-0.6b": ((16, 8, 128), {None: 28}, [(1e6, "default")], DENSE),
    "qwen3-32b": ((64, 8, 128), {None: 64}, [(1e6, "default")], DENSE),
    "qwen3-30b-a3b": ((32, 4, 128), {None: 48}, [(1e6, "default")], (128, 8)),
    "qwen3-235b-a22b": ((64, 4, 128), {None: 94}, [(1e6, "default")], (128, 8)),
    "qwen1.5-moe-a2.7b": ((16, 16, 128), {None: 24}, [(1e6, "default")], (60, 4)),
    "qwen2.5-7b": ((28, 4, 128), {None: 28}, [(1e6, "default")], DENSE),
    "mixtral-8x7b": ((32, 8, 128), {None: 32}, [(1e6, "default")], (8, 2)),
    "llama-3.2-1b": ((32, 8, 64), {None: 16}, [(5e5, "llama3")], DENSE),
    "llama-3.3-70b": ((64, 8, 128), {None: 80}, [(5e5, "llama3")], DENSE),
    "mistral-7b": ((32, 8, 128), {None: 32}, [(1e6, "default")], DENSE),
    "mistral-small-3.1-24b": ((32, 8, 128), {None: 40}, [(1e9, "default")], DENSE),
    "ministral-3-8b": ((32, 8, 128), {None: 34}, [(1e6, "yarn")], DENSE),
    "gemma-2-9b": ((16, 8, 256), {None: 21, 4096: 21}, [(1e4, "default")] * 2, DENSE),
    "gemma-3-1b": ((4, 1, 256), {None: 4, 512: 22}, [(1e6, "default"), (1e4, "default")], DENSE),
    "gemma-3-4b": ((8, 4, 256), {None: 5, 1024: 29}, [(1e6, "linear"), (1e4, "default")], DENSE),
    "gemma-3-27b": (
        (32, 16, 128),
        {None: 10, 1024: 52},
        [(1e6, "linear"), (1e4, "default")],
        DENSE,
    ),
    "olmo-2-7b": ((32, 32, 128), {None: 32}, [(5e5, "default")], DENSE),
    "olmo-3-7b": ((32, 32, 128), {None: 8, 4096: 24}, [(5e5, "yarn"), (5e5, "default")], DENSE),
    "granite-3.3-2b": ((32, 8, 64), {None: 40}, [(1e7, "default")], DENSE),
    "glm-4-9b-0414": ((32, 2, 128), {None: 40}, [(1e4, "default")], DENSE),
    "phi-4": ((40, 10, 128), {None: 40}, [(2.5e5, "default")], DENSE),
    "phi-4-mini": ((24, 8, 128), {262_144: 32}, [(1e4, "longrope")], DENSE),
    "smollm3-3b": ((16, 4, 128), {None: 36}, [(5e6, "default")], DENSE),
    "seed-oss-36b": ((80, 8, 128), {None: 64}, [(1e7, "default")], DENSE),
    "glm-4.5-air": ((96, 8, 128), {None: 46}, [(1e6, "default")], (128, 8)),
    "minimax-m2": ((48, 8, 128), {None: 62}, [(5e6, "default")], (256, 8)),
    "dots.llm1": ((32, 32, 128), {None: 62}, [(1e7, "default")], (128, 6)),
    "ernie-4.5-21b-a3b": ((20, 4, 128), {None: 28}, [(5e5, "default")], (64, 6)),
    "olmoe-1b-7b": ((16, 16, 128), {None: 16}, [(1e4, "default")], (64, 8)),
    "granite-3.1-3b-a800m": ((24, 8, 64), {None: 32}, [(1e7, "default")], (40, 8)),
    "granite-4.0-micro": ((40, 8, 64), {None: 40}, [(1e7, "default")], DENSE),
    "ernie-4.5-0.3b": ((16, 2, 128), {None: 18}, [(5e5, "default")], DENSE),
}


def facts(config: ModelConfig) -> Facts:
    ropes: dict[int, tuple[float, str]] = {}
    experts = DENSE
    for layer in config.network.layers:
        assert isinstance(layer, DecoderLayerSpec)
        attention, ffn = layer.attention, layer.ffn
        assert attention is not None
        assert (attention.num_heads, attention.num_kv_heads) == (
            config.num_heads,
            config.num_kv_heads,
        )
        if attention.rope is not None:
            ropes[attention.window or 0] = (attention.rope.theta, attention.rope.kind)
        if isinstance(ffn, MoeSpec):
            experts = (ffn.experts.num_experts, ffn.num_chosen)
    heads = (config.num_heads, config.num_kv_heads, config.head_dim)
    return heads, dict(Counter(config.windows)), [ropes[each] for each in sorted(ropes)], experts


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_means_what_its_model_is(name: str) -> None:
    assert facts(published_config(name)) == PUBLISHED[name]


def rope(theta: float, **fields: JSONValue) -> dict[str, JSONValue]:
    return {"rope_type": "default", "rope_theta": theta, **fields}


def listed(num_layers: int, period: int) -> list[JSONValue]:
    return [SLIDING if layer % period else FULL for layer in range(1, num_layers + 1)]


LLAMA3: dict[str, JSONValue] = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "factor": 32.0,
}
OLMO_YARN: dict[str, JSONValue] = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
}
# What another release of transformers writes for the same model: fields that it has in place of
# others, which are named behind them.
DIALECTS: dict[str, tuple[str, dict[str, JSONValue], tuple[str, ...]]] = {
    "rotations in one object": (
        "qwen3-0.6b",
        {"rope_parameters": rope(1e6)},
        ("rope_theta",),
    ),
    "scaled rotations in one object": (
        "llama-3.2-1b",
        {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
        ("rope_theta", "rope_scaling"),
    ),
    "another name of the number of experts": (
        "qwen3-30b-a3b",
        {"num_local_experts": 128},
        ("num_experts",),
    ),
    "another name of the number format": ("phi-4", {"torch_dtype": "bfloat16"}, ("dtype",)),
    "a list of kinds, and rotations of each": (
        "gemma-3-4b",
        {
            "layer_types": listed(34, 6),
            "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                SLIDING: rope(1e4),
            },
        },
        ("rope_scaling",),
    ),
    "a period of kinds, and two thetas": (
        "gemma-3-4b",
        {"sliding_window_pattern": 6, "rope_theta": 1e6, "rope_local_base_freq": 1e4},
        (),
    ),
    "every other layer by a list": ("gemma-2-9b", {"layer_types": listed(42, 2)}, ()),
    "a list of kinds, and yarn in one": (
        "olmo-3-7b",
        {
            "layer_types": listed(32, 4),
            "rope_parameters": {FULL: {**OLMO_YARN, "rope_theta": 5e5}, SLIDING: rope(5e5)},
        },
        ("rope_scaling", "rope_theta"),
    ),
    "the share of a head inside": (
        "glm-4-9b-0414",
        {"rope_parameters": rope(1e4, partial_rotary_factor=0.5)},
        ("rope_theta",),
    ),
    "the share of a head inside, of a mixture": (
        "glm-4.5-air",
        {"rope_parameters": rope(1e6, partial_rotary_factor=0.5)},
        ("rope_theta", "partial_rotary_factor"),
    ),
    "the share of a head in place of its number": (
        "minimax-m2",
        {"rope_parameters": rope(5e6, partial_rotary_factor=0.5)},
        ("rope_theta", "rotary_dim"),
    ),
    "another name of what all layers are": (
        "granite-4.0-micro",
        {"layer_types": [FULL] * 40},
        (),
    ),
    "the old name of longrope": (
        "phi-4-mini",
        {"rope_scaling": {"type": "su", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}},
        (),
    ),
    "layers without rotation by a list": (
        "smollm3-3b",
        {"no_rope_layers": [1, 1, 1, 0] * 9, "rope_parameters": rope(5e6)},
        ("rope_theta",),
    ),
}


@pytest.mark.parametrize("name", DIALECTS)
def test_a_model_in_another_dialect_is_the_same_model(name: str) -> None:
    shape, added, dropped = DIALECTS[name]
    fields = published_fields(shape)
    assert fields.keys() >= set(dropped)
    kept = {field: value for field, value in fields.items() if field not in dropped}
    assert read({**kept, **added}) == published_config(shape)


@pytest.mark.parametrize(
    ("outer", "shape"), [("gemma3", "gemma-3-4b"), ("mistral3", "mistral-small-3.1-24b")]
)
def test_a_decoder_beside_a_part_for_images_is_the_same_decoder(outer: str, shape: str) -> None:
    """Where its type is not named inside, nor whether its head is the embedding's table."""
    hub, fields = published_config(shape), published_fields(shape)
    inner = ("model_type", "tie_word_embeddings", "dtype")
    text = {field: value for field, value in fields.items() if field not in inner}
    found = read(
        {
            "model_type": outer,
            "text_config": text,
            "torch_dtype": "bfloat16",
            "tie_word_embeddings": hub.network.head is None,
        }
    )
    assert facts(found) == facts(hub)
    assert (found.model_type, found.dtype) == (hub.model_type, "bfloat16")
    assert found.network.layers == hub.network.layers


def read(fields: dict[str, JSONValue]) -> ModelConfig:
    return ModelConfig.from_json(JsonObject("config.json", fields))
