"""Descriptions of poolers, without torch: poolings, steps behind them, and scores.

A pooler makes one vector of the hidden states of a text, then applies steps to it: linear layers
with activations, norms, the rows of a head that belong to some tokens.
"""

from dataclasses import dataclass, replace
from typing import Literal

from pagedrun.paged.files.json_object import JsonObject
from pagedrun.paged.models.modules.norm import LayerNormSpec
from pagedrun.paged.values.pooling import Pooling

Activation = Literal[
    "identity",
    "tanh",
    "relu",
    "gelu",
    "sigmoid",
    "silu",
    "elu",
    "selu",
    "leaky_relu",
    "relu6",
    "hardtanh",
    "softplus",
    "softsign",
    "mish",
]
Scores = Literal["vector", "softmax"] | Activation

# By class of torch.nn, without arguments: sentence-transformers saves the name alone.
ACTIVATIONS: dict[str, Activation] = {
    "Identity": "identity",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "Sigmoid": "sigmoid",
    "SiLU": "silu",
    "ELU": "elu",
    "SELU": "selu",
    "LeakyReLU": "leaky_relu",
    "ReLU6": "relu6",
    "Hardtanh": "hardtanh",
    "Softplus": "softplus",
    "Softsign": "softsign",
    "Mish": "mish",
}


@dataclass(frozen=True, slots=True)
class DenseStep:
    """`activation(weight @ x + bias)`, plus x or `residual @ x` if `adds_input`.

    has_bias None: as the file has it. The tensors are in `folder`, under the model's own. `sizes`
    are those of output and input that its config.json names; None without one.
    """

    name: str
    activation: Activation = "identity"
    has_bias: bool | None = None
    folder: str = ""
    sizes: tuple[int, int] | None = None
    adds_input: bool = False


@dataclass(frozen=True, slots=True)
class NormStep:
    """Layer norm of a vector; the tensors are in `folder`, under the model's own."""

    norm: LayerNormSpec
    folder: str = ""


@dataclass(frozen=True, slots=True)
class UnitStep:
    """Scaling of a vector to length 1, before further steps."""


@dataclass(frozen=True, slots=True)
class TokenStep:
    """Logits of two tokens, `no` and `yes`, of the head called `name`."""

    name: str
    token_ids: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class LogitStep:
    """Logit of a token of the head called `name`, less that of another if there is one."""

    name: str
    token_id: int
    less: int | None = None


Step = DenseStep | NormStep | UnitStep | TokenStep | LogitStep


@dataclass(frozen=True, slots=True)
class PoolerSpec:
    """Description of a pooler.

    `poolings` are made side by side, of all tokens or, without `with_prompt`, of those behind the
    prompt of the run. `scores`: function of the last step's numbers; "vector" for none. `labels`
    are the names of scores.
    """

    poolings: tuple[Pooling, ...]
    steps: tuple[Step, ...] = ()
    scores: Scores = "vector"
    normalizes: bool = False
    dimensions: int | None = None
    labels: tuple[str, ...] = ()
    with_prompt: bool = True

    @property
    def reads_all_tokens(self) -> bool:
        """True if the hidden states of all tokens are needed."""
        return not {*self.poolings} <= {Pooling.CLS, Pooling.LAST}

    def followed_by(self, step: Step) -> "PoolerSpec":
        """Return the pooler with a further step, behind its scaling to length 1 if it has one."""
        before = (UnitStep(),) if self.normalizes else ()
        return replace(self, steps=(*self.steps, *before, step), normalizes=False)


def activation(config: JsonObject, name: str) -> Activation | None:
    """Return the function that a field names by its class in torch.nn, None if it is absent.

    Raises `ModelError` for any other class: nothing is imported.
    """
    given = config.string(name)
    if given is None:
        return None
    found = ACTIVATIONS.get(given.rpartition(".")[2])
    if found is None or not given.startswith("torch.nn."):
        raise config.error(name, f"torch.nn's {', '.join(ACTIVATIONS)}")
    return found
