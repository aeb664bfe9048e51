/* TrainJobs side by side: the parameters in which they differ, their results, and their curves on one chart for each metric. */
import { $, RequestError, breakable, el, ended, formatColumn, formatValue, repeat, request, show, status, taskName, taskQuery, uri } from "./page.js";
import { Charts, collectMetrics, splitRuns } from "./charts.js";
import { LogReader } from "./log.js";

const FIXED = { status: "Status", runtime: "Runtime", nodes: "Nodes", dataset: "Dataset", model: "Model", partition: "Partition", resumed_from: "Resumed from step" };
/** Names of metrics of which the lowest value is the best, or the highest. Of others, no value is marked. */
const LOWEST = /loss|err|mse|mae|perplexity|ppl|latency|seconds|divergence/i;
const HIGHEST = /acc|auc|f1|precision|recall|score|r2|bleu|rouge|iou|dice|reward|throughput/i;
const charts = new Charts($("#curves"));
const readers = new Map();
const address = new URL(location.href);
$("#equal").checked = address.searchParams.has("equal");

const isMetric = (column) => column.startsWith("metric.");
const isResult = (column) => /^(metric|artifact)\.|^(status|duration|reason)$/.test(column);
/** The same task of two runs, with the same arguments, is told apart by its run. */
const labelOf = (job, jobs) => (jobs.filter(({ label }) => label === job.label).length > 1 ? `${job.label} (${job.run_id})` : job.label);

const load = async () => {
  drawn = await request("compare", { job: address.searchParams.getAll("job") });
  draw();
  $("#values").removeAttribute("aria-busy");
  const failed = [];
  for (const job of drawn.jobs) {
    const key = String(taskQuery(job));
    if (!readers.has(key)) readers.set(key, new LogReader(Object.fromEntries(taskQuery(job)), "node-0", { lines: 0 }));
    await readers.get(key).read(ended(job)).catch((error) => {
      if (!(error instanceof RequestError)) throw error;
      failed.push([job.name, error.message]);
    });
  }
  charts.show(drawn.jobs.map((job) => ({ label: labelOf(job, drawn.jobs), curves: collectMetrics(splitRuns(readers.get(String(taskQuery(job))).points).at(-1)) })));
  show($("#notes"), failed, (all) => all.map(([name, message]) => el("p", { class: "notice" }, `${name} has no curves: ${message}`)));
};

let drawn = { jobs: [], rows: [] };

function draw() {
  const [equal, sort] = [$("#equal").checked, address.searchParams.get("sort") ?? ""];
  show($("#values"), [drawn, equal, sort], ([found]) => {
    const { jobs, rows } = order(found, sort);
    const shown = rows.filter(({ column, differs }) => equal || differs || isMetric(column));
    const group = (title, part) => part.length > 0 && el("tbody", {}, el("tr", { class: "group" }, el("th", { colspan: jobs.length + 1, scope: "colgroup" }, el("span", {}, title))), ...part.map((row) => drawRow(row, jobs, sort)));
    const hidden = rows.length - shown.length;
    return [el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Table of TrainJobs" }, el("table", { class: equal ? "compared all" : "compared", "aria-label": "Compared TrainJobs" },
      el("thead", {}, el("tr", {}, el("td", {}), ...jobs.map((job) => drawHeading(job, jobs)))),
      group("Parameters", shown.filter(({ column }) => !isResult(column))), group("Results", shown.filter(({ column }) => isResult(column))))),
    hidden > 0 && el("p", { class: "quiet" }, `${hidden} equal ${hidden === 1 ? "value is" : "values are"} hidden.`)];
  });
}

