"""Experts whose gates and ups are rows of one matrix by turns: gate, up, gate, up, and so on."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagedrun.paged.models.experts.some_rows import rows_between
from pagedrun.paged.models.network.checkpoint.parameter import Parameter, Role
from pagedrun.paged.models.network.mixtures.experts_spec import ExpertMatrices, ExpertsSpec

if TYPE_CHECKING:  # they import torch
    from torch import Tensor

    from pagedrun.kernels.packed_weight import PackedWeight
    from pagedrun.paged.models.weight_source import WeightSource


def biases(experts: ExpertsSpec) -> tuple[Parameter, Parameter]:
    """Return `{experts}.gate_up_proj_bias` [num_experts, 2 * intermediate_size], by turns too, and
    `{experts}.down_proj_bias` [num_experts, hidden_size].
    """
    number = experts.num_experts
    return (
        Parameter(
            f"{experts.name}.gate_up_proj_bias",
            (number, 2 * experts.intermediate_size),
            Role.BIAS,
        ),
        Parameter(f"{experts.name}.down_proj_bias", (number, experts.hidden_size), Role.BIAS),
    )


def taken_apart(
    experts: ExpertsSpec,
    source: "WeightSource",
    gate_up: "Sequence[PackedWeight | Tensor]",
    down: "Sequence[PackedWeight | Tensor]",
) -> ExpertMatrices:
    """Return gates and ups apart, with the biases of `source`.

    gate_up: each expert's [2 * intermediate_size, hidden_size]. down: as in `ExpertMatrices`.
    """
    num_rows = 2 * experts.intermediate_size
    gate_up_bias, down_bias = (source.tensor(each) for each in biases(experts))
    return ExpertMatrices(
        [rows_between(each, 0, num_rows, 2) for each in gate_up],
        [rows_between(each, 1, num_rows, 2) for each in gate_up],
        down,
        source.joined([gate_up_bias.T[0::2], gate_up_bias.T[1::2]]).T,
        down_bias,
    )
