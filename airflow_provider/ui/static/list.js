/* The list of TrainJobs. What it shows is in the URL, so that it can be shared and survives a reload. */
import { $, RequestError, age, airflowLink, breakable, el, ended, formatColumn, formatValue, number, repeat, request, rough, show, since, status, steps, table, taskQuery } from "./page.js";

const form = $("#filters");
const fields = form.elements;
/** Names of the filters that `Clear filters` resets. */
const FILTERS = ["text", "dag", "status", "last", "partition", "since", "before"];
/** Value of `last` with which the fields From and To are shown. */
const BETWEEN = "between";
/** Columns that are always shown and can be sorted. */
const SORTED = { name: "TrainJob", status: "Status", created: "Created" };
const MAX_COMPARED = 10;

/** Columns that a TrainJob on this page had, and those that the URL names. */
const known = new Set(["duration", "reason"]);
const chosen = new Set();
/** Names of the TrainJobs that are marked for a comparison; they stay with the page's entry in the history. */
const selected = new Map(history.state?.selected);
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
  for (const name of ["text", "status", "count", "last", "partition"]) if (address.get(name)) fields[name].value = address.get(name);
  for (const name of ["since", "before"]) if (address.get(name)) fields[name].value = toField(address.get(name));
  if (fields.since.value || fields.before.value) fields.last.value = BETWEEN;
  drawFilters();
  if (address.get("dag")) addOption(fields.dag, address.get("dag"));
  fields.dag.value = address.get("dag") ?? "";
  drawSorts(address.get("sort") ?? "");
}

/** What the list shows, as the parameters of the URL and of the request. */
function readForm() {
  const parameters = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
  for (const name of ["since", "before"]) {
    parameters.delete(name);
    if (fields.last.value === BETWEEN && fields[name].value) parameters.set(name, new Date(fields[name].value).toISOString());
  }
  if (fields.last.value === BETWEEN) parameters.delete("last");
  if (fields.count.value === "50") parameters.delete("count");
  return parameters;
}

/** Show the fields of the chosen time range, and on a narrow screen how many filters are set. */
function drawFilters() {
  for (const name of ["since", "before"]) fields[name].parentElement.hidden = fields.last.value !== BETWEEN;
  fields.partition.parentElement.hidden = !known.has("partition") && !fields.partition.value;
  const count = FILTERS.slice(1, 5).filter((name) => fields[name].value).length;
  $("#fold").textContent = count ? `Filters (${count})` : "Filters";
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
  const { last, ...asked } = Object.fromEntries([...parameters.keys()].map((name) => [name, parameters.getAll(name)]));
  if (last) asked.since = new Date(Date.now() - 3_600_000 * last[0]).toISOString();
  if (asked.since && asked.before && asked.since[0] >= asked.before[0]) {
    show($("#count"), "", (words) => words);
    throw new RequestError("From is later than To: no TrainJob was submitted between them. Choose an earlier From.");
  }
  const response = await request("jobs", { ...asked, older_than: before.at(-1) ?? "" });
  if (key !== `${readForm()} ${before}`) return;
  for (const dag of response.dags) addOption(fields.dag, dag);
  for (const column of response.columns ?? []) known.add(column);
  drawColumns();
  drawFilters();
  const ages = response.jobs.map((job) => rough(since(job.created)));
  show($("#list"), { ...response, ages, asked: [...parameters.keys()], page: before.length, selected: [...selected.keys()] }, drawList);
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
  if (!jobs.length) return [FILTERS.some((name) => asked.includes(name)) || page > 0 ? noMatches() : noJobs(), turns];
  const optional = [...chosen].map((column) => [formatColumn(column), ({ columns }) => {
    const text = formatValue(column, columns?.[column]);
    return text === undefined ? undefined : el("span", { class: column === "reason" && "lines" }, isText(column) ? breakable(text) : text);
  }, isText(column) ? undefined : "number", column]);
  return [table(jobs, [
    ["Compare", (job) => !job.is_search && compareBox(job), "pick"],
    ["TrainJob", (job) => el("a", { class: "name", href: `${job.is_search ? "search" : "job"}?${taskQuery(job)}` }, breakable(job.label), " ", el("small", { class: "quiet" }, breakable(job.name))), "job", "name"],
    ["Status", listStatus, undefined, "status"],
    ["Progress", (job) => (job.progress?.percentage !== undefined && !ended(job) ? bar(job.progress) : undefined), "number"],
    ...optional,
    ["DAG", (job) => airflowLink(`dags/${encodeURIComponent(job.dag_id)}`, breakable(job.dag_id))],
    ["Run", (job) => airflowLink(`dags/${encodeURIComponent(job.dag_id)}/runs/${encodeURIComponent(job.run_id)}`, breakable(job.run_id))],
    ["Age", (job) => age(job.created)],
  ], "TrainJobs", "jobs", { by: fields.sort.value, chosen: [...chosen], set: (sort) => { drawSorts(sort); changed(); } }), turns];
}

const isText = (column) => ["reason", "partition"].includes(column) || column.startsWith("param.");

function compareBox(job) {
  const key = String(taskQuery(job));
  return el("input", { type: "checkbox", "aria-label": `Compare ${job.name}`, checked: selected.has(key) && "", onchange: ({ target }) => {
    if (target.checked) selected.set(key, job.name);
    else selected.delete(key);
    saveState(location.href);
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
  const why = job.waits_for ?? job.reason;
  const stopped = ended(job) && job.progress?.step !== undefined && `stopped at ${steps(job.progress)}`;
  const summary = job.summary && el("small", { class: "quiet", title: job.summary }, breakable(job.summary));
  return job.status && el("span", { class: "lines" }, status(job.status), summary, why && el("small", { class: "quiet", title: why }, breakable(why)), stopped && el("small", { class: "quiet" }, stopped));
}

const bar = ({ percentage }) => el("span", {}, el("progress", { max: 100, value: percentage, "aria-label": "Progress" }), `${percentage} %`);
const noMatches = () => el("div", { class: "card empty" }, el("p", {}, "No TrainJobs match these filters."),
  el("button", { type: "button", onclick: () => { for (const name of FILTERS) fields[name].value = ""; changed(); } }, "Clear filters"));
const noJobs = () => el("div", { class: "card empty" }, el("p", {}, "No task has submitted a TrainJob yet."),
  el("p", {}, "Trigger a DAG that has a TrainJobOperator or a @task.trainjob function: ", airflowLink("dags", "open the DAGs"), "."));

const saveState = (address) => history.replaceState({ selected: [...selected] }, "", address);

function changed() {
  drawFilters();
  chosen.clear();
  for (const box of form.querySelectorAll("[name=column]:checked")) chosen.add(box.value);
  drawSorts(fields.sort.value);
  const address = readForm();
  saveState(address.size ? `?${address}` : location.pathname);
  show($("#count"), "Searching…", (words) => words);
  turnTo([]);
}

readAddress();
drawCompare();
const reload = repeat(load, () => 5);
const turnTo = (pages) => { before = pages; reload(); };
let typing;
form.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(changed, 250); });
form.addEventListener("submit", (event) => event.preventDefault());
$("#fold").addEventListener("click", ({ target }) => target.setAttribute("aria-expanded", String(target.getAttribute("aria-expanded") !== "true")));
