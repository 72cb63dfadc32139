// The source of the data: the server that reads the run, or the sample in a report file. Both give the same answers.

class Server {
  isReport = false;

  async get(path, params = {}, signal = undefined) {
    const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== null && value !== ""));
    const response = await fetch(`api/${path}${query.size ? "?" + query : ""}`, { signal, cache: "no-store" });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.message ?? response.statusText);
    return answer;
  }

  runs(signal) { return this.get("runs", {}, signal); }
  overview(run, signal) { return this.get(this.#path(run, "overview"), {}, signal); }
  recipe(run, signal) { return this.get(this.#path(run, "recipe"), {}, signal); }
  metrics(run, from, signal) { return this.get(this.#path(run, "metrics"), { from }, signal); }
  events(run, from, signal) { return this.get(this.#path(run, "events"), { from }, signal); }
  steps(run, signal) { return this.get(this.#path(run, "steps"), {}, signal); }
  problems(run, step, after, signal) { return this.get(this.#path(run, `steps/${step}/problems`), { after }, signal); }
  rollouts(run, step, { flags, text }, after, signal) {
    return this.get(this.#path(run, `steps/${step}/rollouts`), { flags: flags.join(","), text, after }, signal);
  }
  sideBySide(run, step, which, signal) { return this.get(this.#path(run, `steps/${step}/side-by-side`), which, signal); }
  trace(run, step, at, signal) { return this.get(this.#path(run, `steps/${step}/traces/${Number(at)}`), {}, signal); }
  toolCalls(run, step, signal) { return this.get(this.#path(run, `steps/${step}/tool-calls`), {}, signal); }
  schedule(run, step, signal) { return this.get(this.#path(run, `steps/${step}/schedule`), {}, signal); }

  #path(run, rest) { return `runs/${encodeURIComponent(run)}/${rest}`; }
}

class Report {
  isReport = true;

  constructor(data) {
    this.data = new Map(data.runs.map((run) => [run.overview.key, run]));
  }

  async runs() { return { runs: [...this.data.values()].map((run) => run.overview), models: [] }; }
  async overview(run) { return this.#run(run).overview; }
  async recipe(run) { return this.#run(run).recipe; }
  async metrics(run, from) { return from > 0 ? { rows: [], next: from, is_end: true } : this.#run(run).metrics; }
  async events(run, from) { return from > 0 ? { rows: [], next: from, is_end: true } : this.#run(run).events; }
  async steps(run) { return { ...this.#run(run).steps, num_steps: this.#run(run).num_steps }; }
  async problems(run, step) { return { ...this.#whole(run, step, "problems"), note: this.#note(run, step) }; }
  async rollouts(run, step, { flags, text }) {
    const needle = text.toLowerCase();
    const texts = new Map(this.#step(run, step).traces.map((trace) => [trace.at, trace]));
    const rows = this.#step(run, step).rollouts.filter((row) =>
      flags.every((flag) => row.flags.includes(flag) || row.selection === flag) &&
      (!needle || JSON.stringify(texts.get(row.at)).toLowerCase().includes(needle)));
    const environments = [...new Set(this.#step(run, step).rollouts.map((row) => row.environment))];
    return { rows, next: rows.length, is_end: true, num_known: rows.length, environments, note: this.#note(run, step) };
  }
  async sideBySide(run, step, { group, problem }) {
    const rollouts = this.#step(run, step).traces.filter((trace) =>
      problem === undefined ? trace.group === Number(group) : trace.problem_id === problem);
    const row = this.#step(run, step).problems.find((item) => item.number === Number(group));
    return {
      problem_id: problem ?? row?.problem_id ?? "", rollouts, is_end: true,
      num_rollouts: row?.num_rollouts ?? rollouts.length, note: this.#note(run, step),
    };
  }
  async trace(run, step, at) {
    const trace = this.#step(run, step).traces.find((item) => item.at === Number(at));
    if (!trace) throw new Error("This rollout is not among those that the report holds; `rstar2 view` shows all.");
    return trace;
  }
  async toolCalls(run, step) {
    return { ...this.#step(run, step).tool_calls, is_end: true, note: this.#note(run, step) };
  }
  async schedule(run, step) {
    const found = this.#run(run).schedule.find(([held]) => held === Number(step));
    if (!found) throw new Error(`This report holds no record of the engines of step ${step}.`);
    return found[1];
  }

  #run(run) {
    if (!this.data.has(run)) throw new Error("This report is about another run.");
    return this.data.get(run);
  }
  #step(run, step) {
    const found = this.#run(run).step.find(([held]) => held === Number(step));
    if (!found) throw new Error(`This report holds no rollouts of step ${step}; \`rstar2 view\` shows all steps.`);
    return found[1];
  }
  #whole(run, step, name) {
    const rows = this.#step(run, step)[name];
    return { rows, next: rows.length, is_end: true, num_known: rows.length };
  }
  #note(run, step) {
    const { is_sampled, num_sampled } = this.#step(run, step);
    return is_sampled ? `A sample: this report holds ${num_sampled} rollouts of this step.` : "";
  }
}

const embedded = document.getElementById("data");
export const source = embedded ? new Report(JSON.parse(embedded.textContent)) : new Server();
