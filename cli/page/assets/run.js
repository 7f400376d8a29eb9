"use strict";
/* The page of a run. */

const charts = new Charts();
let blockMap = null; // set when the pool's samples are unpacked

/** Return a filled band of the timeline, on top of those before it; hatched on `tint` if given. */
function band(name, colour, x, y, tint) {
  const fill = tint ? { fillpattern: { shape: "/", size: 7, solidity: 0.25, fgcolor: colour, bgcolor: tint } }
    : { fillcolor: colour };
  return { name, x, y, type: "scatter", mode: "lines", stackgroup: "blocks", line: { width: 0.5, color: colour },
    ...fill, hovertemplate: `%{y:,} ${name}<extra></extra>` };
}

function line(name, colour, x, y, yaxis, dash = "solid") {
  return { name, x, y, type: "scatter", mode: "lines", yaxis, line: { width: 1.8, color: colour, dash },
    hovertemplate: `%{y:,} ${name}<extra></extra>` };
}

/** Return a line above one of the timeline's parts that says what is what: [mark, name, colour]. */
function key(entries, y) {
  const text = entries.map(([mark, name, colour]) => `<span style="color:${colour}">${mark}</span> ${name}`);
  return { text: text.join("   "), xref: "paper", yref: "paper", x: 0, y, xanchor: "left", yanchor: "bottom",
    showarrow: false, font: { size: innerWidth < 600 ? 11 : 12 } };
}

/** Return the block map's place on the timeline, as a line through it. */
function cursorLine(colours) {
  if (!blockMap) return [];
  const time = blockMap.history.times[blockMap.moment];
  return [{ type: "line", xref: "x", yref: "paper", x0: time, x1: time, y0: 0, y1: 1,
    line: { color: colours.ink, width: 1.5, dash: "dot" } }];
}

function timelineChart(colours) {
  const { t, running, waiting, blocks_used: used, blocks_shared: shared, blocks_cached: cached, tokens } = DATA.timeline;
  const own = used.map((each, index) => each - shared[index]);
  const held = used.map((each) => each * DATA.kv.block_size);
  return {
    traces: [
      band("shared", colours.shared, t, shared),
      band("private", colours.private, t, own),
      band("cached", colours.cached, t, cached, colours["cached-tint"]),
      line("blocks in the pool", colours.muted, t, t.map(() => DATA.kv.num_blocks), "y", "dot"),
      ...(running.length ? [
        line("running", colours.accent, t, running, "y2"),
        line("waiting", colours.plain, t, waiting, "y2", "dash"),
      ] : []),
      line("tokens held", colours.accent, t, tokens, "y3"),
      line("slots of held blocks", colours.plain, t, held, "y3", "dash"),
    ],
    layout: {
      xaxis: axis(colours, "seconds since the run began", { fixedrange: false, anchor: "y3", showspikes: false }),
      yaxis: axis(colours, "blocks", { domain: [0.57, 1] }),
      yaxis2: axis(colours, "sequences", { domain: [0.3, 0.5] }),
      yaxis3: axis(colours, "tokens", { domain: [0, 0.215] }),
      hovermode: "x unified",
      hoversubplots: "axis",
      hoverlabel: { bgcolor: colours.panel, bordercolor: colours.line, font: { color: colours.ink, size: 12 } },
      shapes: cursorLine(colours),
      showlegend: false,
      annotations: [
        key([["■", "shared", colours.shared], ["■", "private", colours.private], ["▨", "cached", colours.cached],
          ["┈", "the whole pool", colours.muted]], 1.01),
        key(running.length ? [["━", "running", colours.accent], ["╍", "waiting", colours.plain]]
          : [["", "running and waiting sequences are unknown", colours.muted]], 0.51),
        key([["━", "tokens held", colours.accent], ["╍", "slots of held blocks", colours.plain]], 0.225),
      ],
      margin: { l: innerWidth < 600 ? 44 : 56, r: 14, t: 24, b: 40 },
    },
  };
}

