// Charts over time or steps, drawn by uPlot (vendor/uplot, MIT licence), in the page's colours.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { colour } from "./colours.js";
import { draw, make } from "./dom.js";

const HEIGHT = 260;
const dark = matchMedia("(prefers-color-scheme: dark)");

/** A chart of lines, with a legend that follows the pointer. */
export class Chart {
  /**
   * @param label What the chart shows, in words.
   * @param look Returns uPlot's `series` after the first, from the page's colours.
   * @param options `time`: whether the first axis has seconds since the epoch; `bottom` and `left`: titles of
   *   the axes; `values` and `at` format their numbers; `steps`: the distances that the left axis' numbers
   *   may have; `top`: the least end of the left axis, null: that of the data; `marks` returns events to be
   *   drawn, {at, tone}.
   */
  constructor(label, look, options) {
    this.label = label;
    this.look = look;
    this.options = options;
    this.data = null;
    this.plot = null;
    this.element = make("div", { class: "chart", role: "img", "aria-label": label });
    this.sizes = new ResizeObserver(() => this.fit());
    this.sizes.observe(this.element);
    this.turned = () => this.build();
    dark.addEventListener("change", this.turned);
  }

  /** Shows data as uPlot has them: a list of places, and a list of values for each line. */
  show(data, words = this.label) {
    this.element.setAttribute("aria-label", words);
    const isAlike = this.data && this.data.length === data.length;
    this.data = data;
    if (this.plot && isAlike) this.plot.setData(data);
    else this.build();
  }

  close() {
    this.sizes.disconnect();
    dark.removeEventListener("change", this.turned);
    this.plot?.destroy();
    this.plot = null;
  }

  fit() {
    const width = this.element.clientWidth;
    if (!this.plot) this.build();
    else if (width && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }

  build() {
    const width = this.element.clientWidth;
    if (!this.data || !width) return;
    this.plot?.destroy();
    const { time = true, bottom, left, values, steps, top = 1, marks, at } = this.options;
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    const font = "12px system-ui, sans-serif";
    const shownValue = values ? (_, value) => (value === null ? "–" : values(value)) : undefined;
    this.plot = new uPlot({
      width,
      height: HEIGHT,
      padding: [12, 14, 0, 4],
      cursor: { y: false },
      scales: {
        x: { time },
        y: { range: (_, low, high) => (top === null ? uPlot.rangeNum(low, high, 0.1, true) : [0, Math.max(top, high * 1.08)]) },
      },
      axes: [
        { ...axis, font, label: bottom, labelFont: font, labelSize: bottom ? 22 : 0, values: at ? (_, ticks) => ticks.map((tick) => at(tick)) : undefined },
        { ...axis, font, label: left, labelFont: font, size: 58, incrs: steps, values: values ? (_, ticks) => ticks.map((tick) => values(tick)) : undefined },
      ],
      series: [{ label: time ? "Time" : bottom, value: at ? (_, place) => (place === null ? "–" : at(place)) : undefined }, ...this.look(colour).map((one) => ({ value: shownValue, ...one }))],
      hooks: marks ? { draw: [(plot) => drawMarks(plot, marks())] } : {},
    }, this.data, this.element);
  }
}

/** Draws lines for events, which are {at, name of a colour}. */
function drawMarks(plot, marks) {
  const { ctx } = plot;
  ctx.save();
  for (const { at, tone } of marks) {
    const x = plot.valToPos(at, "x", true);
    if (x < plot.bbox.left || x > plot.bbox.left + plot.bbox.width) continue;
    ctx.strokeStyle = colour(tone);
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, plot.bbox.top);
    ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

/** Makes a small line without axes of shares from 0 to 1. */
export class Sparkline {
  constructor(label) {
    this.area = draw("path", { class: "area" });
    this.line = draw("path", { class: "line" });
    this.element = draw("svg", { class: "spark", viewBox: "0 0 100 36", preserveAspectRatio: "none", role: "img", "aria-label": label }, this.area, this.line);
  }

  show(values) {
    const step = 100 / Math.max(1, values.length - 1);
    const points = values.map((value, at) => `${(at * step).toFixed(2)} ${(35 - 33 * Math.min(1, value)).toFixed(2)}`);
    const line = points.length ? `M${points.join("L")}` : "";
    this.line.setAttribute("d", line);
    this.area.setAttribute("d", line && `${line}L100 36L0 36Z`);
  }
}
