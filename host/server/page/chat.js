// The chat: conversations with one model, or with two side by side on the same messages.

import { h } from "/page/dom.js";
import { words } from "/page/words.js";
import { changed, notify } from "/page/store.js";
import * as store from "/page/chat_store.js";
import { ask, emptyAnswer, messagesOf, toolsOf } from "/page/chat_stream.js";
import { newSettings, readsImages, settingsForm, writers } from "/page/chat_settings.js";
import { thread } from "/page/chat_thread.js";

const W = words.chat;
const IMAGE_BYTES_MAX = 8 << 20;
const IMAGES_MAX = 8;
const TITLE_LENGTH = 60;
const COLOURED = "pensieve-coloured";

export const chat = {
  list: [],
  conversation: null,
  draft: "",
  images: [],
  // What stops the answers that are being written, by pane.
  running: new Map(),
  editing: null,
  openSettings: null,
  isColoured: localStorage.getItem(COLOURED) !== "off",
};

store.list().then((list) => {
  chat.list = list;
  changed();
}, () => notify(W.storage, "bad"));

function newConversation() {
  const panes = chat.conversation ? structuredClone(chat.conversation.panes) : [newSettings()];
  return { id: newId(), title: "", updated: Date.now(), panes, turns: [] };
}

// Unlike randomUUID, this works on pages without TLS, too.
function newId() {
  return Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("-");
}

function open(conversation) {
  stop();
  Object.assign(chat, { conversation, editing: null, draft: "", images: [] });
  changed();
}

// Writes the conversation into the browser's database once it has a message, and deletes the oldest if there are too many.
async function save() {
  const { conversation } = chat;
  if (conversation.turns.length === 0) return;
  conversation.updated = Date.now();
  const all = [conversation, ...chat.list.filter((other) => other.id !== conversation.id)];
  chat.list = all.slice(0, store.CONVERSATIONS_MAX);
  try {
    await store.put(conversation);
    for (const { id } of all.slice(store.CONVERSATIONS_MAX)) await store.remove(id);
  } catch {
    notify(W.storage, "bad");
  }
}

async function remove(conversation) {
  chat.list = chat.list.filter((other) => other.id !== conversation.id);
  if (chat.conversation.id === conversation.id) open(newConversation());
  changed();
  await store.remove(conversation.id).catch(() => {});
}

export function isRunning() {
  return chat.running.size > 0;
}

export function stop() {
  for (const controller of chat.running.values()) controller.abort();
  chat.running.clear();
}

// Adds the draft to the conversation and has every model answer.
function send(event) {
  event.preventDefault();
  const text = chat.draft.trim();
  const { conversation } = chat;
  if ((!text && chat.images.length === 0) || isRunning() || conversation.panes.some((pane) => !pane.model)) return;
  conversation.title ||= text.slice(0, TITLE_LENGTH);
  conversation.turns.push({ role: "user", text, images: chat.images });
  Object.assign(chat, { draft: "", images: [] });
  answer();
}

// Replaces a message and everything behind it.
export function resend(index, text) {
  if (!toolsFit()) return;
  const { turns } = chat.conversation;
  const images = turns[index].images;
  turns.splice(index, turns.length, { role: "user", text, images });
  chat.editing = null;
  answer();
}

// Asks one model again for an answer and forgets what followed it. Its prompt is cached.
export function regenerate(index, place) {
  if (!toolsFit()) return;
  const [{ answers }] = chat.conversation.turns.splice(index);
  answer([place], answers);
}

// Has the models answer whose places are given, or all of them. Answers of others can be kept.
export async function answer(only, kept = []) {
  const { conversation } = chat;
  if (!toolsFit()) return;
  stop();
  const end = conversation.turns.length;
  const isAsked = (place) => !only || only.includes(place);
  const answers = conversation.panes.map((pane, place) => (isAsked(place) ? emptyAnswer(pane.model) : kept[place] ?? null));
  conversation.turns.push({ role: "assistant", answers });
  changed();
  await save();
  const asking = answers.map(async (answer, place) => {
    if (!isAsked(place)) return;
    const controller = new AbortController();
    chat.running.set(place, controller);
    await ask(conversation.panes[place], messagesOf(conversation, place, end), answer, controller.signal, changed);
    if (chat.running.get(place) === controller) chat.running.delete(place);
    changed();
  });
  await Promise.all(asking);
  if (chat.conversation === conversation) await save();
  else if (chat.list.some(({ id }) => id === conversation.id)) await store.put(conversation).catch(() => {});
}

// Whether the tools of all panes can be sent; otherwise a message says why not.
function toolsFit() {
  const wrong = chat.conversation.panes.map(wrongTools).find(Boolean);
  if (wrong) notify(W.toolsWrong(wrong), "bad");
  return !wrong;
}

function wrongTools(settings) {
  try {
    toolsOf(settings);
    return "";
  } catch (error) {
    return error.message;
  }
}

