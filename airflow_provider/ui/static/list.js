/* The list of TrainJobs. What it shows is in the URL, so that it can be shared and survives a reload. */
import { $, age, airflowLink, breakable, el, formatColumn, formatValue, number, repeat, request, rough, show, since, status, table, taskQuery } from "./page.js";

const form = $("#filters");
const fields = form.elements;
/** Names of the filters that `Clear filters` resets. */
const FILTERS = ["text", "dag", "status", "since", "before"];
/** Columns that are always shown and can be sorted. */
const SORTED = { name: "TrainJob", status: "Status", created: "Created" };
const MAX_COMPARED = 10;

/** Columns that a TrainJob on this page had, and those that the URL names. */
const known = new Set(["duration", "reason"]);
const chosen = new Set();
const selected = new Map();
/** Times before which the pages of older TrainJobs begin. */
let before = [];

const toField = (iso) => {
  const time = new Date(iso);
  if (Number.isNaN(time.getTime())) return "";
  time.setMinutes(time.getMinutes() - time.getTimezoneOffset());
  return time.toISOString().slice(0, 16);
};
const addOption = (field, value) => [...field.options].some((option) => option.value === value) || field.append(el("option", {}, value));

function readAddress() {
  const address = new URLSearchParams(location.search);
  for (const column of address.getAll("column")) { known.add(column); chosen.add(column); }
  drawColumns();
  for (const name of ["text", "status", "count"]) if (address.get(name)) fields[name].value = address.get(name);
  for (const name of ["since", "before"]) if (address.get(name)) fields[name].value = toField(address.get(name));
  if (address.get("dag")) addOption(fields.dag, address.get("dag"));
  fields.dag.value = address.get("dag") ?? "";
  drawSorts(address.get("sort") ?? "");
}

/** What the list shows, as the parameters of the URL and of the request. */
function readForm() {
  const parameters = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
  for (const name of ["since", "before"]) if (fields[name].value) parameters.set(name, new Date(fields[name].value).toISOString());
  if (fields.count.value === "50") parameters.delete("count");
  return parameters;
}

function drawColumns() {
  show($("#columns div"), [...known], (names) => names.map((name) => el("label", {},
    el("input", { type: "checkbox", name: "column", value: name, checked: chosen.has(name) && "" }), formatColumn(name), " ",
    el("small", { class: "quiet" }, { param: "parameter", metric: "metric" }[name.split(".")[0]]))));
}

function drawSorts(current) {
  const columns = { ...SORTED, ...Object.fromEntries([...chosen].map((column) => [column, formatColumn(column)])) };
  const bare = current.replace(/^-/, "");
  if (bare && !(bare in columns)) columns[bare] = formatColumn(bare);
  show(fields.sort, columns, () => [el("option", { value: "" }, "Newest first"), ...Object.entries(columns).flatMap(([column, heading]) => [
    el("option", { value: `-${column}` }, `${heading}, descending`), el("option", { value: column }, `${heading}, ascending`)])]);
  fields.sort.value = current;
}

const load = async () => {
  const parameters = readForm();
  const key = `${parameters} ${before}`;
  const asked = Object.fromEntries([...parameters.keys()].map((name) => [name, parameters.getAll(name)]));
  const response = await request("jobs", { ...asked, before: before.at(-1) ?? asked.before ?? "" });
  if (key !== `${readForm()} ${before}`) return;
  for (const dag of response.dags) addOption(fields.dag, dag);
  for (const column of response.columns ?? []) known.add(column);
  drawColumns();
  const ages = response.jobs.map((job) => rough(since(job.created)));
  show($("#list"), { ...response, ages, asked, page: before.length, selected: [...selected.keys()] }, drawList);
  drawCount(response);
  $("#list").removeAttribute("aria-busy");
};

function drawCount({ jobs, total }) {
  const sort = fields.sort.value && `, sorted by ${fields.sort.selectedOptions[0].textContent}`;
  const words = total > jobs.length ? `${number(jobs.length)} of ${number(total)} TrainJobs` : `${number(jobs.length)} TrainJob${jobs.length === 1 ? "" : "s"}`;
  show($("#count"), jobs.length > 0 && words + sort, (text) => text);
}

