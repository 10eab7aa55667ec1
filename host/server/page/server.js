// Everything that the page asks of the server: requests with the key, and the stream of events.

import { words } from "/page/words.js";
import { changed, notify, state } from "/page/store.js";
import { fileName } from "/page/format.js";

const KEY = "pensieve-key";
export const SAMPLES_MAX = 300;
const ENDED_MAX = 100;
const RETRY_MS = 1500;

export function key() {
  return sessionStorage.getItem(KEY) ?? "";
}

// What stops the stream of events.
let live = new AbortController();

// Forgets the key and everything that was read with it.
export function forgetKey() {
  live.abort();
  sessionStorage.removeItem(KEY);
  Object.assign(state, { key: "needed", server: null, running: [], ended: [], samples: [], models: [] });
  changed();
}

function headers(more = {}) {
  const own = key();
  return own ? { authorization: `Bearer ${own}`, ...more } : more;
}

// Sends a request. A refused key leads back to the form; other errors have the server's message.
export async function send(method, path, body, signal) {
  const options = { method, headers: headers(), signal, cache: "no-store" };
  // The server takes no POST of another type, as any page on the web could send one; one without a body has a type, too.
  if (method === "POST") options.headers = headers({ "content-type": "application/json" });
  if (body !== undefined) options.body = JSON.stringify(body);
  const response = await fetch(path, options);
  if (response.status === 401) {
    forgetKey();
    throw new Error(words.login.gone);
  }
  if (!response.ok) throw new Error(await messageOf(response));
  return response;
}

async function messageOf(response) {
  try {
    const body = await response.json();
    return body.error?.message ?? body.error ?? words.failed(response.status);
  } catch {
    return words.failed(response.status);
  }
}

// Tries a key, "" for none. Returns why the page stays closed: the key is refused, or the server does not say so.
export async function login(text) {
  let own;
  try {
    own = new Headers(text ? { authorization: `Bearer ${text}` } : {});
  } catch {
    // No header can have such characters, so no key has them.
    return refused();
  }
  let response;
  try {
    response = await fetch("/v1/usage", { headers: own, cache: "no-store" });
  } catch {
    return words.unreachable;
  }
  if (response.status === 401) return refused();
  if (!response.ok) return messageOf(response);
  if (text) sessionStorage.setItem(KEY, text);
  state.key = "open";
  changed();
  readModels();
  return "";
}

function refused() {
  state.key = "needed";
  changed();
  return words.login.wrong;
}

async function readModels() {
  try {
    const list = await (await send("GET", "/v1/models")).json();
    if (state.key === "open") state.models = list.data;
    changed();
  } catch {
    // The stream of events tells whether the server is there.
  }
}

// Events of a text stream, each as its name and data.
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      let name = "message";
      const data = [];
      for (const line of part.split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        else if (line.startsWith("data: ")) data.push(line.slice(6));
      }
      if (data.length > 0) yield { name, data: data.join("\n") };
    }
  }
}

// Follows the server's events for as long as the page is open and the key is right.
export async function follow() {
  for (;;) {
    if (state.key === null) {
      state.trouble = await login(key());
      changed();
    }
    if (state.key === "open") {
      live = new AbortController();
      const { signal } = live;
      try {
        const response = await send("GET", "/v1/live", undefined, signal);
        state.isLive = true;
        state.ended = [];
        changed();
        for await (const event of events(response.body)) {
          // The key may be forgotten between two events that came together.
          if (signal.aborted) break;
          take(event.name, JSON.parse(event.data));
        }
      } catch {
        // Told by the sign in the header. The stream is closed, as it has no reader.
        live.abort();
      }
      state.isLive = false;
      changed();
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

function take(name, data) {
  if (name === "server") {
    const before = state.server;
    state.server = data;
    announce(before, data);
    const names = (server) => JSON.stringify(server?.models.map((model) => [model.id, model.state, model.adapters.map((adapter) => adapter.name)]));
    if (names(before) !== names(data)) readModels();
  } else if (name === "sample") {
    pushSample(data);
  } else if (name === "requests") {
    state.running = data.running;
    state.ended = [...data.ended, ...state.ended].slice(0, ENDED_MAX);
  }
  changed();
}

function pushSample(sample) {
  const now = Math.floor(Date.now() / 1000);
  fill(now);
  state.samples.push({ ...sample, at: now });
  state.samples.splice(0, state.samples.length - SAMPLES_MAX);
}

// The server sends a sample only if it differs from the one before, so the last one still holds.
export function fill(now) {
  const last = state.samples.at(-1);
  if (!last || !state.isLive) return;
  for (let at = Math.max(last.at + 1, now - SAMPLES_MAX); at < now; at += 1) state.samples.push({ ...last, at });
  state.samples.splice(0, Math.max(0, state.samples.length - SAMPLES_MAX));
}

// Tells what has become of plugins and models.
function announce(before, after) {
  if (before === null) return;
  const old = new Map(before.plugins.map((plugin) => [plugin.file, plugin]));
  for (const plugin of after.plugins) {
    const known = old.get(plugin.file);
    if (known?.state === plugin.state && known?.sha256 === plugin.sha256) continue;
    const name = fileName(plugin.file);
    if (plugin.state === "ready") notify(words.plugins.accepted(plugin.id, plugin.version), "good");
    if (plugin.state === "rejected") notify(words.plugins.refused(name, plugin.reason), "bad");
  }
  const states = new Map(before.models.map((model) => [model.id, model.state]));
  for (const model of after.models) {
    const was = states.get(model.id);
    if (was === model.state) continue;
    if (model.state === "ready") notify(words.models.loaded(model.id), "good");
    if (model.state === "quarantined") notify(words.models.quarantined(model.id, model.reason ?? ""), "bad");
  }
}

// Loads, unloads, pins or unpins a model.
export async function act(model, action) {
  const path = `/v1/models/${model.split("/").map(encodeURIComponent).join("/")}`;
  const requests = {
    unload: ["POST", `${path}/unload`],
    pin: ["POST", `${path}/pin`],
    unpin: ["DELETE", `${path}/pin`],
  };
  state.busy.set(model, action);
  changed();
  try {
    if (action === "load") {
      // Pinned until it is there, since a load is only asked for by use.
      await send(...requests.pin);
      await send(...requests.unpin);
    } else {
      await send(...requests[action]);
    }
  } catch (error) {
    notify(words.models.failed(model, error.message), "bad");
  }
  state.busy.delete(model);
  changed();
}
