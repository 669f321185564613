// What plugins of the run show of a trajectory: tables, grids, facts and pictures, as plugin_views.py checks them.
import { html } from "./vendor/htm-preact.js";
import { shown } from "./format.js";
import { Problem, Table } from "./parts.js";

const Facts = ({ view }) => html`<dl class="facts">${Object.entries(view.facts).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${shown(value)}</dd></div>`)}</dl>`;

const Rows = ({ view }) => html`<${Table} label=${view.title} rows=${view.rows} columns=${view.columns.map((title, index) => [title, (row) => shown(row[index]), view.rows.every((row) => typeof row[index] === "number")])} />`;

const Grid = ({ view }) => html`<div class="scroll" tabindex="0" role="region" aria-label=${view.title}><table class="grid"><caption class="unseen">${view.title}</caption>
  <tbody>${view.rows.map((row, index) => html`<tr key=${index}>${view.labels.length ? html`<th scope="row">${view.labels[index]}</th>` : null}${row.map((cell) => html`<td class=${cell in view.colours ? `g${view.colours[cell] + 1}` : ""}>${cell}</td>`)}</tr>`)}</tbody></table></div>`;

const Image = ({ view }) => html`<img class="view-image" src=${view.src} alt=${view.alt} />`;

const Failed = ({ view }) => html`<${Problem} error=${view.reason} />`;

const KINDS = { facts: Facts, table: Rows, grid: Grid, image: Image, problem: Failed };

export const Views = ({ views }) => views.map((view, index) => html`<section key=${index} class="view" aria-label=${view.title}><h2>${view.title}</h2><${KINDS[view.kind]} view=${view} /></section>`);
