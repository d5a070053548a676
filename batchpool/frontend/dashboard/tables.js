// The tables below the models. On a narrow screen a row becomes a block, each value with its name.

import { Keyed, element, setAttribute, setText } from "./dom.js";
import { NONE, age, bytes, count, milliseconds, perSecond, share, timeOfDay } from "./format.js";

// columns: [{name, label, text(row), number?, state?, long?}]; rows: how many lines to keep free.
class Table {
  constructor(columns, { kind, empty, room = 0 }) {
    this.columns = columns;
    this.room = room;
    this.body = element("tbody", { role: "rowgroup" });
    this.lines = new Keyed(this.body, () => new Line(columns));
    const head = element("tr", { role: "row" });
    for (const column of columns) {
      const cell = { scope: "col", role: "columnheader", text: column.label, class: classOf(column, []) };
      head.append(element("th", cell));
    }
    this.table = element(
      "table",
      { class: `table ${kind}`, role: "table" },
      element("thead", { role: "rowgroup" }, head),
      this.body,
    );
    this.none = element("p", { class: "muted", text: empty });
    this.node = element("div", {}, this.none, this.table);
    this.update([]);
  }

  update(rows) {
    this.none.hidden = rows.length > 0 || this.room > 0;
    this.table.hidden = rows.length === 0 && this.room === 0;
    const lines = rows.map((row, i) => [row.name ?? i, row]);
    while (lines.length < this.room) lines.push([lines.length, null]);
    this.lines.update(lines);
  }
}

class Line {
  constructor(columns) {
    this.columns = columns;
    this.cells = columns.map((column, i) =>
      element(i ? "td" : "th", {
        role: i ? "cell" : "rowheader",
        ...(i ? {} : { scope: "row" }),
        class: classOf(column),
        "data-label": column.label,
      }),
    );
    this.node = element("tr", { role: "row" }, ...this.cells);
  }

  update(row) {
    this.node.dataset.blank = row ? "no" : "yes";
    this.columns.forEach((column, i) => {
      const text = row ? String(column.text(row) ?? NONE) : "\u00a0";
      setText(this.cells[i], text);
      if (column.state) setAttribute(this.cells[i], "data-state", row ? text : "");
      if (column.long) this.cells[i].title = row ? text : "";
      this.cells[i].dataset.none = !row || text === NONE || text === "" ? "yes" : "no";
    });
  }
}

function classOf(column, kinds = ["state", "long", "mono"]) {
  return [`c-${column.name}`, ...["number", ...kinds].filter((word) => column[word])].join(" ");
}

const NAME = { name: "name", label: "Name", text: (row) => row.name };
const PID = { name: "pid", label: "PID", number: true, text: (row) => row.pid };
const STATE = { name: "state", label: "State", state: true, text: (row) => row.state };
const RESTARTS = {
  name: "restarts",
  label: "Restarts",
  number: true,
  text: (row) => count(row.restarts),
};
const LAST_ERROR = {
  name: "error",
  label: "Last error",
  long: true,
  text: (row) => row.last_error || NONE,
};

function gpuMemory({ gpu }) {
  return gpu ? `${bytes(gpu.used_bytes)} of ${bytes(gpu.total_bytes)}` : NONE;
}

export class Tables {
  constructor(places) {
    const parts = {
      workers: new Table(
        [
          NAME,
          { name: "device", label: "Device", text: (row) => row.device },
          STATE,
          { name: "rate", label: "Batches", number: true, text: (row) => perSecond(row.batches_per_s) },
          { name: "rows", label: "Rows", number: true, text: (row) => perSecond(row.rows_per_s) },
          { name: "memory", label: "GPU memory", number: true, text: gpuMemory },
          {
            name: "busy",
            label: "GPU use",
            number: true,
            text: (row) => share(row.gpu?.utilization),
          },
          RESTARTS,
          PID,
          LAST_ERROR,
        ],
        { kind: "workers", empty: "There is no worker." },
      ),
      processes: new Table(
        [
          NAME,
          STATE,
          PID,
          RESTARTS,
          {
            name: "progress",
            label: "Last progress",
            number: true,
            text: (row) => (row.progress_age_s == null ? NONE : `${age(row.progress_age_s)} ago`),
          },
          LAST_ERROR,
        ],
        { kind: "processes", empty: "The supervisor does not say." },
      ),
      batches: new Table(
        [
          { name: "time", label: "Time", text: (row) => timeOfDay(row.time_s) },
          { name: "model", label: "Model", text: (row) => row.model },
          { name: "rows", label: "Rows", number: true, text: (row) => count(row.rows) },
          { name: "reason", label: "Why it left", text: (row) => row.reason },
          { name: "worker", label: "Worker", text: (row) => row.worker },
          { name: "outcome", label: "Outcome", state: true, text: (row) => row.outcome },
          { name: "took", label: "Took", number: true, text: (row) => milliseconds(row.ms) },
        ],
        { kind: "batches", empty: "", room: 12 },
      ),
      errors: new Table(
        [
          { name: "time", label: "Time", text: (row) => timeOfDay(row.time_s) },
          { name: "model", label: "Model", text: (row) => row.model },
          { name: "outcome", label: "Code", mono: true, text: (row) => row.code },
          { name: "times", label: "Times", number: true, text: (row) => count(row.times) },
          { name: "text", label: "Text", long: true, text: (row) => row.text },
        ],
        { kind: "errors", empty: "None." },
      ),
    };
    this.parts = parts;
    for (const [name, place] of Object.entries(places)) place.append(parts[name].node);
  }

  update(snapshot) {
    const anyGpu = snapshot.workers.some((worker) => worker.gpu);
    this.parts.workers.node.dataset.gpus = anyGpu ? "yes" : "no";
    for (const [name, part] of Object.entries(this.parts)) part.update(snapshot[name]);
  }
}
