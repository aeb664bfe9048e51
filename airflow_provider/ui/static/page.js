/* What the TrainJobs pages share. Responses of the API server are shown as text, never as markup. */
export const root = document.documentElement;
if (window.top !== window) root.classList.add("framed");

// Airflow stores its theme in localStorage; "system" means the browser's setting.
const theme = () => {
  const selected = localStorage.getItem("theme");
  if (selected === "dark" || selected === "light") root.dataset.theme = selected;
  else delete root.dataset.theme;
};
theme();
window.addEventListener("storage", theme);

export const $ = (selector) => document.querySelector(selector);

/** Create an element. Strings among the children become text nodes, never markup. */
export function el(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== null && child !== false && child !== ""));
  return element;
}

/** Replace the content of an element by `draw(data)`, unless the data has not changed, or the mouse is pressed in it: the click would be lost. */
export function show(place, data, draw) {
  const text = JSON.stringify(data) ?? "";
  if (place.shown === text || place.matches(":active")) return;
  place.shown = text;
  const focused = place.contains(document.activeElement) && describeControl(document.activeElement);
  place.replaceChildren(...[draw(data)].flat().filter(Boolean));
  if (focused) [...place.querySelectorAll("a, button, input, select")].find((each) => describeControl(each) === focused)?.focus();
}

/** What stays the same of a control that is drawn again, so that the keyboard focus can return to it. */
const describeControl = (control) => [control.tagName, control.name, control.value, control.getAttribute("href"), control.getAttribute("aria-label"), control.textContent].join("\n");

/** Error response of the server; the page shows its message. */
export class RequestError extends Error {}

export async function request(path, parameters, method = "GET") {
  const { dag_id, ...others } = parameters;
  const address = new URL(dag_id ? `api/dags/${encodeURIComponent(dag_id)}/${path}` : `api/${path}`, document.baseURI);
  for (const [key, value] of Object.entries(others)) for (const each of [value].flat()) if (each !== "") address.searchParams.append(key, each);
  return send(address, { method, headers: method === "GET" ? {} : { "X-TrainJobs": "1" } });
}

async function send(address, options) {
  const response = await fetch(address, options)
    .catch(() => { throw new RequestError("The API server is unavailable; retrying."); });
  document.querySelector(".skeleton")?.remove();
  if (response.status === 401) location.reload();
  const body = response.status === 204 ? null : await response.json().catch(() => ({}));
  if (response.ok) return body;
  // FastAPI lists what is wrong with each parameter.
  const details = Array.isArray(body.detail) ? body.detail.map(({ loc, msg }) => `${loc[1]}: ${msg.replace("Value error, ", "")}.`).join(" ") : body.detail;
  throw new RequestError(typeof details === "string" ? details : `The API server returned status ${response.status}.`);
}

/** Call Airflow's own API, with the permissions of the user. */
export function requestAirflow(path, body, method) {
  const headers = { "Content-Type": "application/json" };
  return send(new URL(`../api/v2/dags/${path}`, document.baseURI), { method, headers, body: JSON.stringify(body) });
}

/** Show the last error of loading and of an action, each until the next success. */
const errors = {};
export function showError(source, text) {
  errors[source] = text;
  const all = Object.values(errors).filter(Boolean).join(" ");
  $("#error").hidden = !all;
  if ($("#error").textContent !== all) $("#error").textContent = all;
}

/** Repeat some work: less often if it takes long, and not while the page is hidden. */
export function repeat(work, seconds) {
  let timer;
  const turn = async () => {
    clearTimeout(timer);
    const begin = performance.now();
    try {
      if (!document.hidden) await work();
      showError("load", "");
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      showError("load", error.message);
    } finally {
      document.querySelector(".skeleton")?.remove();
      clearTimeout(timer);
      timer = setTimeout(turn, Math.max(1000 * seconds(), 5 * (performance.now() - begin)));
    }
  };
  document.addEventListener("visibilitychange", () => document.hidden || turn());
  turn();
  return turn;
}

// Formatting of numbers and times.
export function span(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  const [minutes, hours, days] = [60, 3600, 86400].map((unit) => Math.floor(seconds / unit));
  if (days) return `${days} d ${hours % 24} h`;
  if (hours) return `${hours} h ${minutes % 60} min`;
  return minutes ? `${minutes} min ${seconds % 60} s` : `${seconds} s`;
}

/** A time span without its smaller unit, so that ages in a list do not change every second. */
export const rough = (milliseconds) => span(milliseconds).split(" ").slice(0, 2).join(" ");
export const since = (from, to) => (from ? (to ? new Date(to) : Date.now()) - new Date(from) : undefined);
export const number = (value, digits = 4) => (Number.isInteger(value) && Math.abs(value) < 1e15 ? value.toLocaleString() : Number(value.toPrecision(digits)).toString());
export const moment = (text, words) => el("time", { datetime: text, title: new Date(text).toLocaleString() }, words);
export const age = (text) => moment(text, rough(since(text)));
export const status = (word) => el("span", { class: "status", "data-status": word }, word);

