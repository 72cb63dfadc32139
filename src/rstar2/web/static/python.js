// Colours Python code: knows keywords, strings, numbers, comments and calls.
import { h } from "./dom.js";

const KEYWORDS =
  "False None True and as assert async await break class continue def del elif else except finally for from global if " +
  "import in is lambda nonlocal not or pass raise return try while with yield";
const TOKEN = new RegExp([
  /(?<comment>#[^\n]*)/,
  /(?<string>(?:\b[rbfuRBFU]{1,2})?(?:"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?))/,
  new RegExp(`(?<keyword>\\b(?:${KEYWORDS.replaceAll(" ", "|")})\\b)`),
  /(?<number>\b(?:0[xXoObB][\da-fA-F_]+|\d[\d_]*\.?[\d_]*(?:[eE][+-]?\d+)?j?)\b)/,
  /(?<called>\b[A-Za-z_]\w*(?=\())/,
].map((part) => part.source).join("|"), "g");

const MAX_CHARS = 20_000;

/** The coloured parts of the code; code above `MAX_CHARS`, which is not written for a reader, stays plain. */
export function highlighted(code) {
  if (code.length > MAX_CHARS) return [code];
  const parts = [];
  let start = 0;
  for (const found of code.matchAll(TOKEN)) {
    if (found.index > start) parts.push(code.slice(start, found.index));
    const kind = Object.keys(found.groups).find((name) => found.groups[name] !== undefined);
    parts.push(h("span", { class: `py-${kind}` }, found[0]));
    start = found.index + found[0].length;
  }
  return [...parts, code.slice(start)];
}
