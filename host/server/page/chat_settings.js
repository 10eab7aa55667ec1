// What a model is asked with: adapter, samplers with the parameters that they describe themselves, tools.

import { h } from "/page/dom.js";
import { words } from "/page/words.js";
import { changed, state } from "/page/store.js";
import { toolsOf } from "/page/chat_stream.js";

const W = words.chat;

const EXAMPLE = [{
  name: "weather",
  description: "Tells the weather in a city.",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
}];

export function newSettings() {
  return { model: "", adapter: "", scale: 1, system: "", maxTokens: "", seed: "", chain: null, tools: "", toolChoice: "auto" };
}

// The models that write text.
export function writers() {
  return state.models.filter((model) => !model.capabilities || model.capabilities.includes("completion"));
}

export function readsImages(id) {
  return Boolean(state.models.find((model) => model.id === id)?.capabilities?.includes("vision"));
}

function adaptersOf(id) {
  const model = state.server?.models.find((model) => model.id === id);
  return (model?.adapters ?? []).filter((adapter) => !adapter.merged && !adapter.refusal);
}

// Every sampler of an accepted plugin, with its own description if it has one.
function samplers() {
  const found = new Map();
  for (const plugin of state.server?.plugins ?? []) {
    if (plugin.state !== "ready") continue;
    for (const name of plugin.provides.samplers) {
      if (!found.has(name)) found.set(name, plugin.samplers?.[name] ?? { text: "", parameters: [] });
    }
  }
  return found;
}

// The settings of one pane of the conversation with an id, as fields of another have other contents.
export function settingsForm(settings, place, conversation) {
  const id = (name) => `${name}-${place}`;
  const set = (name, value) => {
    settings[name] = value;
    changed();
  };
  const adapters = adaptersOf(settings.model);
  return h("div", { class: "settings", key: `settings ${conversation}`, id: id("settings"), role: "group", "aria-label": W.settingsOf(place + 1), tabindex: "0" },
    field(id("system"), W.system, h("textarea", { id: id("system"), rows: 2, value: settings.system, oninput: (event) => set("system", event.target.value) }), "whole"),
    adapters.length > 0 && field(id("adapter"), W.adapter,
      h("select", { id: id("adapter"), value: settings.adapter, onchange: (event) => set("adapter", event.target.value) },
        h("option", { key: "", value: "" }, W.noAdapter),
        adapters.map(({ name }) => h("option", { key: name, value: name }, name)))),
    settings.adapter && field(id("scale"), W.strength,
      h("input", { id: id("scale"), type: "number", step: "any", min: -16, max: 16, placeholder: "1", ready: (node) => { node.value = settings.scale; }, oninput: ({ target }) => set("scale", target.value === "" ? 1 : Number(target.value)) })),
    field(id("max"), W.maxTokens,
      h("input", { id: id("max"), type: "number", min: 1, value: settings.maxTokens, placeholder: words.none, oninput: (event) => set("maxTokens", event.target.value) })),
    field(id("seed"), W.seed,
      h("input", { id: id("seed"), type: "number", value: settings.seed, placeholder: W.seedHint, oninput: (event) => set("seed", event.target.value) })),
    chain(settings, id),
    tools(settings, id, set));
}

function field(id, label, control, more = "") {
  return h("div", { class: `field ${more}`, key: id }, h("label", { for: id }, label), control);
}

function chain(settings, id) {
  const known = samplers();
  const own = settings.chain;
  const choose = (event) => {
    settings.chain = event.target.value === "own" ? (settings.chain ?? start(known)) : null;
    changed();
  };
  return h("fieldset", { class: "whole", key: "chain" },
    h("legend", null, W.samplers),
    h("div", { class: "line" },
      h("label", { class: "hidden", for: id("chain") }, W.samplers),
      h("select", { id: id("chain"), value: own ? "own" : "default", onchange: choose },
        h("option", { key: "default", value: "default" }, W.samplersDefault),
        h("option", { key: "own", value: "own" }, W.samplersOwn))),
    own && h("ol", { class: "chain" }, numbered(own).map((stage, place) => stageOf(own, stage, place, known.get(stage.sampler), id))),
    own && adder(own, known, id));
}

// A usual chain out of those that are there.
function start(known) {
  return ["temperature", "top_p", "seeded"].filter((name) => known.has(name)).map((sampler) => ({ sampler, values: {} }));
}

// Every stage has a number of its own, by which its fields stay with it when it changes places.
function numbered(chain) {
  for (const stage of chain) stage.id ??= 1 + Math.max(0, ...chain.map((other) => other.id ?? 0));
  return chain;
}