/** The TrainJobs in the order of a metric, with `-` before it the largest first; those without it are the last. */
function order({ jobs, rows }, sort) {
  const values = rows.find(({ column }) => column === sort.replace(/^-/, ""))?.values;
  if (!values) return { jobs, rows };
  const sign = sort.startsWith("-") ? -1 : 1;
  const places = jobs.map((_, at) => at).sort((one, other) => {
    const [a, b] = [values[one] ?? null, values[other] ?? null];
    return (a === null) - (b === null) || sign * (a - b);
  });
  const arrange = (all) => places.map((at) => all[at]);
  return { jobs: arrange(jobs), rows: rows.map((row) => ({ ...row, values: arrange(row.values) })) };
}

function drawHeading(job, jobs) {
  const remove = jobs.length > 1 && job.name && el("button", { type: "button", class: "plain quiet", "aria-label": `Remove ${job.name}`, onclick: () => {
    const others = address.searchParams.getAll("job").filter((key) => String(new URLSearchParams(key)) !== String(taskQuery(job)));
    address.searchParams.delete("job");
    for (const key of others) address.searchParams.append("job", key);
    save();
    reload();
  } }, "Remove");
  return el("th", { scope: "col" }, el("a", { class: "name", href: `job?${taskQuery(job)}` }, breakable(labelOf(job, jobs))), job.name && el("small", { class: "quiet" }, breakable(job.name)), el("div", { class: "bar" }, job.status && status(job.status), remove));
}

/** Which value of a metric is the best: `lowest` or `highest`, and the number. Undefined if all are equal, or the name does not tell. */
function findBest(column, values) {
  const numbers = values.filter((value) => typeof value === "number");
  if (!isMetric(column) || new Set(numbers).size < 2) return undefined;
  if (LOWEST.test(column)) return ["lowest", Math.min(...numbers)];
  return HIGHEST.test(column) ? ["highest", Math.max(...numbers)] : undefined;
}

function drawRow({ column, values, differs }, jobs, sort) {
  const [words, best] = findBest(column, values) ?? [];
  const cells = values.map((value, at) => el("td", { class: isMetric(column) || column === "duration" ? "number" : undefined, "data-label": jobs[at].name }, drawValue(column, value), value === best && words && el("span", { class: "best" }, words)));
  const heading = FIXED[column] ?? formatColumn(column);
  return el("tr", { class: differs && "differs" }, el("th", { scope: "row", "aria-sort": sortOf(column, sort) }, isMetric(column) ? sorter(column, heading, sort) : breakable(heading)), ...cells);
}

function drawValue(column, value) {
  if (column.startsWith("artifact.") && typeof value === "string") return uri(value);
  const text = formatValue(column, value);
  return typeof value === "string" ? breakable(text) : text ?? "-";
}

const sortOf = (column, sort) => (sort === column ? "ascending" : sort === `-${column}` ? "descending" : undefined);

/** The heading of a metric orders the TrainJobs by it: the best first, then the other way round. */
function sorter(column, heading, sort) {
  const first = HIGHEST.test(column) && !LOWEST.test(column) ? `-${column}` : column;
  const second = first === column ? `-${column}` : column;
  return el("button", { type: "button", class: "plain", title: `Order the TrainJobs by ${heading}`, onclick: () => {
    address.searchParams.set("sort", sort === first ? second : first);
    save();
    draw();
  } }, heading);
}

function save() {
  const scale = new URLSearchParams(location.search).get("log");
  if (scale) address.searchParams.set("log", scale);
  else address.searchParams.delete("log");
  history.replaceState(null, "", address);
}

$("#equal").addEventListener("change", ({ target }) => {
  if (target.checked) address.searchParams.set("equal", "1");
  else address.searchParams.delete("equal");
  save();
  draw();
});

/** What the URL names, until the API server has answered. */
drawn.jobs = address.searchParams.getAll("job").map((key) => {
  const { dag_id = "", run_id = "", task_id = "", map_index = -1, attempt } = Object.fromEntries(new URLSearchParams(key));
  return { dag_id, run_id, task_id, map_index, attempt, label: taskName({ task_id, map_index }) };
});
draw();
const reload = repeat(load, () => (drawn.jobs.every(ended) ? 30 : 5));
