"use strict";
// Draws one chart into an element, as SVG, with what the pointer is at in words beside it. The
// report and the page of a run under way share it. A chart is what charts.py describes:
//   lines  series of {key, name, color, x, y, low, high, runs}; null in y is a gap
//   stack  series of {key, name, color, y}, with {start, end} of the intervals they belong to
//   strip  rows of {name, start, end, part}, where part is an index into series

const HEIGHT = 230;
const MARGIN = { left: 58, right: 14, top: 10, bottom: 40 };
const ROW_HEIGHT = 34;
const DURATIONS = [[1, "seconds"], [60, "minutes"], [3600, "hours"], [86400, "days"]];

const svgElement = (name, attributes = {}, text = null) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  return element;
};

const htmlElement = (name, className = "", text = null) => {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== null) element.textContent = text;
  return element;
};

// Numbers.

function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const magnitude = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * magnitude).find((s) => s >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return { step, values: Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step) };
}

// A tick of an axis up to `largest`: 1.5M, 200k, 0.04; all in powers of ten if all are small.
function tickText(value, step, largest) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  const exponent = (v) => Math.floor(Math.log10(v) + 1e-9);
  if (largest < 1e-2) return value.toExponential(Math.max(0, exponent(size) - exponent(step)));
  const [divisor, suffix] = size >= 1e9 ? [1e9, "B"] : size >= 1e6 ? [1e6, "M"]
    : size >= 1e3 ? [1e3, "k"] : [1, ""];
  return parseFloat((value / divisor).toFixed(Math.max(0, -exponent(step / divisor)))) + suffix;
}

function numberText(value) {
  if (value === null) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e9)) return value.toExponential(3);
  return value.toLocaleString("en", size >= 1e3 ? { maximumFractionDigits: 0 }
    : { maximumSignificantDigits: 4 });
}

