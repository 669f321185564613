// The charts of one or several runs, from what `curves` answers.
import { html, useMemo, useState } from "./vendor/htm-preact.js";
import { Chart } from "./chart.js";

const PANELS = [
  ["Reward", "mean of sampled groups", [["reward", ""], ["trained_reward", "trained", true]]],
  ["Held-out accuracy", "by version", "accuracy"],
  ["Pass rate in training", "share", [["pass_rate", ""]]],
  ["Loss", "", [["loss", ""]]],
  ["KL", "nats", [["kl", "to the reference"], ["approx_kl", "of the update", true]]],
  ["Entropy", "nats", [["entropy", ""], ["entropy_estimate", "estimate", true]]],
  ["Clip fraction", "share of tokens", [["clip_fraction", ""]]],
  ["Gradient", "norm", [["grad_norm", ""]]],
  ["Staleness", "versions", [["staleness_mean", "mean"], ["staleness_max", "largest", true]]],
  ["Waiting of each service", "share of its time", "waiting"],
  ["Seconds of a step", "s", [["wait_s", "waits for data"], ["update_s", "trains", true]]],
  ["Speed", "sampled tokens per second", [["tokens_per_s", ""]]],
  ["Length of sampled sequences", "tokens", [["completion_length_mean", "mean"]]],
  ["Truncated, and groups without spread", "share", [["truncated_fraction", "truncated"], ["equal_groups_fraction", "equal rewards", true]]],
];

const joinedName = (...parts) => parts.filter(Boolean).join(", ");

function linesOf(what, run, several, colour) {
  const prefix = several ? run.name : "";
  const policies = Object.keys(run.policies);
  const shown = (policy) => (policies.length > 1 ? policy : "");
  if (what === "accuracy") {
    return policies.map((policy, index) => {
      const found = run.evaluations.filter((entry) => typeof entry.accuracy[policy] === "number");
      return {
        label: joinedName(prefix, shown(policy)) || policy, colour: several ? colour : index,
        x: found.map((entry) => entry.versions[policy]), y: found.map((entry) => entry.accuracy[policy]),
      };
    }).map(ascending);
  }
  if (what === "waiting") {
    return Object.entries(run.waiting).map(([name, [x, y]], index) => ({ label: joinedName(prefix, name), colour: several ? colour : index, x, y, dash: several && index > 0 })).map(ascending);
  }
  return policies.flatMap((policy, index) => what.flatMap(([figure, label, dash], line) => {
    const found = run.policies[policy][figure];
    return found ? [{ label: joinedName(prefix, shown(policy), label) || policy, colour: several ? colour : policies.length > 1 ? index : line, dash, x: found[0], y: found[1] }] : [];
  }));
}

// uPlot needs ascending and distinct x: of equal ones the last stays.
function ascending(line) {
  const points = new Map(line.x.map((x, index) => [x, line.y[index]]));
  const sorted = [...points.keys()].sort((a, b) => a - b);
  return { ...line, x: sorted, y: sorted.map((x) => points.get(x)) };
}

export function Curves({ runs, theme, zoom, fine = true, onZoom, others = [] }) {
  const several = runs.length > 1;
  const [all, setAll] = useState(false);
  // The same as before as long as the answer is: charts draw anew only what has changed.
  const drawn = useMemo(() => [...PANELS, ...others.map((name) => [name, "", [[name, ""]]])]
    .map(([title, unit, what]) => ({ title, unit, what, lines: runs.flatMap((run, index) => linesOf(what, run, several, index)) })), [others.join("|"), ...runs]);
  const some = useMemo(() => drawn.filter((panel) => all || panel.lines.some((line) => line.x.length)), [drawn, all]);
  const charts = useMemo(() => some.map((panel) => html`<${Chart} key=${panel.title} title=${panel.title} unit=${panel.unit} lines=${panel.lines} theme=${theme}
      fine=${fine} zoom=${panel.what === "accuracy" ? null : zoom} onZoom=${panel.what === "accuracy" ? null : onZoom} />`), [some, theme, fine, zoom, onZoom]);
  return html`<div class="curves-head">
      ${zoom ? html`<button type="button" onClick=${() => onZoom(null)}>show all steps</button>` : html`<span class="quiet">drag over a chart to zoom in; double-click shows all</span>`}
      <label><input type="checkbox" checked=${all} onChange=${(event) => setAll(event.target.checked)} /> empty charts too</label>
    </div>
    <div class="charts">${charts}</div>
    ${some.length ? null : html`<p class="empty">No step was made yet.</p>`}`;
}
