"""Loaded models: weights on a device, with the tokenizer and the sampler that belong to them.

Several engines with different settings may share a `LoadedModel`. `LoadedModel.load` chooses
the device, reads the checkpoint (with pagedrun's layers or with those of Transformers) and
starts the compilation of CPU kernels in the background.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pagedrun.kernels.environment import threads
from pagedrun.kernels.quantized_form import CodeForm
from pagedrun.kernels.quantized_weight import dtype_name
from pagedrun.paged.cache.prefix_store.prefix_store import PrefixStore
from pagedrun.paged.execution.device import Device, choose_device
from pagedrun.paged.execution.logits.grammar_mask import GrammarMask
from pagedrun.paged.execution.logits.logits_processor import LogitsProcessor
from pagedrun.paged.execution.logits.sampler import Sampler, processors_of
from pagedrun.paged.execution.logits.token_processors import ThinkingBudget
from pagedrun.paged.execution.pool_memory import PoolMemory
from pagedrun.paged.models.checkpoint.checkpoint import (
    BaseCheckpoint,
    ModelTensors,
    open_checkpoint,
)
from pagedrun.paged.models.checkpoint.header import CheckpointHeader, StoredNetwork, stored_bytes_of
from pagedrun.paged.models.checkpoint.tensors import NO_TENSORS, HeldCodes, StoredTensors
from pagedrun.paged.models.checkpoint.weight_source import ReadTensor, WeightSource
from pagedrun.paged.models.decoder import Decoder
from pagedrun.paged.models.decoder_spec import DecoderLayerSpec, DecoderSpec
from pagedrun.paged.models.linear_layers import LinearLayers
from pagedrun.paged.models.model import Model
from pagedrun.paged.models.model_config import ModelConfig, num_rotary_positions
from pagedrun.paged.models.modules.mlp import MlpSpec
from pagedrun.paged.models.runnable_config import RunnableConfig
from pagedrun.paged.models.streaming.packed_folder import PackedFolder
from pagedrun.paged.models.streaming.streamed_source import StreamedSource
from pagedrun.paged.models.transformers_backend.config import TransformersConfig
from pagedrun.paged.planning.memory import MOST_WEIGHTS, HostMemory, memory_for_weights
from pagedrun.paged.planning.passes import PassCosts
from pagedrun.paged.text.grammar import Grammars
from pagedrun.paged.text.tokenizer import Tokenizer
from pagedrun.paged.values.engine_config import AUTO, OFF, EngineConfig
from pagedrun.paged.values.errors import ModelError, UsageError, option

if TYPE_CHECKING:
    from pagedrun.kernels.cpu.compile_ahead import AheadCompiler


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Model with its weights on a device, its tokenizer and its sampler.

    `grammar_mask`: the first processor of the sampler. `memory`: allocates the pools of one run at
    a time. `prefix_store`: opened before the weights were read, None without one. `stored_bytes`:
    size of the weights in their files, None for weights that come from no file. `linears`: its
    linear layers on the device. `load_s`: seconds spent loading. `compiling`: compilation of CPU
    kernels in the background, None on a GPU.
    """

    config: RunnableConfig
    tokenizer: Tokenizer
    device: Device
    dtype: torch.dtype
    model: Model
    sampler: Sampler
    grammar_mask: GrammarMask
    memory: PoolMemory
    prefix_store: PrefixStore | None
    stored_bytes: int | None
    linears: LinearLayers
    load_s: float
    compiling: "AheadCompiler | None"

    @classmethod
    def load(
        cls,
        config: EngineConfig,
        model_config: RunnableConfig,
        tokenizer: Tokenizer,
        *,
        device: Device | None = None,
        read: ReadTensor | None = None,
        processors: Seq[LogitsProcessor] | None = None,
        grammars: Grammars | None = None,
        num_sharing: int = 1,
    ) -> "LoadedModel":
        """Read the weights into the memory of the device.

        `device` overrides `config.device`, for instance to check other kernels. `read` returns a
        weight by name; None reads the folder `config.model`. `processors` run in this order after
        grammars and before thinking budgets; None stands for `processors_of`. `grammars`: those
        that the rows were checked by; None makes new ones. Weights are quantized as
        `config.quantization` requires. Raises `ModelError` if the model folder cannot be used,
        `UsageError` if the device or the prefix store cannot. `num_sharing` engines share the
        memory of a CPU, each with weights of its own.
        """
        model_config = model_config.held_as(config.quantization, config.model)
        config = model_config.settings(config)
        model_config.check_tokenizer(tokenizer.vocab_size, config.model)
        threads.configure()
        began = time.perf_counter()
        device = device or choose_device(config.device, config.kernel_set, config.activations)
        _check_speculation(config, device)
        dtype = device.dtype(config.dtype, model_config.dtype, by_torch=model_config.by_torch)
        header = CheckpointHeader.read(config.model) if read is None else None
        compiling = _compiling(config, model_config, device, dtype, header)
        store, stored_bytes = None, None
        linears = LinearLayers.of(model_config.network, _codes(device, dtype, NO_TENSORS))
        if config.weights_memory != AUTO and not isinstance(model_config, ModelConfig):
            raise UsageError(
                f"{option('weights_memory')}: Transformers' code computes "
                f"{model_config.model_type} with all weights in memory; leave it out"
            )
        if read is not None:
            assert isinstance(model_config, ModelConfig), "a library reads its weights itself"
            source = _source(config, device, dtype, read)
            model = _model(config, model_config, model_config.network, source)
        else:
            with open_checkpoint(config.model) as checkpoint:
                if config.prefix_store is not None:
                    store = PrefixStore(
                        Path(config.prefix_store), config.prefix_store_bytes, checkpoint.files
                    )
                found = _stored(
                    config, model_config, checkpoint, device, dtype, compiling, num_sharing
                )
                model_config, model, stored_bytes, linears = found
        mask = GrammarMask(
            grammars or Grammars.of(tokenizer, model_config.vocab_size, model_config.eos_token_ids),
            tokenizer,
            device,
            jump_ahead=config.jump_ahead,
        )
        others = processors_of(device) if processors is None else processors
        budget = ThinkingBudget(tokenizer)
        sampler = Sampler(model_config.eos_token_ids, device, (mask, *others, budget))
        memory = PoolMemory(model, sampler, device)
        load_s = time.perf_counter() - began
        return cls(
            model_config,
            tokenizer,
            device,
            dtype,
            model,
            sampler,
            mask,
            memory,
            store,
            stored_bytes,
            linears,
            load_s,
            compiling,
        )

    @property
    def dtype_name(self) -> str:
        """The name of the dtype, such as "bfloat16"."""
        return dtype_name(self.dtype)

    @property
    def arithmetic(self) -> dict[str, object]:
        """Everything that the last bits of answers depend on, as plain JSON values."""
        own = {**self.config.network.arithmetic(), **self.linears.arithmetic()}
        return {**self.device.arithmetic(self.dtype_name), **own}

    @property
    def machine(self) -> dict[str, object]:
        """The same without the network's part, and the name of the kernels: the identity of stored
        prefixes."""
        return {**self.device.machine(self.dtype_name), **self.linears.arithmetic()}

    @property
    def passes(self) -> PassCosts | None:
        """Costs of a pass over streamed weights, None if all weights are in memory."""
        streamed, network = self.model.streamed, self.config.network
        if streamed is None:
            return None
        assert isinstance(network, DecoderSpec), "another library keeps its weights in memory"
        hidden_bytes = network.hidden_bytes(self.dtype.itemsize)
        return PassCosts(streamed.residency, streamed.speeds, hidden_bytes, streamed.on_host)

    def finish_compiling(self, on_compile: Callable[[], None] | None = None) -> None:
        """Wait for the background compilation, and compile the remaining kernels in this thread.

        `on_compile` is called first, if there are any.
        """
        if self.compiling is not None:
            self.compiling.finish(on_compile)


