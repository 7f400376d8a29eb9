"""Templates that would take hours or gigabytes, and a program that renders them within limits."""

import json
import resource
import sys
import time
from pathlib import Path

from pagedrun.paged.text.templates.sandbox import Sandbox
from pagedrun.paged.text.templates.sandbox_budget import MAX_MEMORY, MAX_WORK

_REPETITIONS = ("range(900000)", "range(60)", "range(150000)")
_LONG = "{% for i in range(900000) %}BODY{% endfor %}"
_REPEATED = {
    "wide output": _LONG.replace("BODY", "{{ 'x' * 100 }}") + "😀",
    "small output": _LONG.replace("BODY", "{{ '' }}" * 50),
    "heavy body": _LONG.replace("BODY", "{% set a = 1 %}" * 3000),
    "heavy branch": _LONG.replace(
        "BODY", "{% if true %}" + "{% set a=[] %}" * 3000 + "{% endif %}"
    ),
    "heavy calls": _LONG.replace("BODY", "{{ ''.lower() }}" * 500),
    "nested call blocks": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call m() %}" * 18
    + "x" * 1000
    + "{% endcall %}" * 18,
    "tokens": "{{ a }}" * 100_000,
    "nested parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "long sum": "{{ " + "1+" * 9000 + "1 }}",
    "long chain": "{{ a" + ".b" * 9000 + " }}",
    "many digits": "{{ " + "9" * 5000 + " }}",
    "elifs": "{% if a %}" + "{% elif b %}" * 7000 + "{% endif %}",
    "nested loops": "{% for i in [1] %}" * 25 + "{% endfor %}" * 25,
    "nested branches": "{% if 1 %}" * 150 + "{% endif %}" * 150,
}


def hostile_templates() -> dict[str, str]:
    """Return all of them by name."""
    text = (Path(__file__).parent / "templates.txt").read_text(encoding="utf-8")
    sections = [each.split("\n", 1) for each in text.split("\n### ")[1:]]
    return {name: template.strip("\n") for name, template in sections} | _REPEATED


def _main(share: int) -> None:
    """Render the templates; a line of JSON for each.

    Those that reach the limits by repetition only have 1 / `share` of them.
    """
    soft = _status("VmSize") + 256 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (soft, soft))
    templates = hostile_templates()
    whole = share
    for name, template in templates.items():
        share = whole if any(loop in template for loop in _REPETITIONS) else 1
        sandbox = Sandbox.for_chats(max_work=MAX_WORK // share, max_memory=MAX_MEMORY // share)
        begin, num_bytes = time.process_time(), _status("VmRSS")
        try:
            text = sandbox.render(sandbox.from_string(template), {})
            ended = f"rendered {text[:100]}"
        except Exception as error:
            ended = f"{type(error).__name__}: {str(error)[:100]}"
        taken = {"seconds": time.process_time() - begin, "bytes": _status("VmHWM") - num_bytes}
        print(json.dumps({"name": name, "ended": ended, **taken}), flush=True)


def _status(field: str) -> int:
    """Return a size of this process, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


if __name__ == "__main__":
    _main(int(sys.argv[1]))
