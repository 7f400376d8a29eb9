"""What is seen of a model without its weights, and what is refused before they are read."""

import json
from pathlib import Path
from typing import Any

import pytest

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.model_config import describe_model
from pagedrun.paged.models.transformers_backend.config import TransformersConfig
from pagedrun.paged.models.transformers_backend.config_fields import visible_fields
from pagedrun.paged.models.transformers_backend.specs import PlainSpec, TransformersSpec
from pagedrun.paged.values.errors import ModelError
from tests.models.transformers_backend.library_models import LIBRARY

SHAPE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 258,
}


def write(folder: Path, **fields: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({**SHAPE, **fields}))
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        TransformersConfig.from_folder(folder)
    return str(caught.value)


WINDOWS = {"starcoder2": (50, 50), "gpt_oss": (50, None)}
KEYS = {"deepseek_v3": 24}  # numbers of one, where not 16


@pytest.mark.parametrize("name", LIBRARY)
def test_it_has_the_parameters_and_layers_of_the_model(name: str, tmp_path: Path) -> None:
    config = LIBRARY[name].config()
    config.save_pretrained(tmp_path)
    ours = TransformersConfig.from_folder(tmp_path)
    import transformers

    model = transformers.AutoModelForCausalLM.from_config(config)
    assert ours.network.num_bytes(4) == sum(each.nbytes for each in model.parameters())
    assert ours.vocab_size == 320
    assert ours.windows == WINDOWS.get(name, (None, None))
    assert ours.eos_token_ids == (258,)
    specs = ours.network.kv_cache_specs("float32")
    assert sum(spec.num_layers for spec in specs) == 2
    heads = getattr(config, "num_key_value_heads", None) or 4
    assert {(each.num_kv_heads, each.head_dim) for each in specs} == {(heads, KEYS.get(name, 16))}


def test_windows_are_those_of_each_layer(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"]
    write(tmp_path, model_type="cohere2", layer_types=kinds, sliding_window=100)
    ours = TransformersConfig.from_folder(tmp_path)
    assert ours.windows == (100, None)
    specs = ours.network.kv_cache_specs("float32")
    assert [(each.num_layers, each.window) for each in specs] == [(1, None), (1, 100)]


def test_a_softcap_and_a_scale_are_seen(tmp_path: Path) -> None:
    write(tmp_path, model_type="gemma2", query_pre_attn_scalar=25, attn_logit_softcapping=7.0)
    network = TransformersConfig.from_folder(tmp_path).network
    assert isinstance(network, TransformersSpec)
    first, _ = network.layers
    assert (first.scale, first.softcap) == (0.2, 7.0)


UNPAGED: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "bloom"}, "do not use the library's interface for attention"),
    ({"model_type": "falcon"}, "do not use the library's interface for attention"),
    ({"model_type": "mamba"}, "recurrent layers"),
    ({"model_type": "diffllama"}, "is called 4 times for its 2 layers"),
    (
        {"model_type": "stablelm", "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
        "the longest row of a step",  # and code that looks at numbers
    ),
]


@pytest.mark.parametrize(("fields", "why"), UNPAGED, ids=lambda item: json.dumps(item)[:40])
def test_what_paged_memory_cannot_do_runs_without_it(
    tmp_path: Path, fields: dict[str, Any], why: str
) -> None:
    config = TransformersConfig.from_folder(write(tmp_path, **fields))
    assert isinstance(config.network, PlainSpec)
    assert why in config.network.why
    assert config.library == {
        "computed_by": config.network.computed_by,
        "path": "plain",
        "why_plain": config.network.why,
    }
    assert config.notice is not None
    assert config.network.why in config.notice


NEITHER: list[tuple[dict[str, Any], str, str]] = [
    (
        {"model_type": "bert"},
        "not sliding windows",
        "returns no cache from which a row could continue",
    ),
    (  # it keeps its state in its layers
        {"model_type": "recurrent_gemma", "num_hidden_layers": 3, "num_key_value_heads": 1},
        "recurrent layers",
        "returns no cache from which a row could continue",
    ),
]


@pytest.mark.parametrize(("fields", "paged", "plain"), NEITHER)
def test_what_runs_neither_way_is_refused(
    tmp_path: Path, fields: dict[str, Any], paged: str, plain: str
) -> None:
    message = refusal(write(tmp_path, **fields))
    assert f"{tmp_path / 'config.json'}: model_type '{fields['model_type']}'" in message
    assert paged in message
    assert plain in message


def test_infinities_are_read_as_the_library_writes_them(tmp_path: Path) -> None:
    """It refuses its own files otherwise, those of Mamba-2 layers."""
    limits = [0.0, {"__float__": "Infinity"}]
    config = write(tmp_path, model_type="falcon_h1", time_step_limit=limits)
    assert "Infinity]" in visible_fields(JsonObject.read(config / "config.json"))
    odd = write(tmp_path, model_type="falcon_h1", time_step_limit={"__float__": "os.system"})
    assert "os.system" not in visible_fields(JsonObject.read(odd / "config.json"))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "nonsense"}, "model_type"),
    ({"model_type": None}, "model_type"),
    ({"model_type": "clip"}, "model_type"),  # known, but no language model
    ({"model_type": "phi", "auto_map": {"AutoModelForCausalLM": "evil.Model"}}, "auto_map"),
    ({"model_type": "phi", "quantization_config": {"quant_method": "x"}}, "quantization_config"),
    ({"model_type": "phi", "num_hidden_layers": 10**9}, "num_hidden_layers"),
    ({"model_type": "phi", "hidden_size": 2**40}, "hidden_size"),
    ({"model_type": "llama4", "num_hidden_layers": None}, "one of several parts"),
    ({"model_type": "phi", "num_attention_heads": 2**60}, "num_attention_heads"),
    ({"model_type": "phi", "vocab_size": 0}, "vocab_size"),
    ({"model_type": "phi", "max_position_embeddings": 2**62}, "max_position_embeddings"),
    ({"model_type": "phi", "hidden_size": "64"}, "hidden_size"),
    ({"model_type": "phi", "hidden_act": "os.system"}, "os.system"),
]


@pytest.mark.parametrize(("fields", "name"), REFUSED, ids=lambda item: json.dumps(item)[:40])
def test_hostile_fields_are_refused_by_name(
    tmp_path: Path, fields: dict[str, Any], name: str
) -> None:
    message = refusal(write(tmp_path, **fields))
    assert str(tmp_path / "config.json") in message
    assert name in message
    assert len(message) < len(str(tmp_path)) + 500


def test_what_could_lead_to_code_or_other_files_is_not_looked_at(tmp_path: Path) -> None:
    plain = TransformersConfig.from_folder(write(tmp_path, model_type="phi"))
    write(
        tmp_path,
        model_type="phi",
        _attn_implementation_internal="evil/kernel",
        _name_or_path="evil/model",
        attn_implementation="evil/kernel",
        transformers_weights="../../evil.safetensors",
    )
    assert TransformersConfig.from_folder(tmp_path) == plain


def test_an_unknown_type_is_told_of_the_flag_if_transformers_knows_it(tmp_path: Path) -> None:
    for model_type, knows in (("persimmon", True), ("starcoder2", True), ("nonsense", False)):
        with pytest.raises(ModelError) as caught:
            describe_model(write(tmp_path, model_type=model_type), "auto")
        assert ("model_impl transformers" in str(caught.value)) is knows
