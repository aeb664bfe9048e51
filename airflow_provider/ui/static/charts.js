/* Curves of metrics over the steps of a training, drawn by uPlot (vendor/, MIT licence). */
import { el, number, root } from "./page.js";

const HEIGHT = 180;
/** Colours of the series; the second five are dashed. */
const COLORS = ["--blue", "--amber", "--green", "--red", "--violet"];

/** Largest number of points that are kept of a training. Of more, every second one is dropped. */
const MAX_POINTS = 2000;

/** Append the points that `progress` reported. */
export function addPoints(points, more) {
  points.push(...more);
  return points.length > MAX_POINTS ? points.filter((_, at) => at % 2 === 0) : points;
}

/**
 * Return the [step, value] pairs of each metric since the step number last decreased: a resumed TrainJob counts its steps
 * from the beginning.
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
  return new Map([...metrics].map(([name, values]) => [name, [...values]]));
}

/** Return the [minute, value] pairs of the use of resources by a node: in percent of what it may use. */
export function collectResources(reports) {
  const curves = new Map();
  const add = (name, report, value) => {
    if (value === undefined) return;
    if (!curves.has(name)) curves.set(name, []);
    curves.get(name).push([(report.t - reports[0].t) / 60000, value]);
  };
  const share = ({ memory, memory_limit }) => (memory_limit && memory !== undefined ? (100 * memory) / memory_limit : undefined);
  for (const report of reports) {
    add("Processor, %", report, report.cpu);
    add("Memory, %", report, share(report));
    for (const gpu of report.gpus) {
      add(`GPU ${gpu.number}, %`, report, gpu.utilization);
      add(`Memory of GPU ${gpu.number}, %`, report, share(gpu));
    }
  }
  return curves;
}

/** Draws the curves of a section. If it has a box for it, the scale can be logarithmic, which is in the URL. */
export class Charts {
  #drawn = new Map();
  #shown = [new Map(), []];

