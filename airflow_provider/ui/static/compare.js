/* TrainJobs side by side: the parameters in which they differ, their results, and their curves on one chart for each metric. */
import { $, RequestError, breakable, el, ended, formatColumn, formatValue, repeat, request, show, status, taskQuery } from "./page.js";
import { Charts, collectMetrics } from "./charts.js";
import { LogReader } from "./log.js";

const FIXED = { status: "Status", runtime: "Runtime", nodes: "Nodes", dataset: "Dataset", model: "Model", resumed_from: "Resumed from step" };
const charts = new Charts($("#curves"));
const readers = new Map();
const address = new URL(location.href);
$("#equal").checked = address.searchParams.has("equal");

const isResult = (column) => /^(metric|artifact)\.|^(status|duration|reason)$/.test(column);
/** The same task of two runs, with the same arguments, is told apart by its run. */
const labelOf = (job, jobs) => (jobs.filter(({ label }) => label === job.label).length > 1 ? `${job.label} (${job.run_id})` : job.label);

const load = async () => {
  const response = await request("compare", { job: address.searchParams.getAll("job") });
  drawn = response;
  draw();
  $("#values").removeAttribute("aria-busy");
  const failed = [];
  for (const job of response.jobs) {
    const key = String(taskQuery(job));
    const { dag_id, run_id, task_id, map_index } = job;
    if (!readers.has(key)) readers.set(key, new LogReader({ dag_id, run_id, task_id, map_index }, "node-0", { lines: 0 }));
    await readers.get(key).read(ended(job)).catch((error) => {
      if (!(error instanceof RequestError)) throw error;
      failed.push([job.name, error.message]);
    });
  }
  charts.show(new Map(response.jobs.map((job) => [labelOf(job, response.jobs), collectMetrics(readers.get(String(taskQuery(job))).points)])));
  show($("#notes"), failed, (all) => all.map(([name, message]) => el("p", { class: "notice" }, `${name} has no curves: ${message}`)));
};

let drawn = { jobs: [], rows: [] };

function draw() {
  const equal = $("#equal").checked;
  show($("#values"), [drawn, equal], ([{ jobs, rows }]) => {
    const shown = rows.filter(({ column, differs }) => equal || differs || column.startsWith("metric."));
    const group = (title, part) => part.length > 0 && el("tbody", {}, el("tr", { class: "group" }, el("th", { colspan: jobs.length + 1, scope: "colgroup" }, title)), ...part.map((row) => drawRow(row, jobs)));
    const hidden = rows.length - shown.length;
    return [el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Table of TrainJobs" }, el("table", { class: "compared", "aria-label": "Compared TrainJobs" },
      el("thead", {}, el("tr", {}, el("td", {}), ...jobs.map((job) => drawHeading(job, jobs)))),
      group("Parameters", shown.filter(({ column }) => !isResult(column))), group("Results", shown.filter(({ column }) => isResult(column))))),
    hidden > 0 && el("p", { class: "quiet" }, `${hidden} equal ${hidden === 1 ? "value is" : "values are"} hidden.`)];
  });
}

function drawHeading(job, jobs) {
  const remove = jobs.length > 1 && el("button", { type: "button", class: "plain quiet", "aria-label": `Remove ${job.name}`, onclick: () => {
    const others = address.searchParams.getAll("job").filter((key) => String(new URLSearchParams(key)) !== String(taskQuery(job)));
    address.searchParams.delete("job");
    for (const key of others) address.searchParams.append("job", key);
    save();
    reload();
  } }, "Remove");
  return el("th", { scope: "col" }, el("a", { class: "name", href: `job?${taskQuery(job)}` }, breakable(labelOf(job, jobs))), el("small", { class: "quiet" }, breakable(job.name)), el("div", { class: "bar" }, job.status && status(job.status), remove));
}

function drawRow({ column, values, differs }, jobs) {
  const cells = values.map((value, at) => el("td", { class: column.startsWith("metric.") || column === "duration" ? "number" : undefined, "data-label": jobs[at].name }, formatValue(column, value) ?? "-"));
  return el("tr", { class: differs && "differs" }, el("th", { scope: "row" }, breakable(FIXED[column] ?? formatColumn(column))), ...cells);
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
const reload = repeat(load, () => (drawn.jobs.every(ended) ? 30 : 5));
