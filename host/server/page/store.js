// The state that all views show, and who is told of its changes.

export const state = {
  // null before the first answer, "open" or "needed" afterwards.
  key: null,
  // Why there is no answer yet.
  trouble: "",
  isLive: false,
  server: null,
  running: [],
  ended: [],
  // The latest samples for the charts, one for each second.
  samples: [],
  models: [],
  notices: [],
  // The model that waits for an answer to load, unload, pin or unpin.
  busy: new Map(),
};

const watchers = new Set();
let isDue = false;

export function watch(watcher) {
  watchers.add(watcher);
}

// Renders once per frame, however often something changes.
export function changed() {
  if (isDue) return;
  isDue = true;
  const render = () => {
    isDue = false;
    watchers.forEach((watcher) => watcher());
  };
  // A page in the background gets no frames.
  if (document.hidden) setTimeout(render, 200);
  else requestAnimationFrame(render);
}

let nextNotice = 1;

// Shows a line for some seconds; also read out by a screen reader.
export function notify(text, tone = "plain") {
  const notice = { id: nextNotice, text, tone };
  nextNotice += 1;
  state.notices = [...state.notices, notice].slice(-4);
  changed();
  setTimeout(() => dismiss(notice.id), tone === "bad" ? 15_000 : 7_000);
}

export function dismiss(id) {
  state.notices = state.notices.filter((notice) => notice.id !== id);
  changed();
}
