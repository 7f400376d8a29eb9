"""Attention, experts and matrix products of Transformers models on pagedrun's kernels.

`AttentionInterface` and `ExpertsInterface` of Transformers call the functions registered here,
which call the object attached to the module: `PagedAttention`, `RowExperts`, or a tracer. The
registries are global, so the registered functions have no state. `RowOps` replaces matrix
products and some activations by row-invariant ops: torch computes `sigmoid`, `silu` and `gelu` in
wide vectors and the remainder of a loop by other functions, with other last bits.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers.integrations.moe import ExpertsInterface
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface
from transformers.pytorch_utils import Conv1D

from pagedrun.kernels.attention_inputs import Softmax
from pagedrun.kernels.op_values import ExpertRows
from pagedrun.kernels.ops import Backend, Linear
from pagedrun.paged.cache.cache_spec import KVLayerIndex
from pagedrun.paged.cache.kv_cache import CacheDevice, KVCache
from pagedrun.paged.models.model import ForwardBatch
from pagedrun.paged.models.modules.attention_layer import attend
from pagedrun.paged.models.modules.rotary_tables import RotaryTables
from pagedrun.paged.models.transformers_backend.specs import TransformersAttention

PAGED = "pagedrun"
# The same without weights: masks are requested, to see which keys they leave visible.
TRACED = "pagedrun-outline"
_ON_MODULE = "_pagedrun"

# (module, query, key, value, mask, the rest) -> [1, num_tokens, num_heads, head_dim]
Attend = Callable[[Any, Tensor, Tensor, Tensor, Tensor | None, dict[str, Any]], Tensor]
# (module, hidden states, experts of each token, their weights) -> hidden states
RunExperts = Callable[[Any, Tensor, Tensor, Tensor], Tensor]


def attach(module: nn.Module, call: Attend | RunExperts) -> None:
    """Attach `call` to a module; the interface of the module calls it."""
    setattr(module, _ON_MODULE, call)


def mask_of(mask: Tensor | None) -> Any:
    """Return the mask function of a traced mask, None for any other mask."""
    return getattr(mask, _ON_MODULE, None)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    call: Attend = getattr(module, _ON_MODULE)
    return call(module, query, key, value, attention_mask, kwargs), None


def _run_experts(module: nn.Module, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    call: RunExperts = getattr(module, _ON_MODULE)
    return call(module, x, chosen, weights)


def _traced_mask(*, q_length: int, kv_length: int, mask_function: Any, **_: Any) -> Tensor:
    mask = torch.empty(1, 1, q_length, kv_length, dtype=torch.bool, device="meta")
    setattr(mask, _ON_MODULE, mask_function)
    return mask


for _name in (PAGED, TRACED):
    AttentionInterface.register(_name, _attend)
    ExpertsInterface.register(_name, _run_experts)
# Not registered for PAGED: Transformers then makes no masks.
AttentionMaskInterface.register(TRACED, _traced_mask)


class Step:
    """Current batch of a model, and the cache that it reads and writes."""

    def __init__(self) -> None:
        self.now: tuple[ForwardBatch, KVCache] | None = None


class PagedAttention:
    """Attention of one layer, with keys and values at `index` of the cache; an `Attend`.

    Queries and keys are already rotated: the kernel that stores them rotates by zero.
    """

    def __init__(
        self, spec: TransformersAttention, index: KVLayerIndex, device: CacheDevice, step: Step
    ) -> None:
        self._spec = spec
        self._index = index
        self._kernels = device.kernels
        self._step = step
        self._softmax = Softmax(spec.scale, spec.softcap)
        self._unturned = RotaryTables(1, 1, device.torch_device).table(None, spec.heads.head_dim)

    def __call__(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        kwargs: dict[str, Any],
    ) -> Tensor:
        """Store keys and values, then attend.

        query: [1, num_heads, num_tokens, head_dim], key [1, num_kv_heads, num_tokens, head_dim],
        value [1, num_kv_heads, num_tokens, value_dim], value_dim <= head_dim, padded with zeros.
        Returns [1, num_tokens, num_heads, value_dim]. Module, mask and kwargs are known from the
        trace, except the values of sinks.
        """
        assert self._step.now is not None, "a layer attends outside of a step"
        batch, cache = self._step.now
        asked, layer = self._spec.heads, cache.layer(self._index)
        group = batch.groups[self._index.group]
        value_dim = value.shape[-1]
        filled = functional.pad(value, (0, asked.head_dim - value_dim))
        heads = torch.cat([query[0], key[0], filled[0]]).transpose(0, 1)
        q = self._kernels.rotary_store(
            heads.flatten(1),
            self._unturned,
            torch.zeros_like(batch.positions),
            group.slots,
            layer,
            None,
        )
        softmax, sinks = self._softmax, kwargs.get("s_aux")
        if sinks is not None:
            softmax = replace(softmax, sinks=sinks.float())
        attended = attend(q, batch, group, layer, softmax, asked.window)
        return attended.view(1, -1, asked.num_heads, asked.head_dim)[..., :value_dim]


class RowExperts:
    """Row-invariant experts of one layer; a `RunExperts`.

    `module` holds all experts in one tensor, [num_experts, outputs, inputs], which is not copied.
    """

    def __init__(self, module: Any, kernels: Backend) -> None:
        self._kernels = kernels
        first = module.gate_up_proj if module.has_gate else module.up_proj
        self._num_experts = len(first)
        self._enter = kernels.pack_grouped_linear([first.detach().unbind()])
        self._leave = kernels.pack_grouped_linear([module.down_proj.detach().unbind()])

    def __call__(self, module: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum of the outputs of each token's experts.

        x: [num_tokens, hidden_size]. chosen, weights: [num_tokens, num_chosen].
        """
        by_expert = ExpertRows.of(chosen, self._num_experts)
        inner = self._enter(x, by_expert.starts, by_expert.tokens)
        inner = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
        outputs = self._leave(inner.contiguous(), by_expert.starts)
        return self._kernels.combine_experts(outputs, by_expert.rows, weights.float())


