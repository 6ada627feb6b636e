// Building and updating elements without markup from text: what comes over the wire is always shown as text.

/** An element with a class and children (elements or text). */
export function el(tag, className = "", ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/** An SVG element with attributes. */
export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export const byId = (id) => document.getElementById(id);

/** Text of an element; left alone where it is the same, so that selections and readers of the screen are not disturbed. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setClass(element, className) {
  if (element.className !== className) element.className = className;
}

/** Children of `parent` for `items`, in their order: made once for each key, updated each time, removed when gone. */
export function keyed(parent, items, keyOf, make, update) {
  const known = (parent.keyedChildren ??= new Map());
  const left = new Set(known.keys());
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let child = known.get(key);
    if (!child) known.set(key, (child = make(item)));
    left.delete(key);
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const key of left) {
    known.get(key).remove();
    known.delete(key);
  }
}
