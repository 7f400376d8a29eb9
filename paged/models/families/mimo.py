"""MiMo: the layers of Qwen2, and a module for multi-token prediction."""

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.tensors import NamedTensors
from pagedrun.paged.models.decoder_spec import DecoderSpec, llama_decoder
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.layer_spec import MtpForm
from pagedrun.paged.models.modules.attention import Heads, upper_windows
from pagedrun.paged.models.modules.mlp import gated_mlps


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    return llama_decoder(
        config,
        max_positions,
        Heads.from_json(config, num_kv_heads=32),
        (*upper_windows(config), None),
        gated_mlps(config),
        bias=config.boolean("attention_bias", True),
        out_bias=False,
        # Modules behind the first are not read.
        tensors=NamedTensors(dropped=("model.mtp_layers.",)),
        mtp=MtpForm(
            "model.mtp_layers.0",
            ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"),
            hidden_first=True,
            takes_stream=True,
            repeats_normed=True,
        ),
    )


MIMO = Family(_describe, 32_768)
