"""Granite with mixtures, and Granite 4 as far as its layers attend."""

from pagedrun.kernels.expert_choice import ExpertChoice, Score
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.families.granite import granite_decoder
from pagedrun.paged.models.modules.linear import LinearSpec, Projection
from pagedrun.paged.models.modules.mlp import FfnOfLayer, FfnSpec, MlpSpec, check_activation
from pagedrun.paged.models.modules.moe import MoeForm, read_num_experts
from pagedrun.paged.models.quant.expert_layouts import Stacked
from pagedrun.paged.models.quant.registry import linear_method

_LAYOUT = Stacked("input_linear.weight", "output_linear.weight")


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    shared_inner = config.integer("shared_intermediate_size", 0, 2**22, 0)
    return granite_decoder(config, max_positions, _ffns(config, shared_inner))


def _describe_hybrid(config: JsonObject, max_positions: int) -> DecoderSpec:
    """Read Granite 4, whose layers may have no rotation, no experts, or neither."""
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
    turns = config.string("position_embedding_type") == "rope"
    return granite_decoder(config, max_positions, _ffns(config, shared_inner), turns=turns)


def _ffns(config: JsonObject, shared_inner: int) -> FfnOfLayer:
    """Return the feed-forward part of each layer: a network, a mixture, or both in one."""
    check_activation(config, "silu")
    form = None
    # Dense models of Granite 4 say that they have none.
    if config.get("num_local_experts") != 0 or not shared_inner:
        num_experts = read_num_experts(config, 8)
        num_chosen = config.integer("num_experts_per_tok", 1, num_experts, 2)
        form = MoeForm(
            num_experts,
            config.integer("intermediate_size", 1, 2**22),
            ExpertChoice(num_chosen, Score.SOFTMAX_OF_CHOSEN),
            layouts=(_LAYOUT,),
            router="router.layer",
            experts="",
        )

    def ffn(layer: int) -> FfnSpec:
        shared = _shared(config, layer, shared_inner) if shared_inner else None
        if form is None:
            assert shared is not None
            return shared
        return form.spec(config, f"model.layers.{layer}.block_sparse_moe", shared)

    return ffn


def _shared(config: JsonObject, layer: int, inner: int) -> MlpSpec:
    method, hidden = linear_method(config), config.integer("hidden_size", 1, 2**20)
    name = f"model.layers.{layer}.shared_mlp"
    gate_up = Projection(f"{name}.input_linear", 2 * inner)
    down = Projection(f"{name}.output_linear", hidden)
    return MlpSpec(
        "silu",
        LinearSpec((gate_up,), hidden, has_bias=False, method=method),
        LinearSpec((down,), inner, has_bias=False, method=method),
    )


GRANITEMOE = Family(_describe, 2048, bos_token_id=1, eos_token_id=2)
GRANITEMOEHYBRID = Family(_describe_hybrid, 2048, bos_token_id=1, eos_token_id=2)
