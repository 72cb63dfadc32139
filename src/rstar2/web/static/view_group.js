// The rollouts of one problem side by side, right and wrong, with GRPO-RoC's selection and penalties.
import { h, replace } from "./dom.js";
import { number, percent, plural, words } from "./format.js";
import { answerElement, badges, cellElement, factList, forkPlace, goldElement, gradeOf, messageElement, noteElement } from "./notebook.js";
import { link } from "./router.js";
import { source } from "./source.js";

const SHOWN = [
  ["all", "All", () => true],
  ["right", "Right", (rollout) => rollout.is_right === true],
  ["wrong", "Wrong", (rollout) => rollout.is_right === false],
  ["unscored", "Not scored", (rollout) => rollout.is_right === null],
  ["kept", "Kept", (rollout) => rollout.selection === "kept"],
  ["left", "Not kept", (rollout) => rollout.selection !== undefined && rollout.selection !== "kept"],
];
const RETRY_MS = 100;
const MAX_ANSWER_CHARS = 24;

export async function groupView(context) {
  const { run, parts, signal } = context;
  const step = Number(parts[3]);
  const which = parts[4] === "group" ? { group: Number(parts[5]) } : { problem: parts[5] };
  let data = await source.sideBySide(run.key, step, which, signal);
  let chosen = "all";
  const columns = h("div", { class: "columns", tabindex: "0", role: "region", "aria-label": "Rollouts side by side" });
  const status = h("p", { class: "quiet", role: "status" });

  function draw() {
    const keep = SHOWN.find(([name]) => name === chosen)[2];
    const shown = data.rollouts.filter(keep);
    replace(columns, shown.map((rollout) => card(run, step, rollout)));
    const progress = data.is_end ? "" : `; looking for the others, ${percent(data.scanned_bytes / data.total_bytes)} done`;
    replace(status, `${plural(shown.length, "rollout")} of ${number(data.num_rollouts)}${progress}. `, data.note ?? "");
  }

  async function complete() {
    while (!data.is_end && !signal.aborted) {
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      data = await source.sideBySide(run.key, step, which, signal);
      draw();
    }
  }

  const counts = new Map(SHOWN.map(([name, , keep]) => [name, data.rollouts.filter(keep).length]));
  const offered = SHOWN.filter(([name]) => name === "all" || counts.get(name));
  const chips = h("div", { class: "chips", role: "group", "aria-label": "Show" }, offered.map(([name, label]) => {
    const choose = () => {
      chosen = name;
      for (const other of chips.children) other.setAttribute("aria-pressed", String(other === button));
      draw();
    };
    const button = h("button", { type: "button", class: "chip", "aria-pressed": String(name === chosen), on: { click: choose } },
      `${label} `, h("span", { class: "count" }, counts.get(name)));
    return button;
  }));
  const outline = h("div", {});
  const drawTree = () => replace(outline, treeOutline(run, step, data.rollouts));
  draw();
  drawTree();
  complete().then(drawTree).catch((error) => { if (error.name !== "AbortError") replace(status, error.message); });
  return [
    h("p", { class: "crumbs" }, h("a", { href: link(["run", run.key, "step", step]) }, `Step ${step}`), " / ", data.problem_id),
    data.rollouts.length > 0 && [
      h("blockquote", { class: "question" }, data.rollouts[0].question), goldElement(data.rollouts[0])],
    outline, h("div", { class: "toolbar" }, chips), status, columns,
  ];
}

function cut(text) {
  return text.length > MAX_ANSWER_CHARS ? `${text.slice(0, MAX_ANSWER_CHARS)}…` : text;
}

/** A tree of rollouts, each below the parent that it was forked from: where it forked, and its result. */
export function treeOutline(run, step, all) {
  const rollouts = all.filter((rollout) => rollout.outcome !== "beyond_budget");
  if (!rollouts.some((rollout) => rollout.parent)) return null;
  const known = new Set(rollouts.map((rollout) => rollout.id));
  const children = (id) => rollouts.filter((rollout) => (known.has(rollout.parent) ? rollout.parent : "") === id);
  const items = (id) => h("ul", {}, children(id).map((rollout) => h("li", { class: `verdict-${gradeOf(rollout)}` },
    h("a", { href: link(["run", run.key, "step", step, "trace", rollout.at]) }, `Rollout ${rollout.sample_index}`),
    rollout.parent ? ` ${forkPlace(rollout)}: ` : " from the prompt: ",
    rollout.is_right === null ? "not scored" : rollout.is_right ? "right" : "wrong",
    `, ${plural(rollout.num_own_tokens, "token")} of its own`,
    rollout.answer ? h("span", { class: "quiet" }, `, answer ${cut(rollout.answer)}`) : "", children(rollout.id).length > 0 && items(rollout.id))));
  const sum = (name) => rollouts.reduce((total, rollout) => total + rollout[name], 0);
  const saved = sum("num_tokens") - sum("num_own_tokens");
  return h("section", { class: "tree", "aria-label": "Tree of the rollouts" }, h("h3", {}, "Tree"),
    h("p", { class: "quiet" }, `${plural(sum("num_own_tokens"), "token")} generated, ${number(saved)} shared with a parent`), items(""));
}

function card(run, step, rollout) {
  const href = link(["run", run.key, "step", step, "trace", rollout.at]);
  return h("article", { class: `card verdict-${gradeOf(rollout)}`, "aria-label": `Rollout ${rollout.sample_index}` },
    h("header", {},
      h("a", { class: "title", href }, `Rollout ${rollout.sample_index}`), badges(rollout),
      answerElement(rollout), noteElement(rollout), scores(rollout),
      rollout.why && h("p", { class: "why" }, rollout.why)),
    h("div", { class: "turns" }, rollout.turns.map((turn) =>
      [turn.cells.map(cellElement), turn.reply && messageElement("user", turn.reply)])),
    h("footer", {}, h("a", { href }, "Whole trace")));
}

/** Reward with its named parts, advantage and penalties, without missing ones. */
export function scores(rollout) {
  const names = ["reward", "advantage", "error_penalty", "format_penalty"];
  const known = names.filter((name) => rollout[name] !== null && rollout[name] !== undefined);
  return [
    factList(known.map((name) => [words(name), number(rollout[name])]), "scores"),
    rollout.parts.length > 0 && h("div", { class: "parts" }, h("span", { class: "quiet" }, "Parts of the reward"),
      factList(rollout.parts.map(([name, value]) => [words(name), number(value)]), "scores")),
  ];
}
