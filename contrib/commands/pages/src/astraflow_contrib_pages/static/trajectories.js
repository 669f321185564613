// What was rolled out: a list with filters, and one group with its turns and tokens.
import { html, useEffect, useMemo, useState } from "./vendor/htm-preact.js";
import { query, useAnswer, usePeriod } from "./api.js";
import { number, shown, when } from "./format.js";
import { Empty, Loading, Problem, State, VirtualList } from "./parts.js";
import { Tokens } from "./tokens.js";
import { Views } from "./views.js";

const ROW = 40;
const EXAMPLES = ["reward>0", "reward<=0", "outcome=rejected", "outcome=failed", "outcome=truncated", "turns>1", "step>=10"];
const link = (run, entry, more = {}) => `#/run/${encodeURIComponent(run)}/trajectories?${query({ group: entry.group, index: Math.max(0, entry.index), ...more })}`;
const versions = ([low, high]) => (low < 0 ? "–" : low === high ? low : `${low}–${high}`);
const OUTCOME = { trained: "finished", waiting: "running", rejected: "stopped", failed: "failed" };

const Outcome = ({ entry }) => html`<span class=${`state state-${OUTCOME[entry.outcome]}`}>${entry.outcome}</span>${entry.truncated ? html` <span class="chip">truncated</span>` : null}`;

function Row({ run, entry }) {
  const name = `${entry.group}${entry.index >= 0 ? ` #${entry.index}` : ""}`;
  return html`<div class="roll-row" role="row">
    <span role="cell">${entry.index >= 0 ? html`<a href=${link(run, entry)}>${name}</a>` : name}</span>
    <span role="cell"><${Outcome} entry=${entry} /></span>
    <span role="cell" class="right">${number(entry.reward, 3)}</span>
    <span role="cell" class="right">${entry.step ?? "–"}</span>
    <span role="cell" class="right c-narrow">${number(entry.sampled)}</span>
    <span role="cell" class="right c-narrow">${entry.turns}</span>
    <span role="cell" class="right c-narrow">${versions(entry.versions)}</span>
    <span role="cell" class="c-narrow">${entry.policies.join(", ") || "–"}</span>
    <span role="cell" class="c-wide">${entry.reason ? html`<span class="error-text" title=${entry.reason}>${entry.reason}</span>` : html`${entry.tools.map((tool) => html`<span class="chip">${tool}</span> `)}<span class="quiet">${entry.prompt}</span>`}</span>
  </div>`;
}

function counted({ entries, more, stored, unread, dropped, damaged }) {
  const parts = [`${number(entries.length)}${more ? " newest" : ""} of ${number(stored)} that are stored`];
  if (unread) parts.push(`reading the texts of ${number(unread)} more…`);
  if (dropped) parts.push(`${number(dropped)} records were dropped`);
  if (damaged) parts.push(`${number(damaged)} cannot be searched: their records are damaged`);
  return parts.join("; ");
}

function List({ name, asked }) {
  const given = asked.get("filter") ?? "";
  const [text, setText] = useState(given);
  useEffect(() => setText(given), [given]);
  const path = `runs/${encodeURIComponent(name)}/trajectories?${query({ filter: given })}`;
  const [answers, setAnswers] = useState(0);
  const { value, error, of } = useAnswer(path, usePeriod(5) + answers);
  // A server reads texts for a second, then answers what it has found so far.
  useEffect(() => { if (value?.unread && of === path) setAnswers((n) => n + 1); }, [value]);
  const go = (filter) => { location.hash = `#/run/${encodeURIComponent(name)}/trajectories?${query({ filter })}`; };
  const titles = [["trajectory"], ["outcome"], ["reward", "right"], ["step", "right"], ["sampled", "right c-narrow"], ["turns", "right c-narrow"], ["versions", "right c-narrow"], ["policy", "c-narrow"], ["prompt, tools or reason", "c-wide"]];
  const header = html`<div class="roll-row head" role="row">${titles.map(([title, kind]) => html`<span role="columnheader" class=${kind ?? ""}>${title}</span>`)}</div>`;
  return html`<h1>Trajectories</h1>
    <form class="bar" onSubmit=${(event) => { event.preventDefault(); go(text.trim()); }}>
      <label class="grow"><span class="unseen">filter</span><input type="search" value=${text} placeholder='reward<0.5 step>=10 tool~search text~"I give up"' onInput=${(event) => setText(event.target.value)} /></label>
      <button type="submit">filter</button></form>
    <p class="names" aria-label="examples of filters">${EXAMPLES.map((one) => html`<button type="button" class="chip" onClick=${() => go([given, one].filter(Boolean).join(" "))}>${one}</button>`)}
      ${given ? html`<button type="button" class="chip" onClick=${() => go("")}>clear</button>` : null}</p>
    <${Problem} error=${error} />
    ${value ? html`<p class="quiet" role="status">${counted(value)}</p>
      ${value.unread ? html`<progress aria-label="texts that were read" value=${value.stored - value.unread} max=${value.stored}></progress>` : null}
      ${value.entries.length ? html`<${VirtualList} label="trajectories" length=${value.entries.length} height=${ROW} header=${header} row=${(index) => html`<${Row} key=${index} run=${name} entry=${value.entries[index]} />`} />`
      : value.unread ? null : html`<${Empty}>${value.said ?? "No stored trajectory fits."}<//>`}` : error ? null : html`<${Loading} />`}`;
}

