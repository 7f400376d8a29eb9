"use strict";
/* The pool at one moment, block by block, on a canvas. */

const FREE = 0, CACHED = 1, PRIVATE = 2, SHARED = 3;
const STATES = [
  { name: "free", letter: "" },
  { name: "cached", letter: "C" },
  { name: "private", letter: "P" },
  { name: "shared", letter: "S" },
];
const MAX_CELL = 20, LETTER_CELL = 13, MARK_CELL = 4;
const MAX_ROWS_TOLD = 8;

/** The pool's samples and who held which block. Made by `read`. */
class PoolHistory {
  static async read(packed) {
    const history = new PoolHistory();
    const { blockSize, numBlocks, rowStride, steps, times } = packed;
    Object.assign(history, { blockSize, numBlocks, rowStride, steps, times });
    history.beamRows = new Set(packed.beamRows);
    history.refCounts = await unpack(packed.refCounts);
    history.fills = await unpack(packed.fills);
    history.holdings = {};
    for (const [name, column] of Object.entries(packed.holdings)) {
      history.holdings[name] = await unpack(column);
    }
    history.#indexByBlock();
    return history;
  }

  #indexByBlock() {
    const { block } = this.holdings;
    this.firstOf = new Int32Array(this.numBlocks + 1);
    for (const id of block) this.firstOf[id + 1]++;
    for (let id = 0; id < this.numBlocks; id++) this.firstOf[id + 1] += this.firstOf[id];
    const next = this.firstOf.slice();
    this.byBlock = new Int32Array(block.length);
    block.forEach((id, holding) => { this.byBlock[next[id]++] = holding; });
  }

  refCount(moment, block) { return this.refCounts[moment * this.numBlocks + block]; }

  fill(moment, block) { return this.fills[moment * this.numBlocks + block]; }

  state(moment, block) {
    const holders = this.refCount(moment, block);
    if (holders > 1) return SHARED;
    if (holders === 1) return PRIVATE;
    return this.fill(moment, block) ? CACHED : FREE;
  }

  /** Return how many blocks are in each state. */
  counts(moment) {
    const counts = [0, 0, 0, 0];
    for (let block = 0; block < this.numBlocks; block++) counts[this.state(moment, block)]++;
    return counts;
  }

  /** Return the holdings of a block at a moment. */
  holders(moment, block) {
    const { begin, end } = this.holdings;
    const step = this.steps[moment];
    return [...this.byBlock.subarray(this.firstOf[block], this.firstOf[block + 1])]
      .filter((each) => begin[each] <= step && step < end[each]);
  }

  /** Return the blocks that a row holds at a moment, in order of its table. */
  blocksOf(moment, row) {
    const { begin, end, block, position } = this.holdings;
    const step = this.steps[moment];
    const found = [];
    this.holdings.row.forEach((each, holding) => {
      if (each === row && begin[holding] <= step && step < end[holding]) found.push(holding);
    });
    found.sort((one, other) => position[one] - position[other]);
    return [...new Set(found.map((each) => block[each]))];
  }

  /** Return what there is to tell of a block: lines of text. */
  tell(moment, block) {
    const holders = this.refCount(moment, block);
    return [
      `Block ${count(block)} · ${STATES[this.state(moment, block)].name}`,
      `${count(this.fill(moment, block))} of ${plural(this.blockSize, "token")}`,
      holders ? `held by ${plural(holders, "sequence")}` : "no holder",
      ...this.#tellHolders(holders, this.holders(moment, block)),
    ];
  }

  #tellSample(row, sample) {
    if (this.beamRows.has(row)) return ` (beam ${sample})`;
    return sample ? ` (answer ${sample})` : "";
  }

  /** Return lines on those of a block's holders that are known. */
  #tellHolders(holders, known) {
    const lines = [];
    if (known.length) {
      const { row, sample, position, begin, found } = this.holdings;
      const named = known.slice(0, MAX_ROWS_TOLD)
        .map((each) => `${row[each]}${this.#tellSample(row[each], sample[each])}`);
      const rest = holders - named.length;
      lines.push(`row${holders > 1 ? "s" : ""} ${named.join(", ")}${rest > 0 ? ` and ${count(rest)} more` : ""}`);
      const places = new Set(known.map((each) => position[each]));
      if (places.size === 1) lines.push(`block ${[...places][0]} of ${holders > 1 ? "their tables" : "its table"}`);
      const hits = known.filter((each) => found[each]).length;
      lines.push(`held since step ${count(Math.min(...known.map((each) => begin[each])))}${hits ? `; ${count(hits)} found it in the cache` : ""}`);
    } else if (holders && this.rowStride > 1) {
      lines.push(`(the snapshot has every ${count(this.rowStride)}th row only)`);
    }
    return lines;
  }
}

