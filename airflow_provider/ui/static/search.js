/* The page of a hyperparameter search: the best so far, the objective by each parameter, and the curves of its trials. */
import { $, RequestError, age, airflowLink, breakable, el, ended, number, repeat, request, show, span, status, steps, table, taskLink, taskName, taskQuery } from "./page.js";
import { BOTTOM, HEIGHT, RIGHT, TOP, createAxis, layOut, svg } from "./axes.js";
import { Charts, collectMetrics, splitRuns } from "./charts.js";
import { LogReader } from "./log.js";

/** Largest number of trials that are drawn, of trials whose curves are read, and of those with a colour; the best ones. */
const [MAX_DRAWN, MAX_READ, MAX_COLOURED] = [200, 50, 5];
const MAX_COMPARED = 10;
/** Width of a parallel axis, and space for the names above the axes. */
const [AXIS_WIDTH, NAMES] = [110, 22];
/** Class of a trial's line or point: losers and failures are grey. */
const CLASSES = { Complete: "curve color-0", "Stopped early": "curve pale", Failed: "curve pale", Lost: "curve pale" };
const RUNNING = "curve color-1";
const BEST = "curve color-2 best-trial";

const task = Object.fromEntries(new URLSearchParams(location.search));
delete task.log;
const charts = new Charts($("#curves"));
const readers = new Map();
const chosen = new Set();
let search;

const isOver = (trial) => trial.status in CLASSES;
/** Compares trials: complete ones first, then other ones with a value, each with the best first. */
function compareTrials(one, other) {
  const worth = (trial) => (trial.value === null ? 2 : trial.status === "Complete" ? 0 : 1);
  const sign = search.direction === "maximize" ? -1 : 1;
  return worth(one) - worth(other) || sign * ((one.value ?? 0) - (other.value ?? 0)) || one.number - other.number;
}

const load = async () => {
  search = await request("search", task);
  draw();
  await readCurves();
};

function draw() {
  document.title = `${search.label} · ${search.task.dag_id} · TrainJobs`;
  show($("#name"), search.label, (label) => breakable(label));
  show($("#status"), search.status, (word) => word && status(word));
  const best = search.trials.find((trial) => trial.number === search.best);
  const facts = [
    ["Task", taskLink(search.task, breakable(`${search.task.dag_id} › ${taskName(search.task)}`))],
    ["Run", airflowLink(`dags/${encodeURIComponent(search.task.dag_id)}/runs/${encodeURIComponent(search.task.run_id)}`, breakable(search.task.run_id))],
    ["Task state", search.task.state],
    ["Backend", search.backend],
    ["Trials", search.summary && breakable(search.summary)],
    ["Algorithm", [search.algorithm, search.stop].filter(Boolean).join(", ")],
    ["Created", el("span", {}, age(search.created), " ago")],
  ].filter(([, value]) => value);
  show($("#facts"), facts.map(([name, value]) => [name, value.textContent ?? value]), () => facts.map(drawFact));
  show($("#notices"), [search.unreachable, search.reason, best], () => [
    best && drawBest(best),
    search.reason && el("p", { class: "notice bad" }, search.reason),
    search.unreachable && el("p", { class: "notice" }, `The API server cannot read the trials: ${search.unreachable}. This page shows the XComs of the task.`)]);
  drawPlots();
  show($("#trials"), [search.trials, [...chosen]], () => search.trials.length > 0 && drawTrials());
}

const drawFact = ([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value));
const objective = () => search.metric ?? "objective";
const format = (value) => (typeof value === "number" ? number(value) : typeof value === "string" ? value : JSON.stringify(value));

function drawBest(best) {
  const parameters = Object.entries(best.parameters).map(([name, value]) => drawFact([name, breakable(format(value))]));
  return el("section", { "aria-label": "Best trial" }, el("h2", {}, "Best trial"),
    el("dl", { class: "facts" }, drawFact(["Trial", trialLink(best)]), drawFact([objective(), el("b", {}, number(best.value, 6))]), ...parameters));
}

