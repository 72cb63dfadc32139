// The view of a step's engines over time: how busy they were, how full their caches, and what the step waited for last.
import { h, scrolling, svg } from "./dom.js";
import { duration, number, percent, plural, words } from "./format.js";
import { factList, table } from "./notebook.js";
import { source } from "./source.js";
import { chosenStep, stepper } from "./stepper.js";

const WIDTH = 960, LEFT = 86, RIGHT = 8;
const ROWS_HEIGHT = 320, AXIS_HEIGHT = 24, LABEL_HEIGHT = 10;
const KINDS = ["queued", "first_token", "generating", "tool"];
const NO_RECORD = "This run holds no record of its engines: training and evaluation write one a step, in schedule/.";

export async function schedulerView(context) {
  const { run, parts, signal } = context;
  const { schedule: steps } = await source.steps(run.key, signal);
  if (!steps.length) return h("p", { class: "notice" }, NO_RECORD);
  const step = chosenStep(parts, steps);
  const data = await source.schedule(run.key, step, signal);
  return [
    h("div", { class: "toolbar" }, stepper(run, "scheduler", steps, step)),
    factList(stepFacts(data)),
    h("section", {}, h("h2", {}, "Turns at each engine"), heatmap(data, "turns", "turns at a time", number)),
    h("section", {}, h("h2", {}, "KV cache in use"), heatmap(data, "kv_shares", "of the cache", percent, 1)),
    criticalPath(data),
    h("section", {}, h("h2", {}, "Engines"), engineTable(data)),
  ];
}

function stepFacts(data) {
  const sum = (field) => data.engines.reduce((total, engine) => total + engine[field], 0);
  return [
    ["took", duration(data.duration_s)],
    ["engines", number(data.num_engines)],
    ["idle", percent(sum("idle_s") / (sum("busy_s") + sum("idle_s") || 1))],
    ...data.facts.filter(([, value]) => value > 0).map(([name, value]) => [name, number(value)]),
    ...data.times.map(([name, seconds]) => [`${name}, all rollouts`, duration(seconds)]),
  ];
}

function timeAxis(data, y) {
  return [0, 0.25, 0.5, 0.75, 1].map((share) => {
    const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
    const x = LEFT + share * (WIDTH - LEFT - RIGHT);
    return svg("text", { class: "axis", x, y, "text-anchor": anchor }, duration(share * data.duration_s));
  });
}

/** One row per engine, empty where it was idle. */
function heatmap(data, field, unit, format, top = null) {
  const rowHeight = Math.max(3, Math.min(26, ROWS_HEIGHT / data.engines.length));
  const height = rowHeight * data.engines.length + AXIS_HEIGHT;
  const highest = top ?? Math.max(1, ...data.engines.flatMap((engine) => engine[field].map((value) => value ?? 0)));
  const width = (WIDTH - LEFT - RIGHT) / (data.engines[0]?.[field].length ?? 1);
  const rows = data.engines.map((engine, index) => {
    const y = index * rowHeight;
    const cells = runsOf(engine[field]).map(([first, count, value]) => svg("rect", {
      class: value === null ? "away" : "heat-bar", x: LEFT + first * width, y, width: count * width + 0.3,
      height: Math.max(1, rowHeight - 1), "fill-opacity": value === null ? 1 : (value / highest).toFixed(2),
    }));
    const isNamed = rowHeight >= LABEL_HEIGHT || index === 0 || index === data.engines.length - 1;
    const place = { x: LEFT - 6, y: y + Math.max(5, rowHeight / 2), "text-anchor": "end", "dominant-baseline": "central" };
    return [cells, isNamed && svg("text", { class: "axis", ...place }, engine.engine.slice(0, 12))];
  });
  const label = `${words(field)} of ${plural(data.engines.length, "engine")} over time; the table below has the sums`;
  const empty = { class: "empty", x: LEFT, y: 0, width: WIDTH - LEFT - RIGHT, height: rowHeight * data.engines.length };
  return h("figure", { class: "chart wide" },
    h("ul", { class: "legend" },
      h("li", {}, h("span", { class: "swatch heat-low" }), `0 ${unit}`),
      h("li", {}, h("span", { class: "swatch heat-high" }), format(highest))),
    scrolling("Engines over time",
      svg("svg", { class: "heatmap", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": label },
        svg("rect", empty), rows, timeAxis(data, height - 6))));
}

/** Stretches of equal value: first column, number of columns, value; without those of 0. */
function runsOf(values) {
  const found = [];
  values.forEach((value, column) => {
    const last = found[found.length - 1];
    if (last && last[2] === value) last[1] += 1;
    else found.push([column, 1, value]);
  });
  return found.filter(([, , value]) => value !== 0);
}

function criticalPath(data) {
  if (!data.critical_path.length) return null;
  const x = (seconds) => LEFT + ((WIDTH - LEFT - RIGHT) * seconds) / data.duration_s;
  const secondsOf = (kind) => data.critical_path
    .filter(([own]) => own === kind).reduce((sum, [, start, end]) => sum + end - start, 0);
  const sums = KINDS.map((kind) => [kind, secondsOf(kind)]).filter(([, seconds]) => seconds > 0);
  const spans = data.critical_path.map(([kind, start, end]) => svg("rect", {
    class: `span-${KINDS.includes(kind) ? kind : "tool"}`, x: x(start), y: 0, width: Math.max(0.5, x(end) - x(start)), height: 22,
  }));
  return h("section", {}, h("h2", {}, "Critical path"),
    h("p", { class: "lead" }, "The rollout that ended last, ", h("code", {}, data.critical_rollout), ": ",
      sums.map(([kind, seconds]) => `${words(kind)} ${duration(seconds)}`).join(", "), "."),
    h("figure", { class: "chart wide" },
      h("ul", { class: "legend" }, KINDS.map((kind) => h("li", {}, h("span", { class: `swatch span-${kind}` }), words(kind)))),
      scrolling("Critical path over time",
        svg("svg", { class: "heatmap", viewBox: `0 0 ${WIDTH} 50`, role: "img", "aria-label": "What the last rollout did" },
          spans, timeAxis(data, 42)))));
}

function engineTable(data) {
  const head = ["engine", "busy", "idle", "mean turns", "peak cache", "preempted", "new tokens", "prefilled", "generated"];
  return table("Engines", head, data.engines.map((engine) => [
    engine.engine, duration(engine.busy_s), duration(engine.idle_s), number(engine.mean_turns), percent(engine.peak_kv_share),
    number(engine.num_preemptions), number(engine.num_new_tokens), number(engine.num_prefill_tokens),
    number(engine.num_generated_tokens),
  ]));
}
