"""Screen of `doctor`: facts about this machine, and the user's defaults."""

from collections.abc import Iterator

from pagedrun.cli.options.settings import VARIABLES, DefaultFacts
from pagedrun.cli.terminal.units import show_size
from pagedrun.paged.machine.examination import (
    CacheFacts,
    Examination,
    GpuFacts,
    HubFacts,
    LimitFacts,
    ProcessorFacts,
)

Line = tuple[str, str]  # label, text


def examination_lines(
    found: Examination, defaults: DefaultFacts
) -> Iterator[tuple[str, list[Line]]]:
    """Yield title and lines of each section."""
    yield "Versions", [(name, there or "not there") for name, there in found["versions"].items()]
    yield "Processor", _processor(found["processor"])
    yield "Limits", _limits(found["limits"])
    yield "Caches", [(each["name"], _cache(each)) for each in found["caches"]]
    yield "GPU", [_gpu(found["gpu"])]
    yield "Hub", [_hub(found["hub"])]
    yield "Defaults", _defaults(defaults)
    if found["advice"]:
        yield "Advice", [("", sentence) for sentence in found["advice"]]


def _processor(facts: ProcessorFacts) -> list[Line]:
    others = [name for name in facts["kernel_sets"] if name != facts["kernel_set"]]
    return [
        ("name", facts["name"]),
        ("features", ", ".join(facts["features"]) or "none of the relevant ones"),
        ("kernel set", facts["kernel_set"] or "none"),
        ("  others", ", ".join(others) or "none"),
        ("speed", facts["speed"]),
        ("bytes", facts["bytes"]),
        ("--quantization int8", facts["int8"]),
        ("quantized models", facts["quantized"]),
        ("  activations", facts["activations"]),
    ]


def _limits(facts: LimitFacts) -> list[Line]:
    threads = f"{facts['threads']} of {facts['cpus']} CPUs"
    if facts["threads"] < facts["cpus"]:
        threads += ", limited by the container or OMP_NUM_THREADS"
    lines = [("threads", threads)]
    machine, memory, left = facts["machine_memory"], facts["memory"], facts["available_memory"]
    if memory is not None and left is not None:
        whose = "of the container" if machine is not None and memory < machine else "in all"
        lines.append(("memory", f"{show_size(memory)} {whose}, {show_size(left)} available"))
    return lines + list(facts["environment"].items())


def _cache(facts: CacheFacts) -> str:
    if facts["path"] is None:
        return "none: --prefix-store DIR keeps shared prefixes for later runs"
    if not facts["files"]:
        return f"nothing yet, in {facts['path']}"
    return f"{show_size(facts['bytes'])} in {facts['files']:,} files, in {facts['path']}"


def _gpu(facts: GpuFacts) -> Line:
    if facts["memory"] is None:
        return "none", facts["why"] or ""
    told = f"{show_size(facts['memory'])}, compute capability {facts['capability']}"
    return "found", f"{facts['name']}: {told}"


def _hub(facts: HubFacts) -> Line:
    if facts["offline"]:
        return "offline mode", facts["why"] or ""
    if facts["reachable"]:
        return "reachable", f"{facts['endpoint']}, in {facts['seconds']:.1f} s"
    return "not reachable", f"{facts['endpoint']}: {facts['why']}; models in the cache still run"


def _defaults(facts: DefaultFacts) -> list[Line]:
    path = facts["path"] or "no home folder to look in"
    return [
        *((name, facts["environment"].get(name, "not set")) for name in VARIABLES.values()),
        ("file", path if facts["there"] else f"not there: {path}"),
        *((f"  {name}", str(value)) for name, value in facts["values"].items()),
    ]
