// The only module that makes elements. A string can only become text: nothing here parses HTML,
// attributes that run or fetch something are refused, and links lead only into this page.
import { textNodes, visible } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
const ATTRIBUTES = new Set((
  "class id type for role title tabindex hidden disabled checked selected value rows placeholder spellcheck scope " +
  "aria-label aria-live aria-hidden aria-current aria-pressed aria-setsize aria-posinset data-index").split(" "));
const DRAWING = new Set((
  "class viewBox preserveAspectRatio width height x y x1 x2 y1 y2 cx cy r d fill-opacity text-anchor dominant-baseline " +
  "role tabindex aria-label aria-hidden").split(" "));

function fill(element, attributes, children, allowed) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (name === "vars") for (const [key, item] of Object.entries(value)) element.style.setProperty(key, item);
    else if (name === "href") {
      if (!String(value).startsWith("#")) throw new Error("links lead into this page alone");
      element.setAttribute("href", value);
    } else if (allowed.has(name)) element.setAttribute(name, value === true ? "" : visible(value));
    else throw new Error(`no attribute ${name}`);
  }
  append(element, ...children);
  return element;
}

/** An HTML element; children are elements, strings, numbers, arrays of them, or null for none. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children, ATTRIBUTES);
}

/** An SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children, DRAWING);
}

export function append(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    if (child instanceof Node) element.append(child);
    else element.append(...textNodes(child));
  }
}

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, ...children);
}

/** A box for wide content, which small screens scroll instead of shrinking; also by keyboard. */
export function scrolling(label, ...children) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, children);
}

/** Set the name that a screen reader gives an element. */
export function setLabel(element, text) {
  element.setAttribute("aria-label", visible(text));
}

/** Have screen readers say a message once, politely. */
export function announce(message) {
  document.getElementById("announcer").textContent = visible(message);
}