const Turn = ({ turn }) => html`<li class=${`turn turn-${turn.role}`}><span class="role">${turn.role}${turn.role === "assistant" ? html` <span class="quiet">${turn.policy}</span>` : null}</span>
  <pre>${turn.text}${turn.cut ? "\n… (cut)" : ""}</pre></li>`;

function Beside({ group, index, onChoose }) {
  return html`<div class="beside">${group.trajectories.map((one) => html`<section class=${`episode ${one.index === index ? "chosen" : ""}`} aria-label=${`trajectory ${one.index}`}>
    <h3><button type="button" aria-pressed=${one.index === index} onClick=${() => onChoose(one.index)}>#${one.index}</button> reward ${number(one.reward, 3)} <${Outcome} entry=${one} /></h3>
    ${Object.keys(one.metrics).length ? html`<p class="chips">${Object.entries(one.metrics).map(([key, value]) => html`<span class="chip">${key} ${number(value, 3)}</span>`)}</p>` : null}
    ${one.turns_said ? html`<ol class="turns">${one.turns_said.map((turn) => html`<${Turn} turn=${turn} />`)}</ol>` : html`<p class="quiet">Its RaaS sent no text.</p>`}
  </section>`)}</div>`;
}

function Group({ name, asked }) {
  const group = asked.get("group");
  const index = Number(asked.get("index") ?? 0);
  const { value, error } = useAnswer(`runs/${encodeURIComponent(name)}/trajectories/${encodeURIComponent(group)}?${query({ index })}`);
  // Asked for by itself: plugins make views, which may take seconds or fail.
  const viewed = value?.viewed ? `runs/${encodeURIComponent(name)}/trajectories/${encodeURIComponent(group)}/views?${query({ index })}` : null;
  const views = useAnswer(viewed);
  const [all, setAll] = useState(false);
  const shownGroup = useMemo(() => (value && !all ? { ...value, trajectories: value.trajectories.filter((one) => one.index === index) } : value), [value, all, index]);
  if (!value) return error ? html`<${Problem} error=${error} />` : html`<${Loading} />`;
  const choose = (next) => { location.replace(link(name, { group, index: next })); };
  return html`<p><a href=${`#/run/${encodeURIComponent(name)}/trajectories`}>all trajectories</a></p>
    <div class="title"><h1>${value.group}</h1><span class="quiet">prompt ${value.prompt_id}, ${value.raas}, ${when(value.time_s)}</span>
      <a href=${`#/run/${encodeURIComponent(name)}/explain?${query({ group: value.group })}`}>its life</a></div>
    <${Problem} error=${error} />
    <p class="chips">${value.verdicts.map((one) => html`<span class="chip">${one.policy}: ${one.reason ? `refused by ${one.by || "the dataflow"}: ${one.reason}` : `kept ${one.kept ?? 0} rows`}</span>`)}</p>
    <details><summary>prompt data</summary><pre>${shown(value.prompt_data)}</pre></details>
    <div class="bar" role="group" aria-label="trajectories of the group">${value.trajectories.map((one) => html`<button type="button" aria-pressed=${one.index === index} onClick=${() => choose(one.index)}>#${one.index} <b>${number(one.reward, 3)}</b></button>`)}
      <label><input type="checkbox" checked=${all} onChange=${(event) => setAll(event.target.checked)} /> side by side</label></div>
    <${Beside} group=${shownGroup} index=${index} onChoose=${choose} />
    ${viewed && html`<${Problem} error=${views.error} />`}
    ${!viewed || views.error ? null : views.of === viewed ? html`<${Views} views=${views.value.views} />` : html`<p class="quiet" role="status">Plugins are asked for their views…</p>`}
    <h2>Tokens of #${index}</h2>
    ${value.tokens.map((sequence, position) => html`<${Tokens} key=${`${index}/${position}`} sequence=${sequence} title=${`sequence ${position} of ${sequence.policy}`} />`)}`;
}

export const Trajectories = ({ name, asked }) => (asked.get("group") ? html`<${Group} name=${name} asked=${asked} />` : html`<${List} name=${name} asked=${asked} />`);
