// Lines over steps: axes with round numbers, a legend, and the values under the pointer or under the arrow keys.
import { h, replace, setLabel, svg } from "./dom.js";
import { number } from "./format.js";

const HEIGHT = 210, TOP = 18, BOTTOM = 26, RIGHT = 12;
const LETTER = 6.2; // the width of a letter of the smallest type, in pixels
const NUM_COLOURS = 8;
const GAP = 8; // between the names of two stages, in pixels
const NARROWEST = 2; // the narrowest letter of a stage name, in pixels
const MIN_NAME = 40; // the minimum width of a name that makes room for the next, in pixels

/** Round numbers that cover the range, about `count` of them. */
function ticks(low, high, count) {
  const span = high - low || Math.abs(high) || 1;
  const power = 10 ** Math.floor(Math.log10(span / count));
  const size = [1, 2, 5, 10].map((factor) => factor * power).find((step) => span / step <= count);
  const first = Math.ceil(low / size - 1e-9);
  const last = Math.floor(high / size + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * size).toPrecision(12)));
}

/** At most about `count` points, which keep the lowest and highest of each stretch. */
function thinned(points, count) {
  if (points.length <= count) return points;
  const size = Math.ceil((2 * points.length) / count);
  const kept = [];
  for (let start = 0; start < points.length; start += size) {
    const bucket = points.slice(start, start + size).filter(([, y]) => y !== null);
    if (!bucket.length) continue;
    const low = bucket.reduce((best, point) => (point[1] < best[1] ? point : best));
    const high = bucket.reduce((best, point) => (point[1] > best[1] ? point : best));
    kept.push(...(low[0] <= high[0] ? [low, high] : [high, low]));
  }
  return kept;
}

function axisText(text, x, y, anchor) {
  return svg("text", { class: "axis", x, y, "text-anchor": anchor, "dominant-baseline": "central" }, text);
}

/**
 * A figure that redraws itself at its width. `update` takes series of `{label, colour, dash, lines: [[[x, y], …], …]}`
 * (a line is broken where a stage ends) and marks of `{x, label}`.
 */
