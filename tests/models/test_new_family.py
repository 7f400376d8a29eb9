"""A family that the package does not know: this file and two registry lines are all of it.

Its layers have another residual form (attention and feed-forward read the same normalised input,
and are added together), and its tensors other names.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from pagedrun import LLM, SamplingParams
from pagedrun.paged.cache.cache_spec import KVLayerIndex, StateLayerIndex
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.checkpoint.checkpoint import RandomWeights
from pagedrun.paged.models.checkpoint.tensors import Part, StoredTensors
from pagedrun.paged.models.checkpoint.weight_source import WeightSource
from pagedrun.paged.models.decoder import LAYERS
from pagedrun.paged.models.decoder_spec import DecoderSpec
from pagedrun.paged.models.families.family import Family
from pagedrun.paged.models.families.registry import FAMILIES
from pagedrun.paged.models.model import ForwardBatch
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.modules.attention import AttentionSpec, Heads
from pagedrun.paged.models.modules.attention_layer import SelfAttention
from pagedrun.paged.models.modules.embedding import EmbeddingSpec
from pagedrun.paged.models.modules.linear import LinearSpec, Projection
from pagedrun.paged.models.modules.mlp import MlpSpec
from pagedrun.paged.models.modules.mlp_layer import Mlp
from pagedrun.paged.models.modules.norm import NormSpec
from pagedrun.paged.models.modules.norm_layer import Norm
from pagedrun.paged.models.modules.rotary import RopeConfig
from pagedrun.paged.models.modules.rotary_tables import RotaryTables, rotary_table
from pagedrun.paged.models.quant.linear_methods import Dense
from pagedrun.paged.values.errors import ModelError

NUM_LAYERS = 3
CONFIG = {
    "model_type": "parallel",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
PROMPTS = [[7, 8, 9], list(range(5, 60)), [1]]
NUM_TOKENS = 8


@dataclass(frozen=True, slots=True)
class ParallelLayerSpec:
    norm: NormSpec
    attention: AttentionSpec
    mlp: MlpSpec

    @property
    def recurrent(self) -> None:
        return None

    @property
    def intermediate_size(self) -> int:
        return self.mlp.intermediate_size

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.norm, *self.attention.parts, *self.mlp.parts

    @property
    def width(self) -> int:
        return self.attention.width + self.mlp.width

    def stored_as(self, stored: StoredTensors) -> "ParallelLayerSpec":
        return self


class ParallelLayer:
    def __init__(
        self,
        spec: ParallelLayerSpec,
        index: KVLayerIndex | StateLayerIndex,
        source: WeightSource,
        tables: RotaryTables,
    ) -> None:
        assert isinstance(index, KVLayerIndex)
        self._norm = Norm(spec.norm, source)
        self._attention = SelfAttention(spec.attention, index, source, tables)
        self._mlp = Mlp(spec.mlp, source)

    @property
    def num_bytes(self) -> int:
        return self._norm.num_bytes + self._attention.num_bytes + self._mlp.num_bytes

    def __call__(
        self,
        x: Tensor | None,
        residual: Tensor,
        batch: ForwardBatch,
        cache: KVCache,
        keep: Tensor | None,
        inputs: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        normed = self._norm(x, residual)
        attended = self._attention(normed, batch, cache)
        if keep is not None:
            attended, normed, residual = attended[keep], normed[keep], residual[keep]
            if not len(keep):
                return normed, residual
        return self._attention.out(attended) + self._mlp(normed), residual


def describe(config: JsonObject, max_positions: int) -> DecoderSpec:
    heads = Heads.from_json(config)
    hidden = config.integer("hidden_size", 1, 4096)
    inner = config.integer("intermediate_size", 1, 4096)
    vocab_size = config.integer("vocab_size", 1, 4096)
    dim, rope = heads.head_dim, RopeConfig.from_json(config, max_positions)

    def linear(prefix: str, in_features: int, **parts: int) -> LinearSpec:
        projections = tuple(Projection(f"{prefix}{name}", out) for name, out in parts.items())
        return LinearSpec(projections, in_features, has_bias=False, method=Dense())

    def layer(index: int) -> ParallelLayerSpec:
        at = partial(linear, f"blocks.{index}.")
        num_query, num_key = heads.num_heads * dim, heads.num_kv_heads * dim
        attention = AttentionSpec(
            heads.num_heads,
            heads.num_kv_heads,
            dim,
            scale=dim**-0.5,
            window=None,
            rope=rope,
            qkv=at(hidden, query=num_query, key=num_key, value=num_key),
            out=at(num_query, out=hidden),
        )
        mlp = MlpSpec("silu", at(hidden, gate=inner, up=inner), at(inner, down=hidden))
        return ParallelLayerSpec(NormSpec(f"blocks.{index}.norm", hidden, 1e-5), attention, mlp)

    return DecoderSpec(
        EmbeddingSpec("tokens", vocab_size, hidden),
        tuple(layer(index) for index in range(config.integer("num_hidden_layers", 1, 64))),
        NormSpec("last_norm", hidden, 1e-5),
        head=linear("", hidden, logits=vocab_size),
        ignored=(),
        max_position_embeddings=max_positions,
    )


@pytest.fixture
def folder(make_tokenizer: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder of the family, which is registered while a test uses it."""
    monkeypatch.setitem(LAYERS, ParallelLayerSpec, ParallelLayer)
    monkeypatch.setitem(FAMILIES, "parallel", Family(describe, 512))
    folder = make_tokenizer()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    config = ModelConfig.from_folder(folder)
    weights = RandomWeights(config, torch.float32)
    tensors = {each.name: weights.read(each.name) for each in config.network.parameters()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_it_generates_what_its_definition_says(folder: Path) -> None:
    params = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
    answers = LLM(folder, dtype="float32").generate(PROMPTS, params)
    found = [list(answer.outputs[0].token_ids) for answer in answers]
    assert found == [greedy(folder, prompt) for prompt in PROMPTS]
    assert len({token for answer in found for token in answer}) > NUM_TOKENS


def test_its_parameters_are_checked_and_counted(folder: Path) -> None:
    config, llm = ModelConfig.from_folder(folder), LLM(folder, dtype="float32")
    llm.generate(PROMPTS[0], SamplingParams(max_tokens=1))
    assert llm.report["memory"]["weights"] == config.network.num_bytes(4)
    tensors = load_file(folder / "model.safetensors")
    assert config.network.num_bytes(4) == sum(tensor.nbytes for tensor in tensors.values())
    del tensors["blocks.2.key.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"missing: blocks\.2\.key\.weight"):
        LLM(folder, dtype="float32")


def greedy(folder: Path, prompt: list[int]) -> list[int]:
    """Return the likeliest tokens, computed without a cache from the definition of the layers."""
    weights = load_file(folder / "model.safetensors")
    ids = list(prompt)
    for _ in range(NUM_TOKENS):
        x = weights["tokens.weight"][torch.tensor(ids)]
        for index in range(NUM_LAYERS):
            x = x + block(x, weights, f"blocks.{index}")
        logits = normed(x[-1], weights["last_norm.weight"]) @ weights["logits.weight"].T
        ids.append(int(logits.argmax()))
    return ids[len(prompt) :]


def block(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    h = normed(x, weights[f"{name}.norm.weight"])

    def projected(part: str, source: Tensor = h) -> Tensor:
        return source @ weights[f"{name}.{part}.weight"].T

    table = rotary_table(RopeConfig(theta=10_000.0), 16, len(x), 512)
    q, k, v = (projected(part).view(len(x), -1, 16) for part in ("query", "key", "value"))
    q, k = turned(q, table), turned(k, table)
    k, v = (each.repeat_interleave(2, dim=1) for each in (k, v))
    heads = functional.scaled_dot_product_attention(
        q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), is_causal=True
    )
    gated = functional.silu(projected("gate")) * projected("up")
    return projected("out", heads.transpose(0, 1).flatten(1)) + projected("down", gated)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, 1e-5)


def turned(x: Tensor, table: Tensor) -> Tensor:
    cos, sin = table.unbind(1)
    low, high = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
