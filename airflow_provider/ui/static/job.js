/* The page of one TrainJob. */
import { $, RequestError, age, airflowLink, breakable, el, ended, moment, number, repeat, request, requestAirflow, rough, show, showError, since, span, status, steps as describeSteps, table, taskLink, taskName, taskQuery, titled, uri } from "./page.js";
import { Charts, collectMetrics, collectResources, splitRuns } from "./charts.js";
import { LogReader, LogView } from "./log.js";

/** Largest number of pale curves of one log: a training that counts the steps of each epoch has many. */
const MAX_RUNS = 4;

/** Actions on the task, for a job that the API server cannot reach. */
const taskActions = {
  end: ({ dag_id, run_id, task_id, map_index }) => requestAirflow(
    `${[dag_id, "dagRuns", run_id, "taskInstances", task_id].map(encodeURIComponent).join("/")}${map_index >= 0 ? `/${map_index}` : ""}`,
    { new_state: "failed" }, "PATCH"),
  rerun: ({ dag_id, run_id, task_id, map_index }) => requestAirflow(`${encodeURIComponent(dag_id)}/clearTaskInstances`,
    { dry_run: false, only_failed: false, dag_run_id: run_id, task_ids: [map_index >= 0 ? [task_id, map_index] : task_id] }, "POST"),
};

/** The attempts of a task: what the table shows, and the curves of those before the one of this page. */
class Attempts {
  rows = [];
  #readers = new Map();
  #read;

  constructor(task) {
    this.task = task;
  }