const trialLink = (trial) => (trial.job && !search.unreachable ? el("a", { href: `job?${taskQuery({ ...search.task, attempt: trial.job })}` }, `Trial ${number(trial.number)}`) : `Trial ${number(trial.number)}`);

/** The trials by number: those with a value, of many the best ones. */
const listDrawn = () => search.trials.filter(({ value }) => value !== null).sort(compareTrials).slice(0, MAX_DRAWN).sort((one, other) => one.number - other.number);

function drawPlots() {
  const [trials, isLog] = [listDrawn(), $("#log-objective").checked];
  $("#plots").hidden = !trials.length;
  if (!trials.length) return;
  const place = $("#plots .curves");
  const names = Object.keys(search.space);
  show($("#plots .legend"), trials.map(({ status: word }) => word), () => [
    [BEST, "best", trials.some(isBest)], [CLASSES.Complete, "complete", trials.some((trial) => trial.status === "Complete" && !isBest(trial))],
    [RUNNING, "running", trials.some((trial) => !isOver(trial))], ["curve pale", "stopped early or failed", trials.some((trial) => classOf(trial) === "curve pale")],
  ].filter(([, , isDrawn]) => isDrawn).map(([kind, words]) => el("li", {}, dot(kind), words)));
  const figures = names.length + 1;
  while (place.children.length > figures) place.lastChild.remove();
  while (place.children.length < figures) place.append(el("figure", {}, el("figcaption", {}), el("div", { class: "plot", role: "img" })));
  const y = createAxis(trials.map(({ value }) => value), 6, { isLog: isLog && trials.every(({ value }) => value > 0), margin: 0.05 });
  [undefined, ...names].forEach((name, at) => {
    const [caption, plot] = place.children[at].children;
    const width = Math.max(120, Math.floor(plot.clientWidth));
    show(caption, [name, objective()], () => (name === undefined ? `Best ${objective()} so far` : `${objective()} by ${name}`));
    show(plot, [trials, width, isLog, search.best], () => (name === undefined ? drawProgress(trials, y, width) : drawScatter(trials, name, y, width)));
    plot.setAttribute("aria-label", name === undefined ? describeProgress(trials) : `${objective()} of ${number(trials.length)} trials by ${name}; the table of trials has the values`);
  });
  show($("#parallel"), [trials, isLog, search.best], () => names.length > 1 && drawParallel(trials, names, y));
}

const isBest = ({ number: own }) => own === search.best;
const classOf = (trial) => (isBest(trial) ? BEST : CLASSES[trial.status] ?? RUNNING);
const dot = (kind) => svg("svg", { class: "swatch", width: 10, height: 10, "aria-hidden": "true" }, svg("circle", { class: kind, cx: 5, cy: 5, r: 4 }));
/** Grey ones first, and the best one last, on top of the others. */
const inOrder = (trials) => [...trials].sort((one, other) => rank(one) - rank(other));
const rank = (trial) => ["curve pale", RUNNING, CLASSES.Complete, BEST].indexOf(classOf(trial));
const describeTrial = (trial) => [`Trial ${number(trial.number)}, ${trial.status}: ${objective()} ${number(trial.value, 6)}`, ...Object.entries(trial.parameters).map(([name, value]) => `${name} ${format(value)}`)].join("\n");

function drawTrial(trial, x, y) {
  return svg("circle", { class: classOf(trial), cx: x, cy: y, r: isBest(trial) ? 5 : 3.5 }, svg("title", {}, describeTrial(trial)));
}

const picture = (width, height, ...content) => svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, ...content);

/** The best value after each trial, with those that complete: one that is stopped early is not the best while there is one. */
function findBestSoFar(trials) {
  const complete = trials.filter((trial) => trial.status === "Complete");
  let best;
  return (complete.length ? complete : trials).map((trial) => {
    if (best === undefined || (search.direction === "maximize" ? trial.value > best : trial.value < best)) best = trial.value;
    return [trial.number, best];
  });
}

function describeProgress(trials) {
  const points = findBestSoFar(trials);
  return `Best ${objective()} from ${number(points[0][1])} after trial ${number(points[0][0])} to ${number(points.at(-1)[1])} after trial ${number(points.at(-1)[0])}`;
}

