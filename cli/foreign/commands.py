"""Commands of other programs: which one it is here, or why there is none."""

_GENERATE = "pagedrun generate INPUT answers the rows of a file"
_ASK = 'pagedrun ask "TEXT" answers one question'
_SHOW = "pagedrun show INPUT prints a prompt as the model will read it"
_NO_SERVER = "pagedrun has no server: pagedrun generate INPUT answers the rows of a file"
_DOCTOR = "pagedrun doctor checks this machine"
_HUB = "pagedrun takes models by their name on the hub and downloads them when needed: "

COMMANDS = {
    "run": _GENERATE,
    "batch": _GENERATE,
    "run-batch": _GENERATE,
    "infer": _GENERATE,
    "inference": _GENERATE,
    "predict": _GENERATE,
    "complete": _ASK,
    "completion": _ASK,
    "chat": _ASK + ", pagedrun generate a file of chats",
    "prompt": _ASK,
    "query": _ASK,
    "preview": _SHOW,
    "render": _SHOW,
    "tokenize": _SHOW,
    "serve": _NO_SERVER,
    "server": _NO_SERVER,
    "api": _NO_SERVER,
    "benchmark": "pagedrun bench measures this machine",
    "eval": "pagedrun lm-eval runs lm-evaluation-harness",
    "evaluate": "pagedrun lm-eval runs lm-evaluation-harness",
    "pull": _HUB + "see --model",
    "download": _HUB + "see --model",
    "inspect": "pagedrun inspect-cache TARGET shows the memory of a run",
    "cache": "pagedrun inspect-cache TARGET shows the memory of a run",
    "dry-run": "pagedrun plan INPUT shows what a run would do, without weights",
    "env": _DOCTOR,
    "collect-env": _DOCTOR,
    "info": _DOCTOR,
    "compile": "pagedrun warmup compiles the kernels ahead of a run",
    "version": "pagedrun --version",
}


def explain(name: str) -> str | None:
    """Return a sentence about a command that does not exist, None where there is none."""
    told = COMMANDS.get(name)
    return None if told is None else f"there is no command {name}: {told}"
