// Turns rows of metrics into lines of charts.
import { percent, words } from "./format.js";

/** Metrics that share a chart, in the order of interest. A run's other metrics are drawn after these. */
const PANELS = [
  ["Reward", ["reward_mean", "reward_std"]],
  ["Accuracy", ["accuracy"], percent],
  ["Tool errors in right and wrong traces",
    ["tool_error_share_right", "tool_error_share_wrong", "tool_error_share_kept_right"], percent],
  ["Response length, tokens", ["response_tokens_mean", "response_tokens_right"]],
  ["Entropy, nats", ["entropy", "engine_entropy"]],
  ["Clipped tokens", ["clip_low_share", "clip_high_share"], percent],
  ["Throughput, tokens a second", ["tokens_per_s"]],
  ["Turns, calls and answers of a rollout", ["turns_mean", "calls_per_rollout", "answers_per_rollout"]],
  ["Rollouts without tools, truncated, void", ["no_tool_share", "truncated_share", "void_turn_share"], percent],
  ["Groups kept and dropped", ["groups_kept", "groups_dropped"]],
  ["Seconds a step", ["step_s", "generate_s", "train_s", "sync_s"]],
  ["Phases of a step", ["generate_share", "train_share", "sync_share"], percent],
  ["GPU: busy, and share of its rate in the update", ["gpu_busy_share", "mfu"], percent],
  ["GPU memory, GiB", ["gpu_memory_gib"]],
  ["Tokens trained a second", ["trained_tokens_per_s"]],
  ["Loss", ["loss"]],
  ["Gradient norm", ["grad_norm"]],
  ["Engine against trainer", ["mismatch"]],
  ["Learning rate", ["lr"]],
];

const NUM_FIRST_PANELS = 2; // reward and accuracy, which the panels of parts and environments follow

const PART = "reward/";
/** Metrics that a run of several environments has for each: `NAME/accuracy`. */
const BY_ENVIRONMENT = [
  ["Reward by environment", "reward_mean"],
  ["Accuracy by environment", "accuracy", percent],
  ["Tool errors by environment", "tool_error_share", percent],
  ["Rollouts by environment", "num_rollouts"],
];

/** Metrics whose names have two parts: one panel for the parts of the reward, one for each metric by environment. */
function namedPanels(names) {
  const parts = names.filter((name) => name.startsWith(PART));
  const others = names.filter((name) => !name.startsWith(PART));
  return [
    ["Parts of the reward", parts, undefined, (name) => words(name.slice(PART.length))],
    ...BY_ENVIRONMENT.map(([title, metric, format]) =>
      [title, others.filter((name) => name.endsWith(`/${metric}`)), format, (name) => name.slice(0, -metric.length - 1)]),
  ];
}

const EVALUATION = "eval:";

/** The benchmark of an evaluation: `eval:stage-1/aime24` is a point of aime24, after whichever stage. */
function benchmarkOf(stage) {
  return stage.slice(EVALUATION.length).split("/").pop();
}

/** The metrics of one run: the latest values for each stage and step. */
export class MetricRows {
  constructor() {
    this.rows = new Map();
  }

  add(rows) {
    for (const [step, stage, , values] of rows) {
      const key = `${step} ${stage}`;
      this.rows.set(key, { step, stage, values: new Map([...(this.rows.get(key)?.values ?? []), ...values]) });
    }
  }

  /** The stages of training, in the order in which they came, with their first and last steps. */
  get stages() {
    const found = new Map();
    for (const { step, stage } of this.rows.values()) {
      if (stage.startsWith(EVALUATION)) continue;
      const { first = Infinity, last = -Infinity } = found.get(stage) ?? {};
      found.set(stage, { name: stage, first: Math.min(first, step), last: Math.max(last, step) });
    }
    return [...found.values()];
  }

  /** Stages after which the step count restarts, as after a warm-up: they have separate charts. */
  get preludes() {
    const stages = this.stages;
    const restarts = ({ last }, index) => stages.slice(index + 1).some((later) => later.first <= last);
    return stages.filter(restarts).map(({ name }) => name);
  }

  /** Where each stage of the main part begins. */
  get marks() {
    const preludes = this.preludes;
    return this.stages.filter(({ name }) => !preludes.includes(name)).map(({ name, first }) => ({ label: name, x: first }));
  }

  /** The rows of a prelude, or of the main part and its evaluations. */
  rowsOf(prelude) {
    const preludes = this.preludes;
    return [...this.rows.values()].filter(({ stage }) => (prelude === null ? !preludes.includes(stage) : stage === prelude));
  }
}

