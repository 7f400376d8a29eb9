"""Decoder: Llama, Mistral, Qwen2 and Qwen3 as one network; the config says what differs.

The residual stream is float32 whatever the model's dtype. Every op treats each token by itself
(attention excepted, which reads the cache), so a token's bytes do not depend on its batch.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from pagedrun.kernels.attention import AttentionShape
from pagedrun.kernels.backend import Backend
from pagedrun.kernels.linear import Linear
from pagedrun.paged.cache.kv_cache import KVCache
from pagedrun.paged.models.activations import activation_bytes
from pagedrun.paged.models.forward_batch import ForwardBatch
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.parameters import parameter_shapes
from pagedrun.paged.models.rotary import rotary_table

ReadTensor = Callable[[str], Tensor]


class Decoder:
    """The network: embedding, layers, and the head that gives logits.

    `read` gives a checkpoint's tensor by name; all are cast to `dtype`. `num_positions` bounds the
    positions that will be asked for. `kernels` work on `device`. `row_invariant` asks for products
    whose rows have the same bytes whatever their number, where a device has others.
    """

    def __init__(
        self,
        config: ModelConfig,
        read: ReadTensor,
        dtype: torch.dtype,
        num_positions: int,
        kernels: Backend,
        device: torch.device,
        *,
        row_invariant: bool = False,
    ) -> None:
        def tensor(name: str) -> Tensor:
            return read(name).to(device=device, dtype=dtype)

        self.config = config
        self.dtype = dtype
        self._kernels = kernels
        self._embedding = tensor("model.embed_tokens.weight")
        head = self._embedding if config.tie_word_embeddings else tensor("lm_head.weight")
        self._head = kernels.pack_linear(head, row_invariant=row_invariant)
        self._norm = tensor("model.norm.weight")
        self._cos_sin = rotary_table(
            config.rope, config.head_dim, num_positions, config.max_position_embeddings
        ).to(device)
        self._layers = [
            DecoderLayer(config, index, tensor, kernels, row_invariant)
            for index in range(config.num_layers)
        ]

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights as they are held: a tied head is packed, hence held twice."""
        num_values = sum(math.prod(shape) for shape in parameter_shapes(self.config).values())
        has_copy = self.config.tie_word_embeddings and self._head.is_packed
        return num_values * self.dtype.itemsize + (self._head.num_bytes if has_copy else 0)

    def activation_bytes(self, num_tokens: int, num_logits: int) -> int:
        """Return the bytes that a step's tensors take at the widest point of the network."""
        return activation_bytes(self.config, self.dtype.itemsize, num_tokens, num_logits)

    def attention_shape(self, cache_dtype: torch.dtype) -> AttentionShape:
        """Return what a backend must know to prepare attention over a cache of that dtype."""
        config = self.config
        return AttentionShape(
            config.num_heads, config.num_kv_heads, config.head_dim, self.dtype, cache_dtype
        )

    def logits(self, batch: ForwardBatch, cache: KVCache) -> Tensor:
        """Write the batch's keys and values into the cache and return the logits asked for.

        Returns [num_logits, vocab_size] in the model's dtype, one row per `batch.logits_rows`.
        """
        residual = functional.embedding(batch.input_ids, self._embedding).float()
        x: Tensor | None = None  # what the previous layer adds to the residual
        for layer in self._layers[:-1]:
            x, residual = layer(x, residual, batch, cache, self._cos_sin, None)
        # Behind the last layer's attention only the tokens that sample matter.
        x, residual = self._layers[-1](x, residual, batch, cache, self._cos_sin, batch.logits_rows)
        if not len(x):
            return x.new_empty(0, self.config.vocab_size)
        hidden = self._kernels.add_rms_norm(x, residual, self._norm, self.config.rms_norm_eps)
        return self._head(hidden)


class DecoderLayer:
    """Attention and feed-forward with their norms. QKV and gate/up are one product each."""

    def __init__(
        self,
        config: ModelConfig,
        index: int,
        tensor: ReadTensor,
        kernels: Backend,
        row_invariant: bool,
    ) -> None:
        prefix = f"model.layers.{index}"

        def linear(names: tuple[str, ...], has_bias: bool) -> Linear:
            paths = [f"{prefix}.{name}" for name in names]
            weight = torch.cat([tensor(f"{path}.weight") for path in paths])
            bias = torch.cat([tensor(f"{path}.bias") for path in paths]) if has_bias else None
            return kernels.pack_linear(weight, bias, row_invariant=row_invariant)

        self._config = config
        self._index = index
        self._kernels = kernels
        self._window = config.windows[index]
        self._scale = config.head_dim**-0.5
        self._qkv = linear(
            ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), config.qkv_bias
        )
        self._out = linear(("self_attn.o_proj",), config.out_bias)
        self._gate_up = linear(("mlp.gate_proj", "mlp.up_proj"), config.mlp_bias)
        self._down = linear(("mlp.down_proj",), config.mlp_bias)
        self._input_norm = tensor(f"{prefix}.input_layernorm.weight")
        self._post_norm = tensor(f"{prefix}.post_attention_layernorm.weight")
        self._q_norm = tensor(f"{prefix}.self_attn.q_norm.weight") if config.qk_norm else None
        self._k_norm = tensor(f"{prefix}.self_attn.k_norm.weight") if config.qk_norm else None

    def __call__(
        self,
        x: Tensor | None,
        residual: Tensor,
        batch: ForwardBatch,
        cache: KVCache,
        cos_sin: Tensor,
        keep: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the layer's output, not yet added, and the residual stream without it.

        x: [num_tokens, hidden_size] model dtype, still to be added to residual [num_tokens,
        hidden_size] float32; None before the first layer. `keep` [num_kept] int64 names the tokens
        that go on behind the attention; None keeps all.
        """
        eps = self._config.rms_norm_eps
        if x is None:
            x = self._kernels.rms_norm(residual, self._input_norm, eps)
        else:
            x = self._kernels.add_rms_norm(x, residual, self._input_norm, eps)
        attended = self._attend(self._qkv(x), batch, cache, cos_sin)
        if keep is not None:
            attended, residual = attended[keep], residual[keep]
            if not len(keep):
                return attended.new_empty(0, self._config.hidden_size), residual
        x = self._kernels.add_rms_norm(self._out(attended), residual, self._post_norm, eps)
        return self._down(self._kernels.silu_mul(self._gate_up(x))), residual

    def _attend(self, qkv: Tensor, batch: ForwardBatch, cache: KVCache, cos_sin: Tensor) -> Tensor:
        """Store keys and values, then attend: prompt tokens and generated ones by their own path.

        qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim].
        Returns [num_tokens, num_heads * head_dim].
        """
        config = self._config
        layer = cache.layer(self._index)
        q = self._kernels.rotary_store(
            qkv,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            cos_sin,
            batch.positions,
            batch.slots,
            layer.keys,
            layer.values,
            self._q_norm,
            self._k_norm,
            config.rms_norm_eps,
            scales=layer.scales,
        )
        attention, scale, window = batch.attention, self._scale, self._window
        parts: list[Tensor] = []
        if batch.has_prefill:
            prompts = q[: batch.num_prefill_tokens]
            parts.append(attention.prefill(prompts, layer, scale, window))
        if batch.has_decode:
            generated = q[batch.num_prefill_tokens :]
            # With a sliding window no part is shared, since each row's begins elsewhere.
            prefix = attention.prefix(generated, layer, scale) if window is None else None
            parts.append(attention.decode(generated, layer, scale, window, prefix))
        return torch.cat(parts).flatten(1) if len(parts) > 1 else parts[0].flatten(1)
