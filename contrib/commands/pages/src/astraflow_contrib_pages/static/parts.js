// Small pieces that several pages use.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { percent } from "./format.js";

export const State = ({ state }) => html`<span class=${`state state-${state}`}>${state}</span>`;

export const Problem = ({ error }) =>
  error ? html`<div class="problem" role="alert">${error.message ?? error}</div>` : null;

export const Loading = () => html`<p class="quiet" role="status">loading…</p>`;

// How much of the journal a server has read, which does so for a second for each answer.
export const Reading = ({ share }) =>
  share < 1 ? html`<p class="quiet" role="status">The journal is long: ${percent(share)} of it are read so far, and what is below is known of that.</p>
    <progress aria-label="the journal that is read" value=${share} max="1"></progress>` : null;

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

export const Tile = ({ name, value, note }) =>
  html`<div class="tile"><dt>${name}</dt><dd>${value}${note ? html`<small>${note}</small>` : null}</dd></div>`;

export const Tiles = ({ children }) => html`<dl class="tiles">${children}</dl>`;

// A table of plain cells: `columns` are [title, function of a row, numeric].
export function Table({ label, columns, rows, rowKey }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table>
      <caption class="unseen">${label}</caption>
      <thead><tr>${columns.map(([title, , numeric]) => html`<th scope="col" class=${numeric ? "right" : ""}>${title}</th>`)}</tr></thead>
      <tbody>${rows.map((row, index) => html`<tr key=${rowKey ? rowKey(row) : index}>${columns.map(
        ([, cell, numeric]) => html`<td class=${numeric ? "right" : ""}>${cell(row)}</td>`)}</tr>`)}</tbody>
    </table>
  </div>`;
}

// Only the rows in sight are in the document, so that a list may have any length. `row(index)` draws one of `height` pixels.
export function VirtualList({ label, length, height, row, header }) {
  const box = useRef(null);
  const [view, set] = useState({ top: 0, size: 600 });
  useEffect(() => {
    const element = box.current;
    const look = () => set({ top: element.scrollTop, size: element.clientHeight });
    const observer = new ResizeObserver(look);
    observer.observe(element);
    element.addEventListener("scroll", look, { passive: true });
    return () => { observer.disconnect(); element.removeEventListener("scroll", look); };
  }, []);
  const first = Math.max(0, Math.floor(view.top / height) - 8);
  const last = Math.min(length, Math.ceil((view.top + view.size) / height) + 8);
  const rows = [];
  for (let index = first; index < last; index += 1) rows.push(row(index));
  return html`<div class="virtual" ref=${box} tabindex="0" role="table" aria-label=${label} aria-rowcount=${length + 1}>
    ${header}
    <div class="virtual-space" role="rowgroup" style=${{ height: `${length * height}px` }}>
      <div class="virtual-rows" role="presentation" style=${{ transform: `translateY(${first * height}px)` }}>${rows}</div>
    </div>
  </div>`;
}

// Asks before something is done that cannot be undone.
export function Confirm({ title, text, verb, onYes, onNo }) {
  const dialog = useRef(null);
  useEffect(() => { dialog.current.showModal(); }, []);
  return html`<dialog ref=${dialog} aria-labelledby="confirm-title" onCancel=${onNo}>
    <h2 id="confirm-title">${title}</h2><p>${text}</p>
    <div class="buttons"><button type="button" onClick=${onNo}>Cancel</button>
    <button type="button" class="danger" onClick=${onYes}>${verb}</button></div>
  </dialog>`;
}
