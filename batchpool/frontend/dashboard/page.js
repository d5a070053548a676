// The live page: listens to the stream, shows every snapshot, says when there is none.

import { KEPT } from "./charts.js";
import { Keyed, setAttribute, setText } from "./dom.js";
import { duration } from "./format.js";
import { ModelCard } from "./model.js";
import { Stream } from "./stream.js";
import { Tables } from "./tables.js";

const at = (id) => document.getElementById(id);

const tables = new Tables({
  workers: at("workers"),
  processes: at("processes"),
  batches: at("batches"),
  errors: at("errors"),
});
const models = new Keyed(at("models"), (name) => {
  const card = new ModelCard(name);
  return { node: card.node, card, update: ({ model, state }) => card.update(model, state) };
});

const WINDOW_S = 5; // of rates and percentiles, as the server has it

let paused = false;
let unseen = []; // snapshots that came while it was paused
let lastTime = null; // of the last point in the charts

function show(snapshot) {
  unseen.push(snapshot);
  if (unseen.length > KEPT) unseen.shift();
  if (!paused) catchUp();
}

function catchUp() {
  const snapshot = unseen.at(-1);
  if (!snapshot) return;
  showPool(snapshot);
  models.update(snapshot.models.map((model) => [model.name, { model, state: stateOf(model) }]));
  unseen.forEach(addPoints);
  unseen = [];
  tables.update(snapshot);
}

function showPool({ pool, version }) {
  setText(at("state"), pool.state);
  setAttribute(at("state"), "data-state", pool.state);
  setText(at("url"), pool.url ?? "");
  const facts = [pool.uptime_s != null && `up ${duration(pool.uptime_s)}`, `batchpool ${version}`];
  setText(at("facts"), facts.filter(Boolean).join(" · "));
  document.title = `${pool.state} · batchpool`;
  at("notice").hidden = !pool.why;
  setText(at("notice"), pool.why);
}

// A point a second. What is shown is of some seconds: a late snapshot stands for those before it;
// what nobody saw stays empty.
function addPoints({ models: seen, time_s: time }) {
  const late = lastTime === null ? 0 : Math.max(0, Math.round(time - lastTime) - 1);
  lastTime = time;
  const empty = late >= WINDOW_S ? Math.min(late, KEPT) : 0;
  for (const { card } of models.known.values()) card.skip(empty);
  for (let points = empty ? 1 : late + 1; points > 0; points -= 1) {
    for (const model of seen) models.known.get(model.name)?.card.addPoint(model);
  }
}

function stateOf(model) {
  if (model.ready == null) return "unknown";
  return model.ready ? "ready" : "not ready";
}

// link: "live", "opening", "stale", "gone" or "refused"; text for people.
function tell(link, text) {
  setText(at("link"), text);
  setAttribute(at("link"), "data-link", link);
  at("pool").dataset.fresh = link === "live" ? "yes" : "no";
  if (link === "gone" || link === "refused") {
    const state = link === "gone" ? "gone" : "unknown";
    setText(at("state"), state);
    setAttribute(at("state"), "data-state", state);
    document.title = `${state} · batchpool`;
  }
}

at("pause").addEventListener("click", () => {
  paused = !paused;
  at("pause").setAttribute("aria-pressed", String(paused));
  setText(at("pause"), paused ? "Resume" : "Pause");
  if (!paused) catchUp();
});

new Stream("events", show, tell).start();