function drawProgress(trials, y, width) {
  const numbers = trials.map((trial) => trial.number);
  const createX = (inner) => createAxis(numbers, Math.max(2, Math.floor(inner / 50)), { isWhole: true, margin: 0 });
  const { toX, toY, grid } = layOut(width, y, createX);
  const points = findBestSoFar(trials);
  const path = points.map(([x, value], at) => (at ? `H${toX(x)}V${toY(value)}` : `M${toX(x)} ${toY(value)}`)).join("");
  return picture(width, HEIGHT, ...grid, svg("path", { class: "curve color-2", d: `${path}H${toX(numbers.at(-1))}` }), ...inOrder(trials).map((trial) => drawTrial(trial, toX(trial.number), toY(trial.value))));
}

/** The axis of a parameter: a choice, or text, has a place for each value. */
function createParameterAxis(trials, name, most, margin) {
  const values = trials.map((trial) => trial.parameters[name]).filter((value) => value !== undefined);
  const { log, choices } = search.space[name];
  if (!choices && values.every((value) => typeof value === "number")) return { ...createAxis(values, most, { isLog: log, margin, isWhole: values.every(Number.isInteger) }), toValue: Number };
  const texts = (choices ?? [...new Set(values)]).map(format);
  const every = Math.ceil(texts.length / Math.max(1, most));
  return {
    place: (at) => (at + 0.5) / texts.length, toValue: (value) => texts.indexOf(format(value)),
    ticks: texts.map((text, at) => [at, text.length > 12 ? `${text.slice(0, 11)}…` : text]).filter(([at]) => at % every === 0),
  };
}

function drawScatter(trials, name, y, width) {
  let x;
  const { toX, toY, grid } = layOut(width, y, (inner) => (x = createParameterAxis(trials, name, Math.max(2, Math.floor(inner / 70)), 0.04)));
  return picture(width, HEIGHT, ...grid, ...inOrder(trials).filter((trial) => name in trial.parameters).map((trial) => drawTrial(trial, toX(x.toValue(trial.parameters[name])), toY(trial.value))));
}

/** One line for each trial, through its value on the axis of each parameter and of the objective. */
function drawParallel(trials, names, y) {
  const height = HEIGHT + NAMES;
  const axes = [...names.map((name) => [name, createParameterAxis(trials, name, 5, 0.04), (trial) => trial.parameters[name]]), [objective(), { ...y, toValue: Number }, (trial) => trial.value]];
  const width = Math.max($("#plots").clientWidth - 40, AXIS_WIDTH * axes.length);
  const gap = (width - 60 - RIGHT - 40) / (axes.length - 1);
  const toX = (at) => 60 + at * gap;
  const toY = (axis, value) => NAMES + TOP + (HEIGHT - TOP - BOTTOM) * (1 - axis.place(axis.toValue(value)));
  const lines = inOrder(trials).filter((trial) => names.every((name) => name in trial.parameters)).map((trial) => svg("path", {
    class: `${classOf(trial)} line`, d: axes.map(([, axis, read], at) => `${at ? "L" : "M"}${toX(at).toFixed(1)} ${toY(axis, read(trial)).toFixed(1)}`).join(""),
  }, svg("title", {}, describeTrial(trial))));
  const grid = axes.flatMap(([name, axis], at) => [
    svg("path", { class: "grid", d: `M${toX(at)} ${NAMES + TOP}V${NAMES + HEIGHT - BOTTOM}` }),
    svg("text", { class: "title", x: toX(at), y: 14, "text-anchor": "middle" }, name.length > 16 ? `${name.slice(0, 15)}…` : name),
    ...axis.ticks.map(([value, words]) => svg("text", { ...(at < names.length ? { x: toX(at) - 6, "text-anchor": "end" } : { x: toX(at) + 6 }), y: NAMES + TOP + (HEIGHT - TOP - BOTTOM) * (1 - axis.place(value)) + 4 }, words))]);
  return el("figure", {}, el("figcaption", {}, "Parameters of each trial"),
    el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Parameters of each trial, scrollable" },
      el("div", { class: "plot", role: "img", "aria-label": `Parallel coordinates of ${number(trials.length)} trials: ${names.join(", ")} and ${objective()}; the table of trials has the values` }, picture(width, height, ...lines, ...grid))));
}

