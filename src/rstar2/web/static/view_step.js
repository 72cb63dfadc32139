// The view of a step: its problems, and its rollouts with search and filters.
import { announce, h, replace } from "./dom.js";
import { duration, number, percent, plural, words } from "./format.js";
import { VirtualList } from "./list.js";
import { badges, partsText } from "./notebook.js";
import { link, setParams } from "./router.js";
import { source } from "./source.js";
import { chosenStep, stepper } from "./stepper.js";

const FLAGS = [
  "right", "wrong", "no_answer", "tool_error", "no_tool", "truncated", "turn_limit", "undecided", "infrastructure_fault",
  "beyond_budget", "kept", "downsampled", "evaluation",
];
const ENVIRONMENT = "environment:";
const TABS = [["problems", "Problems"], ["rollouts", "Rollouts"]];
const ROW_HEIGHT = 42, TALL_ROW_HEIGHT = 62;
const isNarrow = window.matchMedia("(max-width: 46rem)");
const SEARCH_DELAY_MS = 300;

export async function stepView(context) {
  const { run, parts, params, signal } = context;
  const steps = (await source.steps(run.key, signal)).traces.map(([step]) => step);
  if (!steps.length) return h("p", { class: "notice" }, "This run has no rollouts yet.");
  const step = chosenStep(parts, steps);
  const tab = params.get("show") === "rollouts" ? "rollouts" : "problems";
  const tabs = h("nav", { class: "tabs small", "aria-label": "What of the step" }, TABS.map(([name, label]) =>
    h("a", { href: link(["run", run.key, "step", step], { show: name }), "aria-current": name === tab ? "page" : null }, label)));
  const body = tab === "problems" ? await problemList(context, step) : await rolloutList(context, step);
  return [h("div", { class: "toolbar" }, stepper(run, "step", steps, step, { show: tab }), tabs), body];
}

/** A list that loads pages as it is scrolled; `fetch(after)` returns a page. */
function pagedList(context, options, fetch) {
  const { signal } = context;
  const status = h("p", { class: "quiet", role: "status" });
  const list = new VirtualList({ ...options, rowHeight: isNarrow.matches ? TALL_ROW_HEIGHT : ROW_HEIGHT, more: () => load() });
  let rows = [];
  let next = 0;
  let isEnd = false;
  let isLoading = false;
  let generation = 0;

  async function load() {
    if (isLoading || isEnd) return;
    isLoading = true;
    const own = generation;
    try {
      // A filter that matches little may need many pages; the list asks again as long as it is not full.
      const page = await fetch(next);
      if (own !== generation || signal.aborted) return;
      rows = rows.concat(page.rows);
      ({ next, is_end: isEnd } = page);
      const known = `${number(page.num_known)}${page.scanned_bytes < page.total_bytes ? " or more" : ""}`;
      const part = isEnd ? "" : ` so far, ${number(next)} of ${known} looked through`;
      replace(status, `${plural(rows.length, options.noun)}${part}. `, page.note ?? "");
    } catch (error) {
      if (error.name !== "AbortError") { replace(status, error.message); isEnd = true; }
    } finally {
      isLoading = false;
    }
    if (own !== generation) return load();
    list.set(rows, isEnd);
  }

  function restart() {
    generation += 1;
    [rows, next, isEnd] = [[], 0, false];
    load();
  }
  // In a live run, new rows follow the last one.
  context.follow(async () => { isEnd = false; await load(); });
  load();
  return { element: h("section", { class: "listing" }, status, list.element), restart };
}

async function problemList(context, step) {
  const { run, signal } = context;
  const href = (row) => row.number === undefined
    ? link(["run", run.key, "step", step, "problem", row.problem_id]) : link(["run", run.key, "step", step, "group", row.number]);
  return pagedList(context, { label: "Problems", noun: "problem", href, render: problemRow },
    (after) => source.problems(run.key, step, after, signal)).element;
}

function problemRow(row) {
  const name = h("span", { class: "main" }, h("span", { class: "ellipsis", title: row.problem_id }, row.question ?? row.problem_id));
  if (row.number === undefined) return [name, h("span", { class: "side" }, plural(row.num_rollouts, "rollout"))];
  const share = row.num_rollouts ? row.num_right / row.num_rollouts : 0;
  const fate = row.is_dropped ? "dropped: equal rewards" : `${row.num_kept} kept`;
  return [
    name,
    h("span", { class: "side" },
      h("span", { class: "meter", "aria-hidden": "true", vars: { "--share": percent(share) } }),
      h("span", { class: "w2" }, `${row.num_right} of ${row.num_rollouts} right`),
      h("span", { class: "w2 optional" }, row.mean_reward === null ? "" : `reward ${number(row.mean_reward)}`),
      h("span", { class: "quiet w3" }, fate, row.num_unscored ? `, ${row.num_unscored} unscored` : ""),
      h("span", { class: "quiet w3 optional" }, row.mean_penalty === null ? "" : `mean penalty ${row.mean_penalty.toFixed(2)}`)),
  ];
}

