// Conversations in the browser's own database. Nothing of them leaves the browser but what is sent as a prompt.

const NAME = "pensieve";
const STORE = "conversations";
export const CONVERSATIONS_MAX = 200;

let database;

function open() {
  database ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return database;
}

async function run(mode, work) {
  const store = (await open()).transaction(STORE, mode).objectStore(STORE);
  const request = work(store);
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

// All conversations, the latest first.
export async function list() {
  const all = await run("readonly", (store) => store.getAll());
  return all.sort((a, b) => b.updated - a.updated);
}

export async function put(conversation) {
  await run("readwrite", (store) => store.put(structuredClone(conversation)));
}

export async function remove(id) {
  await run("readwrite", (store) => store.delete(id));
}
