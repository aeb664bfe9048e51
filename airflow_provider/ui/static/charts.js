/* Curves of metrics over the steps of a training, and of its use of resources over time, as SVG. The style sheet has their colours. */
import { el, number } from "./page.js";
import { BOTTOM, HEIGHT, TOP, createAxis, formatSize, layOut, nearest, svg, timeUnit } from "./axes.js";

/** Colours of the curves; the second five are dashed. */
const COLORS = 5;

/** Largest number of points that are kept of a training. Of more, every second one is dropped. */
const MAX_POINTS = 2000;

/** Append the points that `progress` reported. */
export function addPoints(points, more) {
  points.push(...more);
  return points.length > MAX_POINTS ? points.filter((_, at) => at % 2 === 0) : points;
}

/**
 * Split the reports of a TrainJob where the step number decreases: a training that is restarted, or resumed from an
 * earlier checkpoint, repeats its steps. The last part is the current one.
 */
export function splitRuns(points) {
  const runs = [[]];
  for (const point of points) {
    if (point.step < runs.at(-1).at(-1)?.step) runs.push([]);
    runs.at(-1).push(point);
  }
  return runs;
}

/** Return a curve for each metric: its [step, value] pairs. */
export function collectMetrics(points) {
  const metrics = new Map();
  points.forEach((point, at) => {
    for (const [name, value] of Object.entries(point.metrics || {})) {
      if (!metrics.has(name)) metrics.set(name, new Map());
      metrics.get(name).set(point.step ?? at, value);
    }
  });
  return [...metrics].map(([name, values]) => ({ name, points: [...values].sort(([a], [b]) => a - b) }));
}

/** Return the curves of a node's use of resources: [second, value] pairs, in percent of what it may use or in bytes. */
export function collectResources(reports) {
  const curves = new Map();
  const add = (name, report, value, size) => {
    if (value === undefined) return;
    if (!curves.has(name)) curves.set(name, { name, points: [], ...size });
    curves.get(name).points.push([(report.t - reports[0].t) / 1000, value]);
  };
  for (const report of reports) {
    add("Processor, %", report, report.cpu);
    add("Memory", report, report.memory, { isSize: true, limit: report.memory_limit });
    for (const gpu of report.gpus) {
      add(`GPU ${gpu.number}, %`, report, gpu.utilization);
      add(`Memory of GPU ${gpu.number}`, report, gpu.memory, { isSize: true, limit: gpu.memory_limit });
    }
  }
  return [...curves.values()];
}

/** The charts of a section, one for each name of a curve. If the section has a box for it, the scale can be logarithmic, which is in the URL. */
export class Charts {
  #charts = new Map();
  #trainings = [];

  constructor(section, { isTime = false } = {}) {
    [this.section, this.isTime] = [section, isTime];
    this.place = section.querySelector(".curves");
    this.legend = section.querySelector(".legend");
    this.box = section.querySelector("input");
    if (this.box) this.#keepScaleInUrl();
    new ResizeObserver(() => this.#draw()).observe(this.place);
  }

  #keepScaleInUrl() {
    this.box.checked = new URLSearchParams(location.search).has("log");
    this.box.addEventListener("change", () => {
      const address = new URL(location.href);
      if (this.box.checked) address.searchParams.set("log", "1");
      else address.searchParams.delete("log");
      history.replaceState(null, "", address);
      this.#draw();
    });
  }

  /**
   * Draw trainings: each has a `label` and `curves` as `collectMetrics` or `collectResources` return them. One that
   * `isPale` is in the background without a colour, as an earlier attempt. `marks` are [step, words] pairs.
   */
  show(trainings, marks = []) {
    let colour = 0;
    this.#trainings = trainings.map((training) => ({ ...training, at: training.isPale ? undefined : colour++ }));
    this.marks = marks;
    const named = this.#trainings.filter(({ isPale }) => !isPale);
    this.legend?.replaceChildren(...(named.length > 1 ? named.map(({ label, at }) => el("li", {}, swatch(at), label)) : []));
    this.#draw();
  }

