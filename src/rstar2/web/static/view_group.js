// The rollouts of one problem side by side, right and wrong, with what GRPO-RoC made of each.
import { h, replace } from "./dom.js";
import { number, percent, plural, words } from "./format.js";
import { badges, cellElement, factList, goldElement } from "./notebook.js";
import { link } from "./router.js";
import { source } from "./source.js";

const SHOWN = [
  ["all", "All", () => true],
  ["right", "Right", (rollout) => rollout.verdict === "right"],
  ["wrong", "Wrong", (rollout) => rollout.verdict !== "right"],
  ["kept", "Kept", (rollout) => rollout.selection === "kept"],
  ["left", "Not kept", (rollout) => rollout.selection !== undefined && rollout.selection !== "kept"],
];
const RETRY_MS = 100;

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
  draw();
  complete().catch((error) => { if (error.name !== "AbortError") replace(status, error.message); });
  return [
    h("p", { class: "crumbs" }, h("a", { href: link(["run", run.key, "step", step]) }, `Step ${step}`), " / ", data.problem_id),
    data.rollouts.length > 0 && [
      h("blockquote", { class: "question" }, data.rollouts[0].question), goldElement(data.rollouts[0])],
    h("div", { class: "toolbar" }, chips), status, columns,
  ];
}

function card(run, step, rollout) {
  const href = link(["run", run.key, "step", step, "trace", rollout.at]);
  return h("article", { class: `card verdict-${rollout.verdict ?? "ungraded"}`, "aria-label": `Rollout ${rollout.sample_index}` },
    h("header", {},
      h("a", { class: "title", href }, `Rollout ${rollout.sample_index}`), badges(rollout),
      h("p", { class: "answer" }, rollout.answer ?? "no answer"), scores(rollout),
      rollout.why && h("p", { class: "why" }, rollout.why)),
    h("div", { class: "turns" }, rollout.turns.map((turn) => turn.cells.map(cellElement))),
    h("footer", {}, h("a", { href }, "Whole trace")));
}

/** Reward, advantage and penalties, as far as there are any. */
export function scores(rollout) {
  const names = ["reward", "advantage", "error_penalty", "format_penalty"];
  const known = names.filter((name) => rollout[name] !== null && rollout[name] !== undefined);
  return factList(known.map((name) => [words(name), number(rollout[name])]), "scores");
}
