// One model's card: throughput, latency, slots, batches, what was not answered with 200.

import { Bars, Lines, Meter } from "./charts.js";
import { Keyed, element, setAttribute, setText } from "./dom.js";
import { NONE, count, milliseconds, perSecond, rate, share, short } from "./format.js";

const PARTS = { request: "Request", queue: "In queue", batch: "In batch" };
const SHARES = ["p50", "p90", "p99"];
const TOKEN_PARTS = { first_token: "First token", token_gap: "Between tokens", step: "Step" };

// Why sequences end: the words of the metric, and what they mean.
const ENDS = {
  stop: "stop: the generator ended them",
  length: "length: they got all tokens that they may have",
  cancelled: "cancelled: their callers left",
  deadline_exceeded: "deadline_exceeded: their time was over",
  model_error: "model_error: the generator failed, and they run again",
  invalid_input: "invalid_input: the generator refused them",
  returned: "returned: they go on in another worker",
};

// Why batches leave: the words of `batchpool status`, and what they mean.
const REASONS = {
  full: "full: the batch had its most rows",
  wait: "wait: its oldest row had waited long enough",
  idle: "idle: waiting for company could not pay",
  deadline: "deadline: a row's deadline was near",
  drain: "drain: the pool is stopping",
  apart: "apart: rows of a failed batch, run by themselves",
};

function panel(title, ...children) {
  return element("div", { class: "panel" }, element("h3", { text: title }), ...children);
}

export class ModelCard {
  constructor(name) {
    const id = `model-${name}`;
    this.state = element("span", { class: "state" });
    this.facts = element("span", { class: "muted facts" });
    this.stages = element("ul", { class: "chips stages", "aria-label": "Stages", hidden: "" });
    this.stageChips = new Keyed(this.stages, (stage) => new Stage(stage));
    this.node = element(
      "section",
      { class: "card model", "aria-labelledby": id },
      element(
        "div",
        { class: "head" },
        element("h2", { id, text: name }),
        this.state,
        this.facts,
      ),
      this.stages,
      element(
        "div",
        { class: "panels" },
        this.throughput(),
        this.latency(),
        this.slots(),
        this.batches(),
        this.generation(),
        this.answers(),
      ),
    );
  }

  throughput() {
    this.requests = element("strong", { class: "big" });
    this.rows = element("strong", { class: "big" });
    this.flow = new Lines("Rows a second", ["rows"], perSecond);
    const made = panel(
      "Throughput",
      element(
        "div",
        { class: "figures" },
        element("div", { class: "figure" }, this.requests, element("span", { text: "requests/s" })),
        element("div", { class: "figure" }, this.rows, element("span", { text: "rows/s" })),
      ),
      this.flow.node,
    );
    made.classList.add("beside");
    return made;
  }

  latency() {
    this.percentiles = new Percentiles(PARTS);
    this.times = new Lines("Latency", ["p50", "p99"], milliseconds);
    return panel("Latency", this.percentiles.node, this.times.node);
  }

  slots() {
    this.fillText = element("span");
    this.markText = element("span", { class: "small" });
    this.meter = new Meter("Slots in use");
    this.lanes = element("div", { class: "lanes" });
    this.laneRows = new Keyed(this.lanes, (owner) => new Lane(owner));
    this.fillShare = element("strong", { class: "big" });
    return panel(
      "Slots in use",
      element(
        "div",
        { class: "figures" },
        element("div", { class: "figure" }, this.fillShare, this.fillText),
      ),
      this.meter.node,
      this.markText,
      this.lanes,
    );
  }

  batches() {
    this.mean = element("strong", { class: "big" });
    this.batchRate = element("strong", { class: "big" });
    this.sizes = new Bars("Batches by rows, last seconds", "rows");
    this.reasons = element("ul", { class: "chips", "aria-label": "Why batches left" });
    this.reasonChips = new Keyed(this.reasons, (word) => new Chip(REASONS[word] ?? word, word));
    this.batchPanel = panel(
      "Batches",
      element(
        "div",
        { class: "figures" },
        element("div", { class: "figure" }, this.batchRate, element("span", { text: "batches/s" })),
        element("div", { class: "figure" }, this.mean, element("span", { text: "rows each" })),
      ),
      this.sizes.node,
      this.reasons,
    );
    return this.batchPanel;
  }