/** Read and draw the curves of the best trials and of those that run; the others are pale. */
async function readCurves() {
  if (search.unreachable) return;
  const trials = search.trials.filter(({ job }) => job).sort((one, other) => isOver(one) - isOver(other) || compareTrials(one, other)).slice(0, MAX_READ);
  for (const trial of trials) {
    const reader = readers.get(trial.job) ?? new LogReader({ ...task, attempt: trial.job }, "node-0", { lines: 0 });
    if (reader.isComplete) continue;
    readers.set(trial.job, reader);
    await reader.read(isOver(trial)).then(() => { reader.isComplete = isOver(trial); }, (error) => { if (!(error instanceof RequestError)) throw error; });
  }
  const coloured = new Set([...trials].filter((trial) => !isOver(trial) || trial.status === "Complete").sort(compareTrials).slice(0, MAX_COLOURED));
  const drawn = [...trials].sort((one, other) => coloured.has(other) - coloured.has(one) || compareTrials(one, other));
  charts.show(drawn.map((trial) => ({ label: `Trial ${number(trial.number)}`, isPale: !coloured.has(trial), curves: collectMetrics(splitRuns(readers.get(trial.job)?.points ?? []).at(-1)) })));
}

function drawTrials() {
  const names = Object.keys(search.space);
  const trials = [...search.trials].sort(compareTrials);
  const hidden = trials.splice(MAX_DRAWN).length;
  return el("section", { "aria-labelledby": "trials-title" },
    el("header", {}, el("h2", { id: "trials-title" }, "Table of trials"), drawCompare()),
    table(trials, [
      ["Compare", (trial) => (trial.job && !search.unreachable ? compareBox(trial) : undefined)],
      ["Trial", (trial) => el("span", { class: "whole" }, trialLink(trial), isBest(trial) && el("span", { class: "best" }, "best")), "name"],
      ["Status", (trial) => status(trial.status)],
      [objective(), (trial) => (trial.value === null ? undefined : number(trial.value, 6)), "number"],
      ...names.map((name) => [name, (trial) => (name in trial.parameters ? breakable(format(trial.parameters[name])) : undefined), "number"]),
      ["Step", (trial) => (typeof trial.step === "number" ? steps({ step: trial.step }) : undefined), "number"],
      ["Trained for", (trial) => (typeof trial.seconds === "number" ? span(1000 * trial.seconds) : undefined), "number"],
      ["Reason", (trial) => trial.reason && breakable(trial.reason)],
    ], "Trials", "cards"),
    hidden > 0 && el("p", { class: "quiet" }, `${number(hidden)} further trials are not shown.`));
}

function compareBox({ job, number: own }) {
  return el("input", { type: "checkbox", "aria-label": `Compare trial ${own}`, checked: chosen.has(job) && "", onchange: ({ target }) => {
    if (target.checked) chosen.add(job);
    else chosen.delete(job);
    draw();
  } });
}

function drawCompare() {
  if (!chosen.size) return null;
  if (chosen.size > MAX_COMPARED) return el("span", { class: "quiet" }, `At most ${MAX_COMPARED} trials can be compared`);
  const address = new URLSearchParams([...chosen].map((attempt) => ["job", taskQuery({ ...search.task, attempt })]));
  return chosen.size === 1 ? el("span", { class: "quiet" }, "Choose another trial to compare") : el("a", { class: "button", href: `compare?${address}` }, `Compare ${chosen.size} trials`);
}

/** What the URL names, until the API server has answered. */
$("#name").replaceChildren(breakable(taskName({ task_id: task.task_id ?? "", map_index: Number(task.map_index ?? -1) })));
$("#log-objective").addEventListener("change", drawPlots);
new ResizeObserver(() => search && drawPlots()).observe($("#plots .curves"));
repeat(load, () => (search && (ended(search) || search.unreachable) ? 30 : 3));
