// Shows a model's text safely: characters that would move, hide or colour other text become visible marks.

const NAMES = new Map([
  [0x7f, "DEL"], [0xad, "SHY"], [0x61c, "ALM"], [0x200b, "ZWSP"], [0x200c, "ZWNJ"], [0x200d, "ZWJ"], [0x200e, "LRM"],
  [0x200f, "RLM"], [0x2028, "LS"], [0x2029, "PS"], [0x202a, "LRE"], [0x202b, "RLE"], [0x202c, "PDF"], [0x202d, "LRO"],
  [0x202e, "RLO"], [0x2060, "WJ"], [0x2066, "LRI"], [0x2067, "RLI"], [0x2068, "FSI"], [0x2069, "PDI"], [0xfeff, "BOM"],
]);

// Controls but for tab and newline, invisible and bidirectional format characters, tags, and halves of a character.
const UNSEEN = new RegExp("[" + [
  "\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f",
  "\\u00ad\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufeff\\uffa0",
  "\\ufff0-\\ufffb\\u{e0000}-\\u{e0fff}\\ud800-\\udfff",
].join("") + "]", "gu");

function markOf(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return `⟨${NAMES.get(code) ?? "U+" + code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/** The text with visible marks, for attributes and titles, which hold no elements. */
export function visible(text) {
  return String(text).replace(UNSEEN, markOf);
}

/** Nodes for a text: plain text nodes, and one marked element for each unseen character. */
export function textNodes(text) {
  const string = String(text);
  const nodes = [];
  let start = 0;
  for (const found of string.matchAll(UNSEEN)) {
    if (found.index > start) nodes.push(document.createTextNode(string.slice(start, found.index)));
    const mark = document.createElement("span");
    mark.className = "control";
    mark.textContent = markOf(found[0]);
    mark.title = "U+" + found[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    nodes.push(mark);
    start = found.index + found[0].length;
  }
  if (start < string.length) nodes.push(document.createTextNode(string.slice(start)));
  return nodes;
}
