// Shows single tokens, coloured by entropy, log-probability or advantage. Tokens not trained on are hatched.
import { h, replace, svg } from "./dom.js";
import { number, plural, words } from "./format.js";

const NUM_BUCKETS = 240;
const NUM_AT_ONCE = 1500;
const MAX_TINT = 75; // percent: text stays readable on the strongest colour, in light and in dark

export const MEASURES = [["entropy", "entropy"], ["log_prob", "log-probability"], ["advantage", "advantage"]];

/** Which measures a trace has. */
export function measuresOf(trace) {
  const has = {
    entropy: trace.turns.some((turn) => turn.tokens.entropies.length),
    log_prob: trace.turns.some((turn) => turn.tokens.log_probs.length),
    advantage: trace.advantage !== undefined && trace.advantage !== null,
  };
  return MEASURES.filter(([name]) => has[name]);
}

/** The advantage of each token of a turn: in a tree null where another rollout that shares the token is trained on it. */
function advantagesOf(turn, trace) {
  if (!trace.token_advantages) return turn.tokens.ids.map(() => trace.advantage ?? null);
  const all = trace.token_advantages.flatMap(([length, value]) => Array(length).fill(value));
  const before = trace.turns.slice(0, trace.turns.indexOf(turn)).reduce((sum, earlier) => sum + earlier.tokens.ids.length, 0);
  return all.slice(before, before + turn.tokens.ids.length);
}

function valuesOf(turn, trace, measure) {
  if (measure === "entropy") return turn.tokens.entropies;
  if (measure === "log_prob") return turn.tokens.log_probs;
  return advantagesOf(turn, trace);
}

/** Maps a value to a share of full colour, which the 98th percentile of the trace's tokens gets. */
function scaleOf(trace, measure) {
  if (measure === "advantage") return (value) => Math.min(1, Math.abs(value) / 2);
  const sizes = trace.turns.flatMap((turn) => valuesOf(turn, trace, measure)).map(Math.abs).sort((a, b) => a - b);
  const top = sizes[Math.floor(sizes.length * 0.98)] || 1;
  return (value) => Math.min(1, Math.abs(value) / top);
}

/** The tokens of one turn: a ribbon of all of them, which opens to show each. */
export function tokenStrip(trace, turn, measure) {
  const values = valuesOf(turn, trace, measure);
  const scale = scaleOf(trace, measure);
  const sign = measure === "advantage" ? ((values.findLast((value) => value !== null) ?? 0) < 0 ? "negative" : "positive") : "heat";
  const details = h("details", { class: `tokens ${sign}` },
    h("summary", {}, h("span", {}, `${plural(turn.num_tokens, "token")} sampled`,
      turn.appended.ids.length ? `, ${number(turn.appended.ids.length)} appended` : ""), ribbon(turn, values, scale)));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(tokenList(trace, turn, values, scale, measure));
  });
  return details;
}

function ribbon(turn, values, scale) {
  const total = turn.tokens.ids.length + turn.appended.ids.length;
  if (!total) return null;
  const size = Math.max(1, Math.ceil(turn.tokens.ids.length / NUM_BUCKETS));
  const bars = [];
  for (let start = 0; start < turn.tokens.ids.length; start += size) {
    const bucket = values.slice(start, start + size).filter((value) => value !== null);
    if (!bucket.length) continue;
    const mean = bucket.reduce((sum, value) => sum + scale(value), 0) / bucket.length;
    const width = Math.min(size, turn.tokens.ids.length - start);
    bars.push(svg("rect", { class: "heat-bar", x: start, y: 0, width, height: 10, "fill-opacity": mean.toFixed(2) }));
  }
  return svg("svg", { class: "ribbon", viewBox: `0 0 ${total} 10`, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: "ribbon-own", x: 0, y: 0, width: turn.tokens.ids.length, height: 10 }), bars,
    svg("rect", { class: "ribbon-masked", x: turn.tokens.ids.length, y: 0, width: turn.appended.ids.length, height: 10 }));
}

function tokenList(trace, turn, values, scale, measure) {
  const own = turn.tokens.ids.map((id, index) => ({
    id, text: turn.tokens.texts?.[index], value: values[index] ?? null, isOwn: true,
    entropy: turn.tokens.entropies[index], logProb: turn.tokens.log_probs[index],
  }));
  const appended = turn.appended.ids.map((id, index) =>
    ({ id, text: turn.appended.texts?.[index], value: null, isOwn: false }));
  const all = [...own, ...appended];
  const advantages = advantagesOf(turn, trace);
  const readout = h("p", { class: "readout", role: "status" }, "Point at a token, or move with the arrow keys.");
  const label = `Tokens coloured by ${words(measure)}; arrow keys read them`;
  const box = h("div", { class: "token-box", tabindex: "0", role: "application", "aria-label": label });
  const more = h("button", { type: "button", class: "plain", on: { click: () => grow() } });
  let shown = 0;
  let current = -1;

  function grow() {
    const next = all.slice(shown, shown + NUM_AT_ONCE);
    box.append(...next.map((token, offset) => tokenElement(token, shown + offset, scale)));
    shown += next.length;
    more.hidden = shown >= all.length;
    replace(more, `Show ${number(Math.min(NUM_AT_ONCE, all.length - shown))} more of ${number(all.length)} tokens`);
  }

  function read(index) {
    if (index < 0 || index >= shown) return;
    box.children[current]?.classList.remove("current");
    current = index;
    box.children[current].classList.add("current");
    const token = all[index];
    replace(readout,
      h("b", {}, `${index + 1}`), token.text === undefined ? "" : h("code", {}, JSON.stringify(token.text)), ` id ${token.id}`,
      token.isOwn ? [
        token.entropy === undefined ? "" : ` · entropy ${number(token.entropy)}`,
        token.logProb === undefined ? "" : ` · log-probability ${number(token.logProb)}`,
        advantages[index] === null ? " · not trained on" : ` · advantage ${number(advantages[index])}`,
      ] : " · appended by the environment: masked, never trained on");
  }

  box.addEventListener("pointerover", (event) => {
    const index = event.target.closest?.("[data-index]")?.dataset.index;
    if (index !== undefined) read(Number(index));
  });
  box.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 20, ArrowUp: -20, Home: -Infinity, End: Infinity };
    if (!(event.key in moves)) return;
    event.preventDefault();
    read(Math.max(0, Math.min(shown - 1, current + moves[event.key])));
    box.children[current]?.scrollIntoView({ block: "nearest" });
  });
  grow();
  return h("div", { class: "token-list" }, readout, box, more);
}

function tokenElement(token, index, scale) {
  const strength = token.value === null ? 0 : scale(token.value);
  const kind = `token${token.isOwn ? "" : " masked"}${token.text === undefined ? " bare" : ""}`;
  return h("span", { class: kind, "data-index": index,
    vars: { "--t": `${Math.round(strength * MAX_TINT)}%` } }, token.text ?? "");
}
