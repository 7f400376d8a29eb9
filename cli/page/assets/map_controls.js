"use strict";
/* What moves the block map: the slider, the row, pointer and keys, Play, and the picture of it. */

const LEGEND = [SHARED, PRIVATE, CACHED, FREE];
const LEGEND_FILL = 0.7; // tokens in the legend's blocks, so that it shows what is not filled

/** Return an event's place in the canvas, in CSS pixels. */
function placeOf(event, canvas) {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

/** The block map's controls: the moment, the row, what is pointed at, and the picture. */
class MapControls {
  constructor(map) {
    this.map = map;
    this.canvas = map.canvas;
    this.slider = document.getElementById("moment");
    this.told = document.getElementById("told");
    this.tip = document.getElementById("tip");
    this.slider.max = map.history.steps.length - 1;
    this.slider.addEventListener("input", () => this.goTo(Number(this.slider.value)));
    document.getElementById("row").addEventListener("input", (event) => this.choose(event.target));
    document.getElementById("save-map").addEventListener("click", () => this.save());
    this.#makeLegend();
    this.#makePointer();
    this.#makePlay();
    new ResizeObserver(() => map.fit()).observe(this.canvas.parentElement);
    darkness.addEventListener("change", () => { map.draw(); this.#makeLegend(); this.goTo(map.moment); });
    // The pool at its fullest says most.
    this.goTo(this.fullest());
  }

  fullest() {
    const held = this.map.history.steps.map((_, moment) => {
      const [, , own, shared] = this.map.history.counts(moment);
      return own + shared;
    });
    return held.indexOf(held.reduce((most, each) => Math.max(most, each), 0));
  }

  goTo(moment) {
    const { history } = this.map;
    this.map.moment = moment;
    this.slider.value = moment;
    this.map.draw();
    const counts = history.counts(moment);
    STATES.forEach(({ name }, state) => {
      document.querySelector(`#legend [data-state="${name}"]`).textContent = `${name} ${count(counts[state])}`;
    });
    const told = `Step ${count(history.steps[moment])}, ${history.times[moment].toFixed(2)} s`;
    this.slider.setAttribute("aria-valuetext", told);
    this.told.textContent = told + this.#tellRow();
    this.#showBlock(this.map.cursor, false);
    this.#moveCursorLine();
  }

  #tellRow() {
    const { row, moment, history } = this.map;
    if (row === null) return "";
    if (row % history.rowStride) return ` · row ${row} is not in the snapshot, which has every ${count(history.rowStride)}th row only`;
    return ` · row ${row} holds ${plural(history.blocksOf(moment, row).length, "block")}, outlined`;
  }

  /** Go to the moment nearest to a time. */
  goToTime(time) {
    const { times } = this.map.history;
    let best = 0;
    times.forEach((each, moment) => { if (Math.abs(each - time) < Math.abs(times[best] - time)) best = moment; });
    this.goTo(best);
  }

  choose(field) {
    const row = field.value.trim();
    this.map.row = /^\d+$/.test(row) ? Number(row) : null;
    this.goTo(this.map.moment);
  }

  /** Save the map as it is drawn, below the moment and what its colours mean. */
  save() {
    const { canvas, map } = this;
    const colours = theme();
    const picture = element("canvas");
    const perLine = canvas.width < 600 * map.ratio ? 2 : LEGEND.length;
    const left = 16, top = 40 + 24 * (LEGEND.length / perLine);
    picture.width = canvas.width + 2 * left * map.ratio;
    picture.height = canvas.height + (top + left) * map.ratio;
    const context = picture.getContext("2d");
    context.fillStyle = colours.panel;
    context.fillRect(0, 0, picture.width, picture.height);
    context.drawImage(canvas, left * map.ratio, top * map.ratio);
    context.scale(map.ratio, map.ratio);
    const write = (text, x, y) => {
      context.font = "13px system-ui, sans-serif";
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.fillStyle = colours.ink;
      context.fillText(text, x, y);
    };
    write(this.told.textContent, left, 20);
    const counts = map.history.counts(map.moment);
    LEGEND.forEach((state, index) => {
      const x = left + 140 * (index % perLine), y = 36 + 24 * Math.floor(index / perLine);
      drawCell(context, colours, state, x, y, 16, LEGEND_FILL);
      if (map.cell >= LETTER_CELL) drawLetters(context, colours, state, [[x, y]], 16);
      write(`${STATES[state].name} ${count(counts[state])}`, x + 23, y + 9);
    });
    download(picture.toDataURL("image/png"), "pagedrun-block-map.png");
  }

  #moveCursorLine() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      Plotly.relayout("timeline", { shapes: cursorLine(theme()) });
    });
  }

  #makeLegend() {
    const list = document.getElementById("legend");
    list.replaceChildren();
    const colours = theme();
    for (const state of LEGEND) {
      const swatch = element("canvas");
      const ratio = devicePixelRatio || 1;
      swatch.width = swatch.height = 16 * ratio;
      const context = swatch.getContext("2d");
      context.scale(ratio, ratio);
      drawCell(context, colours, state, 0.5, 0.5, 16, LEGEND_FILL);
      if (this.map.cell >= LETTER_CELL) drawLetters(context, colours, state, [[0.5, 0.5]], 16);
      const label = element("span");
      label.dataset.state = STATES[state].name;
      list.append(element("li", "", swatch, label));
    }
  }

  #makePointer() {
    const { canvas, map } = this;
    const point = (event) => {
      const [x, y] = placeOf(event, canvas);
      this.#showBlock(map.at(x, y), true);
    };
    canvas.addEventListener("pointermove", point);
    canvas.addEventListener("pointerdown", point);
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    canvas.addEventListener("blur", () => { this.tip.hidden = true; });
    canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -map.columns, ArrowDown: map.columns };
      if (event.key === "Escape") this.#showBlock(null, false);
      if (!(event.key in moves)) return;
      event.preventDefault();
      const next = map.cursor === null ? 0 : map.cursor + moves[event.key];
      if (next >= 0 && next < map.history.numBlocks) this.#showBlock(next, true);
    });
  }

  /** Tell of a block, with its tip beside it if `tip`. */
  #showBlock(block, tip) {
    const { map } = this;
    if (block !== map.cursor) {
      map.cursor = block;
      map.draw();
    }
    if (block === null) {
      this.tip.hidden = true;
      return;
    }
    const lines = map.history.tell(map.moment, block);
    document.getElementById("block").textContent = lines.join(" · ");
    this.tip.replaceChildren(...lines.map((each) => element("div", each)));
    if (!tip) return;
    this.tip.hidden = false;
    const [x, y] = map.place(block);
    const frame = this.canvas.parentElement;
    const left = Math.min(x + map.cell + 6, frame.clientWidth - this.tip.offsetWidth);
    const below = y + map.cell + 6;
    this.tip.style.left = `${Math.max(left, 0)}px`;
    this.tip.style.top = `${below}px`;
  }

  #makePlay() {
    const button = document.getElementById("play");
    let timer = 0;
    const stop = () => {
      clearInterval(timer);
      timer = 0;
      button.textContent = "Play";
      button.setAttribute("aria-pressed", "false");
    };
    button.addEventListener("click", () => {
      if (timer) return stop();
      const last = this.map.history.steps.length - 1;
      if (this.map.moment >= last) this.goTo(0);
      button.textContent = "Pause";
      button.setAttribute("aria-pressed", "true");
      timer = setInterval(() => {
        if (this.map.moment >= last) stop();
        else this.goTo(this.map.moment + 1);
      }, 120);
    });
  }
}