/** The picture: the moment, the row whose blocks are outlined, and the block pointed at. */
class BlockMap {
  constructor(canvas, history) {
    this.canvas = canvas;
    this.history = history;
    this.moment = 0;
    this.row = null;
    this.cursor = null;
    this.fit();
  }

  /** Choose the largest cells with which the pool fits the width and a height to look at. */
  fit() {
    const width = this.canvas.parentElement.clientWidth;
    const maxHeight = width < 600 ? 460 : 540;
    const { numBlocks } = this.history;
    let cell = MAX_CELL;
    while (cell > 1 && Math.ceil(numBlocks / Math.floor(width / cell)) * cell > maxHeight) cell--;
    this.cell = cell;
    this.columns = Math.max(Math.floor(width / cell), 1);
    this.lines = Math.ceil(numBlocks / this.columns);
    this.ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(width * this.ratio);
    this.canvas.height = Math.round(this.lines * cell * this.ratio);
    this.canvas.style.height = `${this.lines * cell}px`;
    this.draw();
  }

  /** Return the block at a place in the canvas, null where there is none. */
  at(x, y) {
    const column = Math.floor(x / this.cell), line = Math.floor(y / this.cell);
    const block = line * this.columns + column;
    return column >= 0 && column < this.columns && line >= 0 && block < this.history.numBlocks ? block : null;
  }

  /** Return the top left corner of a block's cell. */
  place(block) {
    return [(block % this.columns) * this.cell, Math.floor(block / this.columns) * this.cell];
  }

  draw() {
    const context = this.canvas.getContext("2d");
    const colours = theme();
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const cells = [[], [], [], []];
    for (let block = 0; block < this.history.numBlocks; block++) {
      cells[this.history.state(this.moment, block)].push(block);
    }
    const { blockSize } = this.history;
    cells.forEach((blocks, state) => {
      for (const block of blocks) {
        const [x, y] = this.place(block);
        drawCell(context, colours, state, x, y, this.cell, this.history.fill(this.moment, block) / blockSize);
      }
      drawLetters(context, colours, state, blocks.map((block) => this.place(block)), this.cell);
    });
    this.#outline(context, colours);
  }

  #outline(context, colours) {
    const { cell } = this;
    context.strokeStyle = colours.ink;
    context.lineWidth = Math.max(1, Math.min(2, cell / 5));
    const marked = this.row === null ? [] : this.history.blocksOf(this.moment, this.row);
    for (const block of this.cursor === null ? marked : [...marked, this.cursor]) {
      const [x, y] = this.place(block);
      context.strokeRect(x, y, Math.max(cell - 1, 2), Math.max(cell - 1, 2));
    }
  }
}

/** Draw one block: shared full with a light core, private as full as it is, cached hollow. */
function drawCell(context, colours, state, x, y, cell, fill) {
  const side = cell >= 4 ? cell - 1 : cell;
  const marks = cell >= MARK_CELL;
  if (state === FREE) {
    context.fillStyle = colours.free;
    context.fillRect(x, y, side, side);
  } else if (state === CACHED) {
    context.fillStyle = marks ? colours["cached-tint"] : colours.cached;
    context.fillRect(x, y, side, side);
    if (!marks) return;
    context.strokeStyle = colours.cached;
    const width = side < 8 ? 1 : 1.5;
    context.lineWidth = width;
    context.strokeRect(x + width / 2, y + width / 2, side - width, side - width);
  } else if (state === PRIVATE) {
    const full = marks ? Math.max(Math.round(side * Math.min(fill, 1)), 1) : side;
    context.fillStyle = colours.shade;
    context.fillRect(x, y, side, side);
    context.fillStyle = colours.private;
    context.fillRect(x, y + side - full, side, full);
    if (!marks) return;
    context.strokeStyle = colours.private;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, side - 1, side - 1);
  } else {
    context.fillStyle = colours.shared;
    context.fillRect(x, y, side, side);
    if (!marks || cell >= LETTER_CELL) return;
    const core = Math.max(Math.round(side / 3), 2);
    context.fillStyle = colours.panel;
    context.fillRect(x + (side - core) / 2, y + (side - core) / 2, core, core);
  }
}

/** Write the state's letter where cells have room for one. */
function drawLetters(context, colours, state, places, cell) {
  const { letter } = STATES[state];
  if (cell < LETTER_CELL || !letter) return;
  context.font = `600 ${Math.round(cell * 0.55)}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillStyle = state === SHARED ? colours.panel : colours.ink;
  for (const [x, y] of places) context.fillText(letter, x + (cell - 1) / 2, y + cell / 2);
}
