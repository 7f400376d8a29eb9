"""Small models with modules for multi-token prediction, under the tensor names of real ones, and
the modules in plain PyTorch around a layer of transformers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeDecoderLayer
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextDecoderLayer

from tests.conftest import INITIALIZER_RANGE
from tests.support.families import RECURRENT, Tiny, save_tiny
from tests.support.mixture_families import MIXTURES


@dataclass(frozen=True)
class MtpTwin:
    """A model as transformers computes it, and its MTP module.

    norms: of embedding, hidden state and result.
    """

    model: Any
    norms: tuple[Any, Any, Any]
    projection: Tensor
    layer: Any
    kind: str

    @torch.inference_mode()
    def drafts(self, texts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
        """Return `count` tokens predicted behind each text, of which the newest is not computed.

        Tokens see none behind them, so that texts may be filled up.
        """
        model, found = self.model.model, list[Tensor]()
        embed, head = model.embed_tokens, self.model.lm_head
        rows, places = torch.arange(len(texts)), torch.tensor([len(text) - 2 for text in texts])
        longest = max(map(len, texts)) + count
        ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
        states: list[Tensor] = []
        with model.norm.register_forward_pre_hook(lambda _, given: states.append(given[0])):
            normed = model(ids[:, :-1], use_cache=False).last_hidden_state
        is_mimo = self.kind == "mimo"
        hidden = (states[0] if is_mimo else normed).clone()
        next_ids = ids[:, 1:].clone()
        for _ in range(count):
            of_embedding, of_hidden, of_result = self.norms
            parts = [of_embedding(embed(next_ids)), of_hidden(hidden)]
            joined = torch.cat(parts[::-1] if is_mimo else parts, dim=-1)
            result = self._layered(joined @ self.projection.T)[rows, places]
            last = of_result(result)
            found.append(head(last).argmax(dim=-1))
            places = places + 1
            next_ids[rows, places] = found[-1]
            hidden[rows, places] = result if self.kind == "glm4_moe" else last
        return torch.stack(found, dim=1).tolist()

    def _layered(self, x: Tensor) -> Tensor:
        count = x.shape[1]
        positions = torch.arange(count)[None]
        mask = torch.full((count, count), -torch.inf).triu(1)[None, None]
        rotation = self.model.model.rotary_emb(x, positions)
        found: Tensor = self.layer(x, attention_mask=mask, position_embeddings=rotation)
        return found


_QWEN = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "fc")
NAMES = {
    "glm4_moe": ("enorm", "hnorm", "shared_head.norm", "eh_proj"),
    "mimo": ("token_layernorm", "hidden_layernorm", "final_layernorm", "input_proj"),
    "qwen3_5": _QWEN,
    "qwen3_next": _QWEN,
}
PREFIXES = {"glm4_moe": "model.layers.3", "mimo": "model.mtp_layers.0"}  # of other types: mtp


_ADDING = ("o_proj.weight", "out_proj.weight", "down_proj.weight", "down_proj")


def save_mtp(kind: str, folder: Path, *, mixing: float = 1.0, **fields: Any) -> MtpTwin:
    """Save a model of a type in `NAMES` with its module; return its twin.

    mixing: factor of what layers add to the residual stream. At 0 a token alone decides the next
    one, and the module knows which; near 0 it is wrong at times.
    """
    is_mimo, is_qwen = kind == "mimo", kind in RECURRENT
    if is_mimo:
        model = save_tiny(Tiny("Qwen2Config", fields, without=("head_dim",)), folder)
    elif is_qwen:
        tiny = RECURRENT[kind]
        model = save_tiny(replace(tiny, fields={**tiny.fields, **fields}), folder)
    else:
        tiny = MIXTURES["glm4_moe"]
        model = save_tiny(Tiny(tiny.config_class, {**tiny.fields, **fields}), folder)
    config, size = model.config, model.config.hidden_size
    index = config.num_hidden_layers
    with torch.random.fork_rng():
        torch.manual_seed(20_261_128)
        if is_mimo:
            layer: Any = Qwen2DecoderLayer(config, layer_idx=0)
        elif is_qwen:
            made = Qwen3_5DecoderLayer if kind == "qwen3_5" else Qwen3NextDecoderLayer
            layer = made(config, layer_idx=config.layer_types.index("full_attention"))
        else:
            layer = Glm4MoeDecoderLayer(config, layer_idx=index)
        for name, parameter in (*layer.named_parameters(), *layer.named_buffers()):
            if "norm" not in name:
                parameter.data.normal_(std=INITIALIZER_RANGE)
        norms = [torch.empty(size).uniform_(0.7, 1.3) for _ in range(3)]
        projection = torch.empty(size, 2 * size).normal_(std=INITIALIZER_RANGE)
    with torch.no_grad():
        if mixing != 1.0:
            for each in (*model.model.layers, layer):
                for name, parameter in each.named_parameters():
                    if name.endswith(_ADDING):
                        parameter *= mixing
            norms = [torch.ones(size), torch.ones(size), model.model.norm.weight + float(is_qwen)]
            half, none = torch.eye(size), torch.zeros(size, size)
            projection = torch.cat([none, half] if is_mimo else [half, none], dim=1)
    twin = MtpTwin(model, _norms(norms, config), projection, layer.eval(), kind)
    prefix = PREFIXES.get(kind, "mtp")
    *names, projected = NAMES[kind]
    of_layer = f"{prefix}.layers.0" if is_qwen else prefix
    tensors = {f"{of_layer}.{name}": each for name, each in layer.state_dict().items()}
    if not is_mimo:
        tensors = _split_experts(tensors)
    if kind == "glm4_moe":
        tensors[f"{prefix}.shared_head.head.weight"] = model.lm_head.weight
        tensors[f"{prefix}.embed_tokens.weight"] = model.model.embed_tokens.weight
    for name, norm in zip(names, norms, strict=True):
        tensors[f"{prefix}.{name}.weight"] = norm - float(is_qwen)  # theirs are added to 1
    tensors[f"{prefix}.{projected}.weight"] = projection
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    saved = {**load_file(file), **{name: each.clone() for name, each in tensors.items()}}
    save_file(saved, file, metadata={"format": "pt"})
    described = json.loads((folder / "config.json").read_text())
    described |= {"num_nextn_predict_layers": 1}
    if not is_qwen:
        described["model_type"] = kind
    (folder / "config.json").write_text(json.dumps(described))
    return twin


def _norms(weights: Sequence[Tensor], config: Any) -> tuple[Any, Any, Any]:
    def norm(weight: Tensor) -> Any:
        found = torch.nn.RMSNorm(len(weight), eps=config.rms_norm_eps)
        found.weight.data.copy_(weight)
        return found

    first, second, third = map(norm, weights)
    return first, second, third


def _split_experts(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with each expert's matrices under names of its own, as in checkpoints."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stem, _, kind = name.partition(".experts.")
        if not kind or tensor.dim() != 3:
            found[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            parts = {"down_proj": matrix}
            if kind == "gate_up_proj":
                gate, up = matrix.chunk(2)
                parts = {"gate_proj": gate, "up_proj": up}
            for part, weights in parts.items():
                found[f"{stem}.experts.{expert}.{part}.weight"] = weights
    return found
