// Solves a typed problem live: shows reasoning, code, results and answer as they come.
import { announce, h, replace } from "./dom.js";
import { plural, words } from "./format.js";
import { LABELS, callElement, messageElement, resultElement } from "./notebook.js";

export async function playgroundView(context) {
  const { models, signal } = context;
  const problem = h("textarea", { id: "problem", rows: "4", spellcheck: "false", placeholder: "What is 7^2025 modulo 1000?" });
  const model = h("select", { id: "model" }, models.map((name) => h("option", { value: name }, name)));
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
      await ask(model.value, problem.value, own.signal, (event) => page.take(event));
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
    h("div", { class: "toolbar" }, h("label", { for: "model" }, "Model ", model), start, stop));
  return [form, status, sheet];
}

/** Call the agent as any client of a chat API does; passes the agent's events in the stream to `take`. */
async function ask(model, content, signal, take) {
  const headers = { "Content-Type": "application/json" };
  const body = JSON.stringify({ model, messages: [{ role: "user", content }], stream: true });
  const response = await fetch("v1/chat/completions", { method: "POST", headers, body, signal });
  if (!response.ok) throw new Error((await response.json()).error.message);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const lines = (rest + part.value).split("\n\n");
    rest = lines.pop();
    for (const line of lines) {
      const data = line.slice("data: ".length);
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      for (const choice of chunk.choices) if (choice.agent_event) take(choice.agent_event);
    }
  }
}

/** A call as a cell of the notebook: a program as code, other arguments by name. */
function callCell({ function: { name, arguments: text }, raw }) {
  const { code, ...others } = JSON.parse(text);
  const isPython = typeof code === "string";
  const shown = isPython || code === undefined ? others : { code, ...others };
  return {
    name, is_python: isPython, text: raw ?? (isPython ? code.replace(/^\n+|\n+$/g, "") : ""), result: null,
    arguments: Object.entries(shown).map(([key, value]) => [key, typeof value === "string" ? value : JSON.stringify(value, null, 2)]),
  };
}

/** The notebook as it grows. */
class Sheet {
  constructor(sheet, status) {
    Object.assign(this, { sheet, status, numTurns: 0, turn: null, cell: null, running: new Map() });
  }

  take(event) {
    if (event.type === "turn") this.#turn();
    else if (event.type === "text") this.#text(event.kind, event.text);
    else if (event.type === "restart") this.#restart(event.reason);
    else if (event.type === "tool_call") this.#call(event);
    else if (event.type === "tool_result") this.#result(event);
    else if (event.type === "user") this.sheet.append(h("li", { class: "reply" }, messageElement("user", event.text)));
    else if (event.type === "end") this.#end(event);
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
    const call = callElement(callCell(event), "Running …");
    this.cell = null;
    this.running.set(event.id, call);
    this.turn.append(call);
  }

  #result(event) {
    this.running.get(event.tool_call_id)?.querySelector(".pending")?.replaceWith(resultElement({ ...event, text: event.content }));
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
    // Draw the whole text again, so that a character that came in two halves ends up whole.
    replace(this.prose, this.text.replace(/^\n+/, ""));
  }

  #end(event) {
    const answer = event.answer === null ? "No answer" : `Answer: ${event.answer}`;
    replace(this.status, `${answer}. ${words(event.outcome)}, ${plural(event.num_tokens, "token")}. `, event.note);
    announce(answer);
  }
}
