"use strict";
/* The page of bench memory. Contiguous, first fit and paged keep their colours throughout. */

const charts = new Charts();
const WAYS = ["contiguous", "paged"];
const FLOWS = [["contiguous", "contiguous", "dash"], ["first_fit", "first fit", "dot"], ["paged", "paged", "solid"]];

function wayColours(colours) {
  return { contiguous: colours.plain, first_fit: colours.cached, paged: colours.private };
}

/** Figures are above bars where there is room; the table below has them all. */
function barTexts() {
  return innerWidth < 600 ? "none" : "outside";
}

function atOnceChart(colours) {
  const colour = wayColours(colours);
  const requests = DATA.at_once.map((each) => count(each.requests));
  return {
    traces: WAYS.map((way) => ({
      type: "bar", name: way, x: requests, y: DATA.at_once.map((each) => each[way].utilization),
      text: DATA.at_once.map((each) => percent(each[way].utilization)), textposition: barTexts(), textangle: 0,
      marker: { color: colour[way] },
      hovertemplate: `%{x} requests, ${way}: %{y:.1%}, ${"%{customdata}"}<extra></extra>`,
      customdata: DATA.at_once.map((each) => size(each[way].bytes)),
    })),
    layout: {
      xaxis: axis(colours, "concurrent requests", { type: "category" }),
      yaxis: axis(colours, "slots that store a token", { range: [0, 1.1], tickvals: [0, 0.25, 0.5, 0.75, 1], tickformat: ".0%" }),
    },
  };
}

function sharingChart(colours) {
  const { prompt, rows } = DATA.sharing;
  const kinds = ["rows that share<br>the prompt", "answers to<br>one prompt"];
  const bar = (name, values, colour) => ({
    type: "bar", orientation: "h", name, y: kinds, x: values, text: values.map((each) => (each === null ? "" : count(each))),
    textposition: "outside", cliponaxis: false, marker: { color: colour },
    hovertemplate: `%{x:,} blocks, ${name}<extra></extra>`,
  });
  return {
    traces: [
      bar("when one answer continues", [null, prompt.blocks_diverged], colours.cached),
      bar("shared", [rows.blocks, prompt.blocks], colours.shared),
      bar("without sharing", [rows.blocks_alone, prompt.blocks_alone], colours.plain),
    ],
    layout: {
      xaxis: axis(colours, "blocks held", { range: [0, 1.1 * Math.max(rows.blocks_alone, prompt.blocks_alone)] }),
      yaxis: axis(colours, "", { rangemode: "normal" }),
      legend: { orientation: "h", x: 0, y: 1.01, yanchor: "bottom", traceorder: "reversed" },
    },
  };
}

function overTimeChart(colours) {
  const colour = wayColours(colours);
  const parts = [
    ["requests in flight", "y", [0.72, 1], (each) => each.running],
    ["tokens stored", "y2", [0.36, 0.64], (each) => each.tokens],
    ["memory held", "y3", [0, 0.28], (each, flow) => each.blocks_used / flow.blocks],
  ];
  const traces = parts.flatMap(([title, yaxis, , value]) => FLOWS.map(([way, name, dash]) => {
    const flow = DATA.over_time[way];
    return {
      type: "scatter", mode: "lines", name, showlegend: yaxis === "y", legendgroup: way, yaxis,
      x: flow.timeline.map((each) => each.step), y: flow.timeline.map((each) => value(each, flow)),
      line: { color: colour[way], width: 2, dash },
      hovertemplate: `step %{x:,}, ${name}: %{y${yaxis === "y3" ? ":.1%" : ":,"}} ${title}<extra></extra>`,
    };
  }));
  const axes = Object.fromEntries(parts.map(([title, yaxis, domain]) => [
    yaxis.replace("y", "yaxis"),
    axis(colours, title, { domain, ...(yaxis === "y3" ? { range: [0, 1.05], tickformat: ".0%" } : {}) }),
  ]));
  return { traces, layout: { xaxis: axis(colours, "step", { fixedrange: false, anchor: "y3" }), ...axes } };
}

function blockSizesChart(colours) {
  const sizes = DATA.block_sizes.map((each) => count(each.block_size));
  const chosen = DATA.block_sizes.map((each) =>
    (each.block_size === DATA.block_size ? colours.shared : colours.private));
  const bars = (values, show, yaxis, hover) => ({
    type: "bar", x: sizes, y: values, yaxis, text: values.map(show), textposition: barTexts(), textangle: 0, cliponaxis: false,
    marker: { color: chosen }, hovertemplate: `blocks of %{x}: ${hover}<extra></extra>`,
  });
  return {
    traces: [
      bars(DATA.block_sizes.map((each) => each.utilization), percent, "y", "%{y:.1%} of held slots store a token"),
      bars(DATA.block_sizes.map((each) => each.over_time.mean_running), (each) => each.toFixed(1), "y2",
        "%{y:.1f} requests in flight on average"),
    ],
    layout: {
      showlegend: false,
      xaxis: axis(colours, `tokens per block; ${count(DATA.block_size)} is marked`, { type: "category", anchor: "y2" }),
      yaxis: axis(colours, "slots used", { domain: [0.58, 1], range: [0, 1.15], tickvals: [0, 0.5, 1], tickformat: ".0%" }),
      yaxis2: axis(colours, "in flight", { domain: [0, 0.42], range: [0, 1.15 * Math.max(...DATA.block_sizes.map((each) => each.over_time.mean_running), 1)] }),
    },
  };
}

charts.add("at_once", atOnceChart);
if (DATA.sharing) charts.add("sharing", sharingChart);
charts.add("over_time", overTimeChart);
charts.add("block_sizes", blockSizesChart);
