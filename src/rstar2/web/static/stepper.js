// Navigates between steps: arrows, and a list of all steps.
import { h } from "./dom.js";
import { link } from "./router.js";

/** `steps` are numbers in order; `view` is the part of the address before the step. */
export function stepper(run, view, steps, step, params = {}) {
  const at = steps.indexOf(step);
  const go = (target, label, name) => target === undefined
    ? h("span", { class: "arrow off", "aria-hidden": "true" }, label)
    : h("a", { class: "arrow", href: link(["run", run.key, view, target], params), "aria-label": name }, label);
  const choose = (event) => { location.hash = link(["run", run.key, view, event.target.value], params); };
  return h("nav", { class: "stepper", "aria-label": "Steps" },
    go(steps[at - 1], "←", "Step before"),
    h("label", {}, "Step ", h("select", { on: { change: choose } },
      steps.map((item) => h("option", { value: item, selected: item === step }, item)))),
    go(steps[at + 1], "→", "Step after"));
}

/** The step that the address names, or the last one. */
export function chosenStep(parts, steps) {
  const named = Number(parts[3]);
  return parts[3] !== undefined && steps.includes(named) ? named : steps[steps.length - 1];
}
