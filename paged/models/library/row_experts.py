"""RowExperts: the library's mixtures of experts, done by pagedrun's grouped products."""

from typing import Any

from torch import Tensor, nn

from pagedrun.kernels.backend import Backend
from pagedrun.kernels.experts.routing import ExpertRows


class RowExperts:
    """The experts of one layer, whose rows do not depend on who else passes them.

    An `interfaces.RunExperts`. `module` holds them as the library does, all experts in one tensor:
    [num_experts, outputs, inputs], where they stay.
    """

    def __init__(self, module: Any, kernels: Backend) -> None:
        self._kernels = kernels
        first = module.gate_up_proj if module.has_gate else module.up_proj
        self._num_experts = len(first)
        self._enter = kernels.pack_grouped_linear([first.detach().unbind()])
        self._leave = kernels.pack_grouped_linear([module.down_proj.detach().unbind()])

    def __call__(self, module: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum of what each token's experts compute.

        x: [num_tokens, hidden_size]. chosen, weights: [num_tokens, num_chosen].
        """
        by_expert = ExpertRows.of(chosen, self._num_experts)
        inner = self._enter(x, by_expert.starts, by_expert.tokens)
        inner = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
        outputs = self._leave(inner.contiguous(), by_expert.starts)
        return self._kernels.combine_experts(outputs, by_expert.rows, weights.float())


def is_experts(module: nn.Module) -> bool:
    """Whether the library asks its experts interface to compute the module."""
    return hasattr(module, "is_transposed") and hasattr(module, "is_concatenated")


def is_plain(experts: Any) -> bool:
    """Whether `RowExperts` can compute them: no biases, no norms, matrices as in linear layers."""
    others = ("is_transposed", "has_bias", "has_post_expert_norm")
    return not any(getattr(experts, name, False) for name in others)
