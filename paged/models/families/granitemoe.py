"""Granite with MoE layers, and Granite 4 without recurrent layers."""

from pagedrun.kernels.expert_choice import ExpertChoice, Score
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.families.granite import granite_decoder
from pagedrun.paged.models.modules.mlp import MlpSpec, check_activation, gated_mlp
from pagedrun.paged.models.modules.moe import FfnOfLayer, moe, read_num_experts
from pagedrun.paged.models.quant.expert_layouts import Stacked

_NAMES = ("input_linear", "output_linear")
_LAYOUT = Stacked("input_linear.weight", "output_linear.weight")


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    shared_inner = config.integer("shared_intermediate_size", 0, 2**22, 0)
    return granite_decoder(config, max_positions, _ffns(config, shared_inner))


def _describe_hybrid(config: JsonObject, max_positions: int) -> DecoderSpec:
    """Return a Granite 4, with or without rotation and with or without experts."""
    num_layers = config.integer("num_hidden_layers", 1, 4096)
    given = config.get("layer_types")
    if given != ["attention"] * num_layers and given != ["full_attention"] * num_layers:
        raise config.error(
            "layer_types",
            f'"attention" for each of {num_layers} layers: recurrent layers (Mamba-2) are not '
            "supported; the most similar supported model_type is granite",
        )
    shared_inner = config.integer("shared_intermediate_size", 1, 2**22, 1024)
    if config.string("position_embedding_type") not in ("rope", "nope", None):
        raise config.error("position_embedding_type", '"rope" or "nope"')
    has_rope = config.string("position_embedding_type") == "rope"
    return granite_decoder(config, max_positions, _ffns(config, shared_inner), has_rope=has_rope)


def _ffns(config: JsonObject, shared_inner: int) -> FfnOfLayer:
    """Return the feed-forward part of each layer: an MLP, experts, or experts with a shared one."""
    check_activation(config, "silu")

    def shared(layer: int) -> MlpSpec:
        return gated_mlp(config, f"model.layers.{layer}.shared_mlp", shared_inner, names=_NAMES)

    # Dense models of Granite 4 have zero experts.
    if config.get("num_local_experts") == 0 and shared_inner:
        return shared
    num_experts = read_num_experts(config, 8)
    num_chosen = config.integer("num_experts_per_tok", 1, num_experts, 2)
    inner = config.integer("intermediate_size", 1, 2**22)
    return lambda layer: moe(
        config,
        f"model.layers.{layer}.block_sparse_moe",
        num_experts,
        inner,
        ExpertChoice(num_chosen, Score.SOFTMAX_OF_CHOSEN),
        layouts=(_LAYOUT,),
        router="router.layer",
        experts="",
        shared=shared(layer) if shared_inner else None,
    )


GRANITEMOE = Family(_describe, 2048, bos_token_id=1, eos_token_id=2)
GRANITEMOEHYBRID = Family(_describe_hybrid, 2048, bos_token_id=1, eos_token_id=2)