  #draw() {
    const charts = new Map();
    for (const { label, at, curves } of this.#trainings) {
      for (const curve of curves) charts.set(curve.name, [...(charts.get(curve.name) ?? []), { ...curve, label, at }]);
    }
    for (const [name, curves] of charts) if (curves.every(({ points }) => points.length < 2)) charts.delete(name);
    this.section.hidden = !charts.size;
    for (const [name, chart] of this.#charts) {
      if (charts.has(name)) continue;
      chart.figure.remove();
      this.#charts.delete(name);
    }
    for (const [name, curves] of charts) {
      if (!this.#charts.has(name)) {
        this.#charts.set(name, new Chart(name));
        this.place.append(this.#charts.get(name).figure);
      }
      this.#charts.get(name).show(curves, { isTime: this.isTime, isLog: Boolean(this.box?.checked), marks: this.marks });
    }
  }
}

/** One chart. The pointer and the arrow keys choose a point, whose values are shown. */
class Chart {
  #curves = [];
  #chosen; // Index of the chosen point in #xs.
  #xs = [];

  constructor(name) {
    this.name = name;
    this.last = el("span", { class: "quiet" });
    this.plot = el("div", { class: "plot", role: "img", tabindex: 0 });
    this.values = el("div", { class: "values", "aria-live": "polite" });
    this.figure = el("figure", {}, el("figcaption", {}, name, this.last), this.plot, this.values);
    for (const type of ["pointermove", "pointerdown"]) this.plot.addEventListener(type, (event) => this.#point(event));
    for (const type of ["pointerleave", "blur"]) this.plot.addEventListener(type, () => this.#choose(undefined));
    this.plot.addEventListener("keydown", (event) => this.#move(event));
  }

  /** Draw curves: their points, their label and `at`, the number of their colour. One without a number is pale. */
  show(curves, { isTime, isLog, marks }) {
    const width = Math.max(120, Math.floor(this.plot.clientWidth));
    const text = JSON.stringify([curves, width, isLog, marks]);
    if (this.shown === text) return;
    this.shown = text;
    const chosen = this.#xs[this.#chosen];
    const isFinite = ([, value]) => value !== null;
    const useLog = isLog && curves.some(({ points }) => points.some(([, value]) => value > 0));
    const [seconds, unit, symbol] = isTime ? timeUnit(curves) : [1, "step", ""];
    [this.unit, this.symbol] = [unit, symbol];
    this.format = curves[0].isSize ? formatSize : number;
    this.exact = curves[0].isSize ? formatSize : (value) => number(value, 6);
    // A value without a logarithm, as one that is no number, is a gap.
    this.#curves = curves.map((curve) => ({
      ...curve, points: curve.points.map(([x, value]) => [x / seconds, value === null || (useLog && value <= 0) ? null : value]),
    }));
    const visible = this.#curves.flatMap(({ points }) => points.filter(isFinite));
    this.#xs = [...new Set(visible.map(([x]) => x))].sort((a, b) => a - b);
    this.#chosen = chosen === undefined ? undefined : nearest(this.#xs, chosen);
    this.#describe(isFinite, isTime);
    this.#draw(visible, { width, useLog, isTime, marks });
    this.#choose(this.#chosen);
  }

