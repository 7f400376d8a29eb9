"""Hunyuan with MoE layers: attention of the dense model, and a shared expert."""

from pagedrun.kernels.expert_choice import ExpertChoice, Score
from pagedrun.paged.files.json_object import JsonObject, is_integer
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.families.hunyuan_v1_dense import hunyuan_decoder
from pagedrun.paged.models.modules.mlp import check_activation, gated_mlp
from pagedrun.paged.models.modules.moe import FfnOfLayer, MoeSpec, moe, read_num_experts

# Fields with one number for each layer in some files; all layers must be alike.
_LISTED = ("moe_topk", "num_experts", "moe_intermediate_size", "num_shared_expert")


def _describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    config = _with_layers_alike(config)
    return hunyuan_decoder(config, max_positions, _ffns(config))


def _with_layers_alike(config: JsonObject) -> JsonObject:
    fields = dict(config.fields)
    for name in _LISTED:
        given = fields.get(name)
        if isinstance(given, list):
            if not given or not is_integer(given[0]) or any(each != given[0] for each in given):
                raise config.error(name, "an integer, or a list of equal integers")
            fields[name] = given[0]
    return JsonObject(config.origin, fields)


def _ffns(config: JsonObject) -> FfnOfLayer:
    check_activation(config, "silu")
    num_experts = read_num_experts(config, 1)
    chosen = "moe_topk" if config.has("moe_topk") else "num_experts_per_tok"
    num_chosen = config.integer(chosen, 1, num_experts, 1)
    inner = config.integer("intermediate_size", 1, 2**22)
    for name, wanted in (("moe_intermediate_size", inner), ("num_shared_expert", 1)):
        if config.integer(name, 0, 2**22, wanted) != wanted:
            raise config.error(name, f"{wanted} for a model of this type")
    choice = ExpertChoice(num_chosen, Score.SOFTMAX, normalize=True)

    def ffn(layer: int) -> MoeSpec:
        name = f"model.layers.{layer}.mlp"
        shared = gated_mlp(config, f"{name}.shared_mlp", inner)
        return moe(config, name, num_experts, inner, choice, router="gate.wg", shared=shared)

    return ffn


HUNYUAN_V1_MOE = Family(_describe, 2048, bos_token_id=1, eos_token_id=2)