function durationText(seconds) {
  if (seconds < 60) return `${numberText(seconds)} s`;
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${Math.floor(seconds % 60)} s`;
}

// Scales.

function xAxis(chart, low, high, width) {
  let [divisor, label] = [1, chart.x.label];
  if (chart.x.unit === "seconds") {
    const span = Math.max(high, 1);
    const fitting = DURATIONS.filter(([seconds]) => span >= 3 * seconds);
    let unit;
    [divisor, unit] = fitting.length ? fitting[fitting.length - 1] : DURATIONS[0];
    label = `${label} (${unit})`;
  }
  const { step, values } = ticks(low / divisor, high / divisor, width / 70);
  return {
    label,
    low,
    high,
    at: (x) => MARGIN.left + ((x - low) / (high - low)) * width,
    ticks: values.map((v) => [v * divisor, tickText(v, step, high / divisor)]),
    text: (x) => chart.x.unit === "seconds" ? durationText(x) : `${numberText(x)} ${chart.x.unit}`,
  };
}

// Whole steps on both ends, so that no curve runs along the frame.
function yAxis(low, high, height) {
  if (low === high) [low, high] = [low - (Math.abs(low) || 1), high + (Math.abs(high) || 1)];
  const { step } = ticks(low, high, height / 45);
  const [bottom, top] = [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
  const { values } = ticks(bottom, top, Math.round((top - bottom) / step));
  return {
    at: (y) => MARGIN.top + (1 - (y - bottom) / (top - bottom)) * height,
    ticks: values.map((v) => [v, tickText(v, step, Math.max(Math.abs(bottom), Math.abs(top)))]),
  };
}

function range(lists, zero) {
  let [low, high] = zero ? [0, 0] : [Infinity, -Infinity];
  for (const list of lists) {
    for (const value of list) {
      if (value === null) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : [0, 1];
}

// Frame.

function frame(chart, width, height, x, y) {
  const total = width + MARGIN.left + MARGIN.right;
  const svg = svgElement("svg", {
    width: total,
    height: height + MARGIN.top + MARGIN.bottom,
    role: "img",
    "aria-label": chart.title,
  });
  const [right, bottom] = [MARGIN.left + width, MARGIN.top + height];
  for (const [value, text] of y ? y.ticks : []) {
    const at = y.at(value);
    svg.append(svgElement("line", { class: "gridline", x1: MARGIN.left, x2: right, y1: at, y2: at }));
    svg.append(svgElement("text", { class: "tick y", x: MARGIN.left - 8, y: at + 4 }, text));
  }
  svg.append(svgElement("line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom }));
  for (const [value, text] of x.ticks) {
    const at = x.at(value);
    svg.append(svgElement("line", { class: "axis", x1: at, x2: at, y1: bottom, y2: bottom + 4 }));
    svg.append(svgElement("text", { class: "tick x", x: at, y: bottom + 18 }, text));
  }
  svg.append(svgElement("text", { class: "label", x: MARGIN.left + width / 2, y: bottom + 35 }, x.label));
  return svg;
}

const point = (x, y) => `${x.toFixed(1)},${y.toFixed(1)}`;

// Runs of neighbouring points that are numbers, and of the same number of runs.
function segments(series) {
  const found = [];
  let open = null;
  series.y.forEach((value, i) => {
    if (value === null) open = null;
    else if (open && series.runs[i] === series.runs[open[0]]) open.push(i);
    else found.push((open = [i]));
  });
  return found;
}

// The last index whose value is not above `limit`; 0 if there is none.
function lastBelow(sorted, limit) {
  let [low, high] = [0, sorted.length];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= limit) low = middle;
    else high = middle;
  }
  return low;
}

// The three kinds: each returns the SVG, and what to say of an x.

function drawLines(chart, visible, width) {
  const height = HEIGHT - MARGIN.top - MARGIN.bottom;
  const shown = visible.length ? visible : chart.series;
  const [low, high] = range(shown.map((s) => s.x), true);
  const x = xAxis(chart, low, high > low ? high : low + 1, width);
  const y = yAxis(...range(shown.flatMap((s) => [s.y, s.low, s.high]), chart.y.zero), height);
  const svg = frame(chart, width, height, x, y);
  for (const s of visible) {
    const place = (i, values) => point(x.at(s.x[i]), y.at(values[i]));
    const all = Math.max(...s.runs);
    for (const indices of segments(s)) {
      if (s.low.length && indices.length > 1) {
        const back = indices.slice().reverse();
        const outline = [...indices.map((i) => place(i, s.high)), ...back.map((i) => place(i, s.low))];
        svg.append(svgElement("path", { class: `band ${s.color}`, d: `M${outline.join("L")}Z` }));
      }
      const places = indices.map((i) => place(i, s.y));
      const partial = s.runs.length && s.runs[indices[0]] < all ? "partial" : "";
      if (places.length > 1) {
        svg.append(svgElement("path", { class: `line ${s.color} ${partial}`, d: `M${places.join("L")}`, "data-key": s.key }));
      } else {
        const [cx, cy] = places[0].split(",");
        svg.append(svgElement("circle", { class: `dot ${s.color}`, cx, cy, r: 3, "data-key": s.key }));
      }
    }
  }
  const describe = (at) => visible.filter((s) => s.x.length).map((s) => {
    const i = lastBelow(s.x, at);
    const next = Math.min(i + 1, s.x.length - 1);
    const nearest = Math.abs(s.x[next] - at) < Math.abs(s.x[i] - at) ? next : i;
    let text = numberText(s.y[nearest]);
    if (s.low.length && s.runs[nearest] > 1) text += ` (${numberText(s.low[nearest])} to ${numberText(s.high[nearest])}, ${s.runs[nearest]} runs)`;
    return { color: s.color, name: s.name, text, x: s.x[nearest], y: s.y[nearest] };
  });
  return { svg, x, y, describe };
}

function drawStack(chart, visible, width) {
  const height = HEIGHT - MARGIN.top - MARGIN.bottom;
  const x = xAxis(chart, 0, Math.max(1e-9, ...chart.end), width);
  const base = chart.start.map(() => 0);
  const layers = visible.map((s) => ({
    s,
    below: base.slice(),
    above: s.y.map((value, i) => (base[i] += value)),
  }));
  const y = yAxis(...range([base], true), height);
  const svg = frame(chart, width, height, x, y);
  for (const { s, below, above } of layers) {
    const boxes = s.y.map((_, i) => {
      const [left, right] = [x.at(chart.start[i]), x.at(chart.end[i])];
      const corners = [[left, above[i]], [right, above[i]], [right, below[i]], [left, below[i]]];
      return `M${corners.map(([at, value]) => point(at, y.at(value))).join("L")}Z`;
    });
    svg.append(svgElement("path", { class: `area ${s.color}`, d: boxes.join(""), "data-key": s.key }));
  }
  const describe = (at) => {
    const i = lastBelow(chart.start, at);
    const rows = layers.map(({ s, above }) => ({
      color: s.color, name: s.name, text: numberText(s.y[i]), x: at, y: above[i],
    })).reverse();
    return [...rows, { name: "total", text: numberText(base[i]), x: at, y: base[i] }];
  };
  return { svg, x, y, describe };
}

function drawStrip(chart, visible, width) {
  const height = ROW_HEIGHT * chart.rows.length;
  const x = xAxis(chart, 0, Math.max(1e-9, ...chart.rows.flatMap((r) => r.end)), width);
  const svg = frame(chart, width, height, x, null);
  chart.rows.forEach((row, number) => {
    const top = MARGIN.top + number * ROW_HEIGHT;
    const name = chart.rows.length > 1 ? row.name : "";
    svg.append(svgElement("text", { class: "row", x: MARGIN.left, y: top + 11 }, name));
    row.part.forEach((part, i) => {
      const s = chart.series[part];
      if (!visible.includes(s)) return;
      const left = x.at(row.start[i]);
      svg.append(svgElement("rect", {
        class: `area ${s.color}`, "data-key": s.key,
        x: left.toFixed(1), y: top + 15, width: Math.max(0.5, x.at(row.end[i]) - left).toFixed(1), height: ROW_HEIGHT - 19,
      }));
    });
  });
  const describe = (at) => chart.rows.filter((row) => row.start.length).map((row) => {
    const s = chart.series[row.part[lastBelow(row.start, at)]];
    return { color: s.color, name: row.name, text: s.name, x: at, y: null };
  });
  return { svg, x, y: null, describe };
}

const DRAW = { lines: drawLines, stack: drawStack, strip: drawStrip };
