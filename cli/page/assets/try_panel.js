"use strict";
/* The panel "Try it": the same requests in three memories, each with a queue of its own. */

const SLOTS = 144, BLOCK = 4, SYSTEM = 8, LONGEST = 24, MOST = 14, FEW = "Add a request first.", MANY = "Step, or end one, to add more.";
// What has happened when the page opens: it shows holes too small for a request, shared blocks and a copy.
const SEED = 110866, SCENE = "system add add system add add add add step step step fork step step step step step step add add add";

/** Requests in a memory: those that run, and those that wait, each with its tokens; first come, first served. */
class Lane {
  constructor(memory, part) {
    Object.assign(this, { memory, part, running: [], waiting: [], done: 0, refused: new Set() });
  }

  /** Whether a request waits although enough slots are free. */
  get lacksHole() {
    const { waiting: [[next] = []], memory: { pieces, reserved, numFree } } = this;
    return Boolean(next && pieces && numFree >= (reserved || next.length));
  }

  /** Let requests in for which there is room, `joining` ones after those that wait. */
  admit(...joining) {
    this.waiting.push(...joining);
    const isAdmitted = ([request, numTokens] = []) => request && this.memory.add(request, numTokens, request.shares, request.length);
    while (isAdmitted(this.waiting[0])) this.running.push(this.waiting.shift()[0]);
    if (this.lacksHole) this.refused.add(this.waiting[0][0]);
  }

  /** Fork where the parent runs; elsewhere, or without room, the child waits with the parent's tokens. */
  fork(parent, child) {
    const runs = this.running.includes(parent), [, numTokens] = this.waiting.find(([each]) => each === parent) ?? [];
    if (runs && this.memory.fork(parent, child)) this.running.push(child);
    else this.admit([child, runs ? this.memory.numTokens(parent) : numTokens ?? parent.numPrompt]);
  }

  end(request) {
    if (this.running.includes(request)) this.memory.end(request);
    this.running = this.running.filter((each) => each !== request);
    this.waiting = this.waiting.filter(([each]) => each !== request);
    this.admit();
  }

  /** Store a token of each running request; if no block is free, the last one gives back its own and waits. */
  step() {
    for (const request of [...this.running]) {
      while (this.running.includes(request) && !this.memory.append(request)) {
        const last = this.running.pop();
        this.waiting.unshift([last, this.memory.numTokens(last)]);
        this.memory.end(last);
      }
    }
    const ended = this.running.filter((each) => this.memory.numTokens(each) >= each.length);
    this.done += ended.length;
    ended.forEach((each) => this.end(each));
  }

  /** Return what each slot holds, and of which request. */
  states(chosen) {
    const { memory } = this, states = Array(SLOTS).fill({ kind: "free" });
    for (const id of memory.cached ?? []) states.fill({ kind: "cached", label: "kept" }, id * BLOCK, (id + 1) * BLOCK);
    for (const request of this.running) memory.slots(request).forEach((slot, token) => {
      const kind = token >= memory.numTokens(request) ? "reserved" : request.shares && token < SYSTEM ? "system" : "stored";
      const isChosen = request === chosen || states[slot].isChosen, label = !token || memory.tables ? request.name : "";
      states[slot] = { kind, hue: request.hue, label, isChosen };
    });
    return states;
  }

  draw(chosen) {
    const { memory, running, waiting, done, refused } = this, states = this.states(chosen);
    const show = (place, { kind, hue, label, isChosen }, holders) => {
      Object.assign(place.dataset, { kind, holders });
      place.classList.toggle("chosen", Boolean(isChosen));
      place.style.setProperty("--hue", hue);
      if (!place.children.length) place.textContent = memory.pieces && label;
      else place.firstElementChild.textContent = holders > 1 ? `×${holders}` : label;
    };
    this.part.querySelectorAll(".slots span").forEach((cell, slot) => show(cell, states[slot], 1));
    this.part.querySelectorAll(".slots div").forEach((block, id) => show(block, states[id * BLOCK], memory.refCounts[id]));
    const [used, empty] = [["system", "stored"], ["reserved"]].map((kinds) => states.filter(({ kind }) => kinds.includes(kind)).length);
    const figures = { running: running.length, waiting: waiting.length, done, used: percent(used / (used + empty || 1)), empty,
      refused: refused.size, copies: memory.copies, saved: memory.refCounts?.reduce((sum, each) => sum + Math.max(each - 1, 0), 0),
      wait: this.#wait(), place: running.includes(chosen) ? this.#place(chosen) : "" };
    for (const place of this.part.querySelectorAll("[data-figure]")) place.textContent = figures[place.dataset.figure];
    this.part.classList.toggle("short", this.lacksHole);
  }

  #place(request) {
    const blocks = this.memory.tables?.get(request), slots = this.memory.slots(request);
    return blocks ? `Block table of ${request.name}: ${blocks.join(", ")}` : `Piece of ${request.name}: slots ${slots[0]} to ${slots.at(-1)}`;
  }