/** The lines of one metric: one for training, and one for each evaluation. */
function linesOf(rows, name, measured) {
  const byStage = new Map();
  for (const { step, stage, values } of rows) {
    if (!values.has(name)) continue;
    const key = stage.startsWith(EVALUATION) ? EVALUATION + benchmarkOf(stage) : stage;
    if (!byStage.has(key)) byStage.set(key, []);
    byStage.get(key).push([step, values.get(name)]);
  }
  const found = new Map();
  for (const [key, points] of byStage) {
    const label = key.startsWith(EVALUATION) ? `${measured}, evaluation ${benchmarkOf(key)}` : measured;
    if (!found.has(label)) found.set(label, []);
    found.get(label).push(points.sort((a, b) => a[0] - b[0]));
  }
  // Training first, whichever was measured first.
  const isEvaluation = ([label]) => Number(label !== measured);
  return [...found].sort((a, b) => isEvaluation(a) - isEvaluation(b)).map(([label, lines]) => [label, joined(lines)]);
}

/** Join lines of consecutive stages; stages that count steps from the start again keep their own lines. */
function joined(lines) {
  const whole = [];
  for (const line of lines.sort((a, b) => a[0][0] - b[0][0])) {
    const last = whole[whole.length - 1];
    if (last && last[last.length - 1][0] < line[0][0]) last.push(...line);
    else whole.push([...line]);
  }
  return whole;
}

/** An exponential mean that starts at the first value; 0 leaves a line as it is. */
function smoothed(line, weight) {
  let mean = null;
  return line.map(([x, y]) => {
    if (y === null) return [x, y];
    mean = mean === null ? y : weight * mean + (1 - weight) * y;
    return [x, mean];
  });
}

/** The charts for which any run has values. With several runs, each run has one colour. */
export function panelsOf(runs, weight) {
  const preludes = [...new Set(runs.flatMap(({ rows }) => rows.preludes))];
  return [null, ...preludes].flatMap((prelude) => partPanels(runs, weight, prelude));
}

function partPanels(runs, weight, prelude) {
  const parts = runs.map((run) => ({ ...run, rows: run.rows.rowsOf(prelude) }));
  const names = new Set(parts.flatMap(({ rows }) => rows.flatMap(({ values }) => [...values.keys()])));
  const named = namedPanels([...names].sort());
  const ordered = [...PANELS.slice(0, NUM_FIRST_PANELS), ...named, ...PANELS.slice(NUM_FIRST_PANELS)];
  const known = new Set(ordered.flatMap(([, metrics]) => metrics));
  const rest = [...names].filter((name) => !known.has(name)).sort().map((name) => [words(name), [name]]);
  const panels = [...ordered, ...rest].filter(([, metrics]) => metrics.some((name) => names.has(name)));
  return panels.map(([title, metrics, format, labelOf = words]) => ({
    title: prelude === null ? title : `${prelude}: ${title}`,
    format,
    hasStages: prelude === null,
    series: parts.flatMap((part) => seriesOf(part, metrics, labelOf, weight, runs.length > 1)),
  }));
}

function seriesOf({ name: run, rows, colour }, metrics, labelOf, weight, isOneOfMany) {
  const series = [];
  for (const metric of metrics) {
    for (const [label, lines] of linesOf(rows, metric, labelOf(metric))) {
      const own = { lines: lines.map((line) => smoothed(line, weight)) };
      if (isOneOfMany) series.push({ ...own, label: `${run}: ${label}`, colour, dash: series.length });
      else series.push({ ...own, label, colour: series.length });
    }
  }
  return series;
}

/**
 * A run of a single step, such as an evaluation, has numbers and no curves: a row a metric, a column for each run and
 * for what stands before the `/` in the metric's name. Null if there are steps to draw.
 */
export function numbersOf(runs) {
  const all = runs.flatMap(({ name, rows }) => [...rows.rows.values()].map((row) => ({ ...row, run: name })));
  if (!all.length || new Set(all.map(({ step }) => step)).size > 1) return null;
  const columns = new Map();
  for (const { run, stage, values } of all) {
    for (const [metric, value] of values) {
      const parts = metric.split("/");
      const key = parts.pop();
      const about = stage.startsWith(EVALUATION) ? [benchmarkOf(stage)] : parts;
      const column = [...(runs.length > 1 ? [run] : []), ...about].join(": ");
      if (!columns.has(column)) columns.set(column, new Map());
      columns.get(column).set(key, value);
    }
  }
  const keys = [...new Set([...columns.values()].flatMap((column) => [...column.keys()]))];
  const rows = keys.map((key) => [key, ...[...columns.values()].map((column) => column.get(key))]);
  return { head: ["", ...columns.keys()], rows };
}
