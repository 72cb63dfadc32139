// The cells of a turn: reasoning, calls with their results, the answer, the user's reply.
import { h, scrolling } from "./dom.js";
import { duration, number, plural, words } from "./format.js";
import { highlighted } from "./python.js";

export const LABELS = { reason: "Reasoning", answer: "Answer", plain: "Text" };
const END_MARK = /^\s*<\|\w+\|>\s*$/;
const MAX_SHORT_CHARS = 80;

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
    cell.name === null ? unreadableCall(cell) : cell.is_python ? pythonCall(cell) : otherCall(cell),
    result ? resultElement(result) : h("p", { class: "quiet pending" }, pending));
}

function unreadableCall(cell) {
  return [h("h4", {}, "A call that cannot be read"), codeBox(cell.text)];
}

function pythonCall(cell) {
  const others = cell.arguments.filter(([, text]) => text);
  return [
    h("h4", {}, "Code", h("span", { class: "quiet" }, cell.name)), codeBox(highlighted(cell.text)),
    others.map(([name, text]) => [h("h4", {}, name === "input" ? "Standard input" : name), h("pre", { tabindex: "0" }, text)]),
  ];
}

/** Short arguments beside their names; a long one, or one of several lines, below its name. */
function otherCall(cell) {
  const isLong = (text) => text.length > MAX_SHORT_CHARS || text.includes("\n");
  return [
    h("h4", {}, "Call", h("span", { class: "tool-name" }, cell.name)),
    cell.arguments.length
      ? h("dl", { class: "arguments" }, cell.arguments.map(([name, text]) =>
        h("div", { class: isLong(text) ? "long" : null }, h("dt", {}, name), h("dd", {}, h("pre", { tabindex: isLong(text) ? "0" : null }, text)))))
      : h("p", { class: "quiet" }, "no arguments"),
  ];
}

function codeBox(content) {
  return h("pre", { class: "code", tabindex: "0" }, h("code", {}, content));
}

/** A message outside the model's turns: the user's reply, or a message of the prompt. */
export function messageElement(role, text) {
  const label = role === "user" ? "User" : role === "assistant" ? "Assistant" : words(role);
  return h("section", { class: `cell message ${role === "user" ? "user" : ""}`, "aria-label": `Message: ${label}` },
    h("h4", {}, label), h("div", { class: "prose" }, text));
}

export function resultElement(result) {
  return h("div", { class: `result fault-${result.fault}` },
    h("h4", {}, h("span", { class: `badge status-${result.fault}` }, words(result.status)),
      h("span", { class: "quiet" }, duration(result.wall_s),
        result.num_attempts > 1 ? `, ${result.num_attempts} attempts` : "",
        result.num_cut_chars > 0 ? `, ${plural(result.num_cut_chars, "character")} cut` : "")),
    result.text ? h("pre", { class: "output", tabindex: "0" }, result.text) : h("p", { class: "quiet" }, "no output"));
}


/** A list of names and values, without missing values. */
export function factList(pairs, kind = "facts") {
  return h("dl", { class: kind }, pairs.filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** A table whose rows have their name in the first cell. */
export function table(label, head, rows) {
  return scrolling(label, h("table", {},
    h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map(([name, ...cells]) =>
      h("tr", {}, h("th", { scope: "row" }, name), cells.map((text) => h("td", {}, text)))))));
}

/** The answer; an episode that is only rewarded need not have one. */
export function answerElement(rollout) {
  const isAsked = rollout.answer !== null || (rollout.verdict !== null && rollout.verdict !== "undecided");
  return isAsked ? h("p", { class: "answer" }, rollout.answer ?? "no answer") : null;
}

/** The note of a rollout, which explains its outcome where needed. */
export function noteElement(rollout) {
  return rollout.note ? h("p", { class: rollout.reward === null ? "note" : "why" }, rollout.note) : null;
}

/** The named parts of the reward in one line. */
export function partsText(parts) {
  return parts.map(([name, value]) => `${words(name)} ${number(value)}`).join(", ");
}

/** The problem's gold answer, if the run recorded one. */
export function goldElement(rollout) {
  return rollout.gold ? h("p", { class: "gold" }, "gold ", h("b", {}, rollout.gold)) : null;
}

/** The verdict or, if there is only a reward, the grade by the reward. */
export function gradeOf(row) {
  if (row.verdict !== null) return row.verdict;
  if (row.reward === null) return "ungraded";
  return row.is_right ? "right" : row.reward > 0 ? "partial" : "wrong";
}

/** Verdict or reward, outcome, environment and selection as small labelled signs. */
export function badges(row) {
  const grade = gradeOf(row);
  const isUnscored = row.outcome === "infrastructure_fault" || row.outcome === "beyond_budget";
  const isReward = row.verdict === null && row.reward !== null;
  const selection = row.selection === "downsampled" ? "left out" : words(row.selection);
  return h("span", { class: "badges" },
    !(isUnscored && grade === "ungraded") &&
      h("span", { class: `badge verdict-${grade}` }, isReward ? `reward ${number(row.reward)}` : words(grade)),
    row.outcome !== "answered" && h("span", { class: "badge outcome" }, words(row.outcome)),
    row.environment && h("span", { class: "badge environment" }, row.environment),
    row.stage && h("span", { class: "badge" }, row.stage),
    row.selection && h("span", { class: `badge selection-${row.selection}` }, selection));
}

/** Where a branch of a tree begins: after or inside a turn of its parent. */
export function forkPlace(rollout) {
  if (!rollout.num_shared_tokens) return `after turn ${rollout.num_shared_turns}`;
  return `inside turn ${rollout.num_shared_turns + 1}, after ${plural(rollout.num_shared_tokens, "token")}`;
}
