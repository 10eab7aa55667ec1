// Tokens with their probabilities: coloured by how likely they were, with their alternatives under the pointer and the
// arrow keys.

import { h } from "/page/dom.js";
import { words } from "/page/words.js";
import { changed } from "/page/store.js";

const W = words.chat;

// The token that is shown in detail.
let pointed = { answer: null, index: -1 };

// A reader of tokens in order: some are parts of a character, which belongs to the token that completes it.
export function readTokens() {
  const decoder = new TextDecoder();
  return ({ bytes, token, logprob, top_logprobs: top }) => ({
    text: bytes ? decoder.decode(Uint8Array.from(bytes), { stream: true }) : token,
    logprob,
    top: top.map(({ token, logprob }) => ({ text: token, logprob })),
  });
}

export function probability(logprob) {
  const value = Math.exp(logprob) * 100;
  if (value >= 99.95) return "100%";
  return value < 0.1 ? "<0.1%" : `${value.toFixed(1)}%`;
}

// Five steps, from certain to unlikely.
function grade(logprob) {
  const value = Math.exp(logprob);
  return value > 0.9 ? 0 : value > 0.6 ? 1 : value > 0.3 ? 2 : value > 0.1 ? 3 : 4;
}

export function visible(text) {
  return text.replaceAll("\n", W.newline) || "␀";
}

// An answer's text as tokens if they make up that text, and as it is otherwise.
export function answerText(answer, isColoured) {
  const all = answer.tokens.map((token) => token.text).join("");
  const isWhole = answer.tokens.length > 0 && answer.text.length > 0 && all.includes(answer.text);
  if (!isWhole) return h("div", { class: "text", key: "text" }, answer.text);
  const index = pointed.answer === answer ? pointed.index : -1;
  const tokens = answer.tokens.map((token, place) =>
    h("span", { class: `token${isColoured ? ` grade-${grade(token.logprob)}` : ""}${place === index ? " pointed" : ""}`, "data-token": place }, token.text));
  return h("div", {
    class: "text tokens",
    key: "text",
    tabindex: "0",
    role: "group",
    "aria-label": `${W.answer(answer.model)}. ${W.tokenHint}`,
    onpointerover: (event) => point(answer, Number(event.target.dataset.token ?? -1)),
    onpointerleave: () => point(answer, -1),
    onkeydown: (event) => walk(event, answer),
    onblur: () => point(answer, -1),
  }, tokens);
}

function point(answer, index) {
  if (pointed.answer === answer && pointed.index === index) return;
  pointed = { answer, index };
  changed();
}

function walk(event, answer) {
  const steps = { ArrowRight: 1, ArrowLeft: -1 };
  if (event.key === "Escape") return point(answer, -1);
  if (!(event.key in steps)) return undefined;
  event.preventDefault();
  const from = pointed.answer === answer ? pointed.index : -1;
  return point(answer, Math.min(answer.tokens.length - 1, Math.max(0, from + steps[event.key])));
}

// The pointed token's probability and what might have stood in its place. It keeps its room, so that nothing moves.
export function tokenDetail(answer) {
  const token = pointed.answer === answer ? answer.tokens[pointed.index] : undefined;
  if (answer.tokens.length === 0) return null;
  if (!token) return h("p", { class: "detail hint", key: "detail" }, W.tokenHint);
  const others = token.top.filter((other) => other.text !== token.text || other.logprob !== token.logprob);
  return h("div", { class: "detail", key: "detail", role: "status" },
    h("b", { class: "detail-token" }, W.token(visible(token.text), probability(token.logprob))),
    others.length > 0 && h("span", { class: "detail-label" }, W.alternatives),
    others.map((other, place) => h("span", { class: "chip", key: place }, h("code", null, visible(other.text)), ` ${probability(other.logprob)}`)));
}