function drawList({ jobs, older, asked, page }) {
  const turn = (words, pages) => el("button", { type: "button", onclick: () => turnTo(pages) }, words);
  const turns = (page > 0 || older) && el("p", { class: "buttons" }, page > 0 && turn("Newer", before.slice(0, -1)), older && turn("Older", [...before, older]));
  if (!jobs.length) return [FILTERS.some((name) => name in asked) || page > 0 ? noMatches() : noJobs(), turns];
  const optional = [...chosen].map((column) => [formatColumn(column), ({ columns }) => {
    const text = formatValue(column, columns?.[column]);
    return text === undefined ? undefined : el("span", { class: column === "reason" && "lines" }, breakable(text));
  }, column === "reason" || column.startsWith("param.") ? undefined : "number", column]);
  return [table(jobs, [
    ["Compare", compareBox, "pick"],
    ["TrainJob", (job) => el("a", { class: "name", href: `job?${taskQuery(job)}` }, breakable(job.label), " ", el("small", { class: "quiet" }, breakable(job.name))), "job", "name"],
    ["Status", listStatus, undefined, "status"],
    ["Progress", (job) => job.progress?.percentage !== undefined ? bar(job.progress) : undefined, "number"],
    ...optional,
    ["DAG", (job) => airflowLink(`dags/${encodeURIComponent(job.dag_id)}`, breakable(job.dag_id))],
    ["Run", (job) => airflowLink(`dags/${encodeURIComponent(job.dag_id)}/runs/${encodeURIComponent(job.run_id)}`, breakable(job.run_id))],
    ["Age", (job) => age(job.created)],
  ], "TrainJobs", "jobs", { by: fields.sort.value, chosen: [...chosen], set: (sort) => { drawSorts(sort); changed(); } }), turns];
}

function compareBox(job) {
  const key = String(taskQuery(job));
  return el("input", { type: "checkbox", "aria-label": `Compare ${job.name}`, checked: selected.has(key) && "", onchange: ({ target }) => {
    if (target.checked) selected.set(key, job.name);
    else selected.delete(key);
    drawCompare();
  } });
}

function drawCompare() {
  const jobs = [...selected.keys()];
  const address = new URLSearchParams(jobs.map((job) => ["job", job]));
  show($("#compare"), jobs, () => {
    if (!jobs.length) return null;
    if (jobs.length === 1) return el("span", { class: "quiet" }, "Choose another TrainJob to compare");
    if (jobs.length > MAX_COMPARED) return el("span", { class: "quiet" }, `At most ${MAX_COMPARED} TrainJobs can be compared`);
    return el("a", { class: "button", href: `compare?${address}` }, `Compare ${jobs.length} TrainJobs`);
  });
}

function listStatus(job) {
  if (job.is_unknown) return el("span", { class: "lines" }, status("Unknown"), el("small", { class: "quiet" }, job.status ? `last known: ${job.status}` : ""));
  const waits = job.waits_for && el("small", { class: "quiet", title: job.waits_for }, job.waits_for);
  return job.status && el("span", { class: "lines" }, status(job.status), waits);
}

const bar = ({ percentage }) => el("span", {}, el("progress", { max: 100, value: percentage, "aria-label": "Progress" }), `${percentage} %`);
const noMatches = () => el("div", { class: "card empty" }, el("p", {}, "No TrainJobs match these filters."),
  el("button", { type: "button", onclick: () => { for (const name of FILTERS) fields[name].value = ""; changed(); } }, "Clear filters"));
const noJobs = () => el("div", { class: "card empty" }, el("p", {}, "No task has submitted a TrainJob yet."),
  el("p", {}, "Trigger a DAG that has a TrainJobOperator or a @task.trainjob function: ", airflowLink("dags", "open the DAGs"), "."));

function changed() {
  chosen.clear();
  for (const box of form.querySelectorAll("[name=column]:checked")) chosen.add(box.value);
  drawSorts(fields.sort.value);
  const address = readForm();
  history.replaceState(null, "", address.size ? `?${address}` : location.pathname);
  turnTo([]);
}

readAddress();
const reload = repeat(load, () => 5);
const turnTo = (pages) => { before = pages; reload(); };
let typing;
form.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(changed, 250); });
form.addEventListener("submit", (event) => event.preventDefault());
