/* Curves of metrics over the steps of a training, and of its use of resources over time, as SVG. The style sheet has their colours. */
import { el, number } from "./page.js";

const HEIGHT = 190;
const [TOP, RIGHT, BOTTOM] = [8, 14, 22];
/** Colours of the curves; the second five are dashed. */
const COLORS = 5;
const SIZES = ["bytes", "KiB", "MiB", "GiB", "TiB"];
/** The time axis of trainings that ran for at least so many seconds: seconds of a unit, its name, and its symbol at the ticks. */
const TIMES = [[7200, 3600, "hour", " h"], [60, 60, "minute", " min"], [0, 1, "second", " s"]];

/** Largest number of points that are kept of a training. Of more, every second one is dropped. */
const MAX_POINTS = 2000;

/** Append the points that `progress` reported. */
export function addPoints(points, more) {
  points.push(...more);
  return points.length > MAX_POINTS ? points.filter((_, at) => at % 2 === 0) : points;
}

/**
 * Return a curve for each metric: its [step, value] pairs since the step number last decreased, because a resumed TrainJob
 * counts its steps from the beginning.
 */
export function collectMetrics(points) {
  let begin = 0;
  points.forEach((point, at) => { if (at && point.step < points[at - 1].step) begin = at; });
  const metrics = new Map();
  points.slice(begin).forEach((point, at) => {
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
  #trainings = new Map();

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

  /** Draw what `collectMetrics` or `collectResources` returned for each training, by its label. */
  show(trainings) {
    this.#trainings = trainings;
    const labels = [...trainings.keys()];
    this.legend?.replaceChildren(...(labels.length > 1 ? labels.map((label, at) => el("li", {}, swatch(at), label)) : []));
    this.#draw();
  }

  #draw() {
    const charts = new Map();
    [...this.#trainings].forEach(([label, curves], at) => {
      for (const curve of curves) charts.set(curve.name, [...(charts.get(curve.name) ?? []), { ...curve, label, at }]);
    });
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
      this.#charts.get(name).show(curves, { isTime: this.isTime, isLog: Boolean(this.box?.checked) });
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
    this.last = el("b", {});
    this.plot = el("div", { class: "plot", role: "img", tabindex: 0 });
    this.values = el("div", { class: "values", "aria-live": "polite" });
    this.figure = el("figure", {}, el("figcaption", {}, name, this.last), this.plot, this.values);
    for (const type of ["pointermove", "pointerdown"]) this.plot.addEventListener(type, (event) => this.#point(event));
    for (const type of ["pointerleave", "blur"]) this.plot.addEventListener(type, () => this.#choose(undefined));
    this.plot.addEventListener("keydown", (event) => this.#move(event));
  }

  /** Draw curves: their points, their label and `at`, the number of their colour. */
  show(curves, { isTime, isLog }) {
    const width = Math.max(120, Math.floor(this.plot.clientWidth));
    const text = JSON.stringify([curves, width, isLog]);
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
    this.#describe(isFinite);
    this.#draw(visible, { width, useLog, isTime });
    this.#choose(this.#chosen);
  }

  #describe(isFinite) {
    const drawn = this.#curves.map((curve) => ({ ...curve, points: curve.points.filter(isFinite) })).filter(({ points }) => points.length);
    this.plot.setAttribute("aria-label", drawn.map(({ label, points }) => {
      const values = points.map(([, value]) => value);
      const [[first, begin], [last, end]] = [points[0], points.at(-1)];
      const name = this.#curves.length > 1 ? `${this.name} of ${label}` : this.name;
      return `${name} from ${this.format(begin)} at ${this.unit} ${number(first)} to ${this.format(end)} at ${this.unit} ${number(last)}, between ${this.format(Math.min(...values))} and ${this.format(Math.max(...values))}`;
    }).join("; "));
    const [curve] = this.#curves;
    const end = this.#curves.length === 1 ? curve.points.at(-1)[1] : undefined;
    this.last.textContent = end === undefined ? "" : end === null ? "-" : this.format(end) + (curve.limit ? ` of ${this.format(curve.limit)}` : "");
  }

  #draw(visible, { width, useLog, isTime }) {
    const isSize = Boolean(this.#curves[0].isSize);
    const y = createAxis(visible.map(([, value]) => value), 6, { isLog: useLog, isSize, margin: 0.05, fromZero: isTime });
    const left = 12 + 6.5 * Math.max(0, ...y.ticks.map(([, words]) => words.length));
    const inner = width - left - RIGHT;
    const all = this.#curves.flatMap(({ points }) => points.map(([each]) => each));
    const most = Math.max(2, Math.floor(inner / (7 * (number(Math.max(...all)) + this.symbol).length + 30)));
    const x = createAxis(all, most, { isWhole: all.every(Number.isInteger), margin: 0 });
    this.toX = (value) => left + inner * x.place(value);
    this.toY = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - y.place(value));
    this.cursor = svg("g", { class: "cursor" });
    this.plot.replaceChildren(svg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, "aria-hidden": "true" },
      ...y.ticks.flatMap(([value, words]) => [
        svg("path", { class: "grid", d: `M${left} ${this.toY(value)}H${width - RIGHT}` }),
        svg("text", { x: left - 6, y: this.toY(value) + 4, "text-anchor": "end" }, words)]),
      ...x.ticks.flatMap(([value, words]) => [
        svg("path", { class: "grid", d: `M${this.toX(value)} ${TOP}V${HEIGHT - BOTTOM}` }),
        svg("text", { x: this.toX(value), y: HEIGHT - 6, "text-anchor": "middle" }, words + this.symbol)]),
      ...this.#curves.map(({ points, at }) => svg("path", { class: curveClass(at), d: this.#trace(points) })),
      this.cursor));
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
    const drawn = found.filter(({ point: [, value] }) => value !== null);
    this.cursor.replaceChildren(svg("path", { d: `M${this.toX(x)} ${TOP}V${HEIGHT - BOTTOM}` }),
      ...drawn.map(({ at, point }) => svg("circle", { class: curveClass(at), cx: this.toX(point[0]), cy: this.toY(point[1]), r: 3.5 })));
    const isOne = this.#curves.length === 1;
    this.values.replaceChildren(el("div", {}, `${this.unit} ${number(x)}`), ...found.map(({ label, at, point: [own, value] }) => {
      const words = value === null ? "-" : this.exact(value);
      return el("div", {}, swatch(at), !isOne && el("span", {}, label), el("b", {}, words), own !== x && `at ${number(own)}`);
    }));
    const isRight = this.toX(x) > this.plot.clientWidth / 2;
    this.values.style.left = isRight ? "auto" : `${this.toX(x) + 12}px`;
    this.values.style.right = isRight ? `${this.plot.clientWidth - this.toX(x) + 12}px` : "auto";
  }
}

