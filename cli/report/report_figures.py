"""Figures of the memory report, by section.

KV groups, states and weights have the same figures in reports, plans and inspections.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from pagedrun.cli.terminal.units import commas, counted, plural, show_seconds, show_size
from pagedrun.paged.metrics.inspection_sections import InspectedGroup, InspectedReads
from pagedrun.paged.metrics.report_sections import (
    GroupFigures,
    JobReport,
    PoolingFigures,
    PrefixFigures,
    SpeculationFigures,
    StateFigures,
    TimeFigures,
    WeightFigures,
    endings,
)
from pagedrun.paged.values.errors import option
from pagedrun.paged.values.report_parts import StoreFigures, TransformersFigures, TransformersPath

if TYPE_CHECKING:
    from pagedrun.paged.job.planned.planned_weights import WeightExpansion
    from pagedrun.paged.job.progress import JobListener
    from pagedrun.paged.values.engine_config import EngineConfig

_ENDINGS = {
    "stop": "at their end or a stop string",
    "length": "cut at max_tokens",
}
_MemoryPart = Literal[
    "weights",
    "kv_pool",
    "states",
    "activations_peak",
    "graphs",
    "other",
    "free",
    "device_total",
]
_MEMORY: dict[_MemoryPart, tuple[str, str]] = {
    "weights": ("weights", ""),
    "kv_pool": ("KV pool", ""),
    "states": ("states", "of recurrent layers, or a library's caches"),
    "activations_peak": ("activations", "at peak"),
    "graphs": ("captured steps", "on a GPU"),
    "other": ("everything else", "at peak: Python, torch, rows, caches"),
    "free": ("free", ""),
    "device_total": ("memory of the machine", "or of the container in it"),
}
_BARS = "▁▂▃▄▅▆▇█"


class Figure(NamedTuple):
    """Label, value and note of a line; `style` is the Rich style of the value."""

    label: str
    value: str
    note: str = ""
    style: str = "bold"


def sections(report: JobReport, sparkline_chars: int) -> Iterator[tuple[str, list[Figure]]]:
    """Yield title and figures of each section of the report (the object in `OUT.report.json`).

    Without a row that reached the engine there are counts of rows only.
    """
    if pooling := report.get("pooling"):
        yield "Rows", _row_counts(report)
        yield "Texts", text_figures(report, pooling)
        yield "Time", _phases(report["time"])
        yield "Where the bytes went", _text_memory(report)
        return
    yield "Answers", _answers(report)
    if report["kv"]["num_blocks"] and report["tokens"]["prompt"]:
        yield "Tokens", _tokens(report)
        yield "Time", _times(report["time"])
        yield "Where the bytes went", _memory(report)
        yield "KV pool", _pool(report, sparkline_chars)
        if states := report.get("states"):
            yield states_title(report.get("library")), state_figures(states)
        if streaming := report.get("streaming"):
            weights = report["weights"]
            reads: InspectedReads = {
                **streaming,
                "streamed_bytes": weights["streamed_bytes"],
                "passes": weights["passes"],
                "bytes_read": weights["bytes_read"],
            }
            yield "Weights read in each pass", streaming_figures(reads, weights["wait_share"])
        if "speculation" in report and report["speculation"]["proposed"]:
            yield "Drafts", _drafts(report["speculation"])
        yield "Shared prefixes", _prefixes(report["prefix"]) + _stored(report.get("prefix_store"))
        yield "Copies and preemptions", _events(report)
    if library := report.get("library"):
        yield "Model", _library(library)


def text_figures(report: JobReport, pooling: PoolingFigures) -> list[Figure]:
    """Return the figures of a run of texts."""
    times, tokens = report["time"], report["tokens"]
    same = pooling["texts"] - pooling["distinct_texts"]
    share = _share(same, max(pooling["texts"], 1))
    note = f"{same:,} ({share}) equal to others" if same else ""
    figures = [Figure("texts", commas(pooling["texts"]), note)]
    if padded := pooling["padded_tokens"]:
        note = f"{padded:,} padded in batches of 32"
        figures.append(Figure("tokens", commas(tokens["computed"]), note))
    if shared := pooling["shared_prefix_tokens"]:
        figures.append(Figure("shared prefixes", commas(shared), "tokens, computed once"))
    speed = f"{pooling['texts_per_s']:,.0f} texts/s, "
    speed += f"{times['prompt_tokens_per_s']:,.0f} tokens/s"
    return [*figures, Figure("time", show_seconds(times["run_s"], precise=True), speed)]


def _text_memory(report: JobReport) -> list[Figure]:
    memory = report["memory"]
    return [
        Figure("weights", show_size(memory["weights"]), describe_weights(report["weights"])),
        Figure("keys and values", show_size(memory["kv_pool"])),
        Figure("everything else", show_size(memory["other"]), "activations, Python, torch"),
        Figure("memory of the machine", show_size(memory["device_total"])),
    ]


def _library(library: TransformersFigures) -> list[Figure]:
    seen = "rows kept their bytes in all tests"
    if library["rows_depend_on_batch"]:
        seen = "rows depend on their batch"
    difference = f"{library['largest_difference']:.1e}"
    over = "paged memory" if library["path"] == "paged" else "a cache"
    return [
        Figure("computed by", library["computed_by"], seen),
        Figure("logits differ by", difference, f"of the largest, from those without {over}"),
    ]


def _row_counts(report: JobReport) -> list[Figure]:
    rows = report["rows"]
    figures = [Figure("rows", commas(rows["total"]))]
    if rows["skipped"]:
        figures.append(Figure("done before", commas(rows["skipped"]), "by an earlier run"))
    return figures + failed_rows(report)


def _answers(report: JobReport) -> list[Figure]:
    figures, accuracy = _row_counts(report), report.get("accuracy")
    reasons = endings(report["finish_reasons"])
    total = sum(reasons.values())
    for reason, number in sorted(reasons.items(), key=lambda item: -item[1]):
        note = f"{_share(number, total)} {_ENDINGS.get(reason, '')}"
        figures.append(Figure(reason, commas(number), note.strip()))
    if accuracy:
        expected, correct = accuracy["expected"], accuracy["correct"]
        note = f"{correct:,} of {expected:,} as expected"
        figures.append(Figure("accuracy", _share(correct, expected), note))
    if reasoning := report.get("reasoning"):
        note = f"rows; {reasoning['cut']:,} have no answer, as the thought was cut"
        figures.append(Figure("with thoughts", commas(reasoning["rows"]), note))
    if votes := report.get("votes"):
        note = f"of {votes['samples']:,} samples of {votes['rows']:,} rows with a vote"
        figures.append(Figure("samples drawn", commas(votes["drawn"]), note))
    return figures


def failed_rows(report: JobReport) -> list[Figure]:
    """Return the number of failed rows and of each error, in descending order; empty without
    any."""
    rows, before = report["rows"], report["rows"].get("skipped_failed", 0)
    failed = rows["failed"] + before
    if not failed:
        return []
    done = f", {before:,} of them before" if before else ""
    note = f"{_share(failed, rows['total'])}{done}; reasons under error"
    codes = sorted(report["errors"].items(), key=lambda item: -item[1])
    return [
        Figure("failed", commas(failed), note, "bold red"),
        *(Figure(f"  {code}", commas(number)) for code, number in codes),
    ]


def _tokens(report: JobReport) -> list[Figure]:
    tokens = report["tokens"]
    figures = [
        Figure("prompt tokens", commas(tokens["prompt"])),
        Figure("taken from the cache", commas(tokens["cached"])),
        Figure("computed", commas(tokens["computed"])),
    ]
    if tokens["preempted_recomputed"]:
        again = commas(tokens["preempted_recomputed"])
        figures.append(Figure("computed again", again, "after preemptions"))
    figures.append(Figure("generated tokens", commas(tokens["generated"])))
    if tokens["generated_copied"]:
        copied = commas(tokens["generated_copied"])
        figures.append(Figure("  of these copied", copied, "from duplicate rows"))
    return figures


def _times(times: TimeFigures) -> list[Figure]:
    return [
        *_phases(times),
        Figure(
            "prompt tokens/s",
            f"{times['prompt_tokens_per_s']:,.0f}",
            "including those from the cache",
        ),
        Figure("generated tokens/s", f"{times['generated_tokens_per_s']:,.0f}"),
    ]


def _phases(times: TimeFigures) -> list[Figure]:
    compiled = [
        Figure("compile", show_seconds(seconds, precise=True), "long in the first run on a machine")
        for seconds in [times.get("compile_s")]
        if seconds is not None  # replicas compile while they load
    ]
    return [
        Figure("load", show_seconds(times["load_s"], precise=True)),
        *compiled,
        Figure("plan", show_seconds(times["plan_s"], precise=True)),
        Figure("run", show_seconds(times["run_s"], precise=True)),
        *_wall_time(times),
    ]


def _wall_time(times: TimeFigures) -> list[Figure]:
    wall_s = times.get("wall_s")
    return (
        []
        if wall_s is None
        else [Figure("in all", show_seconds(wall_s, precise=True), "the whole command")]
    )


def _memory(report: JobReport) -> list[Figure]:
    memory, weights = report["memory"], describe_weights(report["weights"])
    return [
        Figure(label, show_size(memory[key]), weights if key == "weights" else note)
        for key, (label, note) in _MEMORY.items()
        if key in memory
    ]


def _pool(report: JobReport, sparkline_chars: int) -> list[Figure]:
    kv, groups = report["kv"], report["kv"].get("groups", [])
    each = f"{show_size(kv['block_size'] * kv['bytes_per_token'])} each"
    if groups:
        each = f"in {len(groups)} groups of layers; the first:"
    expected = f"at half a block for each row: {kv['tail_waste_expected']:.1%}"
    figures = [
        *group_figures(groups),
        Figure("blocks", commas(kv["num_blocks"]), f"of {kv['block_size']} tokens, {each}"),
        Figure(
            "in use at peak",
            commas(kv["peak_blocks"]),
            f"{_share(kv['peak_blocks'], kv['num_blocks'])} of the pool",
        ),
        Figure(
            "utilization at peak",
            f"{kv['utilization_at_peak']:.1%}",
            "of slots in use",
        ),
        Figure("internal fragmentation", f"{kv['tail_waste']:.1%}", expected),
    ]
    used = [record["blocks_used"] for record in report["timeline"]]
    if len(used) > 1:
        figures.append(Figure("in use, step by step", "", sparkline(used, sparkline_chars)))
    if kv["mean_use_when_short"]:
        note = "mean use while a row had to wait"
        figures.append(Figure("while short of blocks", f"{kv['mean_use_when_short']:.1%}", note))
    return [
        *figures,
        Figure("requests at once", commas(kv["paged_max_requests"]), "that the pool can hold"),
        Figure(
            "if contiguous",
            commas(kv["contiguous_max_requests"]),
            f"in the same bytes, {kv['contiguous_utilization']:.1%} utilized",
        ),
    ]


def _prefixes(prefix: PrefixFigures) -> list[Figure]:
    achievable = f"of prompt tokens; {prefix['achievable_hit_rate']:.1%} was achievable"
    figures = [Figure("hit rate", f"{prefix['hit_rate']:.1%}", achievable)]
    if prefix["duplicate_rows"]:
        repeated = commas(prefix["duplicate_rows"])
        figures.append(
            Figure("duplicate rows", repeated, "identical to another row; computed once")
        )
    seconds = prefix["seconds_saved"]
    figures += [
        Figure("shared blocks at peak", commas(prefix["shared_blocks_peak"])),
        Figure(
            "KV not computed again",
            show_size(prefix["bytes_saved"]),
            f"about {show_seconds(seconds, precise=True)} of computing" if seconds else "",
        ),
    ]
    read, unshared = prefix["attention_bytes_read"], prefix["attention_bytes_without_sharing"]
    if read != unshared:
        note = f"instead of {show_size(unshared)}"
        figures.append(Figure("KV read by attention", show_size(read), note))
    return figures


def _stored(store: StoreFigures | None) -> list[Figure]:
    """Return the figures of `--prefix-store`, empty without one."""
    if store is None:
        return []
    read, written = show_size(store["loaded_bytes"]), show_size(store["stored_bytes"])
    figures = [
        Figure("from the prefix store", commas(store["loaded_tokens"]), f"tokens; {read} read"),
        Figure("put into it", commas(store["stored_tokens"]), f"tokens; {written} written"),
    ]
    if store["ignored_files"]:
        ignored = store["ignored_files"]
        note = f"{plural(ignored, 'file')} that cannot be used"
        figures.append(Figure("ignored", commas(ignored), note, "bold yellow"))
    return figures


def _events(report: JobReport) -> list[Figure]:
    copies, preemptions = report["copy_on_write"], report["preemptions"]
    swap, recompute = preemptions["swap"], preemptions["recompute"]
    how = f"{swap:,} by swap, {recompute:,} by recompute"
    return [
        Figure(
            "copy on write",
            commas(copies["block_copies"]),
            f"{plural(copies['block_copies'], 'block')} copied, {counted(copies['forks'], 'fork')}",
        ),
        Figure("preemptions", commas(swap + recompute), how if swap + recompute else ""),
    ]


def sparkline(values: Sequence[float], num_chars: int, top: float = 0) -> str:
    """Return at most `num_chars` bars for the maxima of equal stretches of `values`.

    A full bar is the largest value, or `top` if that is larger.
    """
    num_bars = min(num_chars, len(values))
    top = max(*values, top, 1)
    bars = []
    for bar in range(num_bars):
        stretch = values[bar * len(values) // num_bars : (bar + 1) * len(values) // num_bars]
        bars.append(_BARS[round(max(stretch) / top * (len(_BARS) - 1))])
    return "".join(bars)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "0.0%"


def group_figures(groups: Sequence[GroupFigures | InspectedGroup]) -> list[Figure]:
    """Return size and peak use of the pool of each KV group."""
    return [
        Figure(
            group_name(each["num_layers"], each["window"]),
            f"{each['num_blocks']:,}",
            f"blocks, {show_size(each['pool_bytes'])}; at peak {each['peak_blocks']:,} in use, "
            f"{show_size(each['peak_bytes'])}",
        )
        for each in groups
    ]


def group_name(num_layers: int, window: int | None) -> str:
    """Return the name of a KV group.

    The group without layers identifies the blocks of a model whose layers all have windows.
    """
    if not num_layers:
        return "no layers, only names"
    seen = "full attention" if window is None else f"window {window:,}"
    return f"{seen}, {counted(num_layers, 'layer')}"


def has_blocks(library: TransformersPath | None) -> bool:
    """Return whether blocks hold keys and values; `library` is None for pagedrun's own models."""
    return library is None or library["path"] == "paged"


