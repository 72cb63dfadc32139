// One rollout as a notebook, with its tokens below each turn.
import { h, replace } from "./dom.js";
import { duration, number, plural, words } from "./format.js";
import { answerElement, badges, cellElement, factList, forkPlace, goldElement, gradeOf, messageElement, noteElement } from "./notebook.js";
import { link } from "./router.js";
import { source } from "./source.js";
import { measuresOf, tokenStrip } from "./tokens.js";
import { scores } from "./view_group.js";

export async function traceView(context) {
  const { run, parts, signal } = context;
  const step = Number(parts[3]);
  const trace = await source.trace(run.key, step, parts[5], signal);
  const measures = measuresOf(trace);
  const strips = trace.turns.map(() => h("div", {}));
  const draw = (measure) => trace.turns.forEach((turn, index) => replace(strips[index], tokenStrip(trace, turn, measure)));
  draw(measures[0]?.[0] ?? "log_prob");
  const colour = measures.length > 0 && h("label", {}, "Colour tokens by ",
    h("select", { on: { change: (event) => draw(event.target.value) } },
      measures.map(([name, label]) => h("option", { value: name }, label))));
  const above = ["run", run.key, "step", step];
  const group = trace.group === null ? link([...above, "problem", trace.problem_id]) : link([...above, "group", trace.group]);
  return [
    h("p", { class: "crumbs" }, h("a", { href: link(above) }, `Step ${step}`), " / ",
      h("a", { href: group }, trace.problem_id), ` / rollout ${trace.sample_index}`),
    h("section", { class: "trace-head" },
      badges(trace), answerElement(trace), goldElement(trace), noteElement(trace), scores(trace),
      trace.why && h("p", { class: "why" }, trace.why), details(trace)),
    trace.earlier.length > 0 && h("section", { class: "earlier", "aria-label": "Earlier in the prompt" },
      h("h3", {}, "Earlier in the prompt"), trace.earlier.map(([role, text]) => messageElement(role, text))),
    h("blockquote", { class: "question" }, trace.question),
    h("div", { class: "toolbar" }, colour, h("span", { class: "key-masked" }, "hatched: not the model's own, masked")),
    promptBox(trace),
    h("ol", { class: `notebook verdict-${gradeOf(trace)}` }, trace.turns.map((turn, index) => [
      turnElement(turn, index, strips[index]),
      turn.reply && h("li", { class: "reply" }, messageElement("user", turn.reply)),
    ])),
  ];
}

function details(trace) {
  return factList([
    ["environment", trace.environment || null], ["model", trace.model || null], ["weights", trace.weights || null], ["turns", number(trace.turns.length)], ["forked from", trace.parent ? `${trace.parent}, ${forkPlace(trace)}` : null], ["sampled tokens", number(trace.num_tokens)],
    ["tool calls", number(trace.num_calls)], ["failed calls", number(trace.num_errors)], ["id", trace.id], ...trace.metadata,
  ]);
}

function promptBox(trace) {
  return h("details", { class: "prompt" }, h("summary", {}, `Prompt, ${plural(trace.prompt.ids.length, "token")}, masked`),
    h("pre", { tabindex: "0" }, trace.prompt.text));
}

function turnElement(turn, index, strip) {
  const all = [["queued", turn.queue_s], ["generating", turn.generate_s], ["tool", turn.tool_s]];
  const times = all.filter(([, seconds]) => seconds > 0);
  const total = times.reduce((sum, [, seconds]) => sum + seconds, 0);
  const bar = times.map(([name, seconds]) =>
    h("span", { class: `time-${name}`, vars: { "--share": `${(100 * seconds) / total}%` } }));
  return h("li", { class: "turn" },
    h("header", {}, h("h3", {}, `Turn ${index + 1}`),
      turn.stop_reason !== "end_of_turn" && h("span", { class: "badge outcome" }, words(turn.stop_reason)),
      h("span", { class: "quiet" }, times.map(([name, seconds]) => `${name} ${duration(seconds)}`).join(" · "),
        turn.policy_version ? ` · policy ${turn.policy_version}` : ""),
      total > 0 && h("span", { class: "times", "aria-hidden": "true" }, bar)),
    turn.cells.map(cellElement), strip);
}
