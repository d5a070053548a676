// Small charts as inline SVG: lines over the last two minutes, bars of a histogram.

import { drawn, element, setAttribute, setText } from "./dom.js";

export const KEPT = 120; // points of a history: two minutes
const WIDTH = 240;
const HEIGHT = 56;

// Lines that share one scale from 0. lines: [{name, format}], drawn in this order.
export class Lines {
  constructor(label, names, format) {
    this.label = label;
    this.names = names;
    this.format = format;
    this.points = names.map(() => []);
    this.paths = names.map((name, i) => drawn("path", { class: `curve curve-${i}` }));
    const keys = names.map((name, i) => element("span", { class: `key key-${i}`, text: name }));
    this.svg = drawn(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" },
      drawn("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5 }),
      ...this.paths,
    );
    this.top = element("span", { class: "top-label" });
    this.node = element(
      "div",
      { class: "chart" },
      this.svg,
      this.top,
      element("span", { class: "span-label" }, ...keys, "2 min"),
    );
  }

  // One value a line; null leaves a gap.
  push(values) {
    this.points.forEach((points, i) => {
      points.push(values[i]);
      if (points.length > KEPT) points.shift();
    });
  }

  add(values) {
    this.push(values);
    const known = this.points.flat().filter((value) => value != null);
    const top = niceTop(Math.max(0, ...known));
    this.points.forEach((points, i) => setAttribute(this.paths[i], "d", curve(points, top)));
    setText(this.top, known.length ? this.format(top) : "");
    const now = this.names.map((name, i) => `${name} ${this.format(this.points[i].at(-1))}`);
    setAttribute(this.svg, "aria-label", `${this.label}, last two minutes; now ${now.join(", ")}`);
  }
}

// The next round number, so that the scale jumps seldom.
function niceTop(most) {
  if (most <= 0) return 1;
  const ten = 10 ** Math.floor(Math.log10(most));
  return [1, 1.5, 2, 3, 4, 6, 8, 10].map((step) => step * ten).find((step) => step >= most * 0.9999);
}

function curve(points, top) {
  const step = WIDTH / (KEPT - 1);
  const left = KEPT - points.length;
  let drawing = false;
  let path = "";
  points.forEach((value, i) => {
    if (value == null) {
      drawing = false;
      return;
    }
    const x = ((left + i) * step).toFixed(1);
    const y = (HEIGHT - 1 - (value / top) * (HEIGHT - 3)).toFixed(1);
    path += drawing ? `L${x} ${y}` : `M${x} ${y}h.01`;
    drawing = true;
  });
  return path;
}

// Bars of [label, count]; the labels stand below.
export class Bars {
  constructor(label, unit) {
    this.label = label;
    this.unit = unit;
    this.node = element("div", { class: "bars", role: "img" });
    this.bars = [];
  }

  update(pairs) {
    while (this.bars.length < pairs.length) this.bars.push(this.addBar());
    while (this.bars.length > pairs.length) this.bars.pop().node.remove();
    const most = Math.max(1, ...pairs.map(([, n]) => n));
    const sum = pairs.reduce((total, [, n]) => total + n, 0);
    pairs.forEach(([name, n], i) => {
      const bar = this.bars[i];
      bar.fill.style.height = n ? `${Math.max(3, (100 * n) / most)}%` : "0";
      setText(bar.name, name);
      bar.node.title = `${name} ${this.unit}: ${n} of ${sum}`;
    });
    const told = pairs.filter(([, n]) => n).map(([name, n]) => `${name}: ${n}`);
    setAttribute(this.node, "aria-label", `${this.label}: ${told.join(", ") || "none"}`);
  }

  addBar() {
    const fill = element("span", { class: "bar-fill" });
    const name = element("span", { class: "bar-name" });
    const node = element("span", { class: "bar" }, element("span", { class: "bar-room" }, fill), name);
    this.node.append(node);
    return { node, fill, name };
  }
}

// How full something is, with a mark. values: {value, total, mark} with mark a share of total.
export class Meter {
  constructor(label) {
    this.fill = element("span", { class: "meter-fill" });
    this.mark = element("span", { class: "meter-mark" });
    this.node = element(
      "div",
      { class: "meter", role: "meter", "aria-label": label, "aria-valuemin": "0" },
      this.fill,
      this.mark,
    );
  }

  update({ value, total, mark, text }) {
    const full = total ? value / total : 0;
    this.fill.style.width = `${Math.min(100, 100 * full)}%`;
    this.mark.style.left = `${100 * mark}%`;
    this.node.dataset.level = full > mark ? "over" : full > mark * 0.8 ? "high" : "low";
    setAttribute(this.node, "aria-valuemax", String(total));
    setAttribute(this.node, "aria-valuenow", String(value));
    setAttribute(this.node, "aria-valuetext", text);
  }
}