  /** `unit` is the name of what the horizontal axis counts. */
  constructor(section, unit) {
    [this.section, this.unit] = [section, unit];
    this.place = section.querySelector(".curves");
    this.box = section.querySelector("input");
    if (this.box) this.#keepScaleInUrl();
    // A canvas has fixed colours and a fixed width.
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#redraw());
    new MutationObserver(() => this.#redraw()).observe(root, { attributeFilter: ["data-theme"] });
    new ResizeObserver(() => { for (const { plot } of this.#drawn.values()) fit(plot); }).observe(this.place);
  }

  #keepScaleInUrl() {
    this.box.checked = new URLSearchParams(location.search).has("log");
    this.box.addEventListener("change", () => {
      const address = new URL(location.href);
      if (this.box.checked) address.searchParams.set("log", "1");
      else address.searchParams.delete("log");
      history.replaceState(null, "", address);
      this.#redraw();
    });
  }

  /** Draw what `collectMetrics` or `collectResources` returned for each training, by its label. */
  show(trainings) {
    const metrics = new Map();
    for (const [label, training] of trainings) for (const [name, line] of training) metrics.set(name, [...(metrics.get(name) ?? []), [label, line]]);
    const labels = [...trainings.keys()];
    this.#shown = [new Map([...metrics].filter(([, lines]) => lines.some(([, line]) => line.length > 1))), labels];
    this.#draw();
  }

  #redraw() {
    for (const { plot } of this.#drawn.values()) plot.destroy();
    this.#drawn.clear();
    this.place.replaceChildren();
    this.#draw();
  }

  #draw() {
    const [metrics, labels] = this.#shown;
    this.section.hidden = !metrics.size;
    for (const [name, { figure, plot }] of this.#drawn) {
      if (metrics.has(name)) continue;
      plot.destroy();
      figure.remove();
      this.#drawn.delete(name);
    }
    for (const [name, lines] of metrics) {
      const key = JSON.stringify([lines.map(([label]) => label)]);
      const chart = this.#drawn.get(name);
      if (chart?.key === key) { update(chart, name, lines); continue; }
      const created = create(name, lines, labels, this.unit, this.box?.checked);
      if (chart) { chart.plot.destroy(); chart.figure.replaceWith(created.figure); } else this.place.append(created.figure);
      this.#drawn.set(name, { ...created, key });
      fit(created.plot);
    }
  }
}

function fit(plot) {
  const width = Math.max(120, Math.floor(plot.root.parentElement.clientWidth));
  if (width !== plot.width) plot.setSize({ width, height: HEIGHT });
}

/** The value of a colour variable: a canvas does not know variables. */
function resolveColor(variable) {
  const probe = el("span", { hidden: "" });
  probe.style.color = `var(${variable})`;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

function create(name, lines, labels, unit, wantsLog) {
  const isLog = wantsLog && lines.some(([, line]) => line.some(([, value]) => value > 0));
  const value = el("b", {});
  const place = el("div", { class: "plot", role: "img", tabindex: 0 });
  const figure = el("figure", {}, el("figcaption", {}, name, value), place);
  const [quiet, line] = ["--quiet", "--line"].map(resolveColor);
  const axis = { stroke: quiet, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "11px system-ui, sans-serif" };
  const format = (_, shown) => (shown === null || shown === undefined ? "-" : number(shown));
  const plot = new uPlot({
    width: 300,
    height: HEIGHT,
    scales: { x: { time: false }, y: isLog ? { distr: 3 } : {} },
    axes: [{ ...axis, size: 30 }, { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) }],
    series: [{ label: unit, value: format }, ...lines.map(([label]) => {
      const at = labels.indexOf(label);
      return { label: labels.length > 1 ? label : name, stroke: resolveColor(COLORS[at % COLORS.length]), width: 1.75, dash: at >= COLORS.length ? [6, 4] : undefined, spanGaps: true, value: format };
    })],
  }, [[0, 1], ...lines.map(() => [null, null])], place);
  place.addEventListener("keydown", (event) => moveCursor(plot, event));
  const chart = { figure, plot, place, value, isLog, unit };
  update(chart, name, lines);
  return chart;
}

function update({ plot, place, value, isLog, unit }, name, lines) {
  const drawn = lines.map(([label, line]) => [label, isLog ? line.filter(([, each]) => each > 0) : line]);
  const last = lines.length === 1 ? number(lines[0][1].at(-1)[1]) : "";
  const text = JSON.stringify(drawn);
  if (plot.drawn === text) return;
  plot.drawn = text;
  plot.setData(uPlot.join(drawn.map(([, line]) => [line.map(([x]) => x), line.map(([, y]) => distinct(y))])));
  value.textContent = last;
  place.setAttribute("aria-label", drawn.filter(([, line]) => line.length).map(([label, line]) => describe(lines.length > 1 ? `${name} of ${label}` : name, line, unit)).join("; "));
}

/** A value without its last digits: uPlot cannot draw an axis for values that differ in these only. */
const distinct = (value) => Number(value.toPrecision(7));

function describe(name, line, unit) {
  const ys = line.map(([, y]) => y);
  const [[first, begin], [last, end]] = [line[0], line.at(-1)];
  return `${name} from ${number(begin)} at ${unit} ${number(first)} to ${number(end)} at ${unit} ${number(last)}, between ${number(Math.min(...ys))} and ${number(Math.max(...ys))}`;
}

/** Move the cursor, whose values are below the chart, from point to point by the arrow keys. */
function moveCursor(plot, event) {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by) return;
  event.preventDefault();
  const [xs] = plot.data;
  const before = plot.cursor.idx ?? (by < 0 ? xs.length : -1);
  const at = Math.max(0, Math.min(xs.length - 1, before + by));
  plot.setCursor({ left: plot.valToPos(xs[at], "x"), top: 0 });
}
