/* The TrainJobs page: asks the API server again and again, and shows what it answers, as text only. */
"use strict";
(() => {
  const root = document.documentElement;
  if (window.top !== window) root.classList.add("framed");

  // Airflow keeps the theme that was chosen there; "system" leaves it to the browser.
  const theme = () => {
    const chosen = localStorage.getItem("theme");
    if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;
    else delete root.dataset.theme;
  };
  theme();
  window.addEventListener("storage", theme);

  const $ = (selector) => document.querySelector(selector);

  /** An element. Whatever is put into it becomes text, never markup. */
  function el(name, attributes, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value);
    }
    made.append(...children.filter((child) => child !== undefined && child !== null && child !== false && child !== ""));
    return made;
  }

  /** Show what `draw` makes of the data, and leave the page alone as long as the data is the same. */
  function show(place, data, draw) {
    const text = JSON.stringify(data) ?? "";
    if (place.shown === text) return;
    place.shown = text;
    place.replaceChildren(...[draw(data)].flat().filter(Boolean));
  }

  /** What the server would not do, in words for the person at the page. */
  class Refusal extends Error {}

  async function ask(path, parameters, method = "GET") {
    const { dag_id, ...others } = parameters;
    const address = new URL(dag_id ? `api/dags/${encodeURIComponent(dag_id)}/${path}` : `api/${path}`, document.baseURI);
    for (const [key, value] of Object.entries(others)) if (value !== "") address.searchParams.set(key, value);
    return send(address, { method, headers: method === "GET" ? {} : { "X-TrainJobs": "1" } });
  }

  async function send(address, request) {
    const answer = await fetch(address, request)
      .catch(() => { throw new Refusal("The API server does not answer; trying again."); });
    if (answer.status === 401) location.reload();
    const body = answer.status === 204 ? null : await answer.json().catch(() => ({}));
    if (answer.ok) return body;
    throw new Refusal(typeof body.detail === "string" ? body.detail : `The API server answers ${answer.status}.`);
  }

  /** Ask Airflow itself for something, with the permissions of the person at the page. */
  function askAirflow(path, body, method) {
    const headers = { "Content-Type": "application/json" };
    return send(new URL(`../api/v2/dags/${path}`, document.baseURI), { method, headers, body: JSON.stringify(body) });
  }

  /** A job that the API server cannot reach is ended, or run again, by its task. */
  const byTask = {
    end: ({ dag_id, run_id, task_id, map_index }) => askAirflow(
      `${[dag_id, "dagRuns", run_id, "taskInstances", task_id].map(encodeURIComponent).join("/")}${map_index >= 0 ? `/${map_index}` : ""}`,
      { new_state: "failed" }, "PATCH"),
    rerun: ({ dag_id, run_id, task_id, map_index }) => askAirflow(`${encodeURIComponent(dag_id)}/clearTaskInstances`,
      { dry_run: false, only_failed: false, dag_run_id: run_id, task_ids: [map_index >= 0 ? [task_id, map_index] : task_id] }, "POST"),
  };

  /** Say what went wrong, with a look or with what somebody did: of each, until it goes well. */
  const wrong = {};
  function trouble(what, text) {
    wrong[what] = text;
    const all = Object.values(wrong).filter(Boolean).join(" ");
    $("#trouble").hidden = !all;
    if ($("#trouble").textContent !== all) $("#trouble").textContent = all;
  }

  /** Do something now and then; less often where it takes long, and not while nobody looks. */
  function repeat(work, seconds) {
    let timer;
    const turn = async () => {
      clearTimeout(timer);
      const begin = performance.now();
      try {
        if (!document.hidden) await work();
        trouble("look", "");
      } catch (error) {
        if (!(error instanceof Refusal)) throw error;
        trouble("look", error.message);
      } finally {
        clearTimeout(timer);
        timer = setTimeout(turn, Math.max(1000 * seconds(), 5 * (performance.now() - begin)));
      }
    };
    document.addEventListener("visibilitychange", () => document.hidden || turn());
    turn();
    return turn;
  }

  // Words for numbers and times.
  function span(milliseconds) {
    const seconds = Math.max(0, Math.round(milliseconds / 1000));
    const [minutes, hours, days] = [60, 3600, 86400].map((unit) => Math.floor(seconds / unit));
    if (days) return `${days} d ${hours % 24} h`;
    if (hours) return `${hours} h ${minutes % 60} min`;
    return minutes ? `${minutes} min ${seconds % 60} s` : `${seconds} s`;
  }

  /** The same without its smaller unit: an age in a list shall not flicker. */
  const rough = (milliseconds) => span(milliseconds).split(" ").slice(0, 2).join(" ");
  const since = (from, to) => (from ? (to ? new Date(to) : Date.now()) - new Date(from) : undefined);
  const number = (value) => (Number.isInteger(value) ? value.toLocaleString() : Number(value.toPrecision(4)).toString());
  const moment = (text, words) => el("time", { datetime: text, title: new Date(text).toLocaleString() }, words);
  const age = (text) => moment(text, rough(since(text)));
  const status = (word) => el("span", { class: "status", "data-status": word }, word);

  /** A table of the columns that have something in some row: [heading, cell of a row, class]. */
  function table(rows, columns, label) {
    const used = columns
      .map(([heading, cell, kind]) => ({ heading, kind, cells: rows.map(cell) }))
      .filter(({ cells }) => cells.some((cell) => cell !== undefined && cell !== ""));
    const head = el("tr", {}, ...used.map(({ heading }) => el("th", { scope: "col" }, heading)));
    const body = rows.map((_, line) => el("tr", {}, ...used.map(({ kind, cells }) => el("td", { class: kind }, cells[line]))));
    return el("div", { class: "scroll" }, el("table", { "aria-label": label }, el("thead", {}, head), el("tbody", {}, ...body)));
  }

  const titled = (title, ...content) => el("section", { "aria-label": title }, el("h2", {}, title), ...content);
  const taskQuery = ({ dag_id, run_id, task_id, map_index }) => new URLSearchParams({ dag_id, run_id, task_id, map_index });

  /** A link to a page of Airflow. Inside Airflow's frame it opens in Airflow's own window, which a frame may not steer. */
  function airflowLink(path, words) {
    const href = new URL(`../${path}`, document.baseURI).href;
    const open = (event) => {
      if (window.top === window) return;
      event.preventDefault();
      const link = window.top.document.createElement("a");
      link.href = href;
      link.click();
    };
    return el("a", { href, onclick: open }, words);
  }

  function taskLink({ dag_id, run_id, task_id, map_index }, words) {
    const [dag, run, task] = [dag_id, run_id, task_id].map(encodeURIComponent);
    return airflowLink(`dags/${dag}/runs/${run}/tasks/${task}${map_index >= 0 ? `/mapped/${map_index}` : ""}`, words);
  }

  const taskName = ({ task_id, map_index }) => (map_index >= 0 ? `${task_id} [${map_index}]` : task_id);

  // The list.
  function listPage() {
    const form = $("#filters");
    const wanted = new URLSearchParams(location.search);
    const offer = (field, value) => [...field.options].some((option) => option.value === value) || field.append(el("option", {}, value));
    for (const name of ["text", "dag", "status"]) {
      if (name === "dag" && wanted.get(name)) offer(form.elements.dag, wanted.get(name));
      form.elements[name].value = wanted.get(name) ?? "";
    }
    let before = [];

    const load = async () => {
      const filters = Object.fromEntries(new FormData(form));
      const asked = JSON.stringify([filters, before]);
      const found = await ask("jobs", { ...filters, before: before.at(-1) ?? "" });
      if (asked !== JSON.stringify([Object.fromEntries(new FormData(form)), before])) return;
      for (const dag of found.dags) offer(form.elements.dag, dag);
      const ages = found.jobs.map((job) => rough(since(job.created)));
      show($("#list"), { ...found, ages, filters, page: before.length }, listed);
      $("#list").removeAttribute("aria-busy");
    };
    const again = repeat(load, () => 5);
    const turnTo = (pages) => { before = pages; again(); };
    const listed = ({ jobs, older, filters, page }) => {
      const filtered = Object.values(filters).some(Boolean);
      const turn = (words, pages) => el("button", { type: "button", onclick: () => turnTo(pages) }, words);
      const turns = (page > 0 || older) && el("p", { class: "buttons" }, page > 0 && turn("Newer", before.slice(0, -1)), older && turn("Older", [...before, older]));
      if (!jobs.length) return [el("p", { class: "card empty" }, filtered ? "No TrainJob fits these filters." : "No task has submitted a TrainJob yet."), turns];
      return [table(jobs, [
        ["TrainJob", (job) => el("a", { class: "name", href: `job?${taskQuery(job)}` }, job.name)],
        ["Status", (job) => job.status && status(job.status)],
        ["Progress", (job) => job.progress?.percentage !== undefined ? bar(job.progress) : undefined, "number"],
        ["DAG", (job) => job.dag_id],
        ["Task", (job) => taskName(job)],
        ["Run", (job) => el("span", { class: "quiet" }, job.run_id)],
        ["Age", (job) => age(job.created)],
      ], "TrainJobs"), turns];
    };

    const changed = () => {
      const chosen = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
      history.replaceState(null, "", chosen.size ? `?${chosen}` : location.pathname);
      turnTo([]);
    };
    let typing;
    form.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(changed, 250); });
    form.addEventListener("submit", (event) => event.preventDefault());
  }

  const bar = ({ percentage }) => el("span", {}, el("progress", { max: 100, value: percentage, "aria-label": "Progress" }), `${percentage} %`);

  // One job.
  const ended = (job) => ["Complete", "Failed"].includes(job.status);

  function jobPage() {
    const task = Object.fromEntries(new URLSearchParams(location.search));
    const tails = new Map();
    const told = [];
    let job;

    const load = async () => {
      const found = await ask("job", task);
      if (job && job.name !== found.name) { tails.clear(); told.length = 0; }
      job = found;
      draw(job, act);
      if (job.unreachable) remember(job.progress);
      else await follow(job);
    };
    const again = repeat(load, () => (!job || ended(job) ? 15 : job.unreachable ? 5 : 2));

    const act = async (action) => {
      $("#actions").querySelectorAll("button").forEach((button) => { button.disabled = true; });
      const done = byTask[action] ? byTask[action](job.task) : ask(action, task, "POST");
      await done.then(() => trouble("act", ""), (error) => trouble("act", error.message));
      $("#actions").shown = undefined;
      again();
    };

    /** What the task tells of its progress is the newest only; curves show what came while the page was open. */
    const remember = (progress) => {
      if (progress?.metrics && progress.step !== told.at(-1)?.step) told.push(progress);
      drawCurves(told);
    };

    const follow = async () => {
      const names = (job.steps || []).filter((step) => step.started).map((step) => step.name);
      if (!names.length) return;
      const choice = $("#step");
      const before = choice.value;
      show(choice, names, (all) => all.map((name) => el("option", {}, name)));
      choice.value = names.includes(before) ? before : names.includes("node-0") ? "node-0" : names[0];
      choice.parentElement.hidden = names.length === 1;
      const wanted = new Set([choice.value, ...(names.includes("node-0") ? ["node-0"] : [])]);
      for (const name of wanted) await read(name);
      if (tails.has(choice.value)) drawLog(tails.get(choice.value));
      drawCurves(tails.get("node-0")?.points ?? []);
    };

    const read = async (step) => {
      const tail = tails.get(step) ?? { step, next: 0, lines: [], points: [], left: 0 };
      tails.set(step, tail);
      const after = tail.next;
      const part = await ask("log", { ...task, step, after });
      // Two turns can overlap; what the other has read already must not be shown twice.
      if (tails.get(step) !== tail || tail.next !== after) return;
      tail.next = part.next;
      tail.left += part.left_out;
      tail.lines.push(...part.lines);
      tail.left += tail.lines.splice(0, Math.max(0, tail.lines.length - 2000)).length;
      tail.points.push(...part.points);
      if (tail.points.length > 2000) tail.points = tail.points.filter((_, at) => at % 2 === 0);
    };

    $("#step").addEventListener("change", () => again());
    $("#follow").addEventListener("change", (event) => { if (event.target.checked) toEnd(); });
    $("#log pre").addEventListener("scroll", ({ target }) => {
      $("#follow").checked = target.scrollTop + target.clientHeight >= target.scrollHeight - 8;
    });
    $("#confirm").addEventListener("close", ({ target }) => { if (target.returnValue === "yes") act(target.action); });
    $("#manifest").addEventListener("toggle", async ({ target }) => {
      if (!target.open) return;
      const place = target.querySelector("pre");
      place.textContent = await ask("manifest", task).then((found) => found.yaml, (error) => error.message);
    });
  }

  function draw(job, act) {
    document.title = `${job.name} · TrainJobs`;
    $("#name").textContent = job.name;
    show($("#status"), job.deleted ? "Deleted" : job.status, (word) => word && status(word));
    show($("#actions"), [job.actions, job.status], ([actions]) => actions.map((action) => button(action, job, act)));
    drawFacts(job);
    show($("#notices"), [job.diagnosis, job.unreachable, job.deleted, job.read_only, job.note, job.status], () => notices(job));
    show($("#progress"), [job.progress, job.status, left(job)], () => job.progress && !ended(job) && progress(job));
    show($("#result"), [job.metrics, job.artifacts], () => result(job));
    show($("#steps"), [job.steps, !ended(job) && Math.floor(Date.now() / 1000)], () => job.steps && steps(job));
    show($("#events"), job.events, () => job.events && events(job.events));
    $("#manifest").hidden = Boolean(job.unreachable);
    if (job.unreachable) $("#log").hidden = true;
  }

  /** What is asked before something that cannot be undone: [title, what it leads to, yes, no]. */
  const questions = {
    delete: (job) => ["Delete this TrainJob?", ended(job)
      ? "Its log and its files are removed. What the task has handed over stays."
      : "Its training ends and its log and files are removed. The task that waits for it fails, or tries again if it has retries.", "Delete", "Keep it"],
    end: () => ["End this TrainJob?", "Airflow marks its task as failed, and whoever waits for the TrainJob there ends it, unless its DAG says to keep it.", "End", "Let it go on"],
    rerun: () => ["Run this task again?", "Airflow clears the task. It submits a new TrainJob; the XComs of this one go.", "Run again", "Leave it"],
  };
  const words = { suspend: "Suspend", resume: "Resume", delete: "Delete", end: "End", rerun: "Run again" };

  function button(action, job, act) {
    if (!questions[action]) return el("button", { type: "button", onclick: () => act(action) }, words[action]);
    return el("button", { type: "button", class: action === "rerun" ? undefined : "danger", onclick: () => {
      const dialog = $("#confirm");
      const [title, consequence, yes, no] = questions[action](job);
      $("#confirm-title").textContent = title;
      $("#consequence").textContent = consequence;
      dialog.querySelector("[value=yes]").textContent = yes;
      dialog.querySelector("[value=keep]").textContent = no;
      dialog.action = action;
      dialog.returnValue = "";
      dialog.showModal();
    } }, words[action]);
  }

  function drawFacts(job) {
    const ran = since(job.started, job.finished);
    const link = (href, words) => el("a", { href, target: "_blank", rel: "noopener noreferrer" }, words);
    const facts = [
      ["Task", taskLink(job.task, `${job.task.dag_id} › ${taskName(job.task)}`)],
      ["Run", job.task.run_id],
      ["Task state", job.task.state],
      ["Backend", job.backend],
      [job.backend === "local" ? "Folder" : "Namespace", job.namespace],
      ["Runtime", job.runtime],
      ["Nodes", job.num_nodes && number(job.num_nodes)],
      ["Created", moment(job.created, `${span(since(job.created))} ago`)],
      [ended(job) ? "Ran for" : "Running for", (ended(job) || job.status === "Running") && ran !== undefined && span(ran)],
      ["Elsewhere", (job.dashboard || job.logs) && el("span", {}, job.dashboard && link(job.dashboard, "Dashboard"), job.dashboard && job.logs && " · ", job.logs && link(job.logs, "Logs"))],
    ].filter(([, value]) => value);
    const texts = facts.map(([name, value]) => [name, value.textContent ?? value]);
    show($("#facts"), texts, () => facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
  }

  function notices(job) {
    const made = [];
    const why = job.diagnosis;
    if (why) {
      const where = [why.step && `in ${why.step}`, why.node && `on ${why.node}`, why.exit_code !== undefined && `exit code ${why.exit_code}`].filter(Boolean).join(", ");
      const detail = why.traceback || (why.log_tail || []).join("\n");
      made.push(el("div", { class: "notice bad" }, el("h2", {}, `${job.status === "Failed" ? "Failed" : "In trouble"}: ${why.category}`),
        el("p", {}, why.reason), el("p", { class: "quiet" }, [where, why.retryable ? "Running it again can help." : "Running it again would fail in the same way."].filter(Boolean).join(". ")),
        detail && el("pre", { tabindex: 0, "aria-label": "What it said last" }, detail)));
    }
    if (job.deleted) made.push(el("p", { class: "notice" }, `Deleted by ${job.deleted.by}, ${new Date(job.deleted.at).toLocaleString()}. This is what its task wrote down.`));
    else if (job.unreachable) made.push(el("p", { class: "notice" }, `This is what its task wrote down, because the API server cannot ask the backend: ${job.unreachable}. Its log is in the log of `, taskLink(job.task, "its task"), "; what is done here is done by that task."));
    if (job.read_only) made.push(el("p", { class: "notice" }, "You may look at this DAG but not change it, so nothing can be done to the job here."));
    if (job.note) made.push(el("p", { class: "notice" }, job.note));
    return made;
  }

  /** How long it will go on, if it goes on as it did. */
  function left(job) {
    const { step, total } = job.progress || {};
    if (!step || !total || job.status !== "Running" || !job.started) return undefined;
    const rest = (since(job.started) / step) * (total - step);
    return rest > 0 ? rough(rest) : undefined;
  }

  function progress(job) {
    const { step, total, percentage } = job.progress;
    if (step === undefined) return null;
    const rest = left(job);
    const words = total ? `Step ${number(step)} of ${number(total)}` : `Step ${number(step)}`;
    return [el("div", { class: "numbers" }, el("span", {}, words), el("span", { class: "quiet number" }, [percentage !== undefined && `${percentage} %`, rest && `about ${rest} left`].filter(Boolean).join(" · "))),
      percentage !== undefined && el("progress", { max: 100, value: percentage, "aria-label": "Progress of the training" })];
  }

  function result(job) {
    const rows = [...Object.entries(job.metrics || {}).map(([name, value]) => [name, number(value)]), ...Object.entries(job.artifacts || {})];
    return rows.length > 0 && titled("Result", el("dl", { class: "facts" }, ...rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", { class: "number" }, value)))));
  }

  function steps(job) {
    const begin = new Date(job.created);
    const all = Math.max(1, since(job.created, job.finished));
    const stretch = (step) => {
      if (!step.started) return undefined;
      const part = el("i", { "data-status": step.status });
      part.style.left = `${Math.min(99, (100 * (new Date(step.started) - begin)) / all)}%`;
      part.style.width = `${Math.max(0, Math.min(100, (100 * since(step.started, step.finished)) / all))}%`;
      return el("div", { class: "timeline", "aria-hidden": "true" }, part);
    };
    return titled("Steps", table(job.steps, [
      ["Step", (step) => step.name, "name"],
      ["Status", (step) => step.status && status(step.status)],
      ["Since it was created", stretch],
      ["Took", (step) => step.started && span(since(step.started, step.finished)), "number"],
      ["Machine", (step) => step.machine],
      ["Device", (step) => step.device],
      ["Runs as", (step) => step.runs_as],
      ["Restarts", (step) => step.restarts, "number"],
      ["Exit code", (step) => step.exit_code, "number"],
    ], "Steps"));
  }

  const events = (all) => titled("Events", table(all, [
    ["Time", (event) => moment(event.time, new Date(event.time).toLocaleTimeString())],
    ["Kind", (event) => (event.type === "Warning" ? event.type : undefined)],
    ["What", (event) => event.reason],
    ["About", (event) => event.about],
    ["Message", (event) => event.message],
  ], "Events"));

  const toEnd = () => { const place = $("#log pre"); place.scrollTop = place.scrollHeight; };

  function drawLog(tail) {
    const place = $("#log pre");
    const omitted = tail.left ? [`(earlier lines not shown: ${number(tail.left)})`] : [];
    const text = [...omitted, ...tail.lines].join("\n");
    $("#log").hidden = !text && $("#step").options.length < 2;
    if (place.textContent === text) return;
    const following = $("#follow").checked;
    place.textContent = text;
    if (following) toEnd();
  }

  /** The curves of the last time that the steps were counted from the beginning: a resumed job begins anew. */
  function drawCurves(points) {
    let begin = 0;
    points.forEach((point, at) => { if (at && point.step < points[at - 1].step) begin = at; });
    const series = new Map();
    points.slice(begin).forEach((point, at) => {
      for (const [name, value] of Object.entries(point.metrics || {})) series.set(name, [...(series.get(name) || []), [point.step ?? at, value]]);
    });
    const drawn = [...series].filter(([, line]) => line.length > 1);
    $("#curves").hidden = !drawn.length;
    show($(".curves"), drawn, () => drawn.map(([name, line]) => curve(name, line)));
  }

  function curve(name, line) {
    const [xs, ys] = [0, 1].map((at) => line.map((point) => point[at]));
    const [low, high, first, last] = [Math.min(...ys), Math.max(...ys), xs[0], xs.at(-1)];
    const at = ([x, y]) => `${(300 * (x - first)) / (last - first || 1)},${high === low ? 50 : 96 - (92 * (y - low)) / (high - low)}`;
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const path = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    path.setAttribute("points", line.map(at).join(" "));
    const words = `${name} from ${number(ys[0])} at step ${number(first)} to ${number(ys.at(-1))} at step ${number(last)}, between ${number(low)} and ${number(high)}`;
    for (const [key, value] of Object.entries({ viewBox: "0 0 300 100", preserveAspectRatio: "none", role: "img", "aria-label": words })) svg.setAttribute(key, value);
    svg.append(path);
    return el("figure", {}, el("figcaption", {}, name, el("b", {}, number(ys.at(-1)))), svg,
      el("div", { class: "range" }, el("span", {}, `step ${number(first)} – ${number(last)}`), el("span", {}, `${number(low)} – ${number(high)}`)));
  }

  document.addEventListener("DOMContentLoaded", () => (document.body.dataset.page === "job" ? jobPage() : listPage()));
})();