def _compiling(
    config: EngineConfig,
    model_config: RunnableConfig,
    device: Device,
    dtype: torch.dtype,
    header: CheckpointHeader | None,
) -> "AheadCompiler | None":
    """Start to compile the kernels of a model of pagedrun's own layers; header: of its files."""
    if not isinstance(model_config, ModelConfig) or not model_config.network.is_causal:
        return None  # few kernels of a decoder's are an encoder's
    layers = model_config.network.layers
    ffns = [layer.ffn for layer in layers if isinstance(layer, DecoderLayerSpec)]
    activations = {ffn.activation for ffn in ffns if isinstance(ffn, MlpSpec)}
    quantized: Iterable[tuple[CodeForm, bool]] = ()
    has_plain = True
    if header is not None:
        found = StoredNetwork.of(model_config.network, header)
        codes = _codes(device, dtype, found.stored)
        linears = found.network.linears(found.stored)
        held = [each for each in linears if codes.holds(each)]
        quantized = {(each.form, codes.rounds(each)) for each in held if each.form is not None}
        has_plain = len(held) < len(linears)
    cache_dtype = device.cache_dtype(config.kv_cache_dtype, dtype)
    return device.compile_ahead(
        dtype, cache_dtype, activations, quantized, has_plain_linears=has_plain
    )


