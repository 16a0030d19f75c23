"use strict";
// Builds the page out of blocks: tables, values, groups of charts, videos. Everything that comes from
// a run is set as text, never as markup. With a data-live attribute on the body the blocks are asked
// for again and again, and those that have changed are replaced.

const REFRESH_MILLISECONDS = 2000;
const LONG = 45; // characters of a cell, from which on it is broken into lines
const hidden = new Set(); // keys of series that the reader has switched off, in all charts
const tooltip = htmlElement("div", "tooltip");
tooltip.hidden = true;

function swatch(color) {
  return htmlElement("span", `swatch ${color}`);
}

// Tables and values.

function tableBlock(block) {
  const table = htmlElement("table");
  const head = table.createTHead().insertRow();
  block.columns.forEach((name, i) => head.append(htmlElement("th", block.numeric[i] ? "number" : "", name)));
  const body = table.createTBody();
  for (const row of block.rows) {
    const line = body.insertRow();
    row.cells.forEach((text, i) => {
      const cell = htmlElement("td", block.numeric[i] ? "number" : text.length > LONG ? "long" : "");
      if (i === 0 && row.color) cell.append(swatch(row.color));
      cell.append(text);
      line.append(cell);
    });
  }
  const scroll = htmlElement("div", "scroll");
  scroll.append(table);
  return [scroll];
}

function valuesBlock(block) {
  const list = htmlElement("dl", "values");
  for (const [name, value] of block.values) {
    const item = htmlElement("div");
    const [, figure, note] = value.match(/^(.*?)( \(.*\))?$/s);
    const description = htmlElement("dd", "", figure);
    if (note) description.append(htmlElement("small", "", note));
    item.append(htmlElement("dt", "", name), description);
    list.append(item);
  }
  return [list];
}

// Charts.

function showTooltip(event, drawn, chart) {
  const box = drawn.svg.getBoundingClientRect();
  const share = (event.clientX - box.left - MARGIN.left) / (box.width - MARGIN.left - MARGIN.right);
  const at = drawn.x.low + Math.min(1, Math.max(0, share)) * (drawn.x.high - drawn.x.low);
  const rows = drawn.describe(at);
  drawn.marks.replaceChildren();
  if (!rows.length) return hideTooltip(drawn);
  // Where a curve has a point; of several curves the one that is nearest.
  const x = rows.reduce((a, b) => (Math.abs(b.x - at) < Math.abs(a.x - at) ? b : a)).x;
  const left = drawn.x.at(x);
  const bottom = box.height - MARGIN.bottom;
  drawn.marks.append(svgElement("line", { class: "cross", x1: left, x2: left, y1: MARGIN.top, y2: bottom }));
  const title = htmlElement("div", "at", drawn.x.text(x));
  const lines = rows.map((row) => {
    if (row.y !== null && row.color && chart.kind === "lines") {
      drawn.marks.append(svgElement("circle", { class: `dot ${row.color}`, cx: drawn.x.at(row.x), cy: drawn.y.at(row.y), r: 3.5 }));
    }
    const line = htmlElement("div");
    if (row.color) line.append(swatch(row.color));
    line.append(`${row.name}: ${row.text}`);
    return line;
  });
  tooltip.replaceChildren(title, ...lines);
  tooltip.hidden = false;
  const { width, height } = tooltip.getBoundingClientRect();
  const beside = event.clientX + 16 + width > innerWidth ? event.clientX - 16 - width : event.clientX + 16;
  tooltip.style.left = `${Math.max(4, beside)}px`;
  tooltip.style.top = `${Math.max(4, Math.min(innerHeight - height - 4, event.clientY - height / 2))}px`;
}

function hideTooltip(drawn) {
  drawn.marks.replaceChildren();
  tooltip.hidden = true;
}

