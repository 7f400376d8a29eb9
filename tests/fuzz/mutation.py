"""Changes of a file that leave the form around its contents whole.

A changed byte in packed or framed contents is refused by a length or a sum, and what is behind
these would never be reached.
"""

import gzip
import hashlib
import io
import json
import random
import zipfile
import zlib
from collections.abc import Callable
from copy import deepcopy
from typing import Any

Change = Callable[[bytes], bytes]
"""Changes any bytes: a few of them at random, or as the fuzzer likes."""
Mutate = Callable[[bytes, Change], bytes]

DEEP = 960  # a list of lists that json parses, and that a recursive function may not walk
# Values that are of the wrong type, just out of a range, or beyond what C or a double has.
_VALUES: list[Any] = [
    *(None, True, False, "", "x", "\ud800", "\x00\x1b[2J", "é" * 300, [], {}, [[]], {"": {}}),
    *(0, 1, -1, 2, 3, 64, 255, 2**15, 2**31 - 1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1),
    *(0.0, -0.0, 0.5, 1e-320, 1e308, float("inf"), float("nan"), 10**400),
]


def some_bytes(chance: random.Random) -> Change:
    """Return the change of a few bytes in plain ways."""

    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(changed) + 1)
            match chance.randrange(5):
                case 0:
                    changed[at : at + 1] = bytes([chance.randrange(256)])
                case 1:
                    changed[at : at + 8] = chance.choice([0, 2**31, 2**63, 2**64 - 1]).to_bytes(8)
                case 2:
                    del changed[at : at + chance.randint(1, 16)]
                case 3:
                    changed[at:at] = changed[chance.randrange(at + 1) :][: chance.randint(1, 64)]
                case _:
                    del changed[at:]
        return bytes(changed)

    return change


def bytes_alone(data: bytes, change: Change) -> bytes:
    """Change any bytes."""
    return change(data)


def json_tree(data: bytes, change: Change) -> bytes:
    """Replace, remove or repeat values of a JSON text; or change its bytes."""
    chance = random.Random(change(data))
    try:
        tree = json.loads(data)
        return _tree(tree, chance, change) if chance.random() < 0.8 else change(data)
    except (ValueError, RecursionError):
        return change(data)


def _tree(tree: Any, chance: random.Random, change: Change) -> bytes:
    root = [tree]
    for _ in range(chance.randint(1, 3)):
        nodes = _nodes(root)
        node, key = chance.choice(nodes)
        other, theirs = chance.choice(nodes)
        match chance.randrange(8):
            case 0 | 1 | 2:
                node[key] = deepcopy(chance.choice(_VALUES))  # it may be changed next
            case 3:
                node[key] = json.loads(json.dumps(other[theirs]))
            case 4 if len(nodes) < 200:
                node[key] = [node[key]] * chance.choice([1, 2, 30])
            case 5 if isinstance(node[key], int):
                node[key] += chance.choice([-1, 1, 7])
            case 6 if isinstance(node[key], str):
                node[key] = change(node[key].encode("utf-8", "replace")).decode("utf-8", "replace")
            case 7 if isinstance(node, dict):
                node[chance.choice(["", "x", str(theirs), str(theirs) * 2])] = node.pop(key)
            case _:
                node.pop(key)
        if not root:
            root.append(None)
    text = json.dumps(root[0])
    if chance.random() < 0.02:  # the least deep that is too deep is where it is read
        depth = DEEP - chance.randrange(200)
        text = text.replace(chance.choice(["null", "0", "1", '"x"']), "[" * depth + "]" * depth, 1)
    return text.encode()


def json_lines(data: bytes, change: Change) -> bytes:
    """Change a line of JSON."""
    lines = data.split(b"\n")
    which = random.Random(change(data)).randrange(len(lines))
    lines[which] = json_tree(lines[which], change)
    return b"\n".join(lines)


def _nodes(root: list[Any]) -> list[tuple[Any, Any]]:
    """Return the containers of a tree with a key for each of their values."""
    found, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            found.append((node, key))
            if isinstance(node[key], dict | list):
                waiting.append(node[key])
    return found


def framed_json(data: bytes, change: Change) -> bytes:
    """Change the JSON header of a safetensors file, and its length with it; or any bytes."""
    end = 8 + int.from_bytes(data[:8], "little")
    if not 8 < end <= len(data) or len(change(data)) % 4 == 0:
        return change(data)
    header = json_tree(data[8:end], change)
    return len(header).to_bytes(8, "little") + header + data[end:]


def stored_zip(data: bytes, change: Change) -> bytes:
    """Change a member of an archive, which gets its sum anew; or any bytes."""
    packed = io.BytesIO()
    chance = random.Random(change(data))
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(packed, "w") as new:
            names = old.namelist()
            which = chance.choice(names)
            for name in names:
                member = old.read(name)
                if name == which:
                    # The header of an array ends with a newline; what follows are its numbers.
                    cut = member.find(b"\n") + 1 if chance.random() < 0.7 else 0
                    is_json = name == "facts.npy"
                    inner = json_tree if is_json else bytes_alone
                    member = member[:cut] + inner(member[cut:], change)[: 2**16]
                new.writestr(zipfile.ZipInfo(name), member)
    except Exception:  # no archive any more
        return change(data)
    return packed.getvalue()


def store_entry(data: bytes, change: Change) -> bytes:
    """Change the header of a file of a prefix store, and the digest before it."""
    end = 8 + int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8:end])
        text = header["__metadata__"]["pagedrun_prefix"].partition(" ")[2]
        text = json_tree(text.encode(), change).decode()
        digest = hashlib.sha256(text.encode()).hexdigest()
        header["__metadata__"]["pagedrun_prefix"] = f"{digest} {text}"
        made = json.dumps(header).encode()
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return change(data)
    return len(made).to_bytes(8, "little") + made + data[end:]


def gzipped(data: bytes, change: Change) -> bytes:
    """Change the bytes below the compression, or above."""
    try:
        below = gzip.decompress(data)
    except (OSError, EOFError, zlib.error):
        return change(data)
    return gzip.compress(change(below), 1) if len(data) % 2 else change(data)
