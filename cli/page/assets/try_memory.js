"use strict";
/* Memories of the panel "Try it". Without room, an operation returns false and changes nothing. */

/** Blocks with reference counts, copied on write. The whole blocks of a system prompt of `numShared` tokens are kept. */
class BlockMemory {
  constructor(numBlocks, blockSize, numShared) {
    this.refCounts = Array(numBlocks).fill(0);
    this.fills = Array(numBlocks).fill(0); // tokens stored in each block
    this.empty = [...Array(numBlocks).keys()].reverse(); // last freed, first taken
    this.published = Array(Math.floor(numShared / blockSize)).fill(null); // blocks of the system prompt
    this.cached = []; // of these, without a holder, in order of eviction
    Object.assign(this, { blockSize, tables: new Map(), copies: 0 }); // block tables by request
  }

  get numFree() { return this.empty.length + this.cached.length; }
  numTokens(request) { return this.tables.get(request).reduce((sum, id) => sum + this.fills[id], 0); }

  /** Return the slots of a request, in the order of its tokens. */
  slots(request) {
    return this.tables.get(request).flatMap((id) => [...Array(this.blockSize).keys()].map((slot) => id * this.blockSize + slot));
  }

  /** Add a request of `numTokens` tokens, at least 1 or all of the system prompt if it `shares` that. */
  add(request, numTokens, shares) {
    const missing = this.published.indexOf(null);
    const matched = shares ? this.published.slice(0, missing < 0 ? undefined : missing) : [];
    const numNew = Math.ceil(numTokens / this.blockSize) - matched.length;
    if (numNew > this.numFree - matched.filter((id) => !this.refCounts[id]).length) return false;
    matched.forEach((id) => this.hold(id));
    const table = [...matched, ...Array.from({ length: numNew }, () => this.take())];
    table.forEach((id, index) => { this.fills[id] = Math.min(this.blockSize, numTokens - index * this.blockSize); });
    if (shares) this.published = this.published.map((id, index) => id ?? table[index]);
    this.tables.set(request, table);
    return true;
  }

  /** Store one more token: in the last block, in a copy of it if others hold it too, or in a new one. */
  append(request) {
    const table = this.tables.get(request), last = table.at(-1);
    const isFull = this.fills[last] === this.blockSize, isShared = !isFull && this.refCounts[last] > 1;
    if ((isFull || isShared) && !this.numFree) return false;
    if (isFull) table.push(this.take());
    if (isShared) table[table.length - 1] = this.copyOnWrite(last);
    this.fills[table.at(-1)] += 1;
    return true;
  }

  copyOnWrite(shared) {
    const own = this.take();
    this.fills[own] = this.fills[shared];
    this.release(shared);
    this.copies += 1;
    return own;
  }

  /** Add a request that holds all blocks of another one. */
  fork(request, child) {
    this.tables.get(request).forEach((id) => this.hold(id));
    return Boolean(this.tables.set(child, [...this.tables.get(request)]));
  }

  end(request) {
    this.tables.get(request).reverse().forEach((id) => this.release(id));
    this.tables.delete(request);
  }

  hold(id) {
    if (!this.refCounts[id]++) this.cached.splice(this.cached.indexOf(id), 1);
  }

  /** Take a free block; one of the system prompt only if there is no other. */
  take() {
    const id = this.empty.pop() ?? this.cached.shift();
    [this.refCounts[id], this.fills[id]] = [1, 0];
    this.published = this.published.map((each) => (each === id ? null : each));
    return id;
  }

  release(id) {
    if (--this.refCounts[id]) return;
    if (this.published.includes(id)) return void this.cached.push(id);
    this.fills[id] = 0;
    this.empty.push(id);
  }
}

/** Contiguous pieces of `reserved` slots, 0: as many as the request will need; each in the first hole with room. */
class ContiguousMemory {
  constructor(numSlots, reserved) {
    Object.assign(this, { numSlots, reserved, pieces: new Map(), copies: 0 }); // copies: tokens
  }

  /** [first slot, number of slots] of each hole, in ascending order. */
  get holes() {
    const pieces = [...this.pieces.values()].sort((one, other) => one.start - other.start);
    const starts = [0, ...pieces.map(({ start, length }) => start + length)];
    const ends = [...pieces.map(({ start }) => start), this.numSlots];
    return starts.map((start, index) => [start, ends[index] - start]).filter(([, length]) => length);
  }

  get numFree() { return this.holes.reduce((sum, [, length]) => sum + length, 0); }
  numTokens(request) { return this.pieces.get(request).stored; }
  append(request) { return Boolean(this.pieces.get(request).stored += 1); }
  end(request) { this.pieces.delete(request); }
  slots(request, { start, length } = this.pieces.get(request)) { return Array.from({ length }, (_, token) => start + token); }

  add(request, stored, shares, needed) {
    const length = this.reserved || needed, hole = this.holes.find((each) => each[1] >= length);
    return Boolean(hole && this.pieces.set(request, { start: hole[0], length, stored }));
  }

  /** Copy the tokens of a request into a piece of the same length. */
  fork(request, child) {
    const { stored, length } = this.pieces.get(request), fits = this.add(child, stored, false, length);
    this.copies += fits ? stored : 0;
    return fits;
  }
}
