// Requests as they run, and how the last ones ended.

import { h } from "/page/dom.js";
import { words } from "/page/words.js";
import { state } from "/page/store.js";
import { clock, count, duration, percent, program, rate } from "/page/format.js";
import { fact } from "/page/models.js";

const W = words.requests;
const GOOD = new Set(["end_of_turn", "stop", "tool_calls", "grammar", "compacted", "row"]);

export function runningList() {
  const { running } = state;
  return h("section", { class: "block", "aria-labelledby": "running-title" },
    h("div", { class: "block-head" }, h("h2", { id: "running-title" }, W.running), h("span", { class: "aside" }, count(running.length))),
    running.length === 0
      ? h("p", { class: "empty" }, W.idle)
      : h("ul", { class: "requests" }, running.map(runningRequest)));
}

// How full the context is; requests for vectors or scores have none.
function context(used, { context_window: window }) {
  return fact(W.context, window ? W.contextFill(percent(used, window), count(window)) : words.none);
}

function runningRequest(request) {
  const total = Math.max(1, request.input_tokens);
  const used = request.read_tokens + request.pieces;
  return h("li", { class: "request card", key: request.id, "data-request": request.id },
    h("div", { class: "model-head" },
      h("h3", { class: "name" }, request.model),
      h("span", { class: `badge ${request.state === "waiting" ? "warn" : "good"}` }, W.states[request.state] ?? request.state),
      h("span", { class: "client" }, `${program(request.client)} · ${request.api}`),
      h("span", { class: "actions number" }, W.seconds(request.seconds))),
    request.state !== "writing" && h("progress", { max: total, value: request.read_tokens, "aria-label": W.prompt }),
    request.state === "reading" && h("p", { class: "why" }, request.text),
    h("dl", { class: "facts" },
      fact(W.prompt, W.promptTokens(count(request.read_tokens), count(request.input_tokens))),
      fact(W.cached, cached(request), "broad"),
      fact(W.speed, request.tokens_per_second ? W.perSecond(rate(request.tokens_per_second)) : words.none),
      context(used, request),
      fact(W.queue, duration(request.queue_seconds))),
    miss(request),
    warnings(request));
}

// Of the prompt, how much was found, and where.
function cached(request) {
  const from = request.pensieve?.prompt;
  if (!from) return words.none;
  const found = from.memory + from.disk;
  return W.cachedShare(percent(found, found + from.computed), count(from.memory), from.disk > 0 ? count(from.disk) : "", count(from.computed));
}

// Why the rest was computed, in a sentence.
export function missText(report) {
  const miss = report?.cache_miss;
  if (!miss) return "";
  const text = W.misses[miss.kind] ?? (() => miss.kind);
  return text(miss);
}

function miss(request) {
  const text = missText(request.pensieve);
  return text && h("p", { class: "why miss" }, h("b", null, W.notCached), ` ${text}`);
}

function warnings(request) {
  return request.warnings.length > 0 && h("ul", { class: "warnings", "aria-label": W.warnings }, request.warnings.map((warning, index) => h("li", { key: index }, warning)));
}

export function endedList(limit) {
  const ended = state.ended.slice(0, limit);
  return h("section", { class: "block", "aria-labelledby": "ended-title" },
    h("div", { class: "block-head" }, h("h2", { id: "ended-title" }, W.ended)),
    ended.length === 0
      ? h("p", { class: "empty" }, W.noneEnded)
      : h("ul", { class: "ended card" }, ended.map(endedRequest)));
}

function endedRequest(request) {
  const isGood = GOOD.has(request.stop_reason);
  const from = request.pensieve?.prompt;
  const share = from ? percent(from.memory + from.disk, from.memory + from.disk + from.computed) : percent(request.cached_tokens, request.input_tokens);
  return h("li", { key: request.id },
    h("details", { class: "row" },
      h("summary", null,
        h("span", { class: "time number" }, clock(request.started_at)),
        h("span", { class: "model-name" }, request.model),
        h("span", { class: "client" }, program(request.client)),
        h("span", { class: "number" }, W.tokensInOut(count(request.input_tokens), count(request.output_tokens))),
        h("span", { class: "number" }, W.shareCached(share)),
        h("span", { class: "number" }, duration(request.seconds)),
        h("span", { class: `badge ${isGood ? "plain" : request.stop_reason === "failed" ? "bad" : "warn"}` }, W.reasons[request.stop_reason] ?? request.stop_reason),
        request.warnings.length > 0 && h("span", { class: "badge warn" }, W.changed(request.warnings.length))),
      h("div", { class: "row-body" },
        h("dl", { class: "facts" },
          fact(W.queue, duration(request.queue_seconds)),
          fact(W.firstToken, duration(request.first_token_seconds)),
          fact(W.total, duration(request.seconds)),
          fact(W.speed, request.tokens_per_second > 0 ? W.perSecond(rate(request.tokens_per_second)) : words.none),
          fact(W.cached, cached(request), "broad"),
          context(request.input_tokens + request.output_tokens, request),
          request.tool_calls.length > 0 && fact(W.calls, request.tool_calls.join(", "), "broad"),
          fact(W.id, h("code", null, request.id)),
          fact(W.client, request.client, "broad")),
        request.error && h("p", { class: "why bad-text" }, request.error),
        miss(request),
        warnings(request))));
}
