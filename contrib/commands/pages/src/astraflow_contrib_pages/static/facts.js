// Weights, data, configuration and plugins of a run.
import { html, useMemo, useState } from "./vendor/htm-preact.js";
import { Chart } from "./chart.js";
import { query, useAnswer, useJournal, usePeriod } from "./api.js";
import { bytes, number, percent, seconds, shown } from "./format.js";
import { Difficulty } from "./rewards.js";
import { Empty, Loading, Problem, Reading, State, Table } from "./parts.js";

const path = (name, view) => `runs/${encodeURIComponent(name)}/${view}`;

function Answered({ path: asked, every = 0, children }) {
  const { value, error } = useJournal(asked, usePeriod(every));
  if (!value) return error ? html`<${Problem} error=${error} />` : html`<${Loading} />`;
  return html`<${Problem} error=${error} /><${Reading} share=${value.share} />${children(value)}`;
}

// Charts of the size of each version and of what leads to it, a line for each policy.
function Sizes({ versions, deltaOf, theme }) {
  const sorted = [...new Set(versions.map((row) => row.policy))].map((policy) => [policy, versions.filter((row) => row.policy === policy)]);
  const lines = (label, of, colour, dash) => sorted.map(([policy, rows], index) => {
    const points = rows.map((row) => [row.version, of(row)]).filter(([, y]) => typeof y === "number");
    return { label: sorted.length > 1 ? `${policy}, ${label}` : label, colour: 2 * index + colour, dash, x: points.map(([x]) => x), y: points.map(([, y]) => y) };
  });
  const megabytes = (value) => (typeof value === "number" ? value / 1e6 : undefined);
  return html`<div class="charts"><${Chart} title="Size by version" unit="MB" theme=${theme} zoom=${null} fine=${true} lines=${[...lines("whole", (row) => megabytes(row.bytes), 0), ...lines("delta", (row) => megabytes(deltaOf(row).delta_bytes), 1, true)]} />
    <${Chart} title="Density of deltas" unit="share of the elements that change" theme=${theme} zoom=${null} fine=${true} lines=${lines("density", (row) => deltaOf(row).delta_density, 0)} /></div>`;
}

const newestOf = (versions) => Object.fromEntries(versions.map((row) => [row.policy, row.version]));

function Servers({ serving, newest }) {
  const rows = serving.filter((raas) => raas.state !== "left" && raas.state !== "gone").flatMap((raas) => Object.entries(raas.serving).map(([policy, version]) => ({ raas, policy, version })));
  const figure = (row, name) => row.raas.metrics[`${row.policy}/${name}`];
  return rows.length ? html`<h2>Who serves what</h2><${Table} label="who serves what" rows=${rows} rowKey=${(row) => `${row.raas.name}/${row.policy}`} columns=${[
    ["RaaS", (row) => row.raas.name], ["state", (row) => row.raas.state], ["policy", (row) => row.policy], ["version", (row) => number(row.version), true],
    ["behind", (row) => (row.policy in newest ? number(Math.max(0, newest[row.policy] - row.version)) : "–"), true], ["received", (row) => (figure(row, "bytes_received") === undefined ? "–" : bytes(figure(row, "bytes_received"))), true],
    ["swaps", (row) => number(figure(row, "swaps")), true], ["failures", (row) => number(figure(row, "failures")), true]]} />` : null;
}

export const Weights = ({ name, theme }) => html`<h1>Weights</h1><${Answered} path=${path(name, "weights")} every=${5}>${(value) => {
  const newest = [...value.versions].reverse();
  const servers = (version) => value.serving.filter((raas) => raas.serving[version.policy] === version.version && raas.state === "alive").map((raas) => raas.name);
  const deltaOf = (row) => value.deltas[row.policy]?.[row.version] ?? {};
  const some = value.versions.some((row) => deltaOf(row).delta_bytes !== undefined);
  return html`${newest.length ? null : html`<${Empty}>No version was announced yet.<//>`}
    ${some ? html`<${Sizes} versions=${value.versions} deltaOf=${deltaOf} theme=${theme} />` : null}
    <${Servers} serving=${value.serving} newest=${newestOf(value.versions)} />
    <h2>Versions</h2>
    ${newest.length < value.count ? html`<p class="quiet">the newest ${newest.length} of ${number(value.count)}</p>` : null}
    <${Table} label="versions" rows=${newest} rowKey=${(row) => `${row.policy}/${row.version}`} columns=${[
      ["policy", (row) => row.policy], ["version", (row) => number(row.version), true], ["announced after", (row) => seconds(row.at_s), true],
      ["size", (row) => bytes(row.bytes), true],
      ...(some ? [["delta", (row) => (deltaOf(row).delta_bytes === undefined ? "–" : `${bytes(deltaOf(row).delta_bytes)}, ${percent(deltaOf(row).delta_bytes / row.bytes)}`), true], ["density", (row) => percent(deltaOf(row).delta_density), true]] : []),
      ["transport", (row) => row.transport],
      ["served by", (row) => servers(row).join(", ") || "–"], ["digest", (row) => html`<code class="digest">${row.digest}</code>`]]} />`;
}}<//>`;

