// A problem is typed and solved while one watches: reasoning, code, results, answer as they come.
import { announce, h, replace } from "./dom.js";
import { plural, words } from "./format.js";
import { LABELS, callElement, resultElement } from "./notebook.js";

export async function playgroundView(context) {
  const { engines, signal } = context;
  const problem = h("textarea", { id: "problem", rows: "4", spellcheck: "false", placeholder: "What is 7^2025 modulo 1000?" });
  const engine = h("select", { id: "engine" }, engines.map((name) => h("option", { value: name }, name)));
  const start = h("button", { type: "submit" }, "Solve");
  const stop = h("button", { type: "button", class: "plain", disabled: true }, "Stop");
  const status = h("p", { class: "quiet", role: "status" });
  const sheet = h("ol", { class: "notebook", "aria-live": "polite", "aria-label": "The solution" });
  let running = null;

  async function solve() {
    running?.abort();
    running = new AbortController();
    const own = running;
    signal.addEventListener("abort", () => own.abort());
    replace(sheet);
    start.disabled = true;
    stop.disabled = false;
    replace(status, "Loading the model, if it is its first problem …");
    const page = new Sheet(sheet, status);
    try {
      await stream({ problem: problem.value, engine: engine.value }, own.signal, (event) => page.take(event));
    } catch (error) {
      replace(status, own.signal.aborted ? "Stopped." : error.message);
    } finally {
      start.disabled = false;
      stop.disabled = true;
    }
  }

  stop.addEventListener("click", () => running?.abort());
  const form = h("form", { class: "ask", on: { submit: (event) => { event.preventDefault(); solve(); } } },
    h("label", { for: "problem" }, "Problem"), problem,
    h("div", { class: "toolbar" }, h("label", { for: "engine" }, "Engine ", engine), start, stop));
  return [form, status, sheet];
}

/** Lines of JSON, each handed on as soon as it is whole. */
async function stream(body, signal, take) {
  const headers = { "Content-Type": "application/json" };
  const response = await fetch("api/playground", { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!response.ok) throw new Error((await response.json()).message);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    for (const line of lines) take(JSON.parse(line));
  }
}

/** The notebook as it grows. */
class Sheet {
  constructor(sheet, status) {
    Object.assign(this, { sheet, status, numTurns: 0, turn: null, cell: null, running: [] });
  }

  take(event) {
    if (event.type === "turn") this.#turn();
    else if (event.type === "text") this.#text(event.kind, event.text);
    else if (event.type === "restart") this.#restart(event.reason);
    else if (event.type === "call") this.#call(event);
    else if (event.type === "result") this.#result(event);
    else if (event.type === "end") this.#end(event);
    else if (event.type === "error") replace(this.status, event.message);
  }

  #turn() {
    this.numTurns += 1;
    this.cell = null;
    this.turn = h("li", { class: "turn" }, h("header", {}, h("h3", {}, `Turn ${this.numTurns}`)));
    this.sheet.append(this.turn);
    replace(this.status, `Writing turn ${this.numTurns} …`);
  }

  #restart(reason) {
    replace(this.turn, h("p", { class: "quiet" }, `The turn starts again: ${reason}`));
    this.cell = null;
  }

  #call(event) {
    this.cell = callElement({ ...event, result: null }, "Running …");
    this.running.push(this.cell);
    this.turn.append(this.cell);
  }

  #result(event) {
    this.running.shift()?.querySelector(".pending")?.replaceWith(resultElement(event));
    this.cell = null;
  }

  #text(kind, text) {
    if (!this.cell || this.kind !== kind) {
      if (!text.trim()) return;
      this.kind = kind;
      this.prose = h("div", { class: "prose" });
      this.cell = h("section", { class: `cell ${kind}` }, h("h4", {}, LABELS[kind] ?? LABELS.plain), this.prose);
      this.turn.append(this.cell);
      this.text = "";
    }
    this.text += text;
    // The whole text again, so that a character that came in two halves is whole in the end.
    replace(this.prose, this.text.replace(/^\n+/, ""));
  }

  #end(event) {
    const answer = event.answer === null ? "No answer" : `Answer: ${event.answer}`;
    replace(this.status, `${answer}. ${words(event.outcome)}, ${plural(event.num_tokens, "token")}. `, event.note);
    announce(answer);
  }
}
