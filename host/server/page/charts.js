// Small charts of the last minutes: lines over time, or parts of a whole on top of each other.

import { h } from "/page/dom.js";
import { words } from "/page/words.js";
import { changed, state } from "/page/store.js";
import { bytes, count, percent, rate } from "/page/format.js";
import { fill, SAMPLES_MAX } from "/page/server.js";

const WIDTH = 300;
const HEIGHT = 64;

// The sample under the pointer, by chart: seconds before now.
let pointed = { chart: "", at: null };

const charts = [
  {
    id: "speed",
    title: words.charts.speed,
    lines: [
      { name: words.charts.generated, tone: "a", value: (sample) => sample.generated_per_s },
      { name: words.charts.prompts, tone: "b", value: (sample) => sample.prompt_per_s },
    ],
    show: rate,
    unit: words.charts.perSecond,
  },
  {
    id: "queue",
    title: words.charts.queue,
    lines: [
      { name: words.charts.running, tone: "a", value: (sample) => sample.running },
      { name: words.charts.waiting, tone: "c", value: (sample) => sample.waiting },
    ],
    show: count,
    unit: "",
    least: 4,
  },
  {
    id: "cache",
    title: words.charts.cache,
    lines: [
      { name: words.charts.active, tone: "a", value: (sample) => share(sample, sample.blocks_active) },
      { name: words.charts.cached, tone: "b", value: (sample) => share(sample, sample.blocks_active + sample.blocks_cached), shown: (sample) => share(sample, sample.blocks_cached) },
    ],
    show: (value) => `${Math.round(value)}%`,
    unit: "",
    top: () => 100,
    note: (sample) => (sample.blocks_disk > 0 ? words.charts.onDisk(count(sample.blocks_disk)) : ""),
  },
  {
    id: "memory",
    title: words.charts.memory,
    lines: [{ name: words.charts.resident, tone: "a", value: (sample) => sample.resident_bytes }],
    show: bytes,
    unit: "",
    note: () => (state.server ? words.charts.budget(bytes(state.server.memory.budget_bytes)) : ""),
  },
];

function share(sample, blocks) {
  return percent(blocks, sample.blocks_active + sample.blocks_cached + sample.blocks_free);
}

export function chartRow() {
  fill(Math.floor(Date.now() / 1000));
  return h("section", { class: "charts", "aria-label": words.charts.all }, charts.map(chart));
}

function chart({ id, title, lines, show, unit, least = 1, top, note }) {
  const samples = state.samples;
  const last = samples.at(-1);
  const shown = pointed.chart === id && pointed.at !== null ? samples[pointed.at] ?? last : last;
  const values = (line) => samples.map((sample) => line.value(sample));
  const highest = Math.max(least, ...lines.flatMap(values));
  const max = top ? top() : nice(highest);
  const legend = lines.map((line) =>
    h("span", { class: `legend tone-${line.tone}`, key: line.name },
      h("b", null, shown ? show((line.shown ?? line.value)(shown)) : words.none),
      ` ${line.name}`),
  );
  const said = last ? words.charts.said(title, lines.map((line) => [line.name, show((line.shown ?? line.value)(last))])) : words.charts.empty(title);
  const below = last && note ? note(last) : "";
  return h("figure", { class: "chart card", key: id },
    h("figcaption", null, h("span", { class: "chart-title" }, title), h("span", { class: "chart-max" }, show(max), unit && ` ${unit}`)),
    h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": said, onpointermove: (event) => point(id, event), onpointerleave: () => point("", null) },
      [0.25, 0.5, 0.75].map((at) => h("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT * at, y2: HEIGHT * at, key: at })),
      [...lines].reverse().map((line) => curve(values(line), max, line.tone)),
      pointed.chart === id && pointed.at !== null && h("line", { class: "pointer", key: "pointer", x1: x(pointed.at, samples.length), x2: x(pointed.at, samples.length), y1: 0, y2: HEIGHT })),
    h("div", { class: "legends" }, legend, below && h("span", { class: "legend note" }, below)));
}

// The newest sample is at the right edge.
function x(index, length) {
  return WIDTH - ((length - 1 - index) * WIDTH) / (SAMPLES_MAX - 1);
}

function curve(values, max, tone) {
  if (values.length === 0) return null;
  const points = values.map((value, index) => `${x(index, values.length).toFixed(1)},${(HEIGHT - 1 - (value / max) * (HEIGHT - 3)).toFixed(1)}`);
  const line = `M${points.join("L")}`;
  const first = x(0, values.length).toFixed(1);
  return h("g", { class: `tone-${tone}`, key: tone },
    h("path", { class: "area", d: `${line}L${WIDTH},${HEIGHT}L${first},${HEIGHT}z` }),
    h("path", { class: "line", d: line }));
}

// The next number above that has one digit.
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 4, 5, 8, 10].find((step) => step * power >= value) ?? 10;
  return step * power;
}

function point(chart, event) {
  let at = null;
  if (event) {
    const box = event.currentTarget.getBoundingClientRect();
    const from = state.samples.length - 1 - Math.round((1 - (event.clientX - box.left) / box.width) * (SAMPLES_MAX - 1));
    at = from >= 0 ? from : null;
  }
  pointed = { chart, at };
  changed();
}
