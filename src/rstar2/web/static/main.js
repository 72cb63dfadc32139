// The page's frame: chooses run and view, follows a live run, sets light or dark colours.
import { announce, h, replace, setLabel } from "./dom.js";
import { words } from "./format.js";
import { link, place } from "./router.js";
import { source } from "./source.js";
import { visible } from "./text.js";
import { groupView } from "./view_group.js";
import { playgroundView } from "./view_playground.js";
import { runView } from "./view_run.js";
import { sandboxView } from "./view_sandbox.js";
import { schedulerView } from "./view_scheduler.js";
import { stepView } from "./view_step.js";
import { traceView } from "./view_trace.js";

const FOLLOW_MS = 2000;
const TABS = [["", "Run"], ["step", "Rollouts"], ["scheduler", "Scheduler"], ["sandbox", "Sandbox"]];
const THEMES = ["auto", "light", "dark"];
const main = document.getElementById("main");
const header = document.getElementById("top");
let current = null;

function viewOf(parts) {
  if (parts[0] === "playground") return ["Playground", playgroundView];
  if (parts[2] === "step" && parts[4] === "trace") return ["Rollout", traceView];
  if (parts[2] === "step" && (parts[4] === "group" || parts[4] === "problem")) return ["Problem", groupView];
  if (parts[2] === "step") return ["Rollouts", stepView];
  if (parts[2] === "scheduler") return ["Scheduler", schedulerView];
  if (parts[2] === "sandbox") return ["Sandbox", sandboxView];
  return ["Run", runView];
}

async function show() {
  current?.abort();
  const own = new AbortController();
  current = own;
  const { parts, params } = place();
  const [title, view] = viewOf(parts);
  try {
    const { runs, models } = await source.runs(own.signal);
    const run = runs.find((item) => item.key === parts[1]) ?? runs[0];
    drawHeader(runs, run, models, parts);
    main.setAttribute("aria-busy", "true");
    const heading = h("h1", { tabindex: "-1" }, view === runView ? run.name : title,
      view === runView && h("span", { class: `badge run-${run.status}` }, words(run.status)));
    const followers = [];
    const context = { run, runs, models, parts, params, signal: own.signal, follow: (act) => followers.push(act) };
    const content = await view(context);
    if (own.signal.aborted) return;
    replace(main, heading, content);
    document.title = visible(`${title} – ${run.name} – rstar2`);
    if (params.size === 0 && document.activeElement === document.body) heading.focus({ preventScroll: true });
    window.scrollTo(0, 0);
    announce(`${title} shown`);
    if (run.status === "running" && !source.isReport) follow(run, followers, own.signal, heading);
  } catch (error) {
    if (own.signal.aborted) return;
    replace(main, h("h1", { tabindex: "-1" }, "This cannot be shown"),
      h("p", { class: "notice", role: "alert" }, error.message), h("p", {}, h("a", { href: "#/" }, "Back to the run")));
  } finally {
    if (current === own) main.removeAttribute("aria-busy");
  }
}

/** A live run is polled as long as the page is visible. */
async function follow(run, followers, signal, heading) {
  for (let status = run.status; status === "running";) {
    await new Promise((resolve) => setTimeout(resolve, FOLLOW_MS));
    if (signal.aborted) return;
    if (document.hidden) continue;
    try {
      for (const act of followers) await act();
      ({ status } = await source.overview(run.key, signal));
      const badge = heading.querySelector(".badge");
      if (badge) { replace(badge, words(status)); badge.className = `badge run-${status}`; }
    } catch (error) {
      if (signal.aborted) return;
      announce(`The run cannot be followed now: ${error.message}`);
    }
  }
}

function drawHeader(runs, run, models, parts) {
  const isPlayground = parts[0] === "playground";
  const active = isPlayground ? "playground" : (parts[2] ?? "");
  const choose = (event) => { location.hash = link(["run", event.target.value]); };
  const picker = runs.length > 1
    ? h("label", { class: "picker" }, h("span", { class: "unseen" }, "Run "), h("select", { on: { change: choose } },
      runs.map((item) => h("option", { value: item.key, selected: item === run }, item.name))))
    : h("span", { class: "picker quiet" }, run.name);
  const tab = (href, label, isActive) => h("a", { href, "aria-current": isActive ? "page" : null }, label);
  const tabs = TABS.map(([name, label]) => tab(link(["run", run.key, ...(name ? [name] : [])]), label, active === name));
  if (models.length) tabs.push(tab("#/playground", "Playground", isPlayground));
  replace(header, h("a", { class: "brand", href: link(["run", run.key]) }, "rstar2"), picker,
    h("nav", { class: "tabs", "aria-label": "Views" }, tabs), themeButton());
}

function themeButton() {
  const next = () => setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
  const button = h("button", { type: "button", class: "plain theme", on: { click: next } });
  const setTheme = (name) => {
    document.documentElement.dataset.theme = name;
    try { localStorage.setItem("rstar2-theme", name); } catch { /* a browser without storage forgets it */ }
    replace(button, { auto: "◐", light: "☀", dark: "☾" }[name]);
    setLabel(button, `Colours: ${name}; change`);
    button.title = `Colours: ${name}`;
  };
  let kept = "auto";
  try { kept = localStorage.getItem("rstar2-theme") ?? "auto"; } catch { /* as above */ }
  setTheme(THEMES.includes(kept) ? kept : "auto");
  return button;
}

// The link that skips to the content only moves the focus, and leaves the address.
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
window.addEventListener("hashchange", show);
show();
