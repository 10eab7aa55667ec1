// The search: sections that have all words, those with the words in a heading first.

const FOUND_MAX = 40;
const BEFORE = 60;
const AFTER = 140;

function find(sections, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return [];
  const found = [];
  for (const [address, title, heading, text] of sections) {
    const [inTitle, inHeading, inText] = [title, heading, text].map((part) => part.toLowerCase());
    let score = 0;
    for (const word of words) {
      const count = inText.split(word).length - 1;
      const own = (inHeading.includes(word) ? 20 : 0) + (inTitle.includes(word) ? 8 : 0) + Math.min(count, 5);
      score = own === 0 ? -Infinity : score + own;
    }
    if (score > 0) found.push({ address, title, heading, score, text: around(text, inText, words) });
  }
  return found.sort((one, other) => other.score - one.score).slice(0, FOUND_MAX);
}

// The part of a text that has the first word.
function around(text, lower, words) {
  const places = words.map((word) => lower.indexOf(word)).filter((place) => place >= 0);
  const place = places.length === 0 ? 0 : Math.min(...places);
  const start = place <= BEFORE ? 0 : text.indexOf(" ", place - BEFORE) + 1;
  const end = place + AFTER >= text.length ? text.length : text.lastIndexOf(" ", place + AFTER);
  return (start > 0 ? "… " : "") + text.slice(start, end) + (end < text.length ? " …" : "");
}

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

// A text in which the words are marked.
function marked(text, words) {
  const parts = [];
  const lower = text.toLowerCase();
  let at = 0;
  while (at < text.length) {
    const places = words.map((word) => [lower.indexOf(word, at), word]).filter(([place]) => place >= 0);
    if (places.length === 0) break;
    const [place, word] = places.reduce((one, other) => (other[0] < one[0] ? other : one));
    parts.push(text.slice(at, place), element("mark", text.slice(place, place + word.length)));
    at = place + word.length;
  }
  return [...parts, text.slice(at)];
}

function show(root, query) {
  const place = document.getElementById("docs-found");
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  place.hidden = words.length === 0;
  document.getElementById("docs-page").hidden = words.length > 0;
  if (words.length === 0 || !globalThis.SECTIONS) return;
  const items = find(globalThis.SECTIONS, query).map(({ address, title, heading, text }) => {
    const link = element("a", heading === title ? title : `${title}: ${heading}`);
    link.href = root + address;
    // A section of the page that is open, too.
    link.addEventListener("click", clear);
    return element("li", link, element("p", ...marked(text, words)));
  });
  place.replaceChildren(items.length > 0 ? element("ol", ...items) : element("p", "Nothing has all of these words."));
}

function clear() {
  document.getElementById("docs-search").value = "";
  show("", "");
}

function start() {
  const root = document.querySelector("script[data-root]").dataset.root;
  const field = document.getElementById("docs-search");
  let isLoading = false;
  const load = () => {
    if (isLoading) return;
    isLoading = true;
    const script = document.createElement("script");
    script.src = `${root}sections.js`;
    script.addEventListener("load", () => show(root, field.value));
    document.head.append(script);
  };
  field.hidden = false;
  field.addEventListener("focus", load);
  field.addEventListener("input", () => { load(); show(root, field.value); });
  field.addEventListener("keydown", (event) => { if (event.key === "Escape") clear(); });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== field && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      field.focus();
    }
  });
}

if (typeof document === "undefined") module.exports = { find };
else start();
