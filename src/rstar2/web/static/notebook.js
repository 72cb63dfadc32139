// The cells of a turn: reasoning, code with its output, the answer.
import { h, scrolling } from "./dom.js";
import { duration, plural, words } from "./format.js";
import { highlighted } from "./python.js";

export const LABELS = { reason: "Reasoning", answer: "Answer", plain: "Text" };
const END_MARK = /^\s*<\|\w+\|>\s*$/;

export function cellElement(cell) {
  if (cell.kind === "tool_call") return callElement(cell);
  if (cell.kind === "plain" && END_MARK.test(cell.text)) return h("p", { class: "end-mark" }, cell.text);
  const label = LABELS[cell.kind] ?? LABELS.plain;
  return h("section", { class: `cell ${cell.kind}`, "aria-label": label },
    h("h4", {}, label), h("div", { class: "prose" }, cell.text));
}

/** A call, and its result beside it when there is one. */
export function callElement(cell, pending = "No result: the rollout ended first.") {
  const result = cell.result;
  return h("section", { class: "cell call", "aria-label": `Tool call ${cell.name ?? "that cannot be read"}` },
    h("h4", {}, cell.name === null ? "A call that cannot be read" : ["Code", h("span", { class: "quiet" }, cell.name)]),
    h("pre", { class: "code", tabindex: "0" }, h("code", {}, highlighted(cell.text))),
    cell.stdin && [h("h4", {}, "Standard input"), h("pre", { tabindex: "0" }, cell.stdin)],
    result ? resultElement(result) : h("p", { class: "quiet pending" }, pending));
}

export function resultElement(result) {
  return h("div", { class: `result fault-${result.fault}` },
    h("h4", {}, h("span", { class: `badge status-${result.fault}` }, words(result.status)),
      h("span", { class: "quiet" }, duration(result.wall_s),
        result.num_attempts > 1 ? `, ${result.num_attempts} attempts` : "",
        result.num_cut_chars > 0 ? `, ${plural(result.num_cut_chars, "character")} cut` : "")),
    result.text ? h("pre", { class: "output", tabindex: "0" }, result.text) : h("p", { class: "quiet" }, "no output"));
}


/** Pairs of a name and a value, as far as there is one. */
export function factList(pairs, kind = "facts") {
  return h("dl", { class: kind }, pairs.filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** The first cell of a row is its name. */
export function table(label, head, rows) {
  return scrolling(label, h("table", {},
    h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map(([name, ...cells]) =>
      h("tr", {}, h("th", { scope: "row" }, name), cells.map((text) => h("td", {}, text)))))));
}

/** The answer that the problem wants, where the run recorded one. */
export function goldElement(rollout) {
  return rollout.gold ? h("p", { class: "gold" }, "gold ", h("b", {}, rollout.gold)) : null;
}

/** Verdict, outcome and selection as small labelled signs. */
export function badges(row) {
  const verdict = row.verdict ?? "ungraded";
  const selection = row.selection === "downsampled" ? "left out" : words(row.selection);
  return h("span", { class: "badges" },
    h("span", { class: `badge verdict-${verdict}` }, words(verdict)),
    row.outcome !== "answered" && h("span", { class: "badge outcome" }, words(row.outcome)),
    row.stage && h("span", { class: "badge" }, row.stage),
    row.selection && h("span", { class: `badge selection-${row.selection}` }, selection));
}