def _stored(
    config: EngineConfig,
    model_config: RunnableConfig,
    checkpoint: BaseCheckpoint,
    device: Device,
    dtype: torch.dtype,
    compiling: "AheadCompiler | None",
    num_sharing: int,
) -> tuple[RunnableConfig, Model, int, LinearLayers]:
    """Return the model of a checkpoint, with layers of pagedrun or of Transformers and with its MTP
    module if that is used, the size of its weights in their files, and its linear layers."""
    if isinstance(model_config, ModelConfig):
        plain = model_config
        model_config = plain.with_mtp(config, checkpoint, is_async=device.async_scheduling)
        tensors = ModelTensors(checkpoint, model_config.network)
        if config.quantization == "none" and tensors.quantized:
            raise _unwanted(config.model, tensors.quantized[0])
        source = _source(config, device, dtype, tensors.read, tensors.stored)
        codes = _codes(device, dtype, tensors.stored)
        sizes = tensors.network.packed_sizes(dtype.itemsize, codes)
        available = device.free_bytes()
        if device.has_own_memory:
            mapped, most = 0, config.gpu_memory_utilization
        else:
            available //= num_sharing
            mapped, most = tensors.network.mapped_bytes(dtype.itemsize, codes), MOST_WEIGHTS
        num_bytes = memory_for_weights(config.weights_memory, sizes, available, mapped, most)
        if num_bytes is not None:
            arithmetic = device.arithmetic(dtype_name(dtype))
            try:
                folder = PackedFolder.of_model(config, plain, checkpoint.files, arithmetic)
                folder.check_room(max(sum(sizes) - folder.num_bytes, 0), config.packed_bytes)
                source = StreamedSource(
                    source,
                    folder,
                    num_bytes,
                    partial(_reading, config, plain),
                    transfers=device.transfers(),
                    host_bytes=HostMemory.read().available // num_sharing,
                    before_measuring=(lambda: None) if compiling is None else compiling.finish,
                )
            except UsageError:  # without room on disk, weights that fit leave a small pool
                if config.weights_memory != AUTO or sum(sizes) > available:
                    raise
        network = tensors.network
        if source.is_streamed:  # the head of a pass is read once, at its end
            model_config, network = plain, network.without_mtp()
        model = _model(config, model_config, network, source)
        return model_config, model, tensors.num_bytes, LinearLayers.of(network, codes)
    assert isinstance(model_config, TransformersConfig), "there are two kinds"
    # Imported here: it takes seconds, and most models do not need it.
    from pagedrun.paged.models.transformers_backend.model import load_transformers

    traced = load_transformers(
        model_config.network, checkpoint, dtype, device, row_invariant=config.reproducible
    )
    if config.reproducible and traced.library["rows_depend_on_batch"]:
        raise ModelError(
            f"{config.model}: with Transformers' code, rows of a {model_config.model_type} "
            f"depend on the other rows of a batch; leave out {option('reproducible')}"
        )
    return model_config, traced, stored_bytes_of(checkpoint), LinearLayers()


def _check_speculation(config: EngineConfig, device: Device) -> None:
    """Raise `UsageError` if drafts that were asked for could change the bytes of an answer."""
    if config.speculate in (AUTO, OFF) or device.is_row_invariant or config.reproducible:
        return
    raise UsageError(
        f"{option('speculate')} {config.speculate}: rows of a {device.torch_device.type} depend "
        f"on the other rows of a batch, so that drafts could change answers; add "
        f"{option('reproducible')}, or leave it out"
    )


@contextmanager
def _reading(config: EngineConfig, model_config: ModelConfig) -> Iterator[ReadTensor]:
    """Open the checkpoint again, to read its tensors."""
    with open_checkpoint(config.model) as checkpoint:
        yield ModelTensors(checkpoint, model_config.network).read


def _codes(device: Device, dtype: torch.dtype, stored: StoredTensors) -> HeldCodes:
    """Return the tensors whose weights stay quantized on the device."""
    kernels = device.kernels
    return HeldCodes(stored, kernels.code_kernels, dtype_name(dtype), kernels.activations)


def _unwanted(folder: Path, name: str) -> ModelError:
    return ModelError(
        f"{folder}: its weights are quantized ({name}), which {option('quantization')} "
        "none refuses; leave it out, or use an unquantized version of the model"
    )


def _source(
    config: EngineConfig,
    device: Device,
    dtype: torch.dtype,
    read: ReadTensor,
    stored: StoredTensors | None = None,
) -> WeightSource:
    """Return a source of weights; stored: the tensors of a checkpoint, None without one."""
    return WeightSource(
        read,
        dtype,
        device.torch_device,
        device.kernels,
        row_invariant=config.reproducible,
        is_mapped=stored is not None,
        stored=stored or NO_TENSORS,
    )


def _model(
    config: EngineConfig,
    model_config: ModelConfig,
    network: DecoderSpec,
    source: WeightSource,
) -> Model:
    num_positions = num_rotary_positions(model_config, config.max_model_len, config.model)
    return Decoder(network, source, num_positions)
