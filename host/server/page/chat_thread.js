// The messages of a conversation as one model sees them.

import { h } from "/page/dom.js";
import { words } from "/page/words.js";
import { changed, notify } from "/page/store.js";
import { count, duration, rate } from "/page/format.js";
import { missText } from "/page/requests.js";
import { answerText, tokenDetail } from "/page/tokens.js";
import { answer as askModels, chat, isRunning, regenerate, resend } from "/page/chat.js";

const W = words.chat;
// A thread that is scrolled this close to its end follows what is written.
const NEAR = 80;

export function thread(conversation, place) {
  const { turns } = conversation;
  return h("div", { class: "thread", role: "group", "aria-label": W.thread(place + 1), tabindex: "0", key: `thread ${conversation.id}`, ready: followEnd },
    turns.length === 0 && h("p", { class: "empty" }, W.empty),
    turns.map((turn, index) => (turn.role === "user" ? userTurn(turn, index, place) : assistantTurn(turn.answers[place], index, place, turns.length))));
}

function followEnd(node) {
  const keep = () => {
    if (node.scrollHeight - node.scrollTop - node.clientHeight < NEAR || node.pageEnd) node.scrollTop = node.scrollHeight;
  };
  node.onscroll = () => {
    node.pageEnd = node.scrollHeight - node.scrollTop - node.clientHeight < NEAR;
  };
  node.pageEnd = true;
  new MutationObserver(keep).observe(node, { childList: true, subtree: true, characterData: true });
  keep();
}

function userTurn({ text, images }, index, place) {
  const isEditing = chat.editing === index && place === 0;
  return h("article", { class: "turn user", key: index, "aria-label": W.you },
    h("div", { class: "turn-head" },
      h("b", null, W.you),
      place === 0 && !isEditing && !isRunning() && h("button", { type: "button", class: "small", onclick: () => { chat.editing = index; changed(); } }, W.edit)),
    images.length > 0 && h("ul", { class: "images" }, images.map((url, number) => h("li", { key: number }, h("img", { src: url, alt: W.image(number + 1) })))),
    isEditing ? editor(text, index) : h("div", { class: "text" }, text));
}

function editor(text, index) {
  const save = (event) => {
    event.preventDefault();
    const edited = event.currentTarget.elements.edited.value.trim();
    if (edited) resend(index, edited);
  };
  return h("form", { class: "editor", onsubmit: save, key: "editor" },
    h("textarea", { name: "edited", rows: 3, "aria-label": W.message, ready: (node) => { node.value = text; node.focus(); } }),
    h("div", { class: "line" },
      h("button", { type: "submit", class: "small primary" }, W.save),
      h("button", { type: "button", class: "small", onclick: () => { chat.editing = null; changed(); } }, W.cancel)));
}

function assistantTurn(answer, index, place, length) {
  if (!answer) return null;
  const isOpen = answer.state === "waiting" || answer.state === "writing";
  return h("article", { class: "turn assistant", key: index, "aria-label": W.answer(answer.model), "aria-busy": isOpen ? "true" : undefined, "data-state": answer.state },
    h("div", { class: "turn-head" },
      h("b", null, answer.model),
      !isOpen && answer.text && navigator.clipboard && h("button", { type: "button", class: "small", onclick: () => copy(answer.text) }, W.copy),
      !isRunning() && h("button", { type: "button", class: "small", onclick: () => regenerate(index, place) }, W.regenerate)),
    answer.reasoning && h("details", { class: "reasoning", key: "reasoning" },
      h("summary", null, answer.text || answer.calls.length > 0 || !isOpen ? W.reasoning : W.reasoningOpen),
      h("div", { class: "text" }, answer.reasoning)),
    answer.state === "waiting" && h("p", { class: "hint", key: "waiting" }, W.waiting),
    answerText(answer, chat.isColoured),
    answer.calls.map((call, number) => callOf(call, number, isOpen)),
    results(answer, index, place, length, isOpen),
    answer.state === "cut" && h("p", { class: "bad-text", key: "cut" }, W.cut),
    answer.state === "stopped" && h("p", { class: "hint", key: "stopped" }, W.stopped),
    answer.error && h("p", { class: "bad-text", role: "alert", key: "error" }, answer.error),
    tokenDetail(answer),
    answer.stats && h("p", { class: "note", key: "stats" }, statsText(answer)));
}

function callOf(call, number, isOpen) {
  return h("div", { class: "call", key: `call ${number}` },
    h("b", null, W.call(call.name)),
    h("pre", { tabindex: "0", "aria-label": W.call(call.name) }, call.text),
    !isOpen && h("label", null, W.result(call.name),
      h("textarea", { rows: 2, value: call.result ?? "", placeholder: W.resultHint, oninput: (event) => { call.result = event.target.value; changed(); } })));
}

// Once every call of the last answer has a result, the model can go on.
function results({ calls }, index, place, length, isOpen) {
  if (calls.length === 0 || isOpen || index !== length - 1) return null;
  const isReady = calls.every(({ result }) => result);
  return h("button", { type: "button", class: "small primary", key: "results", disabled: !isReady, onclick: () => askModels([place]) }, W.sendResults);
}

function statsText({ stats, reason }) {
  const line = W.stats({
    tokens: count(stats.tokens),
    speed: stats.speed && rate(stats.speed),
    first: stats.first !== null && duration(stats.first),
    cached: count(stats.cached),
    prompt: count(stats.prompt),
    reason: reason === "stop" ? "" : reason,
  });
  const miss = missText(stats.report);
  return miss ? `${line}. ${words.requests.notCached} ${miss}` : line;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    notify(W.copied);
  } catch (error) {
    notify(error.message, "bad");
  }
}
