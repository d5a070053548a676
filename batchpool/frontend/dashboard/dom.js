// Building and changing elements. Text goes in as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

export function element(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  apply(made, options);
  made.append(...children);
  return made;
}

export function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function apply(made, { text, title, ...attributes }) {
  if (text !== undefined) made.textContent = text;
  if (title !== undefined) made.title = title;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
}

// Write only what changed: selections survive, and nothing is laid out again for nothing.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

// Keyed children of a parent: made once, kept, taken away when their key is gone.
export class Keyed {
  constructor(parent, make) {
    this.parent = parent;
    this.make = make;
    this.known = new Map();
  }

  // items: [[key, value]] in the order to show.
  update(items) {
    const gone = new Set(this.known.keys());
    let before = null;
    for (const [key, value] of items) {
      gone.delete(key);
      let part = this.known.get(key);
      if (!part) {
        part = this.make(key);
        this.known.set(key, part);
      }
      const next = before ? before.nextSibling : this.parent.firstChild;
      if (part.node !== next) this.parent.insertBefore(part.node, next);
      part.update(value);
      before = part.node;
    }
    for (const key of gone) {
      this.known.get(key).node.remove();
      this.known.delete(key);
    }
  }
}