  #wait() {
    const { waiting: [[request, numTokens] = []], memory: { holes, tables, reserved, numFree } } = this;
    if (!request) return "No request waits.";
    if (tables) return `${request.name} needs ${plural(Math.ceil(numTokens / BLOCK), "block")}: ${numFree} free.`;
    return `${request.name} needs a hole of ${reserved || request.length}: ${numFree} free, largest ${Math.max(0, ...holes.map(([, length]) => length))}.`;
  }
}

/** The requests, the buttons and the keys. */
class TryPanel {
  constructor(panel) {
    this.panel = panel;
    for (const button of panel.querySelectorAll("[data-act]")) button.addEventListener("click", () => this.tell(this[button.dataset.act]()));
    panel.addEventListener("keydown", ({ key, ctrlKey, metaKey, altKey }) => {
      if (!ctrlKey && !metaKey && !altKey) panel.querySelector(`[aria-keyshortcuts="${CSS.escape(key.toUpperCase())}"]`)?.click();
    });
    this.clear();
    for (const act of SCENE.split(" ")) this.tell(this[act]());
    panel.hidden = false;
  }

  clear() {
    const memories = [new ContiguousMemory(SLOTS, LONGEST), new ContiguousMemory(SLOTS, 0), new BlockMemory(SLOTS / BLOCK, BLOCK, SYSTEM)];
    this.lanes = [...this.panel.querySelectorAll(".lane")].map((part, index) => new Lane(memories[index], part));
    Object.assign(this, { requests: [], chosen: undefined, shares: false, seed: SEED, numAdded: 0, numSteps: 0 });
    return "All memories are empty.";
  }

  /** Return a whole number from `low` to `high`; the same ones in every visit. */
  random(low, high) {
    return low + ((this.seed = (this.seed * 48271) % (2 ** 31 - 1)) % (high - low + 1));
  }

  request(fields) {
    const made = { ...fields, name: String.fromCharCode(65 + (this.numAdded++ % 26)) };
    this.requests.push(made);
    return made;
  }

  add() {
    if (this.requests.length >= MOST) return MANY;
    const { shares } = this, own = this.random(2, 5), numPrompt = own + (shares ? SYSTEM : 0), answer = this.random(4, LONGEST - numPrompt);
    const made = this.request({ shares, numPrompt, length: numPrompt + answer, hue: 120 + ((this.numAdded * 63 + 85) % 220) });
    this.lanes.forEach((lane) => lane.admit([made, numPrompt]));
    return `${made.name}: ${shares ? `system prompt of ${SYSTEM}, ` : ""}prompt of ${own}, answer of ${answer} tokens.`;
  }

  system() {
    this.shares = !this.shares;
    return this.shares ? `New requests begin with a system prompt of ${SYSTEM} tokens.` : "New requests have no system prompt.";
  }

  fork() {
    if (!this.chosen || this.requests.length >= MOST) return this.chosen ? MANY : FEW;
    const parent = this.chosen, child = this.request(parent);
    this.lanes.forEach((lane) => lane.fork(parent, child));
    return `${child.name} is another answer of ${parent.name}: a copy as a piece, the same blocks until one of them stores a token.`;
  }

  end() {
    if (!this.chosen) return FEW;
    this.lanes.forEach((lane) => lane.end(this.chosen));
    return `${this.chosen.name} has ended; its memory is free.`;
  }

  step() {
    const { memory } = this.lanes.at(-1), before = memory.copies;
    this.lanes.forEach((lane) => lane.step());
    return `Step ${++this.numSteps}: a token for each running request, ${plural(memory.copies - before, "block")} copied on write.`;
  }

  /** Show what has happened, and everything as it is now. */
  tell(message) {
    const there = new Set(this.lanes.flatMap(({ running, waiting }) => [...running, ...waiting.map(([each]) => each)]));
    const chips = this.panel.querySelector(".chips"), hadFocus = chips.contains(document.activeElement);
    this.requests = this.requests.filter((request) => there.has(request));
    if (!there.has(this.chosen)) [this.chosen] = this.requests;
    this.panel.querySelector("[role=status]").textContent = message;
    this.panel.querySelector("[data-act=system]").ariaPressed = this.shares;
    chips.replaceChildren(...this.requests.map((request) => {
      const onclick = () => { this.chosen = request; this.tell(`${request.name} is chosen.`); };
      const chip = Object.assign(element("button", request.name), { type: "button", ariaPressed: request === this.chosen, onclick });
      chip.style.setProperty("--hue", request.hue);
      return chip;
    }));
    if (hadFocus) (chips.querySelector("[aria-pressed=true]") ?? this.panel).focus();
    this.lanes.forEach((lane) => lane.draw(this.chosen));
  }
}

new TryPanel(document.getElementById("try"));