export class LineChart {
  constructor(title, { format = number, xLabel = "step" } = {}) {
    this.title = title;
    this.format = format;
    this.xLabel = xLabel;
    this.series = [];
    this.marks = [];
    this.at = null;
    this.drawing = svg("svg", { class: "plot", tabindex: "0", role: "img" });
    this.readout = h("div", { class: "tip", hidden: true });
    this.legend = h("ul", { class: "legend" });
    this.spoken = h("div", { class: "unseen", "aria-live": "polite" });
    const heading = h("h3", {}, title);
    const canvas = h("div", { class: "canvas" }, this.drawing, this.readout);
    this.element = h("figure", { class: "chart" }, heading, this.legend, canvas, this.spoken);
    this.drawing.addEventListener("pointermove", (event) => this.#point(event));
    this.drawing.addEventListener("pointerleave", () => this.#show(null));
    this.drawing.addEventListener("blur", () => this.#show(null));
    this.drawing.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#draw()).observe(this.drawing);
  }

  update(series, marks = []) {
    this.series = series.map((item) => ({ ...item, lines: item.lines.map((line) => thinned(line, 2000)) }));
    this.marks = marks;
    this.xs = [...new Set(this.series.flatMap((item) => item.lines.flat().map(([x]) => x)))].sort((a, b) => a - b);
    replace(this.legend, this.series.map((item, index) => {
      const size = { viewBox: "0 0 18 8", width: 18, height: 8, "aria-hidden": "true" };
      const key = svg("svg", { class: this.#style(item, index), ...size }, svg("line", { x1: 0, x2: 18, y1: 4, y2: 4 }));
      return h("li", {}, key, item.label);
    }));
    setLabel(this.drawing, this.#summary());
    this.#draw();
  }

  #style(item, index) {
    return `line colour-${(item.colour ?? index) % NUM_COLOURS}${item.dash ? " dash-" + (item.dash % 4) : ""}`;
  }

  #summary() {
    const parts = this.series.map((item) => {
      const points = item.lines.flat().filter(([, y]) => y !== null);
      if (!points.length) return `${item.label}: no values`;
      const said = ([x, y]) => `${this.format(y)} at ${this.xLabel} ${x}`;
      return `${item.label}: ${said(points[0])}, ${said(points[points.length - 1])}`;
    });
    return `${this.title}. ${parts.join("; ")}. Arrow keys read the values.`;
  }

  #draw() {
    const width = this.drawing.clientWidth;
    if (!width) return;
    const points = this.series.flatMap((item) => item.lines.flat()).filter(([, y]) => y !== null);
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    if (!points.length) return replace(this.drawing, axisText("no values yet", width / 2, HEIGHT / 2, "middle"));
    const [lowX, highX] = [this.xs[0], this.xs[this.xs.length - 1]];
    let [low, high] = points.reduce(([a, b], [, y]) => [Math.min(a, y), Math.max(b, y)], [Infinity, -Infinity]);
    if (low >= 0 && low < 0.5 * high) low = 0;
    if (low === high) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 10, high + Math.abs(high) / 10];
    const pad = (high - low) * 0.06;
    const [bottom, top] = [low === 0 ? 0 : low - pad, high + pad];
    const yTicks = ticks(low, high, 5);
    const left = 14 + 1.06 * LETTER * Math.max(...yTicks.map((tick) => this.format(tick).length));
    const spanX = highX - lowX;
    this.x = (x) => left + (width - RIGHT - left) * (spanX ? (x - lowX) / spanX : 0.5);
    this.y = (y) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - TOP) * (y - bottom)) / (top - bottom);
    const xTicks = ticks(lowX, highX, Math.max(3, Math.floor(width / 64))).filter(Number.isInteger);
    replace(this.drawing,
      yTicks.map((tick) => [
        svg("line", { class: "grid", x1: left, x2: width - RIGHT, y1: this.y(tick), y2: this.y(tick) }),
        axisText(this.format(tick), left - 7, this.y(tick), "end"),
      ]),
      xTicks.map((tick) => axisText(number(tick), this.x(tick), HEIGHT - 12, "middle")),
      this.#stages(width),
      this.series.map((item, index) => item.lines.map((line) => this.#line(line, this.#style(item, index)))));
    this.cursor = svg("g", { class: "cursor" });
    this.drawing.append(this.cursor);
    if (this.at !== null) this.#show(this.at);
  }

  /** Marks and names of stages. A name without room is cut or left out; the tooltip of its mark shows all of it. */
  #stages(width) {
    const marks = this.marks.filter(({ x }) => x >= this.xs[0] && x <= this.xs[this.xs.length - 1]);
    const last = marks.length - 1;
    const sized = marks.map(({ x, label }) => ({ at: this.x(x), label, size: this.#textWidth(label) + GAP }));
    // A stage that has just begun has its name left of its mark, if the previous name leaves room there.
    const isLate = last > 0 && sized[last].at + sized[last].size > width
      && sized[last].at - sized[last].size >= sized[last - 1].at + Math.min(sized[last - 1].size, MIN_NAME);
    return sized.map(({ at, label, size }, index) => {
      const isLateOne = isLate && index === last;
      const end = index === last ? width : sized[index + 1].at - (isLate && index === last - 1 ? sized[last].size : 0);
      const text = isLateOne || size <= end - at ? label : this.#cut(label, end - at - GAP);
      const place = { x: at + (isLateOne ? -4 : 4), y: TOP - 6, "text-anchor": isLateOne ? "end" : "start" };
      return [
        index > 0 && svg("line", { class: "stage", x1: at, x2: at, y1: TOP - 14, y2: HEIGHT - BOTTOM }, svg("title", {}, label)),
        text && svg("text", { class: "stage-name", ...place }, text !== label && svg("title", {}, label), text),
      ];
    });
  }

  /** The measured width of a text in the type of stage names, since letters differ. */
  #textWidth(text) {
    const probe = svg("text", { class: "stage-name" }, text);
    this.drawing.append(probe);
    const width = probe.getComputedTextLength();
    probe.remove();
    return width;
  }

  #cut(label, room) {
    const maxLength = Math.min(label.length - 1, Math.floor(room / NARROWEST));
    for (let length = maxLength; length > 0; length -= 1) {
      const text = `${label.slice(0, length)}…`;
      if (this.#textWidth(text) <= room) return text;
    }
    return "";
  }

  #line(points, style) {
    const known = points.filter(([, y]) => y !== null);
    if (known.length === 1) return this.#dot(...known[0], style);
    let path = "";
    let isOpen = false;
    for (const [x, y] of points) {
      if (y !== null) path += `${isOpen ? "L" : "M"}${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`;
      isOpen = y !== null;
    }
    return svg("path", { class: style, d: path || "M0 0" });
  }

  #dot(x, y, style) {
    return svg("circle", { class: `dot ${style}`, cx: this.x(x), cy: this.y(y), r: 3 });
  }

  #point(event) {
    if (!this.x || !this.xs?.length) return;
    const at = event.clientX - this.drawing.getBoundingClientRect().left;
    const distances = this.xs.map((x) => Math.abs(this.x(x) - at));
    this.#show(distances.indexOf(Math.min(...distances)));
  }

  #key(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };
    if (!(event.key in steps) || !this.xs?.length) return;
    event.preventDefault();
    const from = this.at ?? (steps[event.key] > 0 ? -1 : this.xs.length);
    this.#show(Math.max(0, Math.min(this.xs.length - 1, from + steps[event.key])));
    replace(this.spoken, this.#values().map(([label, value]) => `${label} ${value}`).join(", "));
  }

  #values() {
    const x = this.xs[this.at];
    const found = this.series.flatMap((item, index) => {
      const point = item.lines.flat().findLast(([px, y]) => px === x && y !== null);
      return point ? [[item.label, this.format(point[1]), point[1], this.#style(item, index)]] : [];
    });
    return [[this.xLabel, number(x), null, ""], ...found];
  }

  #show(at) {
    this.at = at !== null && at < (this.xs?.length ?? 0) ? at : null;
    this.readout.hidden = this.at === null || !this.cursor;
    if (!this.cursor) return;
    if (this.at === null) return replace(this.cursor);
    const x = this.x(this.xs[this.at]);
    const values = this.#values();
    replace(this.cursor, svg("line", { x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }),
      values.slice(1).map(([, , y, style]) => this.#dot(this.xs[this.at], y, style)));
    replace(this.readout, values.map(([label, value, , style], index) => h("div", { class: index ? "value" : "head" },
      h("span", { class: `swatch ${style}` }), h("span", {}, label), h("b", {}, value))));
    this.readout.classList.toggle("flip", x > this.drawing.clientWidth / 2);
    this.readout.style.setProperty("--x", `${x}px`);
  }
}
