/* The log of a TrainJob: read from cursor to cursor, so that a poll transfers only new lines. */
import { $, el, number, request, show } from "./page.js";
import { addPoints } from "./charts.js";

/** Number of lines that the page keeps. */
const MAX_LINES = 2000;

/** Reads the log of one step of a TrainJob: its lines, or those with a text, and the reports of progress and resources. */
export class LogReader {
  lines = [];
  times = [];
  points = [];
  resources = [];
  omitted = 0;
  #cursor = "{}";

  /** `options` are further parameters of the request: `text`, and `lines`, how many to return. */
  constructor(task, step, options = {}) {
    this.parameters = { ...task, step, ...options };
  }

  /** Read what is new. `ended` says that the TrainJob has ended, so that a last line without a line end is complete. */
  async read(ended) {
    for (let complete = false; !complete;) {
      const cursor = this.#cursor;
      const part = await request("log", { ...this.parameters, cursor, ended });
      // Two reads can overlap; lines that the other read has added must not be added twice.
      if (this.#cursor !== cursor) return;
      this.#cursor = part.cursor;
      this.omitted += part.left_out;
      this.lines.push(...part.lines);
      this.times.push(...part.times);
      const surplus = Math.max(0, this.lines.length - MAX_LINES);
      this.omitted += this.lines.splice(0, surplus).length;
      this.times.splice(0, surplus);
      this.points = addPoints(this.points, part.points);
      this.resources = addPoints(this.resources, part.resources);
      complete = part.complete || part.cursor === cursor;
    }
  }
}

/** The section of the page with the log. */
export class LogView {
  #readers = new Map();
  #typing;

  constructor(task, reload) {
    this.task = task;
    const [place, follow] = [$("#log pre"), $("#follow")];
    $("#step").addEventListener("change", () => reload());
    $("#log-search").addEventListener("input", () => {
      show($("#matches"), "Searching…", (words) => words);
      clearTimeout(this.#typing);
      this.#typing = setTimeout(reload, 300);
    });
    $("#timestamps").addEventListener("change", () => reload());
    follow.addEventListener("change", () => { if (follow.checked) place.scrollTop = place.scrollHeight; });
    place.addEventListener("scroll", () => { follow.checked = place.scrollTop + place.clientHeight >= place.scrollHeight - 8; });
  }

  clear() {
    this.#readers.clear();
  }

  /** What `progress` of the first node reported. */
  get points() {
    return this.#readers.get("node-0 ")?.points ?? [];
  }

  /** The use of resources by the first node. */
  get resources() {
    return this.#readers.get("node-0 ")?.resources ?? [];
  }

  /** Read and show what is new of the chosen step. The log of the first node is always read, for the curves. */
  async update(steps, ended) {
    const names = steps.filter((step) => step.started).map((step) => step.name);
    if (!names.length) return;
    const choice = $("#step");
    const before = choice.value;
    show(choice, names, (all) => all.map((name) => el("option", {}, name)));
    choice.value = names.includes(before) ? before : names.includes("node-0") ? "node-0" : names[0];
    choice.parentElement.hidden = names.length === 1;
    const text = $("#log-search").value;
    const [step, key] = [choice.value, `${choice.value} ${text}`];
    const wanted = new Map([[key, [step, text]], ...(names.includes("node-0") ? [["node-0 ", ["node-0", ""]]] : [])]);
    // A search that is over need not be kept; its log is read again if it is repeated.
    for (const old of this.#readers.keys()) if (!old.endsWith(" ") && old !== key) this.#readers.delete(old);
    for (const [name, [of, search]] of wanted) {
      if (!this.#readers.has(name)) this.#readers.set(name, new LogReader(this.task, of, { text: search }));
      await this.#readers.get(name)?.read(ended);
    }
    const { dag_id, ...others } = this.task;
    $("#download").href = `api/dags/${encodeURIComponent(dag_id)}/log/file?${new URLSearchParams({ ...others, step })}`;
    if (this.#readers.has(key) && `${choice.value} ${$("#log-search").value}` === key) this.#draw(this.#readers.get(key), text, ended);
  }

  #draw({ lines, times, omitted }, text, ended) {
    const [place, follow] = [$("#log pre"), $("#follow")];
    const first = omitted ? [`(${number(omitted)} earlier lines not shown)`] : [];
    const all = [...first, ...lines].join("\n");
    $("#log").hidden = false;
    place.dataset.empty = all || text ? "" : ended ? "Nothing was printed." : "Nothing has been printed yet.";
    show($("#matches"), text ? lines.length + omitted : null, (count) => count !== null && `${number(count)} ${count === 1 ? "line" : "lines"}`);
    const timestamps = $("#timestamps");
    timestamps.parentElement.hidden = times.every((time) => time === null);
    const shown = `${timestamps.checked}\n${text}\n${all}`;
    if (place.shown === shown) return;
    place.shown = shown;
    const following = follow.checked;
    place.replaceChildren(...(timestamps.checked ? stamp(first, lines, times, text) : text ? mark(all, text) : [all]));
    if (following) place.scrollTop = place.scrollHeight;
  }
}

/** The lines, each after the time at which it was written, in the browser's time zone. */
function stamp(first, lines, times, text) {
  const stamped = lines.flatMap((line, at) => {
    const moment = times[at] === null ? null : new Date(times[at]);
    // The Swedish form is year, month, day and time with seconds, all of the same width.
    const time = moment ? el("time", { datetime: moment.toISOString() }, moment.toLocaleString("sv-SE")) : " ".repeat(19);
    return ["\n", time, "  ", ...(text ? mark(line, text) : [line])];
  });
  return first.length ? [...first, ...stamped] : stamped.slice(1);
}

/** The text with each match, in any case, as a `mark` element. */
function mark(all, text) {
  const parts = [];
  const [within, wanted] = [all.toLowerCase(), text.toLowerCase()];
  // A letter whose lower case has another length would shift the matches.
  if (within.length !== all.length) return [all];
  let from = 0;
  for (let at; (at = within.indexOf(wanted, from)) >= 0; from = at + wanted.length) parts.push(all.slice(from, at), el("mark", {}, all.slice(at, at + wanted.length)));
  return [...parts, all.slice(from)];
}
