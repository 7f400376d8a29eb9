"""Models and rows of benchmarks.

A model is a folder, or random weights in the shape of a known model. Rows are random tokens with
shared beginnings, drawn from a seed: the same command always measures the same rows.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pagedrun.kernels.ops import Backend
from pagedrun.paged.bench.model_shapes import Shape
from pagedrun.paged.execution.device import Device, choose_device
from pagedrun.paged.execution.engine import Engine
from pagedrun.paged.execution.loaded_model import LoadedModel
from pagedrun.paged.models.checkpoint.checkpoint import RandomWeights
from pagedrun.paged.models.model_config import ModelConfig
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import EngineConfig
from pagedrun.paged.values.errors import ModelError, UsageError, option
from pagedrun.paged.values.request import Request
from pagedrun.paged.values.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Lengths:
    """Uniform distribution of token counts from `low` to `high`, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        assert self.low <= self.high, "an empty range"

    @classmethod
    def of(cls, tokens: "int | Lengths") -> "Lengths":
        """Return `tokens` itself, or the range of only that number."""
        return tokens if isinstance(tokens, Lengths) else cls(tokens, tokens)

    @property
    def is_fixed(self) -> bool:
        """True if all rows have the same number."""
        return self.low == self.high

    @property
    def mean(self) -> float:
        """Mean number of tokens of a row."""
        return (self.low + self.high) / 2

    def at_most(self, tokens: int) -> "Lengths":
        """Return the range cut off above `tokens`."""
        return Lengths(min(self.low, tokens), min(self.high, tokens))

    def draw(self, random: np.random.Generator, rows: int) -> list[int]:
        """Return a number for each of so many rows."""
        drawn: list[int] = random.integers(self.low, self.high, size=rows, endpoint=True).tolist()
        return drawn

    @property
    def tokens(self) -> "int | Lengths":
        """The number if there is only one, else the range."""
        return self.low if self.is_fixed else self


@dataclass(frozen=True, slots=True)
class Workload:
    """`rows` prompts of `shared` + `unique` tokens, each answered with `output` tokens.

    `unique` and `output` are a number, or `Lengths` from which every row draws its own.
    `group_size` rows begin with the same `shared` tokens, then the next group with others; None:
    all rows are one group. Raises `UsageError` naming the flag for a value out of range.
    """

    rows: int
    shared: int
    unique: int | Lengths
    output: int | Lengths
    group_size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        # Rows of a group without own tokens would be equal.
        for name, low in (("rows", 1), ("shared", 0), ("unique", 1), ("output", 2)):
            value = Lengths.of(getattr(self, name)).low
            if value < low:
                raise UsageError(f"{option(name)} is {value}; it must be at least {low}")
        for name in ("unique", "output"):
            object.__setattr__(self, name, Lengths.of(getattr(self, name)).tokens)

    @property
    def prompt_tokens(self) -> float:
        """Tokens of one prompt, on average."""
        return self.shared + Lengths.of(self.unique).mean

    @property
    def has_one_length(self) -> bool:
        """True if all prompts have one length and all answers have one length."""
        return Lengths.of(self.unique).is_fixed and Lengths.of(self.output).is_fixed

    def warm_up(self) -> "Workload":
        """Return a short workload that needs every kernel of this one.

        It has enough rows and shared tokens for the kernels of shared prefixes.
        """
        return replace(
            self,
            rows=min(self.rows, 16),
            shared=min(self.shared, 512),
            unique=Lengths.of(self.unique).at_most(8),
            output=Lengths.of(self.output).at_most(3),
            seed=self.seed + 1,  # other tokens
        )

    def requests(self, vocab_size: int) -> list[Request]:
        """Return the rows, with token ids drawn uniformly from the vocabulary."""
        # A separate stream for lengths, which does not change the tokens.
        lengths = np.random.default_rng([self.seed, 1])
        uniques = Lengths.of(self.unique).draw(lengths, self.rows)
        outputs = Lengths.of(self.output).draw(lengths, self.rows)
        random = np.random.default_rng(self.seed)
        group_size = self.group_size or self.rows
        requests: list[Request] = []
        for index, (num_unique, max_tokens) in enumerate(zip(uniques, outputs, strict=True)):
            if index % group_size == 0:
                shared = tuple(random.integers(vocab_size, size=self.shared).tolist())
            unique = tuple(random.integers(vocab_size, size=num_unique).tolist())
            params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
            requests.append(Request(index, shared + unique, params))
        return requests


SEED = 0
_DESCRIBED = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "vocab_size")


@dataclass(frozen=True, slots=True)
class BenchModel:
    """Model by name, with its shape; `folder` is None for random weights."""

    name: str
    config: ModelConfig
    folder: Path | None = None
    fields: Mapping[str, Any] | None = None  # of config.json, where there is no folder

    @classmethod
    def from_shape(cls, name: str, num_layers: int | None = None) -> "BenchModel":
        """Return a model of a named shape with random weights; raises `UsageError`."""
        shape = Shape.named(name, num_layers)
        return cls(name, shape.config, fields=shape.fields)

    @classmethod
    def from_folder(cls, folder: Path) -> "BenchModel":
        """Return the model in a folder; raises `ModelError`."""
        return cls(folder.name, ModelConfig.from_folder(folder), folder)

    def engine(
        self, kernels: Backend | None = None, on: Device | None = None, **flags: Any
    ) -> Engine:
        """Load the model, or make random weights. `flags` are fields of `EngineConfig`.

        `on` replaces the device of the flags, `kernels` those of the device.
        """
        config = EngineConfig.fitting(model=self.folder or Path(self.name), **flags)
        device = on or choose_device(config.device, config.kernel_set, config.activations)
        if kernels is not None:
            device = replace(device, kernels=kernels)
        read = None
        if self.folder is None:
            dtype = device.dtype(config.dtype, self.config.dtype)
            read = self.weights(dtype, device.torch_device).read
        loaded = LoadedModel.load(config, self.config, self.tokenizer(), device=device, read=read)
        return Engine(config, loaded)

    def weights(self, dtype: torch.dtype, device: torch.device | None = None) -> RandomWeights:
        """Return random weights, made on `device`, None: the CPU."""
        return RandomWeights(self.config, dtype, SEED, device)

    def tokenizer(self) -> Tokenizer:
        """Return the folder's tokenizer, or one with numbers as tokens: prompts are tokens."""
        if self.folder is not None:
            with suppress(ModelError):
                return Tokenizer.from_folder(self.folder)
        import tokenizers
        from transformers import PreTrainedTokenizerFast  # imported here: it takes long

        words = {str(token_id): token_id for token_id in range(self.config.vocab_size)}
        backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="0"))
        return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend), None)

    def describe(self, dtype: torch.dtype) -> dict[str, Any]:
        """Return section `model` of a result."""
        sizes = {name: getattr(self.config, name) for name in _DESCRIBED}
        return {
            "name": self.name,
            "weights": "from its folder" if self.folder else f"random, seed {SEED}",
            "dtype": str(dtype).removeprefix("torch."),
            **sizes,
        }