// Adds a sampler: one that picks ends the chain in place of the one that did, any other goes before that.
function add(chain, sampler, known) {
  const stage = { sampler, values: {} };
  const picks = (name) => Boolean(known.get(name)?.picks);
  const last = chain.findIndex((other) => picks(other.sampler));
  if (last < 0) chain.push(stage);
  else chain.splice(last, picks(sampler) ? 1 : 0, stage);
}

function stageOf(chain, stage, place, described, id) {
  const { sampler } = stage;
  const move = () => {
    [chain[place - 1], chain[place]] = [chain[place], chain[place - 1]];
    changed();
  };
  const drop = () => {
    chain.splice(place, 1);
    changed();
  };
  return h("li", { class: "stage-of", key: stage.id },
    h("div", { class: "line" },
      h("b", null, sampler),
      h("span", { class: "hint" }, described?.text),
      place > 0 && h("button", { type: "button", class: "plain", "aria-label": W.up(sampler), onclick: move }, "↑"),
      h("button", { type: "button", class: "plain", "aria-label": W.removeSampler(sampler), onclick: drop }, "×")),
    h("div", { class: "parameters" }, (described?.parameters ?? []).map((parameter) => parameterOf(stage, parameter, id(`p${stage.id}-${parameter.name}`)))));
}

function parameterOf(stage, { name, type, default: usual, minimum, maximum, text }, id) {
  const set = (value) => {
    if (value === undefined) delete stage.values[name];
    else stage.values[name] = value;
    changed();
  };
  const isNumber = type === "number" || type === "integer";
  // A field keeps its own text while it is typed: "1." and "0.0" are on the way to a number.
  const ready = (node) => { node.value = textOf(type, stage.values[name]); };
  const control = isNumber
    ? h("input", {
      id, type: "number", min: minimum, max: maximum, step: type === "integer" ? 1 : "any", placeholder: usual, ready,
      oninput: ({ target }) => set(target.value === "" || !target.validity.valid ? undefined : Number(target.value)),
    })
    : h("input", {
      id, type: "text", placeholder: type === "tokens" ? W.ids : type === "biases" ? W.biases : "", ready,
      oninput: ({ target }) => set(listOf(type, target.value)),
    });
  const hint = text || (isNumber && minimum !== undefined ? W.range(minimum, maximum) : "");
  return h("div", { class: "field", key: name }, h("label", { for: id }, name, hint && h("span", { class: "hint" }, ` ${hint}`)), control);
}

// What a person writes for a parameter that is no number.
function listOf(type, text) {
  const parts = text.split(",").map((part) => part.trim()).filter(Boolean);
  if (parts.length === 0) return undefined;
  if (type === "tokens") return parts.map(Number).filter(Number.isInteger);
  if (type === "biases") return Object.fromEntries(parts.map((part) => part.split(":")).map(([token, bias]) => [token.trim(), Number(bias)]));
  return text;
}

// The other way round: a parameter's value as a person writes it.
function textOf(type, value) {
  if (value === undefined) return "";
  if (type === "tokens") return value.join(", ");
  if (type === "biases") return Object.entries(value).map(([token, bias]) => `${token}: ${bias}`).join(", ");
  return String(value);
}

function adder(chain, known, id) {
  const choose = (event) => {
    if (event.target.value) add(chain, event.target.value, known);
    event.target.value = "";
    changed();
  };
  return h("div", { class: "line" },
    h("label", { class: "hidden", for: id("add") }, W.addSampler),
    h("select", { id: id("add"), value: "", onchange: choose },
      h("option", { key: "", value: "" }, `${W.addSampler} …`),
      [...known.keys()].sort().map((name) => h("option", { key: name, value: name }, name))));
}

function tools(settings, id, set) {
  let wrong = "";
  try {
    toolsOf(settings);
  } catch (error) {
    wrong = W.toolsWrong(error.message);
  }
  return h("fieldset", { class: "whole", key: "tools" },
    h("legend", null, W.tools),
    h("p", { class: "hint", id: id("tools-hint") }, W.toolsHint),
    h("label", { class: "hidden", for: id("tools") }, W.tools),
    h("textarea", { id: id("tools"), class: "code", rows: settings.tools ? 6 : 2, spellcheck: "false", value: settings.tools, "aria-describedby": id("tools-hint"), "aria-invalid": wrong ? "true" : undefined, oninput: (event) => set("tools", event.target.value) }),
    wrong && h("p", { class: "bad-text" }, wrong),
    h("div", { class: "line" },
      !settings.tools && h("button", { type: "button", class: "small", onclick: () => set("tools", JSON.stringify(EXAMPLE, null, 2)) }, W.toolsExample),
      settings.tools && h("label", { for: id("choice") }, W.toolChoice),
      settings.tools && h("select", { id: id("choice"), value: settings.toolChoice, onchange: (event) => set("toolChoice", event.target.value) },
        Object.entries(W.toolChoices).map(([value, name]) => h("option", { key: value, value }, name)))));
}