  #describe(isFinite, isTime) {
    const current = this.#curves.filter(({ at }) => at !== undefined);
    const drawn = current.map((curve) => ({ ...curve, points: curve.points.filter(isFinite) })).filter(({ points }) => points.length);
    this.plot.setAttribute("aria-label", drawn.map(({ label, points }) => {
      const values = points.map(([, value]) => value);
      const [[first, begin], [last, end]] = [points[0], points.at(-1)];
      const name = current.length > 1 ? `${this.name} of ${label}` : this.name;
      return `${name} from ${this.format(begin)} at ${this.unit} ${number(first)} to ${this.format(end)} at ${this.unit} ${number(last)}, between ${this.format(Math.min(...values))} and ${this.format(Math.max(...values))}`;
    }).join("; ") || this.name);
    this.last.replaceChildren();
    if (current.length !== 1) return;
    const [{ points, limit }] = current;
    const [step, end] = points.at(-1);
    this.last.append(el("b", {}, end === null ? "-" : this.format(end) + (limit ? ` of ${this.format(limit)}` : "")), isTime ? "" : ` at step ${number(step)}`);
  }

  #draw(visible, { width, useLog, isTime, marks }) {
    const isSize = Boolean(this.#curves[0].isSize);
    const y = createAxis(visible.map(([, value]) => value), 6, { isLog: useLog, isSize, margin: 0.05, fromZero: isTime });
    const all = [...this.#curves.flatMap(({ points }) => points.map(([each]) => each)), ...marks.map(([x]) => x)];
    const widest = (number(Math.max(...all)) + this.symbol).length;
    const createX = (inner) => createAxis(all, Math.max(2, Math.floor(inner / (7 * widest + 30))), { isWhole: all.every(Number.isInteger), margin: 0 });
    const { toX, toY, grid } = layOut(width, y, createX, this.symbol);
    [this.toX, this.toY] = [toX, toY];
    this.cursor = svg("g", { class: "cursor" });
    const drawMark = ([x, words], at, { length }) => [svg("path", { class: "mark", d: `M${toX(x)} ${TOP}V${HEIGHT - BOTTOM}` }),
      ...(at === length - 1 ? [svg("text", { class: "mark", y: TOP + 9, ...besides(toX(x), width) }, words)] : [])];
    const ordered = [...this.#curves].sort((one, other) => (one.at ?? -1) - (other.at ?? -1));
    this.plot.replaceChildren(svg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, "aria-hidden": "true" }, ...grid,
      ...ordered.map(({ points, at }) => svg("path", { class: curveClass(at), d: this.#trace(points) })),
      ...marks.flatMap(drawMark), this.cursor));
  }

  #trace(points) {
    let [pen, path] = ["M", ""];
    for (const [x, value] of points) {
      // `h0` makes a point between two gaps visible.
      path += value === null ? "" : `${pen}${this.toX(x).toFixed(1)} ${this.toY(value).toFixed(1)}${pen === "M" ? "h0" : ""}`;
      pen = value === null ? "M" : "L";
    }
    return path;
  }

  #point({ clientX }) {
    const x = clientX - this.plot.getBoundingClientRect().left;
    this.#choose(nearest(this.#xs.map(this.toX), x));
  }

  #move(event) {
    const end = this.#xs.length - 1;
    const from = this.#chosen;
    const next = { ArrowLeft: (from ?? end + 1) - 1, ArrowRight: (from ?? -1) + 1, Home: 0, End: end, Escape: undefined };
    if (!(event.key in next)) return;
    event.preventDefault();
    this.#choose(event.key === "Escape" ? undefined : Math.max(0, Math.min(end, next[event.key])));
  }

  /** Show the values at a point of the horizontal axis: of each curve that has begun and not ended there, at its nearest point. */
  #choose(index) {
    this.#chosen = index;
    const x = this.#xs[index];
    if (x === undefined) {
      this.cursor?.replaceChildren();
      this.values.replaceChildren();
      return;
    }
    const found = this.#curves.flatMap(({ points, label, at }) => {
      const [first, last] = [points[0]?.[0], points.at(-1)?.[0]];
      return x >= first && x <= last ? [{ label, at, point: points[nearest(points.map(([each]) => each), x)] }] : [];
    });
    // Pale curves only where there are no others: there may be many.
    const current = found.filter(({ at }) => at !== undefined);
    const listed = current.length ? current : found.slice(-1);
    const drawn = listed.filter(({ point: [, value] }) => value !== null);
    this.cursor.replaceChildren(svg("path", { d: `M${this.toX(x)} ${TOP}V${HEIGHT - BOTTOM}` }),
      ...drawn.map(({ at, point }) => svg("circle", { class: curveClass(at), cx: this.toX(point[0]), cy: this.toY(point[1]), r: 3.5 })));
    const isOne = this.#curves.length === 1;
    this.values.replaceChildren(el("div", {}, `${this.unit} ${number(x)}`), ...listed.map(({ label, at, point: [own, value] }) => {
      const words = value === null ? "-" : this.exact(value);
      return el("div", {}, swatch(at), !isOne && el("span", {}, label), el("b", {}, words), own !== x && `at ${number(own)}`);
    }));
    const isRight = this.toX(x) > this.plot.clientWidth / 2;
    this.values.style.left = isRight ? "auto" : `${this.toX(x) + 12}px`;
    this.values.style.right = isRight ? `${this.plot.clientWidth - this.toX(x) + 12}px` : "auto";
  }
}

export const curveClass = (at) => (at === undefined ? "curve pale" : `curve color-${at % COLORS}${at >= COLORS ? " dashed" : ""}`);
export const swatch = (at) => svg("svg", { class: "swatch", width: 18, height: 8, "aria-hidden": "true" }, svg("path", { class: curveClass(at), d: "M1 4H17" }));
/** Position of a text beside a vertical line, on the side with more space. */
const besides = (x, width) => (x > width / 2 ? { x: x - 5, "text-anchor": "end" } : { x: x + 5, "text-anchor": "start" });