async function rolloutList(context, step) {
  const { run, params, signal } = context;
  const flags = (params.get("flags") ?? "").split(",").filter((flag) => FLAGS.includes(flag) || flag.startsWith(ENVIRONMENT));
  const filter = { flags, text: params.get("text") ?? "" };
  const href = (row) => link(["run", run.key, "step", step, "trace", row.at]);
  const paged = pagedList(context, { label: "Rollouts", noun: "rollout", href, render: rolloutRow },
    async (after) => {
      const page = await source.rollouts(run.key, step, filter, after, signal);
      offer(page.environments);
      return page;
    });
  const changed = () => {
    setParams({ show: "rollouts", flags: filter.flags.join(","), text: filter.text });
    announce(`Showing ${filter.flags.length ? filter.flags.map(flagLabel).join(" and ") : "all"} rollouts`);
    paged.restart();
  };
  let timer = 0;
  const typed = (event) => {
    clearTimeout(timer);
    timer = setTimeout(() => { filter.text = event.target.value; changed(); }, SEARCH_DELAY_MS);
  };
  const search = h("input", { type: "search", placeholder: "Search in the conversations", value: filter.text,
    "aria-label": "Search in the conversations", spellcheck: "false", on: { input: typed } });
  const chips = h("div", { class: "chips", role: "group", "aria-label": "Show only" }, FLAGS.map((flag) => {
    const toggle = () => {
      const isOn = filter.flags.includes(flag);
      filter.flags = isOn ? filter.flags.filter((item) => item !== flag) : [...filter.flags, flag];
      button.setAttribute("aria-pressed", String(!isOn));
      changed();
    };
    const pressed = String(filter.flags.includes(flag));
    const button = h("button", { type: "button", class: "chip", "aria-pressed": pressed, on: { click: toggle } },
      flagLabel(flag));
    return button;
  }));

  // A step may mix environments; each page of rollouts may name more of them.
  const chosen = () => filter.flags.find((flag) => flag.startsWith(ENVIRONMENT)) ?? "";
  const choose = (event) => {
    filter.flags = filter.flags.filter((flag) => !flag.startsWith(ENVIRONMENT)).concat(event.target.value || []);
    changed();
  };
  const select = h("select", { on: { change: choose } });
  const environments = h("label", { hidden: true }, "Environment ", select);
  const known = new Set(chosen() ? [chosen()] : []);
  function offer(names) {
    for (const name of names) known.add(ENVIRONMENT + name);
    environments.hidden = known.size < 2 && !chosen();
    replace(select, h("option", { value: "" }, "all"), [...known].sort().map((flag) => h("option", { value: flag }, flagLabel(flag))));
    select.value = chosen();
  }
  return [h("div", { class: "filters" }, search, environments, chips), paged.element];
}

/** The label of a flag; the recipe's default environment has no name. */
function flagLabel(flag) {
  if (flag.startsWith(ENVIRONMENT)) return flag.slice(ENVIRONMENT.length) || "default";
  return flag === "downsampled" ? "left out" : words(flag);
}

function rolloutRow(row) {
  if (row.unreadable) return [h("span", { class: "main" }, "unreadable"), h("span", { class: "side quiet" }, row.unreadable)];
  return [
    h("span", { class: "main" }, badges(row), told(row)),
    h("span", { class: "side" },
      h("span", { class: "ellipsis w4", title: row.problem_id }, row.question || row.problem_id),
      h("span", { class: "w1", title: partsText(row.parts) || null }, row.reward === null ? "" : number(row.reward)),
      h("span", { class: "quiet w1" }, plural(row.num_turns, "turn")),
      h("span", { class: "quiet w2" }, plural(row.num_calls, "call"), row.num_errors ? `, ${row.num_errors} failed` : ""),
      h("span", { class: "quiet w2" }, plural(row.num_tokens, "token")),
      h("span", { class: "quiet w1 optional" }, duration(row.seconds))),
  ];
}

/** The result in a line of the list: why the rollout failed, its answer, or the parts of its reward. */
function told(row) {
  if (row.note && row.reward === null) return h("span", { class: "note-line ellipsis", title: row.note }, row.note);
  const parts = row.parts.length > 0 && h("span", { class: "quiet ellipsis parts-line" }, partsText(row.parts));
  if (row.answer === null && row.verdict === null) return parts;
  return [h("span", { class: "answer" }, row.answer ?? "no answer"),
    row.gold && h("span", { class: "gold ellipsis" }, `gold ${row.gold}`), parts];
}
