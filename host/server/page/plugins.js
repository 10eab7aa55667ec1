// Every file in the plugin folders: what it provides, or why it is refused.

import { h } from "/page/dom.js";
import { words } from "/page/words.js";
import { state } from "/page/store.js";
import { fileName } from "/page/format.js";

const W = words.plugins;
const TONES = { ready: "good", pending: "warn", rejected: "bad", shadowed: "plain", retired: "plain" };
const ORDER = ["pending", "rejected", "ready", "shadowed", "retired"];

export function pluginList() {
  const { server } = state;
  if (!server) return h("p", { class: "empty" }, words.waiting);
  const rank = (plugin) => ORDER.indexOf(plugin.state);
  const plugins = [...server.plugins].sort((a, b) => rank(a) - rank(b) || nameOf(a).localeCompare(nameOf(b)));
  return h("section", { class: "block", "aria-labelledby": "plugins-title" },
    h("div", { class: "block-head" },
      h("h2", { id: "plugins-title" }, W.title),
      h("span", { class: "aside" }, W.counts(plugins.filter((plugin) => plugin.state === "ready").length, plugins.filter((plugin) => plugin.state === "rejected").length))),
    h("p", { class: "hint" }, W.hint),
    plugins.length === 0 ? h("p", { class: "empty" }, W.none) : h("ul", { class: "plugins" }, plugins.map(plugin)));
}

function nameOf(plugin) {
  return plugin.id ?? fileName(plugin.file);
}

function plugin(plugin) {
  const provides = plugin.provides ?? { architectures: [], samplers: [], adapter_formats: [] };
  const row = (name, list) => list.length > 0 && h("div", { class: "fact whole", key: name }, h("dt", null, name), h("dd", null, list.join(", ")));
  return h("li", { class: "plugin card", key: `${plugin.file} ${plugin.state} ${plugin.sha256 ?? ""}`, "data-plugin": fileName(plugin.file), "data-state": plugin.state },
    h("div", { class: "model-head" },
      h("h3", { class: "name" }, nameOf(plugin)),
      plugin.version && h("span", { class: "version" }, plugin.version),
      h("span", { class: `badge ${TONES[plugin.state] ?? "plain"}` }, W.states[plugin.state] ?? plugin.state)),
    plugin.description && h("p", { class: "why" }, plugin.description),
    plugin.reason && h("p", { class: plugin.state === "rejected" ? "why bad-text" : "why" }, plugin.reason),
    plugin.help && h("p", { class: "why" }, plugin.help),
    plugin.state === "retired" && h("p", { class: "why" }, plugin.in_use ? W.inUse : W.unused),
    h("dl", { class: "facts" },
      row(W.architectures, provides.architectures.map((claim) => claim.architecture)),
      row(W.samplers, provides.samplers),
      row(W.formats, provides.adapter_formats),
      plugin.package && row(W.package, [W.packaged(plugin.package)])),
    certificates(plugin),
    h("p", { class: "note path" }, plugin.file, plugin.toolchain && ` · ${plugin.toolchain}`));
}

function certificates({ certificates = [], package: packaged }) {
  if (certificates.length === 0) return packaged && h("p", { class: "note" }, W.uncertified);
  return h("ul", { class: "chips", "aria-label": W.certificates }, certificates.map((certificate) =>
    h("li", { class: "chip", key: `${certificate.architecture} ${certificate.model} ${certificate.device}` },
      h("b", null, W.certified), ` ${W.certificate(certificate)}`)));
}