function histogramChart(bars, title) {
  const { width, begins, counts } = bars;
  return (colours) => ({
    traces: [{
      type: "bar", x: begins.map((each) => each + width / 2), y: counts, width: width * 0.92,
      marker: { color: colours.private },
      customdata: begins.map((each) => (width > 1 ? `${count(each)} to ${count(each + width - 1)} tokens` : plural(each, "token"))),
      hovertemplate: "%{customdata}: %{y:,}<extra></extra>",
    }],
    layout: { xaxis: axis(colours, title, { rangemode: "normal" }), yaxis: axis(colours, "sequences") },
  });
}

function waysChart(colours) {
  const ways = ["contiguous", "paged"];
  const { kv } = DATA;
  const bars = (values, show, xaxis, yaxis) => ({
    type: "bar", orientation: "h", y: ways, x: values, xaxis, yaxis, text: values.map(show),
    textposition: "outside", cliponaxis: false, marker: { color: [colours.plain, colours.private] }, hoverinfo: "skip",
  });
  const most = Math.max(kv.paged_max_requests, kv.contiguous_max_requests, 1);
  return {
    traces: [
      bars([kv.contiguous_utilization, kv.utilization_at_peak], percent, "x", "y"),
      bars([kv.contiguous_max_requests, kv.paged_max_requests], count, "x2", "y2"),
    ],
    layout: {
      showlegend: false,
      xaxis: axis(colours, "slots that store a token", { range: [0, 1.12], tickvals: [0, 0.25, 0.5, 0.75, 1], tickformat: ".0%", anchor: "y" }),
      yaxis: axis(colours, "", { domain: [0.66, 1] }),
      xaxis2: axis(colours, "concurrent requests", { range: [0, most * 1.12], anchor: "y2" }),
      yaxis2: axis(colours, "", { domain: [0.02, 0.36] }),
    },
  };
}

function memoryChart(colours) {
  const parts = [
    ["weights", "weights", colours.accent], ["kv_pool", "KV pool", colours.shared],
    ["activations_peak", "activations", colours.cached], ["other", "everything else", colours.plain],
    ["free", "free", colours.free],
  ];
  return {
    traces: parts.map(([key, name, colour]) => ({
      type: "bar", orientation: "h", name, y: [""], x: [DATA.memory[key] / 2 ** 30],
      customdata: [size(DATA.memory[key])], marker: { color: colour, line: { color: colours.panel, width: 1 } },
      hovertemplate: `${name}: %{customdata}<extra></extra>`,
    })),
    layout: { barmode: "stack", legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal" }, xaxis: axis(colours, "GiB"), yaxis: axis(colours, "") ,
      margin: { l: 6, r: 10, t: 8, b: 40 } },
  };
}

async function showMap() {
  if (!DATA.map) return;
  try {
    const history = await PoolHistory.read(DATA.map);
    blockMap = new BlockMap(document.getElementById("map"), history);
    const controls = new MapControls(blockMap);
    document.getElementById("timeline").on("plotly_click", (event) => controls.goToTime(event.points[0].x));
  } catch (error) {
    document.getElementById("told").textContent = `The block map cannot be shown: ${error.message}`;
    throw error;
  }
}

charts.add("timeline", timelineChart);
charts.add("ways", waysChart);
charts.add("memory", memoryChart);
if (DATA.lengths) {
  charts.add("prompts", histogramChart(DATA.lengths.prompts, "prompt tokens"));
  charts.add("answers", histogramChart(DATA.lengths.answers, "generated tokens"));
}
if (DATA.prefixes.length) {
  document.getElementById("prefixes").dataset.height = 50 + 52 * numLevels(DATA.prefixes);
  charts.add("prefixes", icicle(DATA.prefixes, DATA.rows));
  listNodes(document.getElementById("prefix-tree"), DATA.prefixes);
}
const mapShown = showMap();