def states_title(library: TransformersPath | None) -> str:
    """Return the title of the states' section."""
    return "States of recurrent layers" if has_blocks(library) else "Caches of Transformers"


def states_owner(library: TransformersPath | None) -> str:
    """Return the owner of the states, for a note."""
    return "of recurrent layers" if has_blocks(library) else "caches of Transformers"


def state_figures(states: StateFigures) -> list[Figure]:
    """Return the figures about states of recurrent layers."""
    each, peak = show_size(states["bytes_per_slot"]), show_size(states["peak_bytes"])
    return [
        Figure("slots", f"{states['num_slots']:,}", f"of {each}, one for each sequence"),
        Figure("in use at peak", f"{states['peak_slots']:,}", peak),
        Figure("kept", f"{states['kept_states']:,}", "where rows diverge, for later rows"),
        Figure("found", f"{states['found_states']:,}", "sequences started from a kept state"),
    ]


def streaming_figures(reads: InspectedReads, wait_share: float | None) -> list[Figure]:
    """Return the figures about weights that were read from disk; wait_share: None if unknown."""
    speed = []
    if reads["read_s"]:  # none of weights that come from the memory of the host
        rate = show_size(reads["bytes_read"] / reads["read_s"])
        speed.append(Figure("speed", f"{rate}/s", "while reading"))
    waited = Figure("waiting", show_seconds(reads["wait_s"], precise=True), "for the disk")
    if wait_share is not None:
        waited = Figure("waiting", f"{wait_share:.1%}", "of the run, for the disk")
    pinned, total = reads["layers"].count("p"), len(reads["layers"])
    ring = f"and a ring of {show_size(reads['ring_bytes'])} for the others"
    return [
        Figure("in memory", show_size(reads["pinned_bytes"]), ring),
        Figure("of each pass", show_size(reads["streamed_bytes"]), "read ahead of the layers"),
        Figure("passes", f"{reads['passes']:,}", f"{show_size(reads['bytes_read'])} read"),
        *speed,
        waited,
        Figure("pinned", f"{pinned:,} of {total:,}", "layers, the head last: p pinned, s streamed"),
        Figure("", reads["layers"], style=""),
    ]


