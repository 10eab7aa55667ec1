// Models and their workers: what is in memory, on which device, why it is or is not, and what a person can do about it.

import { h } from "/page/dom.js";
import { words } from "/page/words.js";
import { state } from "/page/store.js";
import { act } from "/page/server.js";
import { bytes, clock, count, percent } from "/page/format.js";

const W = words.models;

export function modelList() {
  const { server } = state;
  if (!server) return h("p", { class: "empty" }, words.waiting);
  const memory = server.memory;
  return h("section", { class: "block", "aria-labelledby": "models-title" },
    h("div", { class: "block-head" },
      h("h2", { id: "models-title" }, W.title),
      h("span", { class: "aside" }, W.memory(bytes(memory.used_bytes), bytes(memory.budget_bytes)))),
    server.models.length === 0
      ? h("p", { class: "empty" }, W.none)
      : h("ul", { class: "models" }, server.models.map(model)));
}

function model(model) {
  const busy = state.busy.get(model.id);
  const isIn = model.state === "ready" || model.state === "loading";
  const button = (action, label) =>
    h("button", { type: "button", class: "small", key: action, disabled: busy !== undefined, "aria-label": `${label}: ${model.id}`, onclick: () => act(model.id, action) },
      busy === action ? W.doing[action] : label);
  return h("li", { class: "model card", key: model.id, "data-model": model.id },
    h("div", { class: "model-head" },
      h("h3", { class: "name" }, model.id),
      badge(model),
      model.pinned && h("span", { class: "badge plain" }, W.pinned),
      h("span", { class: "actions" },
        !isIn && button("load", W.load),
        isIn && button("unload", W.unload),
        model.pinned ? button("unpin", W.unpin) : button("pin", W.pin))),
    h("p", { class: `why${model.state === "quarantined" ? " bad-text" : ""}` }, why(model)),
    model.progress && h("progress", { class: "load", "aria-label": W.loading(model.id), max: Math.max(1, model.progress.total), value: model.progress.done }),
    h("dl", { class: "facts" },
      fact(W.device, model.device ?? words.none),
      fact(W.memoryOf, memoryOf(model), model.resident_bytes ? "broad" : ""),
      fact(W.context, model.context ? W.tokens(count(model.context)) : words.none),
      fact(W.requests, W.runningWaiting(model.streams, model.waiting)),
      fact(W.workers, W.workerFacts(model)),
      model.blocks && model.blocks.free + model.blocks.cached + model.blocks.active > 0 && fact(W.cache, cache(model), "broad")),
    model.note && h("p", { class: "note" }, model.note),
    model.adapters.length > 0 && h("ul", { class: "chips", "aria-label": W.adapters }, model.adapters.map(adapter)));
}

function badge(model) {
  const tones = { ready: "good", loading: "warn", pausing: "warn", quarantined: "bad", idle: "plain" };
  return h("span", { class: `badge ${tones[model.state] ?? "plain"}` }, W.states[model.state] ?? model.state);
}

// Why the model is in the state that it is in.
function why(model) {
  if (model.progress) {
    const { done, total, what } = model.progress;
    return total > 0 ? W.progress(what, percent(done, total)) : what;
  }
  if (model.reason) return model.reason;
  if (model.state === "ready") {
    if (model.pinned) return W.staysPinned;
    return model.expires_at ? W.expires(clock(model.expires_at)) : W.stays;
  }
  if (model.state === "idle") {
    const left = model.departed;
    return left ? W.departed(clock(left.at), W.departures[left.reason] ?? left.reason) : W.neverLoaded;
  }
  return "";
}

function memoryOf(model) {
  if (model.resident_bytes) return W.resident(bytes(model.resident_bytes), bytes(model.bytes));
  const known = model.measured_bytes ?? model.bytes;
  return known ? W.needs(bytes(known)) : words.none;
}

function cache(model) {
  const { free, cached, active, disk } = model.blocks;
  const all = free + cached + active;
  const bar = h("span", { class: "bar", "aria-hidden": "true" },
    h("span", { class: "bar-a", ready: (node) => width(node, active / all), key: `a${active}/${all}` }),
    h("span", { class: "bar-b", ready: (node) => width(node, cached / all), key: `b${cached}/${all}` }));
  return [bar, ` ${W.blocks(percent(active, all), percent(cached, all), disk)}`];
}

// A width by script, which the page's policy allows, unlike one in markup.
function width(node, part) {
  node.style.inlineSize = `${Math.round(part * 100)}%`;
}

function adapter({ name, merged, refusal, loaded, bytes: size }) {
  const state = refusal ? W.adapterRefused(refusal) : merged ? W.adapterMerged : loaded ? W.adapterLoaded(bytes(size)) : W.adapterIdle;
  return h("li", { class: `chip${refusal ? " bad-text" : ""}`, key: name }, h("b", null, name), ` ${state}`);
}

// A name and its value; nothing for a value that there is none of.
export function fact(name, value, size = "") {
  if (value === words.none || value === null || value === undefined) return null;
  return h("div", { class: `fact ${size}`, key: name }, h("dt", null, name), h("dd", null, value));
}