  // Of a generator, instead of its batches: a sequence joins and leaves at any step.
  generation() {
    this.tokenRate = element("strong", { class: "big" });
    this.running = element("strong", { class: "big" });
    this.tokenFlow = new Lines("Tokens a second", ["tokens"], perSecond);
    this.tokenTimes = new Percentiles(TOKEN_PARTS);
    this.tokenFacts = element("span", { class: "small" });
    this.ends = element("ul", { class: "chips", "aria-label": "Why sequences ended" });
    this.endChips = new Keyed(this.ends, (word) => new Chip(ENDS[word] ?? word, word));
    this.generationPanel = panel(
      "Generation",
      element(
        "div",
        { class: "figures" },
        element("div", { class: "figure" }, this.tokenRate, element("span", { text: "tokens/s" })),
        element("div", { class: "figure" }, this.running, element("span", { text: "sequences" })),
      ),
      this.tokenFlow.node,
      this.tokenFacts,
      this.tokenTimes.node,
      this.ends,
    );
    return this.generationPanel;
  }

  answers() {
    this.codes = element("tbody");
    this.codeRows = new Keyed(this.codes, (code) => new Code(code));
    const head = element("tr", {}, element("th", { scope: "col", text: "Code" }));
    for (const word of ["now", "in all"]) head.append(element("th", { scope: "col", text: word }));
    this.noCodes = element("p", { class: "muted", text: "None." });
    this.codeTable = element(
      "table",
      { class: "plain codes" },
      element("thead", {}, head),
      this.codes,
    );
    return panel("Refusals and errors", this.noCodes, this.codeTable);
  }

  update(model, stateWord) {
    setText(this.state, stateWord);
    setAttribute(this.state, "data-state", stateWord);
    setText(
      this.facts,
      [
        model.workers && `${model.workers} workers`,
        `at most ${count(model.max_batch)} ${model.generation ? "sequences a worker" : "rows a batch"}`,
        `${count(model.queued)} ${model.queued === 1 ? "row" : "rows"} queued`,
      ]
        .filter(Boolean)
        .join(" · "),
    );
    this.stageChips.update(model.stages.map((stage) => [stage.name, stage]));
    this.stages.hidden = model.stages.length === 0;
    setText(this.requests, rate(model.requests_per_s));
    setText(this.rows, rate(model.rows_per_s));
    this.percentiles.update(model.latency);
    this.updateSlots(model.slots);
    this.updateGeneration(model.generation);
    setText(this.batchRate, rate(model.batches.per_s));
    setText(this.mean, model.batches.mean_rows == null ? NONE : model.batches.mean_rows.toFixed(1));
    let below = 0;
    this.sizes.update(
      model.batches.rows.map(([most, n]) => {
        const name = most - below > 1 ? `${below + 1}–${most}` : `${most}`;
        below = most;
        return [name, n];
      }),
    );
    this.updateReasons(model.reasons);
    this.codeRows.update(model.codes.map((code) => [code.code, code]));
    this.noCodes.hidden = model.codes.length > 0;
    this.codeTable.hidden = model.codes.length === 0;
  }

  // Called for every snapshot of a live pool, also where nothing changed.
  addPoint(model) {
    this.flow.add([model.rows_per_s]);
    this.times.add([model.latency.request.p50, model.latency.request.p99]);
    if (model.generation) this.tokenFlow.add([model.generation.tokens_per_s]);
  }

  skip(missed) {
    const charts = [this.flow, this.times, this.tokenFlow];
    for (; missed > 0; missed -= 1) for (const chart of charts) chart.push([null, null]);
  }

  updateSlots(slots) {
    const full = slots.total ? slots.claimed / slots.total : null;
    setText(this.fillShare, share(full));
    const text = `${count(slots.claimed)} of ${count(slots.total)} slots`;
    setText(this.fillText, text);
    setText(this.markText, `503 above ${share(slots.watermark)} of a lane`);
    this.meter.update({ value: slots.claimed, total: slots.total, mark: slots.watermark, text });
    this.laneRows.update(
      slots.lanes.map((lane) => [lane.owner, { ...lane, watermark: slots.watermark }]),
    );
  }