def draft_figure(drafts: SpeculationFigures) -> Figure:
    """Return the tokens of a step, with what they saved."""
    saved = drafts["saved_s"]
    gain = f", about {show_seconds(saved, precise=True)} saved" if saved > 0 else ""
    right = f"{drafts['accepted']:,} of {drafts['proposed']:,} drafts right{gain}"
    return Figure("tokens a step", f"{drafts['tokens_per_step']:.2f}", right)


SOURCES = {
    "prompt_lookup": "from the row's own prompt and answer",
    "other_rows": "from answers of other rows",
    "from_output": "from the row's answer in an earlier run",
    "grammar": "forced by a structure, or chosen there each time",
    "mtp": "predicted by the model's MTP module",
}


def _drafts(drafts: SpeculationFigures) -> list[Figure]:
    return [
        draft_figure(drafts),
        *(
            Figure("right", f"{count:,}", SOURCES.get(source, source))
            for source, count in sorted(drafts["by_source"].items())
            if count
        ),
    ]


def describe_weights(weights: WeightFigures) -> str:
    """Return the bits per weight in memory and, if known, in the files; and the inputs of linear
    layers if some are quantized."""
    held, stored = weights["held_bits"], weights["stored_bits"]
    told = f"{held:.3g} bits a weight"
    if weights["stored_bytes"] is not None and stored is not None:
        told += f"; on disk {show_size(weights['stored_bytes'])}, {stored:.3g} bits a weight"
    inputs = describe_activations(weights)
    return told if inputs is None else f"{told}; {inputs}"


