"""A family from outside the package, out of parts that other families have: mixtures of experts,
windows in some layers, and rotations of each kind of layer, against Transformers.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec, decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.families.registry import FAMILIES
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.modules.attention import (
    Heads,
    QkNormForm,
    attention,
    layer_windows,
    sliding_window,
)
from pagedrun.paged.models.modules.moe import softmax_moe
from pagedrun.paged.models.modules.norm import NormForm
from pagedrun.paged.models.modules.rotary import ropes_by_kind
from pagedrun.paged.values.errors import ModelError
from tests.conftest import save_byte_tokenizer
from tests.models.oracle import check, oracle_of
from tests.support.families import FULL, SLIDING, Tiny, disturb
from tests.support.oracle import Oracle

WINDOW = 50
TINY = Tiny(
    "MellumConfig",
    {
        "num_hidden_layers": 4,
        "layer_types": [SLIDING, FULL, SLIDING, FULL],
        "sliding_window": WINDOW,
        "moe_intermediate_size": 32,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "rope_parameters": {
            FULL: {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5},
            SLIDING: {"rope_type": "default", "rope_theta": 1e4},
        },
    },
)


def describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    windows = layer_windows(config, sliding_window(config))
    heads = Heads.from_json(config, num_kv_heads=4, head_dim=128)
    ropes = ropes_by_kind(config, windows, max_positions, full_theta=5e5, sliding_theta=1e4)
    norm = NormForm.from_json(config)
    mixer = partial(attention, config, heads, norm, ropes, windows, qk_norm=QkNormForm())
    return decoder(
        config,
        max_positions,
        norm,
        mixer,
        lambda layer: softmax_moe(
            config,
            f"model.layers.{layer}.mlp",
            num_experts=64,
            num_chosen=8,
            inner=896,
            normalize=config.boolean("norm_topk_prob", True),
        ),
    )


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    folder = tmp_path_factory.mktemp("outside")
    return oracle_of(saved(folder), folder)


def saved(folder: Path) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(20_261_122)
        model = transformers.AutoModelForCausalLM.from_config(TINY.config(), dtype=torch.float32)
        disturb(model)
    model.save_pretrained(folder)
    save_byte_tokenizer(folder, adds_bos=False)
    return model.eval()


def test_one_function_and_one_registry_line_are_a_family(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match="model_type is 'mellum'"):
        ModelConfig.from_folder(oracle.folder)
    monkeypatch.setitem(FAMILIES, "mellum", Family(describe, 131_072))
    assert ModelConfig.from_folder(oracle.folder).windows == (WINDOW, None) * 2
    report = check(oracle, max_num_batched_tokens=64)
    assert report["prefix"]["hit_tokens"] > 0
