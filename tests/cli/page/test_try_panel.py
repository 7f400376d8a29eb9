"""The panel "Try it" of `bench memory --html`, whose memories must do what the real ones do."""

import json
import random
from collections.abc import Iterable
from typing import Any

import pytest

from pagedrun.cli.bench.memory import memory_document
from pagedrun.paged.bench.memory import MemoryBench, NormalLengths
from pagedrun.paged.bench.memory_flow import FirstFit
from pagedrun.paged.cache.block_pool import BlockPool
from pagedrun.paged.values.planned_request import BlockKey
from tests.cli.page.conftest import OpenPage, Watched, wait_until

NUM_SEQUENCES = 500
NUM_OPERATIONS = 30
NUM_CONTROLS = 25  # sequences in which a planted fault must show
Operation = tuple[Any, ...]  # a method of the page's memory, and its arguments
Drawn = tuple[list[int], list[Operation]]  # arguments of the constructor, and operations


@pytest.fixture(scope="module")
def shared_page(watched: Watched, tmp_path_factory: pytest.TempPathFactory) -> Any:
    bench = MemoryBench(lengths=NormalLengths(40, 20, 8, 128), counts=(4, 8), num_shared=20)
    path = tmp_path_factory.mktemp("page") / "memory.html"
    memory_document(bench.run(lambda _: None), []).write(path)
    return watched.open(path)


@pytest.fixture
def page(shared_page: Any, open_page: OpenPage) -> Any:
    shared_page.set_viewport_size({"width": 1280, "height": 900})
    return shared_page


class Paged:
    """The operations of the page's `BlockMemory`, on the real pool."""

    def __init__(self, num_blocks: int, block_size: int, num_shared: int) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.tables: dict[str, list[int]] = {}
        self.keys = BlockKey.chain(range(num_shared), block_size)
        self.pool.pin_path(self.keys)

    def add(self, request: str, num_tokens: int, shares: bool) -> bool:
        pool, keys = self.pool, self.keys if shares else []
        matched = pool.match(keys)
        num_new = pool.num_blocks_for(num_tokens) - len(matched)
        if num_new + pool.num_free_among(matched) > pool.num_free:
            return False
        pool.share(matched)
        table = matched + (pool.allocate(num_new) or [])
        for index, block_id in enumerate(table):
            stored = min(pool.block_size, num_tokens - index * pool.block_size)
            pool.record_fill(block_id, stored)
        for block_id, key in zip(table, keys, strict=False):
            pool.publish(block_id, key)
        self.tables[request] = table
        return True

    def append(self, request: str) -> bool:
        pool, table = self.pool, self.tables[request]
        if pool.fills[table[-1]] == pool.block_size:
            new = pool.allocate(1)
            if new is None:
                return False
            table += new
        elif pool.ref_count(table[-1]) > 1:
            copy = pool.fork_for_write(table[-1])
            if copy is None:
                return False
            table[-1] = copy
        pool.record_fill(table[-1], pool.fills[table[-1]] + 1)
        return True

    def fork(self, request: str, child: str) -> bool:
        self.pool.share(self.tables[request])
        self.tables[child] = list(self.tables[request])
        return True

    def end(self, request: str) -> None:
        self.pool.release(self.tables.pop(request))

    def state(self) -> list[Any]:
        pool = self.pool
        return [
            sorted(self.tables.items()),
            list(pool.ref_counts),
            list(pool.fills),
            [pool.num_free, pool.num_cached, pool.num_shared, pool.counts.copies],
        ]

    def check(self) -> None:
        self.pool.check(self.tables.values())


PAGED_STATE = """(memory) => [
  [...memory.tables].sort(([one], [other]) => (one < other ? -1 : 1)),
  memory.refCounts,
  memory.fills,
  [memory.numFree, memory.cached.length,
    memory.refCounts.filter((each) => each > 1).length, memory.copies],
]"""


class Pieces:
    """The operations of the page's `ContiguousMemory`, on the allocator of `bench memory`."""

    def __init__(self, num_slots: int, reserved: int) -> None:
        self.memory, self.reserved = FirstFit(num_slots), reserved
        self.pieces: dict[str, list[int]] = {}  # first slot, length and stored tokens
        self.copies = 0

    def add(self, request: str, stored: int, shares: bool, needed: int) -> bool:
        length = self.reserved or needed
        start = self.memory.allocate(length)
        if start is None:
            return False
        self.pieces[request] = [start, length, stored]
        return True

    def append(self, request: str) -> bool:
        self.pieces[request][2] += 1
        return True

    def fork(self, request: str, child: str) -> bool:
        _, length, stored = self.pieces[request]
        if not self.add(child, stored, False, length):
            return False
        self.copies += stored
        return True

    def end(self, request: str) -> None:
        start, length, _ = self.pieces.pop(request)
        self.memory.release(start, length)

    def state(self) -> list[Any]:
        memory = self.memory
        return [sorted(self.pieces.items()), memory.holes, memory.num_free, self.copies]

    def check(self) -> None:
        assert self.memory.num_free >= 0