function svg(name, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const curveClass = (at) => `curve color-${at % COLORS}${at >= COLORS ? " dashed" : ""}`;
const swatch = (at) => svg("svg", { class: "swatch", width: 18, height: 8, "aria-hidden": "true" }, svg("path", { class: curveClass(at), d: "M1 4H17" }));

/** Index of the number that is nearest to `wanted` in ascending numbers. */
function nearest(numbers, wanted) {
  let [low, high] = [0, numbers.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (numbers[middle] <= wanted) low = middle;
    else high = middle;
  }
  return wanted - numbers[low] <= numbers[high] - wanted ? low : high;
}

function timeUnit(curves) {
  const longest = Math.max(...curves.map(({ points }) => points.at(-1)[0]));
  return TIMES.find(([least]) => longest >= least).slice(1);
}

const sizeExponent = (bytes) => Math.min(SIZES.length - 1, Math.max(0, Math.floor(Math.log2(bytes || 1) / 10)));
function formatSize(bytes) {
  const exponent = sizeExponent(bytes);
  return `${number(bytes / 1024 ** exponent)} ${SIZES[exponent]}`;
}

/** Return an axis: `place` maps a value to a number between 0 and 1, `ticks` are about `most` [value, text] pairs without equal texts. */
function createAxis(values, most, { isLog = false, isSize = false, isWhole = false, fromZero = false, margin }) {
  if (!values.length) return { place: () => 0, ticks: [] };
  const [toScale, fromScale] = isLog ? [Math.log10, (value) => 10 ** value] : [Number, Number];
  let [low, high] = [Math.min(...values), Math.max(...values)].map(toScale);
  if (fromZero && low > 0) low = 0;
  const range = high - low;
  // Values that differ in their last digits only are drawn as a constant.
  const extra = range > 1e-6 * Math.max(Math.abs(low), Math.abs(high)) ? margin * range : isLog ? 0.5 : Math.abs(high) / 10 || 1;
  if (!(fromZero && low === 0)) low -= margin ? extra : 0;
  high += extra;
  const place = (value) => (toScale(value) - low) / (high - low);
  const unit = isSize ? 1024 ** sizeExponent(fromScale(high)) : 1;
  const suffix = isSize ? ` ${SIZES[sizeExponent(fromScale(high))]}` : "";
  if (isLog && high - low >= 1) return { place, ticks: logTicks(low, high, most) };
  const [first, last] = [fromScale(low) / unit, fromScale(high) / unit];
  return { place, ticks: linearTicks(first, last, most, isWhole).map(([value, words]) => [value * unit, words + suffix]) };
}

/** Multiples of 1, 2 or 5 times a power of ten. */
function linearTicks(low, high, most, isWhole) {
  const least = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = Math.max([1, 2, 5, 10].find((each) => each * power >= least) * power, isWhole ? 1 : 0);
  const first = Math.ceil(low / step - 1e-9);
  const count = Math.floor(high / step + 1e-9) - first + 1;
  const largest = Math.max(Math.abs(low), Math.abs(high));
  return Array.from({ length: count }, (_, at) => (first + at) * step + 0).map((value) => [value, formatTick(value, step, largest)]);
}

/** Powers of ten, between which there are 2 and 5 if there are few; `low` and `high` are exponents. */
function logTicks(low, high, most) {
  const every = Math.ceil((high - low) / most);
  const factors = high - low < 2 ? [1, 2, 5] : [1];
  const exponents = Array.from({ length: Math.floor(high) - Math.floor(low) + 1 }, (_, at) => Math.floor(low) + at).filter((each) => each % every === 0);
  const values = exponents.flatMap((exponent) => factors.map((factor) => [Number(`${factor}e${exponent}`), 10 ** exponent]));
  return values.filter(([value]) => Math.log10(value) >= low && Math.log10(value) <= high).map(([value, step]) => [value, formatTick(value, step, value)]);
}

/** A number with the digits that tell it from the next one, `step` away; `largest` is the largest of the axis. */
function formatTick(value, step, largest) {
  const digit = Math.floor(Math.log10(step) + 1e-9);
  if (largest >= 1e7 || largest < 1e-3) {
    if (value === 0) return "0";
    const digits = Math.max(0, Math.floor(Math.log10(Math.abs(value)) + 1e-9) - digit);
    return value.toExponential(digits).replace("e+", "e");
  }
  const digits = Math.max(0, -digit);
  return value.toLocaleString(undefined, { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