async function attach(files) {
  for (const file of files) {
    if (!file.type.startsWith("image/") || chat.images.length >= IMAGES_MAX) continue;
    if (file.size > IMAGE_BYTES_MAX) {
      notify(W.imageTooLarge, "bad");
      continue;
    }
    chat.images.push(await dataUrl(file));
  }
  changed();
}

function dataUrl(file) {
  return new Promise((resolve) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.readAsDataURL(file);
  });
}

export function chatView() {
  chat.conversation ??= newConversation();
  const { conversation } = chat;
  for (const pane of conversation.panes) pane.model ||= writers()[0]?.id ?? "";
  return h("div", { class: "chat", key: "chat" },
    sidebar(),
    h("div", { class: "stage" },
      h("div", { class: `panes panes-${conversation.panes.length}` }, conversation.panes.map(pane)),
      composer(conversation)));
}

function sidebar() {
  const item = (conversation) =>
    h("li", { key: conversation.id, class: conversation.id === chat.conversation.id ? "current" : "" },
      h("button", { type: "button", class: "open", "aria-current": conversation.id === chat.conversation.id ? "true" : undefined, onclick: () => open(conversation) }, conversation.title || W.untitled),
      h("button", { type: "button", class: "plain", "aria-label": W.removeOne(conversation.title || W.untitled), onclick: () => remove(conversation) }, "×"));
  return h("aside", { class: "sidebar", "aria-label": W.conversations },
    h("button", { type: "button", onclick: () => open(newConversation()) }, W.new),
    h("ul", null, chat.list.map(item)));
}

function pane(settings, place) {
  const { conversation } = chat;
  const isOpen = chat.openSettings === place;
  const choose = (event) => {
    Object.assign(settings, { model: event.target.value, adapter: "" });
    changed();
  };
  return h("section", { class: "pane", key: place, "aria-label": W.pane(place + 1, settings.model) },
    h("div", { class: "pane-head" },
      h("label", { class: "hidden", for: `model-${place}` }, W.model),
      writers().length === 0
        ? h("span", { class: "hint" }, W.noModels)
        : h("select", { id: `model-${place}`, value: settings.model, onchange: choose }, writers().map(({ id }) => h("option", { key: id, value: id }, id))),
      h("button", { type: "button", class: "small", "aria-expanded": String(isOpen), "aria-controls": `settings-${place}`, onclick: () => toggleSettings(place) }, W.settings),
      place === conversation.panes.length - 1 && h("button", { type: "button", class: "small compare", onclick: compare }, conversation.panes.length === 1 ? W.compare : W.single)),
    isOpen && settingsForm(settings, place, conversation.id),
    thread(conversation, place));
}

function toggleSettings(place) {
  chat.openSettings = chat.openSettings === place ? null : place;
  changed();
}

// Adds a second pane, or closes it. Answers of a pane that is closed stay in the conversation.
function compare() {
  const { panes } = chat.conversation;
  if (panes.length > 1) {
    stop();
    panes.pop();
  } else {
    const other = writers().find(({ id }) => id !== panes[0].model) ?? writers()[0];
    panes.push({ ...structuredClone(panes[0]), model: other?.id ?? "", adapter: "" });
  }
  chat.openSettings = null;
  changed();
}

function composer(conversation) {
  const takesImages = conversation.panes.every((pane) => readsImages(pane.model));
  const isBusy = isRunning();
  return h("form", { class: "composer", onsubmit: send, key: "composer" },
    chat.images.length > 0 && h("ul", { class: "images" }, chat.images.map((url, place) =>
      h("li", { key: place },
        h("img", { src: url, alt: W.image(place + 1) }),
        h("button", { type: "button", class: "plain", "aria-label": W.detach(place + 1), onclick: () => { chat.images.splice(place, 1); changed(); } }, "×")))),
    h("label", { class: "hidden", for: "draft" }, W.message),
    h("textarea", {
      id: "draft",
      rows: 2,
      value: chat.draft,
      placeholder: W.placeholder,
      oninput: (event) => { chat.draft = event.target.value; changed(); },
      onkeydown: (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event); },
      // Nothing is returned: false would keep the text out.
      onpaste: (event) => { if (takesImages) attach([...event.clipboardData.files]); },
    }),
    h("div", { class: "composer-row" },
      h("label", { class: "check" },
        h("input", { type: "checkbox", checked: chat.isColoured, onchange: colour }), ` ${W.probabilities}`),
      takesImages && h("label", { class: "file" },
        h("input", { type: "file", class: "hidden", accept: "image/png,image/jpeg,image/webp,image/gif", multiple: true, onchange: (event) => { attach([...event.target.files]); event.target.value = ""; } }),
        W.attach),
      isBusy
        ? h("button", { type: "button", class: "primary", key: "stop", onclick: () => { stop(); changed(); } }, W.stop)
        : h("button", { type: "submit", class: "primary", key: "send", disabled: !chat.draft.trim() && chat.images.length === 0 }, W.send)));
}

function colour(event) {
  chat.isColoured = event.target.checked;
  localStorage.setItem(COLOURED, chat.isColoured ? "on" : "off");
  changed();
}
