// The frame of the page: the head with its views, the key's form, and messages.

import { h, patch } from "/page/dom.js";
import { words } from "/page/words.js";
import { changed, dismiss, state, watch } from "/page/store.js";
import { follow, forgetKey, key, login } from "/page/server.js";
import { chartRow } from "/page/charts.js";
import { modelList } from "/page/models.js";
import { pluginList } from "/page/plugins.js";
import { endedList, runningList } from "/page/requests.js";
import { chatView } from "/page/chat.js";

const W = words.head;
const THEME = "pensieve-theme";
const THEMES = ["system", "light", "dark"];

const views = {
  "": { title: W.overview, show: () => [chartRow(), modelList(), runningList(), endedList(8)] },
  requests: { title: W.requests, show: () => [runningList(), endedList(100)] },
  plugins: { title: W.plugins, show: () => [pluginList()] },
  chat: { title: W.chat, show: () => [chatView()] },
};

let theme = localStorage.getItem(THEME) ?? "system";
let loginError = "";

function current() {
  const name = location.hash.replace(/^#\/?/, "");
  return Object.hasOwn(views, name) ? name : "";
}

function render() {
  const name = current();
  const isOpen = state.key === "open";
  document.title = isOpen && name ? `${views[name].title} · ${words.name}` : words.name;
  patch(document.getElementById("page"), [
    h("a", { class: "skip", href: "#main", onclick: skip, key: "skip" }, words.skip),
    head(name, isOpen),
    h("main", { id: "main", tabindex: "-1", key: "main", class: name === "chat" && isOpen ? "wide" : "" },
      state.key === null ? h("p", { class: "empty" }, state.trouble || words.waiting) : isOpen ? h("div", { key: name, class: "view" }, h("h1", { class: "hidden" }, views[name].title), views[name].show()) : loginForm()),
    notices(),
  ]);
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function head(name, isOpen) {
  const link = (to) => h("a", { href: `#/${to}`, key: to, "aria-current": to === name ? "page" : undefined }, views[to].title);
  return h("header", { key: "head" },
    h("a", { class: "brand", href: "#/" }, h("img", { src: "/page/icon.svg", alt: "", width: 22, height: 22 }), h("span", null, words.name)),
    h("nav", { "aria-label": W.views }, isOpen && Object.keys(views).map(link), isOpen && h("a", { href: "/docs/index.html", key: "docs" }, W.docs)),
    h("div", { class: "tools" },
      isOpen && h("span", { class: `live ${state.isLive ? "on" : "off"}`, role: "status", title: state.server ? W.version(state.server.version) : undefined }, state.isLive ? W.live : W.offline),
      h("button", { type: "button", class: "plain", onclick: nextTheme, "aria-label": W.theme[theme], title: W.theme[theme] }, themeIcon()),
      isOpen && key() && h("button", { type: "button", class: "small", onclick: forgetKey }, W.logout)));
}

function themeIcon() {
  const paths = {
    system: "M8 1.5a6.5 6.5 0 1 0 0 13zM8 1.5a6.5 6.5 0 0 1 0 13",
    light: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 .8v2M8 13.2v2M.8 8h2M13.2 8h2M2.9 2.9l1.4 1.4M11.7 11.7l1.4 1.4M2.9 13.1l1.4-1.4M11.7 4.3l1.4-1.4",
    dark: "M13.5 9.8A6 6 0 0 1 6.2 2.5a6 6 0 1 0 7.3 7.3z",
  };
  return h("svg", { viewBox: "0 0 16 16", width: 16, height: 16, class: `icon icon-${theme}`, "aria-hidden": "true" }, h("path", { d: paths[theme] }));
}

function nextTheme() {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  localStorage.setItem(THEME, theme);
  applyTheme();
  changed();
}

function applyTheme() {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

function loginForm() {
  return h("form", { class: "login card", onsubmit: submitKey, key: "login" },
    h("h1", null, words.login.title),
    h("p", { class: "hint", id: "key-hint" }, words.login.hint),
    h("label", { for: "key" }, words.login.label),
    h("input", { id: "key", name: "key", type: "password", autocomplete: "off", required: true, spellcheck: "false", "aria-describedby": "key-hint key-error", "aria-invalid": loginError ? "true" : undefined, ready: (node) => node.focus() }),
    h("p", { id: "key-error", class: "bad-text", role: "alert" }, loginError),
    h("button", { type: "submit", class: "primary" }, words.login.button));
}

async function submitKey(event) {
  event.preventDefault();
  const field = event.currentTarget.elements.key;
  loginError = await login(field.value);
  if (loginError) {
    field.select();
    changed();
  }
}

function notices() {
  const line = (notice) =>
    h("li", { class: `notice ${notice.tone}`, key: notice.id },
      h("span", null, notice.text),
      h("button", { type: "button", class: "plain", "aria-label": words.dismiss, onclick: () => dismiss(notice.id) }, "×"));
  return h("section", { class: "notices", key: "notices", "aria-label": W.notices, "aria-live": "polite" }, h("ul", null, state.notices.map(line)));
}

watch(render);
addEventListener("hashchange", () => {
  render();
  scrollTo(0, 0);
});
// Charts move on while nothing changes.
setInterval(() => state.isLive && current() === "" && changed(), 1000);
applyTheme();
render();
follow();
