"use strict";
const FIGURES = JSON.parse(document.getElementById("figures").textContent);
const DARK = matchMedia("(prefers-color-scheme: dark)");

const PAPER = { ink: "#000000", paper: "#ffffff", edge: "#bbbbbb", card: "#ffffff",
  faint: "#444444" };
const SMOOTHING = document.getElementById("smoothing");
const SCORE = document.getElementById("score");
const LOGARITHMIC = document.getElementById("logarithmic");

/* Of what there is once for each score, that of the chosen one is shown. */
function showScore() {
  for (const part of document.querySelectorAll("[data-score]")) {
    part.hidden = part.dataset.score !== SCORE.value;
  }
}

function theme() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  return { ink: of("--ink"), paper: of("--paper"), edge: of("--edge"), card: of("--card"),
    faint: of("--faint") };
}

/* The colour "ink" is the one of text, which depends on light or dark. */
function inked(value, ink) {
  if (value === "ink") return ink;
  if (Array.isArray(value)) return value;
  if (value === null || typeof value !== "object") return value;
  const pairs = Object.entries(value).map(([name, part]) => [name, inked(part, ink)]);
  return Object.fromEntries(pairs);
}

/* An exponential mean, as of W&B and TensorBoard: the first values count in full. */
function smoothed(trace, amount) {
  if (!trace.mode || !trace.mode.includes("lines")) return trace;
  let mean = 0, weight = 0;
  const y = trace.y.map((value) => {
    if (value === null) return null;
    mean = amount * mean + (1 - amount) * value;
    weight = amount * weight + (1 - amount);
    return mean / weight;
  });
  return { ...trace, y, hovertemplate: trace.hovertemplate && "%{y:.4~g}, smoothed" };
}

function layoutOf(own, colours, several) {
  const axis = (name) => ({
    gridcolor: colours.edge, zerolinecolor: colours.edge, linecolor: colours.edge,
    automargin: true, ...own[name],
  });
  return {
    /* Between two rounds the pointer shows the nearer one, however far away. */
    hovermode: "x unified", hoverdistance: own.hovermode ? 20 : -1, ...own,
    xaxis: { ...axis("xaxis"), title: { ...own.xaxis.title, standoff: 8 } },
    yaxis: axis("yaxis"),
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colours.ink, size: 12 },
    hoverlabel: {
      bgcolor: colours.card, bordercolor: colours.edge, font: { color: colours.ink },
      namelength: 40,
    },
    margin: { l: 55, r: 15, t: 28, b: 45 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colours.faint, activecolor: colours.ink },
    showlegend: several, legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom" },
  };
}

function draw(place, colours = theme()) {
  const figure = FIGURES[Number(place.dataset.figure)];
  const amount = figure.curves ? Number(SMOOTHING.value) : 0;
  const traces = figure.data.map((trace) => inked(trace, colours.ink))
    .map((trace) => (amount ? smoothed(trace, amount) : trace));
  const named = traces.filter((trace) => trace.showlegend !== false).length;
  const several = named > 1;
  const lines = Math.ceil(named / Math.max(Math.floor(place.clientWidth / 110), 1));
  place.style.height = `${figure.height || 320 + 20 * Math.max(lines, 1)}px`;
  const options = {
    responsive: true, displaylogo: false,
    /* The first one would upload the chart to a cloud. */
    modeBarButtonsToRemove: ["sendChartToCloud", "select2d", "lasso2d", "zoomIn2d",
      "zoomOut2d", "autoScale2d"],
    plotlyServerURL: "",
  };
  const layout = layoutOf(figure.layout, colours, several);
  if (figure.curves && LOGARITHMIC.checked) {
    layout.yaxis = { ...layout.yaxis, type: "log", range: undefined };
  }
  Plotly.react(place, traces, layout, options).then(() => { place.dataset.drawn = "yes"; });
}

function drawWhenSeen() {
  const places = [...document.querySelectorAll(".plot")];
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        seen.unobserve(entry.target);
        draw(entry.target);
      }
    }
  }, { rootMargin: "300px" });
  places.forEach((place) => seen.observe(place));
  /* A hidden figure has no width. */
  const shown = () => places.filter((place) => !place.closest("[hidden]"));
  const again = () => shown().filter((place) => place.dataset.drawn).forEach((p) => draw(p));
  DARK.addEventListener("change", again);
  for (const control of [SMOOTHING, LOGARITHMIC]) {
    if (control) control.addEventListener("input", again);
  }
  /* On paper everything is shown, in black on white. */
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((part) => { part.open = true; });
    shown().forEach((place) => draw(place, PAPER));
  });
  addEventListener("afterprint", again);
  if (SCORE) SCORE.addEventListener("change", () => { showScore(); again(); });
}

function sortBy(heading) {
  const table = heading.closest("table");
  const body = table.tBodies[0];
  const index = heading.cellIndex;
  const rising = heading.getAttribute("aria-sort") === "ascending";
  const sign = rising ? -1 : 1;
  const keyed = [...body.rows].map((row) => {
    const cell = row.cells[index];
    const told = cell.dataset.value;
    return { row, value: told === undefined ? null : Number(told), text: cell.textContent };
  });
  keyed.sort((a, b) => {
    if (a.value !== null && b.value !== null) return sign * (a.value - b.value);
    /* What has no number stays below, in either direction. */
    if (a.value !== null || b.value !== null) return a.value === null ? 1 : -1;
    return sign * a.text.localeCompare(b.text, "en", { numeric: true });
  });
  for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", rising ? "descending" : "ascending");
  body.append(...keyed.map((entry) => entry.row));
}

for (const heading of document.querySelectorAll("th")) {
  heading.querySelector("button").addEventListener("click", () => sortBy(heading));
}

async function unpacked() {
  const text = document.getElementById("library").textContent.trim();
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

unpacked().then((code) => {
  const script = document.createElement("script");
  script.textContent = code;
  document.head.append(script);
  drawWhenSeen();
  document.documentElement.dataset.ready = "yes";
}).catch((error) => {
  const problem = document.getElementById("problem");
  problem.textContent = `The figures cannot be drawn in this browser: ${error}. ` +
    "The tables below are complete.";
  problem.hidden = false;
});