PIECES_STATE = """(memory) => [
  [...memory.pieces].sort(([one], [other]) => (one < other ? -1 : 1))
    .map(([name, { start, length, stored }]) => [name, [start, length, stored]]),
  memory.holes, memory.numFree, memory.copies,
]"""

FAULTS = {
    "none": "{}",
    "writes into a shared block": "{ copyOnWrite(shared) { return shared; } }",
    "frees a shared block": """{ release(id) {
      this.refCounts[id] = 1;
      original.prototype.release.call(this, id);
    } }""",
    "takes the block that was freed first": """{ take() {
      this.empty.reverse();
      const id = original.prototype.take.call(this);
      this.empty.reverse();
      return id;
    } }""",
    "forgets to count a fork": """{ fork(request, child) {
      return Boolean(this.tables.set(child, [...this.tables.get(request)]));
    } }""",
    "takes the last hole": """{ add(...given) {
      const { get } = Object.getOwnPropertyDescriptor(original.prototype, "holes");
      const reversed = { configurable: true, get() { return get.call(this).reverse(); } };
      Object.defineProperty(this, "holes", reversed);
      const fits = original.prototype.add.apply(this, given);
      delete this.holes;
      return fits;
    } }""",
}
# Returns lines of JSON: after each operation, whether it had room, and the state.
REPLAY = """(drawn) => {
  const original = KIND, state = STATE;
  class Memory extends original {}
  Object.assign(Memory.prototype, FAULT);
  const line = (memory, [name, ...given]) =>
    JSON.stringify([memory[name](...given) ?? null, state(memory)]);
  return drawn.map(([given, operations]) => {
    const memory = new Memory(...given);
    try {
      return operations.map((each) => line(memory, each)).join("\\n");
    } catch (error) {
      return String(error); // the lines differ then
    }
  });
}"""


def drawn_paged(seed: int) -> tuple[Drawn, str]:
    """Return operations on a pool, and the lines of what the real one does."""
    rng = random.Random(f"paged {seed}")
    block_size = rng.choice((1, 2, 3, 4, 8))
    num_shared = rng.randrange(4 * block_size)
    given = [rng.randint(4, 20), block_size, num_shared]
    memory = Paged(*given)

    def draw_add(name: str) -> Operation:
        shares = rng.random() < 0.5
        return "add", name, num_shared * shares + rng.randint(1, 3 * block_size), shares

    return drawn(rng, given, memory, memory.tables, draw_add)


def drawn_pieces(seed: int) -> tuple[Drawn, str]:
    """Return operations on a contiguous memory, and the lines of what the allocator does."""
    rng = random.Random(f"pieces {seed}")
    given = [rng.randint(30, 120), rng.choice((0, 0, 0, 24))]
    memory = Pieces(*given)

    def draw_add(name: str) -> Operation:
        length = rng.randint(1, 24)
        return "add", name, rng.randint(1, length), False, length

    return drawn(rng, given, memory, memory.pieces, draw_add)


def drawn(
    rng: random.Random,
    given: list[int],
    memory: Paged | Pieces,
    running: dict[str, list[int]],
    draw_add: Any,
) -> tuple[Drawn, str]:
    """Draw operations on a memory; do them; check it; return them and their lines."""
    operations: list[Operation] = []
    lines = []
    for number in range(NUM_OPERATIONS):
        kind = rng.choices(("add", "append", "fork", "end"), (3, 6, 2, 2))[0] if running else "add"
        name = rng.choice(sorted(running) or [""])
        operation: Operation = (kind, name, str(number)) if kind == "fork" else (kind, name)
        operation = draw_add(str(number)) if kind == "add" else operation
        operations.append(operation)
        result = getattr(memory, operation[0])(*operation[1:])
        lines.append(json.dumps([result, memory.state()], separators=(",", ":")))
    memory.check()
    return (given, operations), "\n".join(lines)


def replayed(page: Any, kind: str, found: Iterable[tuple[Drawn, str]], fault: str) -> list[str]:
    script = REPLAY.replace("KIND", kind).replace("FAULT", FAULTS[fault])
    lines: list[str] = page.evaluate(
        script.replace("STATE", STATES[kind]), [drawn for drawn, _ in found]
    )
    return lines


KINDS = {"BlockMemory": drawn_paged, "ContiguousMemory": drawn_pieces}
STATES = {"BlockMemory": PAGED_STATE, "ContiguousMemory": PIECES_STATE}


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_operations_end_as_in_the_real_memory(page: Any, kind: str) -> None:
    """Tables, reference counts, fills, free blocks and copies after each of 15,000 operations."""
    found = [KINDS[kind](seed) for seed in range(NUM_SEQUENCES)]
    lines = [line for _, each in found for line in each.split("\n")]
    assert sum(line.startswith("[false") for line in lines) > 100  # refusals are drawn, too
    shown = replayed(page, kind, found, "none")
    for (drawn, expected), got in zip(found, shown, strict=True):
        assert got == expected, drawn


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("BlockMemory", "writes into a shared block"),
        ("BlockMemory", "frees a shared block"),
        ("BlockMemory", "takes the block that was freed first"),
        ("BlockMemory", "forgets to count a fork"),
        ("ContiguousMemory", "takes the last hole"),
    ],
)
def test_the_comparison_finds_a_fault(page: Any, kind: str, fault: str) -> None:
    found = [KINDS[kind](seed) for seed in range(NUM_CONTROLS)]
    shown = replayed(page, kind, found, fault)
    differing = [got != expected for (_, expected), got in zip(found, shown, strict=True)]
    assert sum(differing) > NUM_CONTROLS // 4


