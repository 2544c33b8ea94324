"use strict";
const $ = id => document.getElementById(id);
// What JSON has no number for comes as a string.
const numbers = new Map([["NaN", NaN], ["Infinity", Infinity], ["-Infinity", -Infinity]]);
const parsed = text => JSON.parse(text, (key, value) => numbers.get(value) ?? value);
const short = x => x >= 1e6 ? (x / 1e6).toFixed(2) + "M" : x >= 1e3 ? (x / 1e3).toFixed(1) + "k"
  : String(Number(x.toPrecision(5)));
const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const charts = new Map();

// Lines over one axis: series is [{name, points: [[x, y]], color, dots}]. Where a value
// is not finite there is a gap. Drag to zoom, double-click to zoom out. The axis of a
// count has whole numbers alone.
function chart(place, title, series, {log = false, zero = false, count = false} = {}) {
  const finite = y => Number.isFinite(y) && !(log && y <= 0) ? y : null;
  const data = uPlot.join(series.map(s => {
    const sorted = [...s.points].sort((a, b) => a[0] - b[0]);
    return [sorted.map(p => p[0]), sorted.map(p => finite(p[1]))];
  }));
  const shape = JSON.stringify([title, log, series.map(s => s.name)]);
  const known = charts.get(place);
  if (known && known.shape === shape) { known.plot.setData(data, known.whole()); return; }
  if (known) known.plot.destroy();
  const told = (u, v) => v == null ? "–" : short(v);
  const steps = count ? {incrs: [0, 1, 2, 3, 4, 5, 6].flatMap(n => [1, 2, 5].map(k => k * 10 ** n))} : {};
  const axis = {stroke: color("--soft"), grid: {stroke: color("--line"), width: 1}};
  const range = zero && !log ? {range: (u, low, high) => [0, (high || 1) * 1.05]} : {};
  const box = $(place);
  const plot = new uPlot({
    width: Math.max(box.clientWidth, 300), height: 200,
    scales: {x: {time: false}, y: {distr: log ? 3 : 1, ...range}},
    axes: [axis, {...axis, ...steps, size: 60, values: (u, all) => all.map(v => v == null ? "" : short(v))}],
    series: [{label: title, value: told}, ...series.map(s => ({label: s.name, stroke: s.color, width: 1.5,
      spanGaps: Boolean(s.dots || s.join), points: {show: Boolean(s.dots)},
      value: told}))],
  }, data, box);
  // While a reader looks at a part, new rounds leave the part as it is.
  const whole = () => { const x = plot.data[0];
    return !x.length || (plot.scales.x.min <= x[0] && plot.scales.x.max >= x[x.length - 1]); };
  charts.set(place, {plot, shape, whole});
}

function table(place, titles, rows) {
  const made = document.createElement("tbody");
  for (const [i, cells] of [titles, ...rows].entries()) {
    const tr = made.insertRow();
    for (const content of cells) {
      const cell = tr.appendChild(document.createElement(i ? "td" : "th"));
      content instanceof Node ? cell.append(content) : cell.textContent = content;
    }
  }
  $(place).replaceChildren(made);
}

// The x of a round: its number, the tokens until then, or seconds since the first.
function across(axis, list) {
  const first = list.length ? list[0].time - list[0].seconds : 0;
  return {round: r => r.round, tokens: r => r.tokens_total, time: r => r.time - first}[axis];
}
