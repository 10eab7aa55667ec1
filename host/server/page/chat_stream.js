// One answer: the request that asks for it, and what comes back, piece by piece.

import { words } from "/page/words.js";
import { state } from "/page/store.js";
import { events, send } from "/page/server.js";
import { readTokens } from "/page/tokens.js";

const TOP = 5;

export function emptyAnswer(model) {
  return { model, text: "", reasoning: "", tokens: [], calls: [], state: "waiting", error: "", stats: null };
}

// The messages of a conversation as one of its models has seen them.
export function messagesOf(conversation, pane, end) {
  const messages = [];
  const { system } = conversation.panes[pane];
  if (system.trim()) messages.push({ role: "system", content: system });
  for (const turn of conversation.turns.slice(0, end)) {
    if (turn.role === "user") messages.push({ role: "user", content: contentOf(turn) });
    else if (turn.answers[pane]) messages.push(...answerMessages(turn.answers[pane]));
  }
  return messages;
}

function contentOf({ text, images }) {
  if (images.length === 0) return text;
  const shown = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return [...shown, { type: "text", text }];
}

function answerMessages({ text, reasoning, calls }) {
  const message = { role: "assistant", content: text };
  if (reasoning) message.reasoning_content = reasoning;
  if (calls.length === 0) return [message];
  message.tool_calls = calls.map(({ id, name, text }) => ({ id, type: "function", function: { name, arguments: text } }));
  return [message, ...calls.map(({ id, result }) => ({ role: "tool", tool_call_id: id, content: result ?? "" }))];
}

// A model of which nothing is known yet is one of this server's own.
function reportsLogprobs(id) {
  const model = state.models.find((listed) => listed.id === id);
  return model?.capabilities?.includes("logprobs") ?? true;
}

function bodyOf(settings, messages) {
  const body = {
    model: settings.model,
    messages,
    stream: true,
    stream_options: { include_usage: true },
  };
  if (reportsLogprobs(settings.model)) Object.assign(body, { logprobs: true, top_logprobs: TOP });
  if (settings.maxTokens) body.max_tokens = Number(settings.maxTokens);
  const own = {};
  if (settings.adapter) {
    own.adapter = settings.adapter;
    own.adapter_scale = settings.scale;
  }
  if (settings.seed !== "") own.seed = Number(settings.seed);
  if (settings.chain) own.samplers = settings.chain.map(({ sampler, values }) => ({ sampler, ...values }));
  if (Object.keys(own).length > 0) body.pensieve = own;
  const tools = toolsOf(settings);
  if (tools.length > 0) {
    body.tools = tools;
    body.tool_choice = settings.toolChoice;
  }
  return body;
}

// The tools of a pane, from their JSON text; an error says what is wrong with it.
export function toolsOf({ tools }) {
  if (!tools.trim()) return [];
  const list = JSON.parse(tools);
  if (!Array.isArray(list)) throw new Error(words.chat.toolsNoList);
  return list.map((tool) => {
    const known = tool?.function ?? tool;
    if (typeof known?.name !== "string") throw new Error(words.chat.toolsNoName);
    return { type: "function", function: known };
  });
}

// Asks for an answer and fills it in as it comes; `told` is called after each piece.
export async function ask(settings, messages, answer, signal, told) {
  const began = performance.now();
  let first = null;
  try {
    const response = await send("POST", "/v1/chat/completions", bodyOf(settings, messages), signal);
    const bytes = readTokens();
    let isOver = false;
    for await (const { data } of events(response.body)) {
      if (data === "[DONE]") {
        isOver = true;
        break;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      const [choice] = chunk.choices;
      if (choice) {
        if (take(choice, answer, bytes)) first ??= performance.now() - began;
        if (choice.finish_reason) answer.reason = choice.finish_reason;
      }
      if (chunk.usage) answer.stats = statsOf(chunk.usage, began, first);
      told();
    }
    answer.state = isOver ? "done" : "cut";
  } catch (error) {
    answer.state = signal.aborted ? "stopped" : "failed";
    answer.error = signal.aborted ? "" : error.message || words.unreachable;
  }
  told();
}

// Adds a piece; true if it is part of the answer.
function take({ delta, logprobs }, answer, bytes) {
  answer.tokens.push(...(logprobs?.content ?? []).map(bytes));
  if (delta.reasoning_content) answer.reasoning += delta.reasoning_content;
  if (delta.content) answer.text += delta.content;
  for (const call of delta.tool_calls ?? []) {
    answer.calls[call.index] ??= { id: call.id, name: call.function.name, text: "", result: null };
    answer.calls[call.index].text += call.function.arguments ?? "";
  }
  const isSome = Boolean(delta.reasoning_content || delta.content || delta.tool_calls || logprobs?.content?.length);
  if (isSome) answer.state = "writing";
  return isSome;
}

function statsOf(usage, began, first) {
  const seconds = (performance.now() - began) / 1000;
  const writing = seconds - (first ?? 0) / 1000;
  return {
    tokens: usage.completion_tokens,
    prompt: usage.prompt_tokens,
    cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
    first: first === null ? null : first / 1000,
    speed: usage.completion_tokens > 1 && writing > 0 ? (usage.completion_tokens - 1) / writing : null,
    report: usage.pensieve ?? null,
  };
}
