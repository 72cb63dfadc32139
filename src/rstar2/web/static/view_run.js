// The view of a run: its facts, curves, events and recipe; beside other runs if chosen.
import { LineChart } from "./chart.js";
import { h, replace } from "./dom.js";
import { duration, moment, number, plural, words } from "./format.js";
import { factList, table } from "./notebook.js";
import { link, setParams } from "./router.js";
import { MetricRows, numbersOf, panelsOf } from "./series.js";
import { source } from "./source.js";

const NUM_EVENTS = 200;
const SMOOTHING = [["0", "none"], ["0.6", "some"], ["0.9", "much"]];

export async function runView(context) {
  const { run, params, runs, signal } = context;
  const others = runs.filter((item) => item.key !== run.key);
  const compared = new Set((params.get("with") ?? "").split(",").filter((key) => others.some((item) => item.key === key)));
  let weight = Number(params.get("smooth") ?? 0) || 0;
  const loaded = new Map();
  const charts = new Map();
  const grid = h("div", { class: "charts" });
  const numbers = h("div", {});
  const quiet = h("p", { class: "quiet" });

  async function load(key) {
    if (!loaded.has(key)) loaded.set(key, { rows: new MetricRows(), next: 0 });
    const held = loaded.get(key);
    for (let page = null; !page?.is_end;) {
      page = await source.metrics(key, held.next, signal);
      held.rows.add(page.rows);
      held.next = page.next;
    }
  }

  function draw() {
    const keys = [run.key, ...others.filter((item) => compared.has(item.key)).map((item) => item.key)];
    const shown = runs.map((item, colour) => ({ ...item, colour })).filter((item) => keys.includes(item.key))
      .map((item) => ({ name: item.name, colour: item.colour, rows: loaded.get(item.key).rows }));
    const only = numbersOf(shown);
    const lines = only?.rows.map(([name, ...values]) => [words(name), ...values.map(number)]);
    replace(numbers, only && table("Metrics", only.head, lines));
    const panels = only ? [] : panelsOf(shown, weight);
    const { marks } = loaded.get(run.key).rows;
    for (const [title, chart] of charts) {
      if (panels.some((panel) => panel.title === title)) continue;
      chart.element.remove();
      charts.delete(title);
    }
    for (const { title, format, series, hasStages } of panels) {
      if (!charts.has(title)) charts.set(title, new LineChart(title, { format }));
      const chart = charts.get(title);
      grid.append(chart.element);
      chart.update(series, hasStages ? marks : []);
    }
    replace(quiet, panels.length || only ? "" : "No metrics yet.");
  }

  async function refresh() {
    await Promise.all([run.key, ...compared].map(load));
    draw();
  }

  const remember = () => setParams({ with: [...compared].join(","), smooth: weight ? String(weight) : "" });
  const smooth = (event) => {
    weight = Number(event.target.value);
    remember();
    draw();
  };
  const smoothing = h("label", {}, "Smoothing ", h("select", { on: { change: smooth } },
    SMOOTHING.map(([value, label]) => h("option", { value, selected: Number(value) === weight }, label))));
  const comparison = others.length > 0 && h("fieldset", { class: "chips" }, h("legend", {}, "Compare with"), others.map((item) =>
    h("label", { class: "chip" }, h("input", { type: "checkbox", checked: compared.has(item.key), on: { change: async (event) => {
      if (event.target.checked) compared.add(item.key);
      else compared.delete(item.key);
      remember();
      await refresh();
    } } }), item.name)));
  await refresh();
  const events = await eventList(run, signal);
  const recipe = await recipeBox(run, signal);
  const steps = h("p", { class: "lead" }, await stepLinks(run, signal));
  context.follow(async () => {
    await refresh();
    await events.refresh();
    replace(steps, await stepLinks(run, signal));
  });
  return [
    facts(run), steps,
    h("div", { class: "toolbar" }, smoothing, comparison), quiet, numbers, grid,
    h("section", {}, h("h2", {}, "Events"), events.element), recipe,
  ];
}

function facts(run) {
  const seconds = run.ended ? (new Date(run.ended) - new Date(run.started)) / 1000 : null;
  const items = [
    ["command", run.argv.length ? [run.argv[0].split("/").pop(), ...run.argv.slice(1)].join(" ") : run.verb],
    ["started", moment(run.started)], ["took", seconds === null ? null : duration(seconds)],
    ["resumed", run.resumed.length ? `${number(run.resumed.length)} times` : null],
    ["seed", run.seed], ["rstar2", run.version], ["machine", run.host], ["note", run.note || null],
  ];
  return factList(items);
}

async function stepLinks(run, signal) {
  const { traces, num_steps } = await source.steps(run.key, signal);
  if (!traces.length) return ["This run has no rollouts yet."];
  const [first, last] = [traces[0][0], traces[traces.length - 1][0]];
  const count = num_steps ?? traces.length;
  return [
    `Rollouts of ${plural(count, "step")}: `, h("a", { href: link(["run", run.key, "step", first]) }, `first (${first})`),
    last !== first && [", ", h("a", { href: link(["run", run.key, "step", last]) }, `last (${last})`)],
    count !== traces.length && `. This report holds samples of ${plural(traces.length, "step")}.`,
  ];
}

async function eventList(run, signal) {
  const rows = [];
  let next = 0;
  const element = h("ol", { class: "events" });
  async function refresh() {
    const before = rows.length;
    for (let page = null; !page?.is_end;) {
      page = await source.events(run.key, next, signal);
      rows.push(...page.rows);
      next = page.next;
    }
    if (rows.length === before) return;
    const shown = rows.slice(-NUM_EVENTS).reverse();
    replace(element, shown.map(([time, kind, message]) => h("li", {},
      h("time", {}, moment(time)), h("span", { class: "badge" }, kind), h("span", { class: "words" }, message))),
      rows.length > shown.length && h("li", { class: "quiet" }, `${number(rows.length - shown.length)} more in events.jsonl`));
  }
  await refresh();
  return { element, refresh };
}

async function recipeBox(run, signal) {
  const { toml } = await source.recipe(run.key, signal);
  return toml ? h("details", { class: "recipe" }, h("summary", {}, "Recipe"), h("pre", { tabindex: "0" }, toml)) : null;
}