function chartFigure(chart) {
  const figure = htmlElement("figure");
  figure.id = chart.id;
  const caption = htmlElement("figcaption", "", chart.title);
  if (chart.note) caption.append(htmlElement("small", "", chart.note));
  const holder = htmlElement("div", "chart");
  figure.append(caption, holder);
  let drawnWidth = 0;
  figure.draw = () => {
    drawnWidth = holder.clientWidth;
    if (!drawnWidth) return; // inside of a folded part of the page
    const visible = chart.series.filter((s) => !hidden.has(s.key));
    const drawn = DRAW[chart.kind](chart, visible, Math.max(40, drawnWidth - MARGIN.left - MARGIN.right));
    drawn.marks = svgElement("g");
    drawn.svg.append(drawn.marks);
    drawn.svg.addEventListener("pointermove", (event) => showTooltip(event, drawn, chart));
    drawn.svg.addEventListener("pointerleave", () => hideTooltip(drawn));
    holder.replaceChildren(drawn.svg);
  };
  new ResizeObserver(() => { if (holder.clientWidth !== drawnWidth) figure.draw(); }).observe(holder);
  return figure;
}

function legend(entries) {
  const list = htmlElement("div", "legend");
  for (const { key, name, color } of entries) {
    const button = htmlElement("button");
    button.type = "button";
    button.title = "show or hide";
    button.dataset.key = key;
    button.ariaPressed = String(!hidden.has(key));
    button.append(swatch(color), name);
    button.addEventListener("click", () => toggle(key));
    list.append(button);
  }
  return list;
}

function toggle(key) {
  if (!hidden.delete(key)) hidden.add(key);
  for (const button of document.querySelectorAll(".legend button")) {
    button.ariaPressed = String(!hidden.has(button.dataset.key));
  }
  for (const figure of document.querySelectorAll("figure")) if (figure.draw) figure.draw();
}

function chartsBlock(block) {
  const grid = htmlElement("div", block.wide ? "wide grid" : "grid");
  grid.append(...block.charts.map(chartFigure));
  return block.legend.length > 1 ? [legend(block.legend), grid] : [grid];
}

// Videos.

function videosBlock(block) {
  const grid = htmlElement("div", "wide grid");
  for (const { source, type, caption } of block.videos) {
    const figure = htmlElement("figure");
    const picture = htmlElement(type.startsWith("image/") ? "img" : "video");
    if (picture instanceof HTMLVideoElement) Object.assign(picture, { controls: true, loop: true, muted: true });
    else picture.alt = caption;
    if (source.startsWith("data:")) picture.src = source;
    // As a whole: some browsers play a file only from a server that can also send pieces of it.
    else fetch(source).then((answer) => answer.blob()).then((blob) => { picture.src = URL.createObjectURL(blob); });
    figure.append(htmlElement("figcaption", "", caption), picture);
    grid.append(figure);
  }
  return [grid];
}

// The page.

const BLOCKS = { table: tableBlock, values: valuesBlock, charts: chartsBlock, videos: videosBlock };

function blockSection(block) {
  const folded = block.folded;
  const section = htmlElement(folded ? "details" : "section");
  section.id = block.id;
  section.append(htmlElement(folded ? "summary" : "h2", "", block.title));
  if (block.note) section.append(htmlElement("p", "note", block.note));
  section.append(...BLOCKS[block.kind](block));
  return section;
}

// Only what has changed is made anew: a video plays on, and a chart under the pointer stays.
function show(page) {
  document.title = page.title;
  document.querySelector("h1").textContent = page.title;
  document.querySelector("#subtitle").textContent = page.subtitle;
  const main = document.querySelector("main");
  const old = new Map([...main.children].map((section) => [section.id, section]));
  const sections = page.blocks.map((block) => {
    const content = JSON.stringify(block);
    const there = old.get(block.id);
    if (there && (there.content === content || there.querySelector(".chart:hover"))) return there;
    const section = blockSection(block);
    section.content = content;
    if (there && there.open) section.open = true;
    return section;
  });
  if (sections.length !== main.children.length || sections.some((s, i) => s !== main.children[i])) {
    main.replaceChildren(...sections);
  }
}

async function follow() {
  const state = document.querySelector("#state");
  try {
    const answer = await fetch("page.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    show(await answer.json());
    state.textContent = "";
  } catch {
    state.textContent ||= `No answer since ${new Date().toLocaleTimeString()}: the run has ended, or cannot be reached. A page that stays: seedpod report.`;
  }
  setTimeout(follow, REFRESH_MILLISECONDS);
}

document.body.append(tooltip);
if (document.body.dataset.live === undefined) show(JSON.parse(document.querySelector("#page").textContent));
else follow();
