"""RandomWeights: a model's tensors made up on the spot, for measuring without a checkpoint."""

import zlib

import torch
from torch import Tensor

from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.models.network.checkpoint.parameter import Role


class RandomWeights:
    """Tensors of the right shapes whose values keep activations in range.

    Matrices are normal with a standard deviation of fan_in^-0.5, so that a product neither grows
    nor shrinks what it is given; norms are ones and biases zeros. A tensor depends on the seed and
    on its name alone: read twice, or by two programs, it is the same. It is made where it is
    wanted, on `device`; a GPU draws other numbers than a CPU.
    """

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        seed: int = 0,
        device: torch.device | None = None,
    ) -> None:
        self._parameters = {each.name: each for each in config.network.parameters()}
        self._dtype = dtype
        self._seed = seed
        self._device = device or torch.device("cpu")

    def read(self, name: str) -> Tensor:
        """Return the tensor called `name`, in the dtype of the weights, as fresh memory.

        Raises `KeyError` for a name that the model does not have.
        """
        parameter = self._parameters[name]
        shape = parameter.shape
        if parameter.role is not Role.MATRIX:
            fill = 0.0 if parameter.role is Role.BIAS else 1.0
            return torch.full(shape, fill, dtype=self._dtype, device=self._device)
        # Only 32 bits of a seed count, so both go through a digest of that size.
        digest = zlib.crc32(f"{self._seed} {name}".encode())
        generator = torch.Generator(self._device).manual_seed(digest)
        values = torch.randn(shape, generator=generator, device=self._device)
        return values.mul_(shape[-1] ** -0.5).to(self._dtype)