def describe_activations(weights: WeightFigures) -> str | None:
    """Return the inputs of linear layers; None if no layer is quantized in memory."""
    if not weights["quantized_layers"]:
        return None
    if not weights["int8_layers"]:
        return "activations exact"
    return f"activations int8 in {weights['int8_layers']:,} of {weights['linear_layers']:,} layers"


def unpacking_warning(model: Path, found: "WeightExpansion") -> str:
    """Return the warning about weights that take more memory than their files."""
    times = found.held_bytes / found.stored_bytes
    told = (
        f"{model.name}: its weights take {show_size(found.stored_bytes)} on disk and "
        f"{show_size(found.held_bytes)} in memory, {times:.1f} times as much: they are held as "
        f"{found.dtype} where the kernels of this run do not compute with their format"
    )
    if not found.settings:
        return f"{told}; no setting holds them in less on this machine"
    flags = " ".join(f"{option(name)} {value}" for name, value in found.settings)
    return f"{told}; {flags} holds them in {show_size(found.least_bytes)}"


def warn_of_weights(engine: "EngineConfig", listener: "JobListener") -> None:
    """Warn, before loading, of a quantized model that is unpacked to a multiple of its size."""
    from pagedrun.paged.job.planned.planned_weights import WeightExpansion

    found = WeightExpansion.of(engine)
    if found is not None:
        listener.on_warning(unpacking_warning(engine.model, found))