  updateReasons(reasons) {
    this.reasonChips.update(shares(REASONS, reasons));
  }

  updateGeneration(generation) {
    this.batchPanel.hidden = Boolean(generation);
    this.generationPanel.hidden = !generation;
    if (!generation) return;
    setText(this.tokenRate, rate(generation.tokens_per_s));
    setText(this.running, count(generation.running));
    setText(
      this.tokenFacts,
      [
        `${count(generation.kv_tokens)} tokens set aside`,
        `${rate(generation.prompt_tokens_per_s)} prompt tokens/s`,
        generation.resumed && `${count(generation.resumed)} went on in another worker`,
      ]
        .filter(Boolean)
        .join(" · "),
    );
    this.tokenTimes.update(generation.latency);
    this.endChips.update(shares(ENDS, generation.ends));
  }
}

// The share of each word among counts, [[word, share], ...].
function shares(words, counts) {
  const sum = Object.values(counts).reduce((total, n) => total + n, 0);
  return Object.keys(words).map((word) => [word, sum ? (counts[word] ?? 0) / sum : 0]);
}

// A table of percentiles, one line for each part, {key: label}.
class Percentiles {
  constructor(parts) {
    this.cells = {};
    const head = element("tr", {}, element("td"));
    for (const word of SHARES) head.append(element("th", { scope: "col", text: word }));
    const body = element("tbody");
    for (const [part, label] of Object.entries(parts)) {
      const line = element("tr", {}, element("th", { scope: "row", text: label }));
      this.cells[part] = SHARES.map(() => element("td", { class: "number" }));
      line.append(...this.cells[part]);
      body.append(line);
    }
    this.node = element("table", { class: "plain" }, element("thead", {}, head), body);
  }

  update(latency) {
    for (const [part, cells] of Object.entries(this.cells)) {
      SHARES.forEach((word, i) => setText(cells[i], milliseconds(latency[part][word])));
    }
  }
}

class Lane {
  constructor(owner) {
    this.owner = owner;
    this.meter = new Meter(`Slots of ${owner}`);
    this.text = element("span", { class: "number" });
    this.node = element(
      "div",
      { class: "lane" },
      element("span", { class: "lane-name", text: owner.replace(/ \(pid \d+\)$/, "") }),
      this.meter.node,
      this.text,
    );
  }

  update({ claimed, slots, watermark }) {
    const text = `${count(claimed)} of ${count(slots)} slots`;
    setText(this.text, share(slots ? claimed / slots : null));
    this.node.title = `${this.owner}: ${text}`;
    this.meter.update({ value: claimed, total: slots, mark: watermark, text });
  }
}

// One stage of a model that has several: its workers, how busy they are, and what waits for them.
class Stage {
  constructor(name) {
    this.text = element("span", { class: "number" });
    this.node = element("li", { class: "chip" }, element("span", { text: name }), this.text);
  }

  update(stage) {
    setText(
      this.text,
      [
        stage.workers && `${stage.workers} workers`,
        stage.busy != null && `${share(stage.busy)} busy`,
        `${count(stage.queued)} queued`,
        stage.mean_rows != null && `${stage.mean_rows.toFixed(1)} rows a batch`,
        `${milliseconds(stage.latency.queue.p50)} waiting`,
        `${milliseconds(stage.latency.batch.p50)} in batch`,
      ]
        .filter(Boolean)
        .join(" · "),
    );
    this.node.dataset.some = stage.busy > 0 ? "yes" : "no";
  }
}

class Chip {
  constructor(title, word) {
    this.text = element("span", { class: "number" });
    this.node = element("li", { class: "chip", title }, element("span", { text: word }), this.text);
  }

  update(part) {
    setText(this.text, share(part));
    this.node.dataset.some = part > 0 ? "yes" : "no";
  }
}

class Code {
  constructor(code) {
    this.now = element("td", { class: "number" });
    this.total = element("td", { class: "number" });
    this.node = element(
      "tr",
      {},
      element("th", { scope: "row", class: "mono", text: code }),
      this.now,
      this.total,
    );
  }

  update({ per_s, total }) {
    setText(this.now, perSecond(per_s));
    setText(this.total, short(total));
    this.node.dataset.now = per_s ? "yes" : "no";
  }
}
