"use strict";
/* What all pages share: their data, the theme, charts that follow it, and pictures of them.
   Text goes into the page through textContent only. */

const DATA = JSON.parse(document.getElementById("data").textContent);

/** Return an element with its text and children. */
function element(name, text, ...children) {
  const made = document.createElement(name);
  if (text) made.textContent = text;
  made.append(...children);
  return made;
}

const count = (number) => Math.round(number).toLocaleString("en-US");
const percent = (part) => `${(100 * part).toFixed(1)}%`;
const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** Return bytes in the largest unit that leaves a digit before the point. */
function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const unit = bytes < 1 ? 0 : Math.min(Math.floor(Math.log2(bytes) / 10), units.length - 1);
  return `${(bytes / 1024 ** unit).toFixed(unit ? 1 : 0)} ${units[unit]}`;
}

/** Return the page's colours as they are now, light or dark. */
function theme() {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "panel", "ink", "muted", "line", "accent", "shared", "private", "cached",
    "free", "cached-tint", "plain", "shade"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Save a picture under a name. `href` is a data or blob address. */
function download(href, name) {
  const link = element("a");
  link.href = href;
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
}

const darkness = matchMedia("(prefers-color-scheme: dark)");

/** Charts by the id of their place; each is drawn again when the theme changes. */
class Charts {
  #builds = new Map();

  constructor() {
    darkness.addEventListener("change", () => this.redraw());
    for (const button of document.querySelectorAll("button[data-save]")) {
      button.addEventListener("click", () => this.save(button.dataset.save));
    }
  }

  /** Draw a chart. `build(colours)` returns its traces and what its layout adds to the usual. */
  add(id, build) {
    const place = document.getElementById(id);
    if (!place) return null;
    this.#builds.set(id, build);
    this.#draw(id);
    return place;
  }

  /** Draw all charts again. */
  redraw() {
    for (const id of this.#builds.keys()) this.#draw(id);
  }

  /** Save a chart as it is on the screen, at twice its size. */
  async save(id) {
    const place = document.getElementById(id);
    const { offsetWidth: width, offsetHeight: height } = place;
    const href = await Plotly.toImage(place, { format: "png", width, height, scale: 2 });
    download(href, `pagedrun-${id}.png`);
  }

  #draw(id) {
    const place = document.getElementById(id);
    const colours = theme();
    const { traces, layout } = this.#builds.get(id)(colours);
    place.style.height = `${place.dataset.height}px`;
    const config = { displayModeBar: false, responsive: true, doubleClick: "reset" };
    Plotly.react(place, traces, { ...usualLayout(colours), ...layout }, config);
  }
}

/** Return the layout of every chart. */
function usualLayout(colours) {
  const narrow = innerWidth < 600;
  return {
    paper_bgcolor: colours.panel,
    plot_bgcolor: colours.panel,
    font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", size: 12, color: colours.ink },
    margin: { l: narrow ? 44 : 56, r: narrow ? 8 : 14, t: 8, b: 40 },
    hoverlabel: { bgcolor: colours.ink, bordercolor: colours.ink, font: { color: colours.panel, size: 12 } },
    legend: { orientation: "h", x: 0, y: 1.01, yanchor: "bottom", font: { size: 12 } },
    // A finger that drags a chart means to scroll the page.
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    bargap: 0.25,
  };
}

/** Return an axis in the page's style. */
function axis(colours, title, more = {}) {
  return {
    title: { text: title, font: { size: 12, color: colours.muted }, standoff: 8 },
    gridcolor: colours.line,
    zerolinecolor: colours.line,
    linecolor: colours.line,
    tickfont: { color: colours.muted, size: 11 },
    automargin: true,
    fixedrange: true,
    rangemode: "tozero",
    ...more,
  };
}

/** Return the numbers of a column that was packed by packed.py. */
async function unpack(column) {
  const packed = Uint8Array.from(atob(column.bytes), (char) => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const values = column.type === "uint16" ? new Uint16Array(buffer) : new Int32Array(buffer);
  for (let each = column.width; each < values.length; each++) {
    values[each] += values[each - column.width]; // wraps, as the differences did
  }
  return values;
}