  /** Read the attempts when the page's one begins or ends; the logs of the earlier ones are complete. */
  async update(job) {
    const now = `${job.name} ${ended(job)}`;
    if (this.#read === now || job.unreachable) return;
    this.rows = (await request("attempts", this.task)).attempts;
    this.#read = now;
    for (const { name } of this.#listEarlier(job)) {
      if (this.#readers.has(name)) continue;
      const reader = new LogReader({ ...this.task, attempt: name }, "node-0", { lines: 0 });
      await reader.read(true).then(() => this.#readers.set(name, reader), (error) => { if (!(error instanceof RequestError)) throw error; });
    }
  }

  #listEarlier(job) {
    const own = this.rows.findIndex(({ name }) => name === job.name);
    return this.rows.slice(0, Math.max(0, own));
  }

  /** Pale trainings for the charts. */
  draw(job) {
    return this.#listEarlier(job).filter(({ name }) => this.#readers.has(name)).flatMap(({ name, number: attempt }) =>
      drawRuns(`attempt ${attempt}`, splitRuns(this.#readers.get(name).points)));
  }
}

const drawRuns = (label, runs) => runs.slice(-MAX_RUNS).map((points) => ({ label, curves: collectMetrics(points), isPale: true }));

/** The curves of an attempt: those of its restarts are pale, and marks show where it was resumed. */
function drawCurves(charts, job, points, attempts) {
  const runs = splitRuns(points);
  const resumed = new Set([job.resumed_from, ...points.map((point) => point.resumed_from)].filter((step) => step !== undefined));
  const current = { label: attempts.rows.length > 1 ? `attempt ${ownNumber(job, attempts.rows)}` : job.label, curves: collectMetrics(runs.at(-1)) };
  charts.show([...attempts.draw(job), ...drawRuns("before the restart", runs.slice(0, -1)), current], [...resumed].sort((a, b) => a - b).map((step) => [step, `resumed from step ${number(step)}`]));
}

const ownNumber = (job, rows) => rows.find(({ name }) => name === job.name)?.number;

function jobPage() {
  const { log: _, ...task } = Object.fromEntries(new URLSearchParams(location.search));
  drawAddress(task);
  const attempts = new Attempts(task);
  const [charts, resources] = [new Charts($("#curves")), new Charts($("#resources"), { isTime: true })];
  const reported = [];
  let job;

  const load = async () => {
    const response = await request("job", task);
    if (response.is_search) location.replace(`search?${taskQuery(task)}`);
    if (job && job.name !== response.name) { log.clear(); reported.length = 0; }
    job = response;
    draw(job, act, attempts.rows);
    if (job.unreachable) recordProgress(job.progress);
    else await log.update(job.steps || [], ended(job));
    await attempts.update(job);
    draw(job, act, attempts.rows);
    drawCurves(charts, job, job.unreachable ? reported : log.points, attempts);
    resources.show([{ label: job.label, curves: collectResources(job.unreachable ? [] : log.resources) }]);
  };
  const log = new LogView(task, () => reload());
  const reload = repeat(load, () => (!job || ended(job) ? 15 : job.unreachable ? 5 : 2));

  const act = async (action) => {
    $("#actions").querySelectorAll("button").forEach((button) => { button.disabled = true; });
    const done = taskActions[action] ? taskActions[action](job.task) : request(action, task, "POST");
    await done.then(() => showError("action", ""), (error) => showError("action", error.message));
    $("#actions").shown = undefined;
    reload();
  };

  /** The task's XCom has only the last progress, so curves show what was received while the page was open. */
  const recordProgress = (progress) => {
    if (progress?.metrics && progress.step !== reported.at(-1)?.step) reported.push(progress);
  };

  $("#confirm").addEventListener("close", ({ target }) => { if (target.returnValue === "yes") act(target.action); });
  $("#manifest").addEventListener("toggle", async ({ target }) => {
    if (!target.open) return;
    const place = target.querySelector("pre");
    place.textContent = await request("manifest", task).then((response) => response.yaml, (error) => error.message);
  });
}

/** What the URL names, until the API server has answered. */
function drawAddress({ dag_id = "", run_id = "", task_id = "", map_index = -1 }) {
  const task = { dag_id, run_id, task_id, map_index };
  document.title = `${taskName(task)} · ${dag_id} · TrainJobs`;
  $("#name").replaceChildren(breakable(taskName(task)));
  drawFactList([["Task", taskLink(task, breakable(`${dag_id} › ${taskName(task)}`))], ["Run", breakable(run_id)]]);
}

function draw(job, act, attempts) {
  const own = attempts.length > 1 && ownNumber(job, attempts);
  document.title = `${job.label} · ${job.task.dag_id} · TrainJobs`;
  show($("#name"), [job.label, own, attempts.length], () => [breakable(job.label), own && el("small", { class: "quiet" }, ` attempt ${own} of ${attempts.at(-1).number}`)]);
  const isUnknown = job.unreachable && !job.deleted && !ended(job);
  show($("#status"), [job.deleted ? "Deleted" : job.status, isUnknown], ([word]) => (isUnknown ? status("Unknown") : word && status(word)));
  show($("#actions"), [job.actions, job.status], ([actions]) => actions.map((action) => button(action, job, act)));
  drawFacts(job);
  show($("#notices"), [job.diagnosis, job.debug, job.unreachable, job.deleted, job.read_only, job.note, job.queued, job.status], () => notices(job));
  show($("#progress"), [job.progress, job.status, remaining(job), job.deleted], () => job.status !== "Complete" && progress(job));
  show($("#parameters"), job.parameters, () => parameters(job));
  show($("#result"), [job.metrics, job.artifacts], () => result(job));
  show($("#attempts"), [attempts, job.name], () => attempts.length > 1 && drawAttempts(job, attempts));
  show($("#restarts"), job.restarts, () => job.restarts?.causes?.length > 0 && drawRestarts(job.restarts.causes));
  show($("#steps"), [job.steps, !ended(job) && Math.floor(Date.now() / 1000)], () => job.steps && steps(job));
  show($("#events"), job.events, () => job.events && events(job.events));
  $("#manifest").hidden = Boolean(job.unreachable);
  if (job.unreachable) $("#log").hidden = true;
}

/** Confirmation of an action that cannot be undone: [title, consequence, confirm button, cancel button]. */
const questions = {
  delete: (job) => ["Delete this TrainJob?", ended(job)
    ? "Its log and files are removed. The XComs of its task stay."
    : "The training is stopped, and its log and files are removed. The task that waits for it fails, without a retry.", "Delete", "Keep"],
  suspend: () => ["Suspend this TrainJob?", "Its processes end, and what they have not saved is lost. Resume starts the training again.", "Suspend", "Keep running"],
  end: () => ["Stop this TrainJob?", "Airflow marks its task as failed. The TrainJob is then cancelled, unless the task has on_kill='keep'.", "Stop", "Keep running"],
  rerun: () => ["Run this task again?", "Airflow clears the task, which submits a new TrainJob. The XComs of this TrainJob are removed.", "Run again", "Cancel"],
};
const labels = { suspend: "Suspend", resume: "Resume", delete: "Delete", end: "Stop", rerun: "Run again" };

/** Headings of the diagnosis by its category. */
const categories = {
  UserCode: "Error in your code",
  OutOfMemory: "Out of memory",
  Image: "Image or environment cannot be prepared",
  Scheduling: "Cannot be scheduled",
  Preempted: "Preempted by other workloads",
  NodeLost: "Node lost",
  Stalled: "No progress",
  Deadline: "Deadline exceeded",
  Initializer: "Dataset or model cannot be downloaded",
  Rejected: "Rejected by the cluster",
  Deleted: "Cancelled",
  StoppedEarly: "Stopped early by its search",
  Infrastructure: "Failure of the infrastructure",
};

function button(action, job, act) {
  if (!questions[action]) return el("button", { type: "button", onclick: () => act(action) }, labels[action]);
  return el("button", { type: "button", class: action === "rerun" || action === "suspend" ? undefined : "danger", onclick: () => {
    const dialog = $("#confirm");
    const [title, consequence, yes, no] = questions[action](job);
    $("#confirm-title").textContent = title;
    $("#consequence").textContent = consequence;
    dialog.querySelector("[value=yes]").textContent = yes;
    dialog.querySelector("[value=keep]").textContent = no;
    dialog.action = action;
    dialog.returnValue = "";
    dialog.showModal();
  } }, labels[action]);
}

function drawFacts(job) {
  const ran = since(ended(job) ? job.started : runStart(job), job.finished);
  const link = (href, words) => el("a", { href, target: "_blank", rel: "noopener noreferrer" }, words);
  const external = [[job.dashboard, "Dashboard"], [job.logs, "Logs"], [job.mlflow_run, "MLflow run"]]
    .filter(([href]) => href)
    .flatMap(([href, words], index) => [index > 0 && " · ", link(href, words)]);
  const facts = [
    ["TrainJob", breakable(job.name)],
    ["Search", job.is_trial && el("a", { href: `search?${taskQuery(job.task)}` }, breakable(taskName(job.task)))],
    ["Task", taskLink(job.task, breakable(`${job.task.dag_id} › ${taskName(job.task)}`))],
    ["Run", airflowLink(`dags/${encodeURIComponent(job.task.dag_id)}/runs/${encodeURIComponent(job.task.run_id)}`, breakable(job.task.run_id))],
    ["Task state", job.task.state],
    ["Backend", job.backend],
    [job.backend === "local" ? "Folder" : "Namespace", job.namespace && breakable(job.namespace)],
    ["Partition", job.partition && breakable(job.partition)],
    ["Runtime", job.runtime],
    ["Nodes", job.num_nodes && number(job.num_nodes)],
    ["Restarts", job.restarts?.text],
    ["Created", moment(job.created, `${span(since(job.created))} ago`)],
    [ended(job) ? "Ran for" : "Running for", (ended(job) || job.status === "Running") && ran !== undefined && span(ran)],
    ["Assets", job.assets?.length > 0 && el("span", {}, ...job.assets.flatMap(({ id, name }, at) => [at > 0 && " · ", airflowLink(`assets/${id}`, name)]))],
    ["External links", external.length > 0 && el("span", {}, ...external)],
  ].filter(([, value]) => value);
  drawFactList(facts);
}

function drawFactList(facts) {
  const texts = facts.map(([name, value]) => [name, value.textContent ?? value]);
  show($("#facts"), texts, () => facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

/** Whether the same definition can succeed in another run. A deleted TrainJob says nothing about that. */
const advice = ({ category, retryable }) => category === "Deleted" ? "Airflow does not retry a cancelled TrainJob." : retryable ? "A retry can help." : "A retry would fail in the same way.";

const isEndedEarly = (job) => ["Cancelled", "Stopped early"].includes(job.status);

const lastKnown = (job) => ended(job) ? "" : `Its status is unknown here; its task last saw it ${job.status ?? "before it was created"}. `;

function notices(job) {
  const items = [];
  const { diagnosis } = job;
  if (diagnosis) {
    const where = [diagnosis.step && `in ${diagnosis.step}`, diagnosis.node && `on ${diagnosis.node}`, diagnosis.exit_code !== undefined && `exit code ${diagnosis.exit_code}`].filter(Boolean).join(", ");
    const detail = diagnosis.traceback || (diagnosis.log_tail || []).join("\n");
    items.push(el("div", { class: `notice ${isEndedEarly(job) ? "warn" : "bad"}` }, el("h2", {}, `${ended(job) ? "" : "Problem: "}${categories[diagnosis.category] ?? diagnosis.category}`),
      diagnosis.reason !== "it was cancelled" && el("p", {}, diagnosis.reason), el("p", { class: "quiet" }, [where, advice(diagnosis)].filter(Boolean).join(". ")),
      detail && el("pre", { tabindex: 0, "aria-label": "Last log lines" }, detail),
      job.debug && el("p", {}, "Debug it on your machine: ", el("code", {}, job.debug))));
  }
  if (job.deleted) items.push(el("p", { class: "notice" }, `Deleted by ${job.deleted.by} on ${new Date(job.deleted.at).toLocaleString()}. This page shows the XComs of its task.`));
  else if (job.unreachable) items.push(el("p", { class: "notice" }, `The API server cannot read this TrainJob: ${job.unreachable}. ${lastKnown(job)}This page shows the XComs of its task, and its actions apply to the task. The log of the TrainJob is in the `, taskLink(job.task, "log of the task"), "."));
  if (job.read_only) items.push(el("p", { class: "notice" }, "You have read access to this DAG only, so you cannot change its TrainJobs."));
  if (job.queued) items.push(el("p", { class: "notice" }, `This TrainJob is ${job.queued}.`));
  if (job.note) items.push(el("p", { class: "notice" }, job.note));
  return items;
}

/** When the steps that run now were started: later than the TrainJob itself if it was suspended and resumed. */
const runStart = (job) => (job.steps || []).filter((step) => step.status === "Running" && step.started).map((step) => step.started).sort()[0] || job.started;

/** Estimated time until the last step, at the average speed so far. */
function remaining(job) {
  const { step, total } = job.progress || {};
  if (!step || !total || job.status !== "Running" || !job.started) return undefined;
  const milliseconds = (since(runStart(job)) / step) * (total - step);
  return milliseconds > 0 ? rough(milliseconds) : undefined;
}

/** How far the training is; of one that has ended without success, how far it came. */
function progress(job) {
  const { step, total, percentage, checkpoint, resumed_from, silent } = job.deleted?.step === undefined ? job.progress ?? {} : job.deleted;
  const silence = silent && !ended(job) && `silent for ${silent}`;
  if (step === undefined || step === null) return silence && el("div", { class: "numbers" }, silence);
  const rest = remaining(job);
  const place = describeSteps({ step, total });
  const words = ended(job) || job.deleted ? `Stopped at ${place}` : place.replace("step", "Step");
  return [el("div", { class: "numbers" }, el("span", {}, words), el("span", { class: "quiet" }, [percentage !== undefined && `${percentage} %`, rest && `about ${rest} left`, resumed_from !== undefined && resumed_from !== null && `resumed from step ${number(resumed_from)}`, checkpoint && `last checkpoint at step ${number(checkpoint)}`, silence].filter(Boolean).join(" · "))),
    percentage !== undefined && !ended(job) && !job.deleted && el("progress", { max: 100, value: percentage, "aria-label": "Progress of the training" })];
}

function parameters(job) {
  const rows = Object.entries(job.parameters ?? {});
  return rows.length > 0 && titled("Parameters", el("dl", { class: "facts" }, ...rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, breakable(value))))));
}

function result(job) {
  const rows = [...Object.entries(job.metrics || {}).map(([name, value]) => [name, number(value)]), ...Object.entries(job.artifacts || {}).map(([name, value]) => [name, uri(value)])];
  return rows.length > 0 && titled("Result", el("dl", { class: "facts" }, ...rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", { class: "number" }, value)))));
}

function drawAttempts(job, rows) {
  return titled("Attempts", table(rows, [
    ["Attempt", (row) => (row.name === job.name ? el("b", {}, `Attempt ${number(row.number)}`) : el("a", { href: `job?${taskQuery(job.task)}&attempt=${encodeURIComponent(row.name)}` }, `Attempt ${number(row.number)}`)), "name number"],
    ["Status", (row) => status(row.status)],
    ["Came to", (row) => (row.progress?.step === undefined ? undefined : describeSteps(row.progress)), "number"],
    ["Resumed from", (row) => (row.resumed_from === undefined ? undefined : `step ${number(row.resumed_from)}`), "number"],
    ["Ran for", (row) => row.started && span(since(row.started, row.finished)), "number"],
    ["Created", (row) => el("span", {}, age(row.created), " ago"), "number"],
    ["Reason", (row) => row.reason && breakable(row.reason)],
  ], "Attempts", "cards"));
}

/** What ended each start before the last one, by the RestartPolicy of the job. */
const drawRestarts = (causes) => titled("Restarts", table(causes, [
  ["Cause", (row) => categories[row.category] ?? row.category, "name"],
  ["Came to", (row) => (row.step === null ? undefined : `step ${number(row.step)}`), "number"],
  ["Ran for", (row) => span(1000 * row.seconds), "number"],
  ["Ended", (row) => row.at && moment(row.at, `${span(since(row.at))} ago`)],
  ["Counted", (row) => (row.counted ? "yes" : "no")],
], "Restarts", "cards"));

function steps(job) {
  const begin = new Date(job.created);
  const all = Math.max(1, since(job.created, job.finished));
  // The processes of a TrainJob that was ended did not fail.
  const word = (step) => (step.status === "Failed" && isEndedEarly(job) ? job.status : step.status);
  const timeline = (step) => {
    if (!step.started || step.status === "Pending") return undefined;
    const part = el("i", { "data-status": word(step) });
    part.style.left = `${Math.min(99, (100 * (new Date(step.started) - begin)) / all)}%`;
    part.style.width = `${Math.max(0, Math.min(100, (100 * since(step.started, step.finished)) / all))}%`;
    return el("div", { class: "timeline", "aria-hidden": "true" }, part);
  };
  return titled("Steps", table(job.steps, [
    ["Step", (step) => step.name, "name"],
    ["Status", (step) => step.status && status(word(step))],
    ["Timeline", timeline],
    ["Duration", (step) => step.started && step.status !== "Pending" && span(since(step.started, step.finished)), "number"],
    ["Node", (step) => step.machine && breakable(step.machine)],
    ["Device", (step) => step.device],
    ["Pod or process", (step) => step.runs_as && breakable(step.runs_as)],
    ["Restarts", (step) => step.restarts, "number"],
    ["Exit code", (step) => step.exit_code, "number"],
  ], "Steps", "cards"));
}

const events = (all) => titled("Events", table(all, [
  ["Time", (event) => moment(event.time, new Date(event.time).toLocaleTimeString())],
  ["Type", (event) => (event.type === "Warning" ? event.type : undefined)],
  ["Reason", (event) => event.reason],
  ["Object", (event) => event.about && breakable(event.about)],
  ["Message", (event) => event.message && breakable(event.message)],
], "Events", "cards"));

jobPage();
