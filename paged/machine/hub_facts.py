"""HubFacts: whether models can be fetched from the hub."""

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import TypedDict

TIMEOUT = 3.0  # seconds


class HubFacts(TypedDict):
    """`reachable` is None in offline mode, where it is not tried. `seconds` is how long that took;
    `why` says why the hub cannot be reached.
    """

    endpoint: str
    offline: bool
    reachable: bool | None
    seconds: float | None
    why: str | None


def hub_facts(
    ask: Callable[[str], None] | None = None,
    timeout: float = TIMEOUT,
    *,
    offline: bool | None = None,
) -> HubFacts:
    """Return whether the hub answers within `timeout` seconds. `ask` raises `OSError` if not.

    `offline` says whether that is not to be tried; None: as HF_HUB_OFFLINE says.
    """
    from huggingface_hub import constants  # here: it takes a moment

    facts: HubFacts = {
        "endpoint": constants.ENDPOINT,
        "offline": bool(constants.HF_HUB_OFFLINE) if offline is None else offline,
        "reachable": None,
        "seconds": None,
        "why": None,
    }
    if facts["offline"]:
        return {**facts, "why": "HF_HUB_OFFLINE is set: only models in the cache are used"}
    began = time.monotonic()
    why = _asked(ask or _ask, facts["endpoint"], timeout)
    seconds = round(time.monotonic() - began, 3)
    return {**facts, "reachable": why is None, "seconds": seconds, "why": why}


def _asked(ask: Callable[[str], None], endpoint: str, timeout: float) -> str | None:
    """Ask in a thread of its own, since looking up a name knows no timeout; return what failed."""
    outcome: list[str | None] = []

    def run() -> None:
        try:
            ask(endpoint)
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            outcome.append(f"{type(error).__name__}: {reason}")
        else:
            outcome.append(None)

    thread = threading.Thread(target=run, name="hub", daemon=True)
    thread.start()
    thread.join(timeout)
    return outcome[0] if outcome else f"no answer within {timeout:g} s"


def _ask(endpoint: str) -> None:
    request = urllib.request.Request(endpoint, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=TIMEOUT).close()
    except urllib.error.HTTPError:
        return  # it has answered