/** Text that may break after each separator, and not within a word, a number, a date or a time. */
export const breakable = (text) => el("span", {}, ...text.split(/(?<=[_/ ])|(?<=[-.])(?!\d)|(?<=\dT)(?=\d\d:)/).flatMap((part) => [
  // Otherwise the browser breaks after each hyphen. A longer part may not fit on a line.
  part.length > MAX_UNBROKEN ? part : el("span", { class: "whole" }, part), el("wbr")]));
const MAX_UNBROKEN = 28;

/** The end of a URI, which tells artifacts apart, and a button that copies all of it. */
export function uri(text) {
  const end = text.length > 40 ? `…${text.slice(-40).replace(/^[^/]*(?=\/.)/, "")}` : text;
  const copy = el("button", { type: "button", class: "plain quiet", "aria-label": `Copy ${text}`, onclick: async () => {
    copy.textContent = await copyText(text) ? "Copied" : "Not copied";
  } }, "Copy");
  return el("span", { class: "uri", title: text }, breakable(end), " ", copy);
}

/** Copy a text. Without https the browser has no clipboard API, only the command of a selection. */
async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const field = el("textarea", {}, text);
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  return copied;
}

/** How far a TrainJob came: `step 5 of 10`. */
export const steps = ({ step, total }) => (total ? `step ${number(step)} of ${number(total)}` : `step ${number(step)}`);

/**
 * A table without its empty columns. A column is [heading, function that returns a row's cell, class, key]: a column with
 * a key is shown although it is empty if it is in `sort.chosen`, and its heading sorts by it.
 */
export function table(rows, columns, label, kind, sort) {
  const used = columns
    .map(([heading, cell, kind, key]) => ({ heading, kind, key, cells: rows.map(cell) }))
    .filter(({ cells, key }) => sort?.chosen.includes(key) || cells.some((cell) => cell !== undefined && cell !== ""));
  const head = el("tr", {}, ...used.map(({ heading, key }) => {
    if (!sort || !key) return el("th", { scope: "col" }, heading);
    const direction = sort.by === key ? "ascending" : sort.by === `-${key}` ? "descending" : undefined;
    // Of numbers, the largest first is wanted more often; a second click reverses the order.
    const next = direction === "descending" ? key : `-${key}`;
    const sorting = el("button", { type: "button", class: "plain", title: `Sort by ${heading}`, onclick: () => sort.set(next) }, heading);
    return el("th", { scope: "col", "aria-sort": direction }, sorting);
  }));
  const body = rows.map((_, line) => el("tr", {}, ...used.map(({ heading, kind, cells }) => el("td", { class: kind, "data-label": heading }, cells[line]))));
  // A frame that scrolls needs the keyboard focus, unless it has links.
  const frame = kind === "jobs" ? { class: "scroll" } : { class: "scroll", tabindex: 0, role: "group", "aria-label": `${label}, scrollable` };
  return el("div", frame, el("table", { "aria-label": label, class: kind }, el("thead", {}, head), el("tbody", {}, ...body)));
}

export const titled = (title, ...content) => el("section", { "aria-label": title }, el("h2", {}, title), ...content);
export const taskQuery = ({ dag_id, run_id, task_id, map_index, attempt }) => new URLSearchParams({ dag_id, run_id, task_id, map_index, ...(attempt && { attempt }) });

/** A link to a page of Airflow. In Airflow's frame, a click navigates the outer window, not the frame. */
export function airflowLink(path, words) {
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

export function taskLink({ dag_id, run_id, task_id, map_index }, words) {
  const [dag, run, task] = [dag_id, run_id, task_id].map(encodeURIComponent);
  return airflowLink(`dags/${dag}/runs/${run}/tasks/${task}${map_index >= 0 ? `/mapped/${map_index}` : ""}`, words);
}

export const taskName = ({ task_id, map_index }) => (map_index >= 0 ? `${task_id} [${map_index}]` : task_id);

export const ended = (job) => ["Complete", "Failed", "Cancelled", "Stopped early"].includes(job.status);

/** The value of a column of `trainjob list --columns` as text. */
export function formatValue(column, value) {
  if (column === "duration" && value !== undefined && value !== null) return span(1000 * value);
  return typeof value === "number" ? number(value) : value ?? undefined;
}

/** Heading of a column: an argument and a metric have the name that the training function uses. */
export const formatColumn = (column) => ({ duration: "Duration", reason: "Reason", partition: "Partition" })[column] ?? column.replace(/^(param|metric|artifact)\./, "");