def figures(page: Any, lane: int) -> dict[str, str]:
    """Return the counters of a memory, by name."""
    found: dict[str, str] = page.evaluate(
        "(lane) => Object.fromEntries([...document.querySelectorAll('.lane')[lane]"
        ".querySelectorAll('[data-figure]')]"
        ".map((each) => [each.dataset.figure, each.textContent]))",
        lane,
    )
    return found


def kinds(page: Any, lane: int) -> list[str]:
    """Return what each slot of a memory holds."""
    found: list[str] = page.evaluate(
        "(lane) => [...document.querySelectorAll('.lane')[lane].querySelectorAll('.slots span')]"
        ".map((each) => each.dataset.kind)",
        lane,
    )
    return found


def test_the_page_opens_with_a_refusal_shared_blocks_and_a_copy(page: Any) -> None:
    page.reload()
    assert figures(page, 0)["wait"].endswith(": 0 free, largest 0.")
    exact, blocks = figures(page, 1), figures(page, 2)
    assert int(exact["refused"]) > 0
    assert page.locator(".lane.short .wait").count() == 1
    needed, free, largest = (
        int(word.strip(":,.")) for word in exact["wait"].split() if word[0].isdigit()
    )
    assert largest < needed <= free
    assert (blocks["waiting"], blocks["copies"]) == ("0", "1")
    assert int(blocks["saved"]) > 0
    assert page.locator(".slots b:text-matches('×[2-9]')").count() > 0


def test_keys_do_what_buttons_do_and_counters_move(page: Any) -> None:
    page.click("[data-act=clear]")
    assert {*kinds(page, 0), *kinds(page, 1), *kinds(page, 2)} == {"free"}
    for key in "paa":
        page.keyboard.press(key)
    assert page.get_attribute("[data-act=system]", "aria-pressed") == "true"
    assert [figures(page, lane)["running"] for lane in range(3)] == ["2", "2", "2"]
    # Two requests hold the system prompt twice in pieces, once in blocks.
    assert [kinds(page, lane).count("system") for lane in range(3)] == [16, 16, 8]
    assert kinds(page, 0).count("free") == 144 - 2 * 24
    assert figures(page, 2)["saved"] == "2"
    page.keyboard.press("f")
    assert [figures(page, lane)["running"] for lane in range(3)] == ["3", "3", "3"]
    assert int(figures(page, 0)["copies"]) > 8
    table = figures(page, 2)["place"].split(": ")[1].split(", ")
    assert figures(page, 2)["saved"] == str(2 + len(table))
    before = int(figures(page, 2)["copies"])
    for _ in range(4):  # some step writes into the block that both hold, unless it is full
        page.keyboard.press("s")
    assert int(figures(page, 2)["copies"]) - before <= 1
    assert page.inner_text("[role=status]").startswith("Step 4: ")
    page.keyboard.press("Control+e")
    assert page.locator(".chips button").count() == 3
    page.keyboard.press("e")
    assert page.locator(".chips button").all_text_contents() == ["B", "C"]
    page.locator(".chips button", has_text="C").press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "C"
    page.keyboard.press("s")  # the buttons are made again, and the keys still work
    assert page.inner_text("[role=status]").startswith("Step 5: ")
    assert figures(page, 2)["place"].startswith("Block table of C: 0, 1, ")


def test_an_empty_panel_and_a_full_one_say_so(page: Any) -> None:
    page.click("[data-act=clear]")
    for act in ("fork", "end"):
        page.click(f"[data-act={act}]")
        assert page.inner_text("[role=status]") == "Add a request first."
    for _ in range(15):
        page.keyboard.press("a")
    assert page.locator(".chips button").count() == 14
    assert page.inner_text("[role=status]") == "Step, or end one, to add more."
    # Every request is answered in every memory, whatever waits and is preempted.
    page.evaluate(
        "for (let step = 0; step < 120; step++) document.querySelector('[data-act=step]').click()"
    )
    assert page.locator(".chips button").count() == 0
    assert [figures(page, lane)["done"] for lane in range(3)] == ["14", "14", "14"]


def test_a_phone_keeps_the_buttons_in_sight(page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    wait_until(page, "document.documentElement.scrollWidth <= 390")
    page.evaluate("document.querySelectorAll('.lane')[2].scrollIntoView({ block: 'end' })")
    wait_until(page, "document.querySelector('#try .top').getBoundingClientRect().top >= 0")
    box = page.locator("[data-act=step]").bounding_box()
    assert 0 <= box["y"] < 200
