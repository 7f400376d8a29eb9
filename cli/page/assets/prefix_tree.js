"use strict";
/* The tree of shared prefixes: boxes below each other, and a list that opens. */

const PARENT = 0, START = 1, END = 2, ROWS = 3, ROW = 4, SAVED = 5;
const MAX_LEVELS = 7; // of boxes drawn at once
const LISTED_OPEN = 2; // levels of the list that are open to begin with
const MAX_LISTED = 100; // children shown under one node

function tellNode(node) {
  return `${plural(node[END] - node[START], "token")} × ${plural(node[ROWS], "row")}, saves ${count(node[SAVED])}`;
}

/** Return two colours mixed, `part` of the second; both as #rrggbb. */
function mixed(first, second, part) {
  const channels = [1, 3, 5].map((at) => {
    const [one, other] = [first, second].map((colour) => parseInt(colour.slice(at, at + 2), 16));
    return Math.round(one + (other - one) * part).toString(16).padStart(2, "0");
  });
  return `#${channels.join("")}`;
}

/** Return the colour of text that is read best on a colour: black or white, or nearly so. */
function textOn(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => (parseInt(colour.slice(at, at + 2), 16) / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.2 ? "#10161d" : "#ffffff";
}

/** Return how many levels of boxes are drawn, the top one included. */
function numLevels(nodes) {
  const levels = [];
  for (const node of nodes) levels.push(node[PARENT] < 0 ? 2 : levels[node[PARENT]] + 1);
  return Math.min(Math.max(...levels), MAX_LEVELS);
}

/** Return a chart of the nodes; what several of them have above them is all the rows. */
function icicle(nodes, numRows) {
  const tops = nodes.filter((node) => node[PARENT] < 0);
  const whole = Math.max(numRows, tops.reduce((sum, node) => sum + node[ROWS], 0));
  const most = Math.max(...nodes.map((node) => node[SAVED]), 1);
  return (colours) => {
    // The top one says how much there is, not how much it saves.
    const fills = [colours.free, ...nodes.map((node) =>
      mixed(colours.shade, colours.accent, Math.sqrt(node[SAVED] / most)))];
    const trace = {
      type: "icicle",
      ids: ["all", ...nodes.map((_, index) => `${index}`)],
      parents: ["", ...nodes.map((node) => (node[PARENT] < 0 ? "all" : `${node[PARENT]}`))],
      values: [whole, ...nodes.map((node) => node[ROWS])],
      labels: [plural(whole, "row"), ...nodes.map((node) => plural(node[END] - node[START], "token"))],
      text: ["", ...nodes.map((node) => `× ${plural(node[ROWS], "row")}`)],
      customdata: ["the whole file", ...nodes.map((node) =>
        `tokens ${count(node[START])} to ${count(node[END])}, of row ${count(node[ROW])} and others<br>saves ${plural(node[SAVED], "prompt token")}`)],
      branchvalues: "total",
      sort: false, // most rows come first as it is
      maxdepth: MAX_LEVELS,
      tiling: { orientation: "v", pad: 2 },
      textinfo: "label+text",
      hovertemplate: "%{label} %{text}<br>%{customdata}<extra></extra>",
      marker: { colors: fills, line: { width: 1, color: colours.panel } },
      leaf: { opacity: 1 },
      textfont: { size: 12, color: fills.map(textOn) },
      pathbar: { visible: true, thickness: 20, textfont: { size: 11 } },
    };
    const layout = { margin: { l: 0, r: 0, t: 20, b: 0 }, dragmode: false, uniformtext: { minsize: 10, mode: "hide" } };
    return { traces: [trace], layout };
  };
}

/** Fill a list with the nodes; what is below a node is made when it is opened. */
function listNodes(list, nodes) {
  const below = new Map();
  nodes.forEach((node, index) => {
    if (!below.has(node[PARENT])) below.set(node[PARENT], []);
    below.get(node[PARENT]).push(index);
  });
  const fill = (place, parent, level) => {
    const children = [...(below.get(parent) || [])].sort((one, other) => nodes[other][SAVED] - nodes[one][SAVED]);
    for (const child of children.slice(0, MAX_LISTED)) {
      if (!below.has(child)) {
        const leaf = element("li", tellNode(nodes[child]));
        leaf.className = "leaf";
        place.append(leaf);
        continue;
      }
      const inside = element("ul");
      const opened = element("details", "", element("summary", tellNode(nodes[child])), inside);
      const open = () => { if (!inside.childElementCount) fill(inside, child, level + 1); };
      opened.addEventListener("toggle", open);
      opened.open = level < LISTED_OPEN;
      if (opened.open) open();
      place.append(element("li", "", opened));
    }
    const rest = children.length - MAX_LISTED;
    if (rest > 0) place.append(element("li", `and ${count(rest)} that save less`));
  };
  fill(list, -1, 0);
}