def is_experts(module: nn.Module) -> bool:
    """Return true for a module that calls `ExpertsInterface`."""
    return hasattr(module, "is_transposed") and hasattr(module, "is_concatenated")


def can_replace_experts(experts: Any) -> bool:
    """Return true if `RowExperts` can compute them: no biases, no norms, no transposed matrices."""
    others = ("is_transposed", "has_bias", "has_post_expert_norm")
    return not any(getattr(experts, name, False) for name in others)


_GELU_SCALE = math.sqrt(2.0 / math.pi)


def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x)) in x's dtype, computed in float32."""
    return _sigmoid(x.float()).to(x.dtype)


def silu(x: Tensor, inplace: bool = False) -> Tensor:
    """Return x * sigmoid(x) in x's dtype, computed in float32."""
    wide = x.float()
    return _stored(x, wide * _sigmoid(wide), inplace)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Return GELU of x in x's dtype, computed in float32, exactly or approximated by "tanh"."""
    wide = x.float()
    if approximate == "none":
        share = torch.erf(wide * math.sqrt(0.5))
    else:
        share = torch.tanh(_GELU_SCALE * (wide + 0.044715 * wide * wide * wide))
    return (0.5 * wide * (1.0 + share)).to(x.dtype)


def _sigmoid(wide: Tensor) -> Tensor:
    return 1.0 / (1.0 + torch.exp(-wide))


def _stored(x: Tensor, result: Tensor, inplace: bool) -> Tensor:
    return x.copy_(result) if inplace else result.to(x.dtype)


_ACTIVATIONS: Mapping[Callable[..., Any], Callable[..., Tensor]] = {
    functional.silu: silu,
    functional.gelu: gelu,
    torch.sigmoid: sigmoid,
    Tensor.sigmoid: sigmoid,
}


class RowOps(TorchFunctionMode):
    """Mode that computes products with a model's matrices and some activations by pagedrun's ops.

    It applies to calls from anywhere: linear layers, routers of experts, code between layers. All
    other ops are torch's.
    """

    def __init__(self, model: nn.Module, kernels: Backend, *, row_invariant: bool) -> None:
        """Pack the matrices of a model, and release those of linear layers one by one."""
        super().__init__()
        self.released: set[Tensor] = set()  # parameters without memory
        self._products: dict[Tensor, tuple[Linear, Tensor | None]] = {}
        for module in model.modules():
            parameters, bias = module._parameters, None
            weight = parameters.get("weight")
            if weight is None or weight.ndim != 2 or isinstance(module, nn.Embedding):
                continue
            matrix = weight.detach()
            if isinstance(module, Conv1D):  # a linear layer with a transposed matrix
                matrix = matrix.T.contiguous()
            if is_linear := isinstance(module, nn.Linear | Conv1D):
                bias = parameters.get("bias")
            packed_bias = None if bias is None else bias.detach()
            linear = kernels.pack_linear(matrix, packed_bias, row_invariant=row_invariant)
            if is_linear:
                weight = parameters["weight"] = self._without_numbers(weight)
                bias = parameters["bias"] = None if bias is None else self._without_numbers(bias)
            self._products[weight] = linear, bias

    @property
    def products(self) -> Sequence[Linear]:
        """Packed products, one for each matrix."""
        return [linear for linear, _ in self._products.values()]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Compute a call of torch."""
        kwargs = kwargs or {}
        if func in _ACTIVATIONS:
            return _ACTIVATIONS[func](*args, **kwargs)
        if func is functional.linear:
            rows = self._product(*args, **kwargs)
        elif func is torch.addmm and len(args) == 3 and not kwargs:  # of a Conv1D
            bias, x, weight = args
            rows = self._product(x, weight, bias)
        else:
            rows = None
        return func(*args, **kwargs) if rows is None else rows

    def _product(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        """Return a product [..., out_features]; None if the matrix is not packed."""
        linear, packed_bias = self._products.get(weight, (None, None))
        if linear is None or bias is not packed_bias or input.dtype != weight.dtype:
            return None
        rows = linear(input.reshape(-1, input.shape[-1]))
        return rows.view(*input.shape[:-1], rows.shape[-1])

    def _without_numbers(self, parameter: Tensor) -> nn.Parameter:
        """Return a NaN parameter of the same shape that takes no memory."""
        nan = parameter.new_full((), float("nan")).expand(parameter.shape)
        released = nn.Parameter(nan, requires_grad=False)
        self.released.add(released)
        return released
