// The view of a step's tool calls: how they ended and how long they took.
import { h, replace, scrolling, svg } from "./dom.js";
import { duration, number, percent, plural, words } from "./format.js";
import { factList, table } from "./notebook.js";
import { link } from "./router.js";
import { source } from "./source.js";
import { chosenStep, stepper } from "./stepper.js";

const FAULTS = [["none", "ran"], ["policy", "failed by the model's doing"], ["infrastructure", "failed by ours"]];
const WIDTH = 640, HEIGHT = 180, TOP = 14, BOTTOM = 24;
const WIDE_BAR = 60;

export async function sandboxView(context) {
  const { run, parts, signal } = context;
  const steps = (await source.steps(run.key, signal)).traces.map(([step]) => step);
  if (!steps.length) return h("p", { class: "notice" }, "This run has no rollouts yet.");
  const step = chosenStep(parts, steps);
  const body = h("div", {});
  const status = h("p", { class: "quiet", role: "status" });

  async function refresh() {
    for (let data = null; !data?.is_end && !signal.aborted;) {
      data = await source.toolCalls(run.key, step, signal);
      const part = data.is_end ? (data.note ? "" : `, which are all of step ${step}`) : `, ${percent(data.num_rollouts / Math.max(1, data.num_known))} of those found so far`;
      replace(status, `${plural(data.num_calls, "call")} of ${plural(data.num_rollouts, "rollout")}${part}. `, data.note ?? "");
      replace(body, data.num_calls ? statistics(run, step, data) : h("p", { class: "notice" }, "No tool was called here."));
    }
  }
  refresh().catch((error) => { if (error.name !== "AbortError") replace(status, error.message); });
  context.follow(refresh);
  return [h("div", { class: "toolbar" }, stepper(run, "sandbox", steps, step)), status, body];
}

function statistics(run, step, data) {
  const facts = [
    ["tool errors", `${number(data.num_errors)} of ${plural(data.num_own_calls, "call")}`
      + (data.num_own_calls ? `, ${percent(data.num_errors / data.num_own_calls)}` : "")],
    ["mean", duration(data.all.mean_s)], ["median", duration(data.all.p50_s)], ["90 of 100 within", duration(data.all.p90_s)],
    ["99 of 100 within", duration(data.all.p99_s)], ["slowest", duration(data.all.max_s)],
    ["tried again", number(data.num_retried)], ["rollouts without a call", number(data.num_without)],
  ];
  const slowest = data.slowest.map((call) => h("li", {},
    h("a", { href: link(["run", run.key, "step", step, "trace", call.at]) }, duration(call.wall_s)), " ",
    h("span", { class: "quiet" }, words(call.status))));
  return [
    factList(facts),
    h("section", {}, h("h2", {}, "Latency"), histogram(data)),
    h("section", {}, h("h2", {}, "Outcomes"), outcomes(data)),
    data.tools.length > 1 && h("section", {}, h("h2", {}, "Tools"), tools(data)),
    h("section", {}, h("h2", {}, "Slowest calls"), h("ol", { class: "slowest" }, slowest)),
  ];
}

function outcomes(data) {
  const head = ["outcome", "calls", "share", "median", "99 of 100", "slowest"];
  return table("Outcomes", head, data.statuses.map((row) => [
    words(row.status), number(row.count), percent(row.count / data.num_calls), duration(row.p50_s), duration(row.p99_s),
    duration(row.max_s),
  ]));
}

function tools(data) {
  const head = ["tool", "calls", "failed by the model's doing", "median", "99 of 100", "slowest"];
  return table("Tools", head, data.tools.map((row) => [
    row.name || "unreadable calls", number(row.count), number(row.num_errors), duration(row.p50_s), duration(row.p99_s),
    duration(row.max_s),
  ]));
}

/** Stacked bars over logarithmic bins. */
function histogram(data) {
  const totals = data.bin_edges_s.slice(1).map((_, bin) => FAULTS.reduce((sum, [fault]) => sum + data.bins[fault][bin], 0));
  const used = totals.flatMap((count, bin) => (count ? [bin] : []));
  const [first, last] = [Math.max(0, used[0] - 1), Math.min(totals.length - 1, used[used.length - 1] + 1)];
  const width = WIDTH / (last - first + 1);
  const top = Math.max(...totals);
  const drawn = [];
  for (let bin = first; bin <= last; bin += 1) {
    const x = (bin - first) * width;
    let y = HEIGHT - BOTTOM;
    for (const [fault] of FAULTS) {
      const height = ((HEIGHT - BOTTOM - TOP) * data.bins[fault][bin]) / top;
      y -= height;
      if (height) drawn.push(svg("rect", { class: `fault-${fault}`, x: x + 1, y, width: width - 2, height }));
    }
    const above = { class: "axis", x: x + width / 2, y: y - 3, "text-anchor": "middle" };
    if (totals[bin]) drawn.push(svg("text", above, number(totals[bin])));
    // Every second edge is a round number; the others have room only beside wide bars.
    if (bin > first && (bin % 2 === 0 || width > WIDE_BAR)) {
      const edge = duration(Number(data.bin_edges_s[bin].toPrecision(1)));
      drawn.push(svg("text", { class: "axis", x, y: HEIGHT - 8, "text-anchor": "middle" }, edge));
    }
  }
  const extremes = `median ${duration(data.all.p50_s)}, slowest ${duration(data.all.max_s)}`;
  const label = `Latency of ${plural(data.num_calls, "call")}: ${extremes}`;
  return h("figure", { class: "chart narrow" },
    h("ul", { class: "legend" }, FAULTS.map(([fault, name]) => h("li", {}, h("span", { class: `swatch fault-${fault}` }), name))),
    scrolling("Latency",
      svg("svg", { class: "histogram", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
        svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM }), drawn)));
}