const STAGES = [
  ["prompts offered", (c) => (c["prompts admitted"] ?? 0) + (c["prompts refused"] ?? 0)],
  ["prompts admitted", (c) => c["prompts admitted"] ?? 0],
  ["groups pushed", (c) => c["groups pushed"] ?? 0],
  ["groups accepted", (c) => c["groups accepted"] ?? 0],
];
const ROWS = [
  ["rows accepted", (c) => c["rows accepted"] ?? 0],
  ["rows in batches", (c) => c["rows served"] ?? 0],
  ["rows too stale", (c) => c["rows too stale"] ?? 0],
  ["rows evicted", (c) => c["rows evicted"] ?? 0],
];

function Funnel({ title, stages, counts }) {
  const values = stages.map(([label, of]) => [label, of(counts)]);
  const most = Math.max(1, ...values.map(([, value]) => value));
  return html`<section aria-label=${title}><h2>${title}</h2><dl class="funnel">${values.map(([label, value]) => html`<div>
    <dt>${label}</dt><dd><meter min="0" max=${most} value=${value} aria-label=${label}></meter><b>${number(value)}</b></dd></div>`)}</dl></section>`;
}

export const Data = ({ name }) => html`<h1>Data</h1><${Answered} path=${path(name, "data")} every=${5}>${(value) => html`
  <div class="columns"><${Funnel} title="From prompt to group" stages=${STAGES} counts=${value.counts} />
  <${Funnel} title="From row to batch" stages=${ROWS} counts=${value.counts} /></div>
  <p class="quiet">${number(value.counts.leases ?? 0)} leases, of which ${number(value.counts["attempts failed"] ?? 0)} ended without a result; ${number(value.counts["groups of evaluations"] ?? 0)} groups of evaluations</p>
  <${Difficulty} rewards=${value.rewards} />
  <h2>Rejections</h2>
  ${value.refusals.length ? html`<${Table} label="refusals of data policies" rows=${value.refusals} columns=${[
    ["stage", (row) => row.stage], ["place", (row) => row.place], ["by", (row) => row.by], ["reason", (row) => row.reason], ["how many", (row) => number(row.count), true]]} />`
  : html`<${Empty}>Nothing was refused.<//>`}
  <h2>Newest groups</h2>
  <p class="names">${value.groups.slice(0, 60).map((group) => html`<a class="chip" href=${`#/run/${encodeURIComponent(name)}/explain?group=${encodeURIComponent(group)}`}>${group}</a>`)}</p>`}<//>`;

function Keys({ values }) {
  const [text, setText] = useState("");
  const [all, setAll] = useState(true);
  const rows = useMemo(() => values.filter((row) => (all || !row.origin.startsWith("default"))
    && `${row.key} ${shown(row.value)} ${row.origin} ${row.meaning}`.toLowerCase().includes(text.toLowerCase())), [values, text, all]);
  return html`<div class="bar"><label class="grow"><span class="unseen">filter keys</span><input type="search" placeholder="filter by key, value or meaning" value=${text} onInput=${(event) => setText(event.target.value)} /></label>
    <label><input type="checkbox" checked=${!all} onChange=${(event) => setAll(!event.target.checked)} /> only what is not the default</label></div>
    <${Table} label="configuration" rows=${rows} rowKey=${(row) => row.key} columns=${[
      ["key", (row) => html`<code>${row.key}</code>`], ["value", (row) => html`<code>${shown(row.value)}</code>`],
      ["from", (row) => html`<span class=${row.origin.startsWith("default") ? "quiet" : "strong"}>${row.origin}</span>`],
      ["meaning", (row) => html`${row.meaning}${row.type ? html` <span class="quiet">(${row.type})</span>` : null}`]]} />`;
}

export const Config = ({ name }) => html`<h1>Configuration</h1><${Answered} path=${path(name, "config")}>${(value) => (value.values.length ? html`<${Keys} values=${value.values} />` : html`<${Empty}>The run has no config.toml.<//>`)}<//>`;

const FACTS = { plugin: "plugin", distribution: "distribution", version: "version", summary: "what it is", target: "is", runtime: "its libraries", plugin_api: "plugin API", file: "file", keys: "keys" };
const listed = (fact) => (Array.isArray(fact) ? fact.map((line) => html`<div>${line}</div>`) : String(fact));

// What `astraflow plugins why` says of a name.
function Why({ name }) {
  const { value, error } = useAnswer(`why?${query({ name })}`);
  if (!value) return error ? html`<${Problem} error=${error} />` : html`<${Loading} />`;
  return value.reports.map((report) => html`<section class="why" aria-label=${report.subject}><h3>${report.subject} <${State} state=${report.state} /></h3>
    <p>${report.verdict}</p>${report.fix ? html`<p class="strong">${report.fix}</p>` : null}${report.traceback.length ? html`<pre>${report.traceback.join("\n")}</pre>` : null}
    <details><summary>more</summary><dl class="facts long">${Object.keys(FACTS).filter((key) => report[key]?.length).map((key) => html`<div><dt>${FACTS[key]}</dt><dd>${listed(report[key])}</dd></div>`)}</dl></details></section>`);
}

const chips = (names, onAsk) => html`<span class="chips">${names.map((name) => html`<button type="button" class="chip" onClick=${() => onAsk(name)}>${name}</button>`)}</span>`;

// All plugins where the pages are served, asked for when somebody opens it.
function Installed({ onAsk }) {
  const [open, setOpen] = useState(false);
  const { value, error } = useAnswer(open ? "installed" : null);
  return html`<details onToggle=${(event) => setOpen(event.target.open)}><summary>What is installed where these pages are served</summary>
    <${Problem} error=${error} />${open && !value && !error ? html`<${Loading} />` : null}
    ${value ? html`<${Table} label="installed plugins" rows=${value.plugins} rowKey=${(row) => row.name} columns=${[
    ["plugin", (row) => html`<button type="button" class="chip" onClick=${() => onAsk(row.name)}>${row.name}</button>`], ["distribution", (row) => row.distribution], ["version", (row) => row.version],
    ["state", (row) => html`<${State} state=${row.state} />${row.problem ? html` <span class="error-text">${row.problem}</span>` : null}`], ["components", (row) => chips(row.components, onAsk)]]} />` : null}</details>`;
}

export function Plugins({ name }) {
  const [asked, ask] = useState("");
  const [text, setText] = useState("");
  return html`<h1>Plugins</h1><${Answered} path=${path(name, "plugins")}>${(value) => (value.plugins.length
    ? html`<${Table} label="plugins of the run" rows=${value.plugins} columns=${[
      ["plugin", (row) => (row.plugin ? html`<button type="button" class="chip" onClick=${() => ask(row.plugin)}>${row.plugin}</button>` : "")], ["distribution", (row) => row.distribution || "a module of the run"], ["version", (row) => row.version],
      ["provides", (row) => html`<span class="chips">${Object.entries(row.components).map(([place, component]) => html`<span class="chip"><code>${place}</code> ${component}</span>`)}</span>`]]} />`
    : html`<${Empty}>The run has no plugins.json, which its launcher writes.<//>`)}<//>
    <h2>Why</h2>
    <form class="form" onSubmit=${(event) => { event.preventDefault(); ask(text.trim()); }}><label class="grow">why a plugin or a component can be chosen, or cannot <input required value=${text} placeholder="grpo or transport/delta" onInput=${(event) => setText(event.target.value)} /></label><button type="submit">explain</button></form>
    ${asked ? html`<${Why} key=${asked} name=${asked} />` : null}
    <${Installed} onAsk=${ask} />`;
}
