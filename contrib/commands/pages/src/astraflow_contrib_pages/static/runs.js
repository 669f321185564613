// All runs of the folder, and the comparison of some.
import { html, useMemo, useState } from "./vendor/htm-preact.js";
import { query, useAnswer, usePeriod } from "./api.js";
import { Curves } from "./curves.js";
import { count, number, percent, seconds, shown, when } from "./format.js";
import { Empty, Loading, Problem, State, VirtualList } from "./parts.js";

const MOST = 8;
const ROW = 44;
const COLUMNS = [
  ["name", "run", (run) => run.name],
  ["state", "state", (run) => run.state],
  ["started", "started", (run) => run.started],
  ["steps", "steps", (run) => run.steps],
  ["reward", "reward", (run) => run.reward],
  ["accuracy", "held-out", (run) => run.accuracy],
  ["tokens", "tokens", (run) => run.tokens],
  ["wall_s", "time", (run) => run.wall_s],
];

function sorted(runs, { column, down }) {
  const value = COLUMNS.find(([name]) => name === column)[2];
  const key = (run) => value(run) ?? (down ? -Infinity : Infinity);
  return [...runs].sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (down ? -1 : 1));
}

const Differs = ({ differs }) => {
  const entries = Object.entries(differs);
  return html`<span class="chips" title=${entries.map(([key, value]) => `${key} = ${shown(value)}`).join("\n")}>
    ${entries.slice(0, 4).map(([key, value]) => html`<span class="chip">${key.split(".").slice(-2).join(".")} = ${shown(value)}</span>`)}
    ${entries.length > 4 ? html`<span class="quiet">+${entries.length - 4}</span>` : null}</span>`;
};

function Row({ run, chosen, full, onChoose }) {
  return html`<div class="run-row" role="row">
    <span role="cell"><input type="checkbox" aria-label=${`compare ${run.name}`} checked=${chosen} disabled=${!chosen && full} onChange=${onChoose} /></span>
    <span role="cell" class="run-name"><a href=${`#/run/${encodeURIComponent(run.name)}`}>${run.name}</a></span>
    <span role="cell"><${State} state=${run.state} /></span>
    <span role="cell" class="c-started">${when(run.started)}</span>
    <span role="cell" class="right">${number(run.steps)}${run.steps_planned ? html`<span class="quiet"> / ${number(run.steps_planned)}</span>` : null}</span>
    <span role="cell" class="right c-reward">${number(run.reward, 3)}</span>
    <span role="cell" class="right c-accuracy">${run.accuracy === null ? "–" : percent(run.accuracy)}</span>
    <span role="cell" class="right c-tokens">${count(run.tokens)}</span>
    <span role="cell" class="right c-time">${seconds(run.wall_s)}</span>
    <span role="cell" class="c-differs">${run.error ? html`<span class="error-text" title=${run.error}>${run.error}</span>` : html`<${Differs} differs=${run.differs} />`}</span>
  </div>`;
}

export function Runs() {
  const tick = usePeriod(5);
  const { value, error } = useAnswer("runs", tick);
  const [order, setOrder] = useState({ column: "started", down: true });
  const [text, setText] = useState("");
  const [chosen, setChosen] = useState([]);
  const rows = useMemo(() => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const has = (run) => {
      const all = `${run.name} ${run.state} ${run.error} ${Object.entries(run.differs).map(([k, v]) => `${k}=${shown(v)}`).join(" ")}`.toLowerCase();
      return words.every((word) => all.includes(word));
    };
    return sorted((value?.runs ?? []).filter(has), order);
  }, [value, order, text]);
  if (!value) return error ? html`<${Problem} error=${error} />` : html`<${Loading} />`;
  const choose = (name) => setChosen(chosen.includes(name) ? chosen.filter((n) => n !== name) : [...chosen, name].slice(0, MOST));
  const header = html`<div class="run-row head" role="row">
    <span role="columnheader"><span class="unseen">compare</span></span>
    ${COLUMNS.map(([column, title]) => html`<span role="columnheader" class=${`c-${column === "wall_s" ? "time" : column} ${["steps", "reward", "accuracy", "tokens", "wall_s"].includes(column) ? "right" : ""}`}
      aria-sort=${order.column === column ? (order.down ? "descending" : "ascending") : "none"}>
      <button type="button" class="sort" onClick=${() => setOrder({ column, down: order.column === column ? !order.down : true })}>${title}${order.column === column ? (order.down ? " ↓" : " ↑") : ""}</button></span>`)}
    <span role="columnheader" class="c-differs">configuration</span></div>`;
  return html`<h1>Runs</h1>
    <${Problem} error=${error} />
    <div class="bar">
      <label class="grow"><span class="unseen">filter runs</span><input type="search" placeholder="filter by name, state or key=value" value=${text} onInput=${(event) => setText(event.target.value)} /></label>
      <span class="quiet" role="status">${rows.length === value.runs.length ? `${rows.length} ${rows.length === 1 ? "run" : "runs"}` : `${rows.length} of ${value.runs.length} runs`} in ${value.root}</span>
      <a class=${`button ${chosen.length < 2 ? "off" : ""}`} aria-disabled=${chosen.length < 2} href=${chosen.length < 2 ? undefined : `#/compare?${query({ run: chosen })}`}>compare ${chosen.length || ""}</a>
    </div>
    ${value.runs.length ? html`<${VirtualList} label="runs" length=${rows.length} height=${ROW} header=${header}
      row=${(index) => html`<${Row} key=${rows[index].name} run=${rows[index]} chosen=${chosen.includes(rows[index].name)} full=${chosen.length >= MOST} onChoose=${() => choose(rows[index].name)} />`} />`
    : html`<${Empty}>No run is in ${value.root} yet. <code>astraflow run FILE</code> begins one; it appears here by itself.<//>`}`;
}

export function Compare({ names, theme }) {
  const [zoom, setZoom] = useState(null);
  const range = zoom ? { first: Math.floor(zoom[0]), last: Math.ceil(zoom[1]) } : {};
  const { value, error } = useAnswer(`compare?${query({ run: names, buckets: 400, ...range })}`, usePeriod(5));
  if (!value) return error ? html`<${Problem} error=${error} />` : html`<${Loading} />`;
  return html`<h1>Compare ${value.runs.length} runs</h1>
    <${Problem} error=${error} />
    <section aria-label="configuration differences" class="scroll differences" tabindex="0"><table>
      <caption>What their configurations have otherwise</caption>
      <thead><tr><th scope="col">key</th>${value.runs.map((run, index) => html`<th scope="col"><span class=${`swatch s${index + 1}`}></span><a href=${`#/run/${encodeURIComponent(run.name)}`}>${run.name}</a> <${State} state=${run.state} /></th>`)}</tr></thead>
      <tbody>
        ${[["steps", (run) => number(run.steps)], ["reward", (run) => number(run.reward)], ["held-out accuracy", (run) => percent(run.accuracy)]].map(([label, cell]) => html`<tr><th scope="row">${label}</th>${value.runs.map((run) => html`<td>${cell(run)}</td>`)}</tr>`)}
        ${value.differs.map(({ key, values }) => html`<tr key=${key}><th scope="row"><code>${key}</code></th>${values.map((one) => html`<td><code>${one === null ? "–" : shown(one)}</code></td>`)}</tr>`)}
        ${value.differs.length ? null : html`<tr><td colspan=${value.runs.length + 1} class="quiet">They have the same configuration.</td></tr>`}
      </tbody></table></section>
    <${Curves} runs=${value.runs} theme=${theme} zoom=${zoom} onZoom=${setZoom} />`;
}
