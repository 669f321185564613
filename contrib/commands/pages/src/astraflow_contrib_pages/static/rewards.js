// How hard the prompts are for the policy: mean rewards of groups.
import { html, useState } from "./vendor/htm-preact.js";
import { number, percent } from "./format.js";

const SHOWN = { all: "all groups", newest: "the newest 500 groups" };

function Bars({ title, counts, edges, mean }) {
  const all = counts.reduce((total, count) => total + count, 0);
  const most = Math.max(1, ...counts);
  const said = counts.flatMap((count, index) => (count ? [`${number(edges[index])} to ${number(edges[index + 1])}: ${number(count)}`] : []));
  return html`<figure class="chart">
    <figcaption><b>${title}</b> <span class="quiet">${number(all)} groups${mean === undefined ? "" : `, mean ${number(mean, 3)}`}</span></figcaption>
    <div class="bars" role="img" aria-label=${`${title}, groups by mean reward: ${said.join("; ") || "none"}`}>${counts.map((count, index) => html`
      <span class="bar-place" title=${`${number(edges[index])} to ${number(edges[index + 1])}: ${number(count)} (${percent(all ? count / all : 0)})`}>
        <span class="bar-of" style=${{ height: `${count ? Math.max(1.5, (100 * count) / most) : 0}%` }}></span></span>`)}</div>
    <p class="ends quiet"><span>${number(edges[0])}</span><span>mean reward of a group</span><span>${number(edges[edges.length - 1])}</span></p>
  </figure>`;
}

export function Difficulty({ rewards }) {
  const [which, setWhich] = useState("all");
  const policies = Object.entries(rewards);
  if (!policies.length) return null;
  return html`<div class="title"><h2>Difficulty</h2>
      <label><span class="unseen">groups shown</span><select value=${which} onChange=${(event) => setWhich(event.target.value)}>
        ${Object.entries(SHOWN).map(([key, text]) => html`<option value=${key}>${text}</option>`)}</select></label></div>
    <p class="quiet">On the left are prompts that the policy fails, on the right those that it solves. Groups at either end teach little.</p>
    <div class="charts">${policies.flatMap(([policy, found]) => found.sources.map((one) => html`<${Bars} key=${`${policy}/${one.source}`}
      title=${[policies.length > 1 ? policy : "", one.source].filter(Boolean).join(", ") || policy} counts=${one[which]} edges=${found.edges} mean=${which === "all" ? one.mean : undefined} />`))}</div>`;
}
