// A small virtual DOM: `h` describes an element, and `patch` changes an element's children to what is described. Text is
// always text, so nothing that a server or a model says can become markup.

const SVG = "http://www.w3.org/2000/svg";

// Describes an element. Properties that begin with "on" are listeners; `key` keeps an element across moves; an element
// whose `memo` is what it was is left as it is.
export function h(tag, props, ...kids) {
  return { tag, props: props ?? {}, kids, key: props?.key };
}

// Changes the children of an element to the described ones.
export function patch(parent, kids) {
  const known = new Map();
  for (const node of parent.childNodes) {
    if (node.pageKey !== undefined) known.set(node.pageKey, node);
  }
  let cursor = parent.firstChild;
  for (const kid of flat(kids)) {
    let node = find(kid, cursor, known);
    if (node === null) {
      node = create(kid, parent);
      parent.insertBefore(node, cursor);
    } else if (node === cursor) {
      cursor = cursor.nextSibling;
    } else {
      parent.insertBefore(node, cursor);
    }
    update(node, kid);
  }
  while (cursor !== null) {
    const next = cursor.nextSibling;
    cursor.remove();
    cursor = next;
  }
}

function* flat(kids) {
  for (const kid of kids) {
    if (Array.isArray(kid)) yield* flat(kid);
    else if (kid !== null && kid !== undefined && kid !== false && kid !== "") yield kid;
  }
}

function find(kid, cursor, known) {
  if (typeof kid !== "object") return cursor?.nodeType === Node.TEXT_NODE ? cursor : null;
  const node = kid.key === undefined ? cursor : known.get(kid.key) ?? null;
  const fits = node !== null && node.nodeType === Node.ELEMENT_NODE && node.pageKey === kid.key && node.pageTag === kid.tag;
  return fits ? node : null;
}

function create(kid, parent) {
  if (typeof kid !== "object") return document.createTextNode(String(kid));
  const isSvg = kid.tag === "svg" || (parent.namespaceURI === SVG && parent.localName !== "foreignObject");
  const node = isSvg ? document.createElementNS(SVG, kid.tag) : document.createElement(kid.tag);
  node.pageTag = kid.tag;
  if (kid.key !== undefined) node.pageKey = kid.key;
  node.pageProps = {};
  return node;
}

function update(node, kid) {
  if (typeof kid !== "object") {
    if (node.data !== String(kid)) node.data = String(kid);
    return;
  }
  const { props } = kid;
  if (props.memo !== undefined && props.memo === node.pageProps.memo) return;
  // Children first: the value of a selection is one of its options.
  patch(node, kid.kids);
  for (const name of Object.keys(node.pageProps)) {
    if (!(name in props)) set(node, name, undefined);
  }
  for (const [name, value] of Object.entries(props)) set(node, name, value);
  const isNew = !node.pageReady;
  node.pageProps = props;
  node.pageReady = true;
  if (isNew) props.ready?.(node);
}

const LIVE = new Set(["value", "checked", "open", "indeterminate"]);

function set(node, name, value) {
  if (name === "key" || name === "memo" || name === "ready") return;
  if (name.startsWith("on")) {
    node[name] = value ?? null;
  } else if (LIVE.has(name) && name in node) {
    const next = value ?? (typeof node[name] === "boolean" ? false : "");
    if (node[name] !== next) node[name] = next;
  } else if (node.pageProps[name] !== value) {
    if (value === undefined || value === null || value === false) node.removeAttribute(name);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
}
