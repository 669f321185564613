// How stale the rows of each step were, and what a run has cost so far.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";
import { query, useAnswer, useJournal } from "./api.js";
import { Chart } from "./chart.js";
import { number, percent } from "./format.js";
import { Reading } from "./parts.js";

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const rem = () => parseFloat(getComputedStyle(document.documentElement).fontSize);
const sum = (values) => values.reduce((total, value) => total + value, 0);

const stale = (cells, row) => `${row}${cells.more && row === cells.counts.length - 1 ? " or more" : ""}`;
const stepsOf = (cells, column) => {
  const first = cells.first + column * cells.width;
  const last = Math.min(cells.last, first + cells.width - 1);
  return first === last ? `step ${number(first)}` : `steps ${number(first)} to ${number(last)}`;
};

// Where the cells lie in a canvas of `width` times `height` pixels; text needs the rest.
const inside = (width, height) => ({ left: 2.2 * rem(), top: 0.3 * rem(), wide: width - 2.6 * rem(), high: height - 1.8 * rem() });

function draw(canvas, cells, width, height) {
  const { left, top, wide, high } = inside(width, height);
  canvas.width = Math.round(width * devicePixelRatio);
  canvas.height = Math.round(height * devicePixelRatio);
  const to = canvas.getContext("2d");
  to.scale(devicePixelRatio, devicePixelRatio);
  const rows = cells.counts.length;
  const columns = cells.counts[0].length;
  to.strokeStyle = style("--line");
  to.strokeRect(left, top, wide, high);
  to.fillStyle = style("--c1");
  for (let column = 0; column < columns; column += 1) {
    const all = sum(cells.counts.map((row) => row[column]));
    const x = Math.round(left + (wide * column) / columns);
    const next = Math.round(left + (wide * (column + 1)) / columns);
    for (let row = 0; row < rows && all; row += 1) {
      const share = cells.counts[row][column] / all;
      if (!share) continue;
      const y = Math.round(top + high - (high * (row + 1)) / rows);
      to.globalAlpha = 0.12 + 0.88 * share;
      to.fillRect(x, y, Math.max(1, next - x), Math.round(top + high - (high * row) / rows) - y);
    }
  }
  to.globalAlpha = 1;
  to.fillStyle = style("--quiet");
  to.font = `${Math.round(0.74 * rem())}px system-ui, sans-serif`;
  to.textBaseline = "middle";
  to.textAlign = "right";
  const every = Math.max(1, Math.ceil((1.1 * rem() * rows) / high));
  for (let row = 0; row < rows; row += every) to.fillText(String(row), left - 0.4 * rem(), top + high - (high * (row + 0.5)) / rows);
  to.textBaseline = "bottom";
  to.textAlign = "left";
  to.fillText(number(cells.first), left, height);
  to.textAlign = "right";
  if (cells.last > cells.first) to.fillText(number(cells.last), left + wide, height);
}

function Heat({ title, cells, bound, theme }) {
  const place = useRef(null);
  const canvas = useRef(null);
  const [size, setSize] = useState(null);
  const [told, tell] = useState("");
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setSize([Math.floor(entry.contentRect.width), Math.floor(entry.contentRect.height)]));
    observer.observe(place.current);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => { if (size && size[0] > 0 && cells) draw(canvas.current, cells, ...size); }, [cells, size?.join(), theme]);
  const look = (event) => {
    const { left, top, wide, high } = inside(...size);
    const box = canvas.current.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left - left) / wide) * cells.counts[0].length);
    const row = Math.floor(((top + high - (event.clientY - box.top)) / high) * cells.counts.length);
    const count = cells.counts[row]?.[column];
    if (count === undefined) return tell("");
    const all = sum(cells.counts.map((one) => one[column]));
    return tell(`${stepsOf(cells, column)}: ${number(count)} of ${number(all)} rows were ${stale(cells, row)} ${row === 1 && !cells.more ? "version" : "versions"} old`);
  };
  const total = cells ? sum(cells.counts.map(sum)) : 0;
  const shares = cells ? cells.counts.map((row, index) => [stale(cells, index), sum(row) / total]).filter(([, share]) => share) : [];
  const name = `${title}: ${shares.map(([label, share]) => `${label}: ${percent(share)}`).join("; ") || "no row yet"}`;
  return html`<figure class="chart">
    <figcaption><b>${title}</b> <span class="quiet">versions, share of the rows of a step; bound ${number(bound)}</span></figcaption>
    <div class="plot" role="img" aria-label=${name} ref=${place} onPointerMove=${cells ? look : undefined} onPointerLeave=${() => tell("")}>
      ${cells ? html`<canvas class="heat" ref=${canvas}></canvas>` : html`<p class="nothing">no row yet</p>`}
    </div>
    <ul class="legend">${told ? html`<li>${told}</li>` : shares.slice(0, 8).map(([label, share]) => html`<li key=${label}>${label} <span class="value">${percent(share)}</span></li>`)}</ul>
  </figure>`;
}

// True once the element of the reference has been near the sight.
function useNear(place) {
  const [near, set] = useState(false);
  useEffect(() => {
    const sight = new IntersectionObserver((entries) => { if (entries.some((entry) => entry.isIntersecting)) set(true); }, { rootMargin: "100px" });
    sight.observe(place.current);
    return () => sight.disconnect();
  }, []);
  return near;
}

const LINES = ["RaaS", "trainers"];

// Of the steps in `zoom`, or of all. The server reads the journal for it, so it is asked when somebody comes near.
export function Beside({ path, bound, theme, zoom, onZoom, buckets, again }) {
  const place = useRef(null);
  const near = useNear(place);
  const range = zoom ? { first: Math.floor(zoom[0]), last: Math.ceil(zoom[1]) } : {};
  const rows = useAnswer(near ? `${path}/staleness?${query(range)}` : null, again);
  const cost = useJournal(near ? `${path}/cost?${query({ buckets, ...range })}` : null, again);
  const maps = Object.entries(rows.value?.policies ?? {});
  const hours = cost.value?.hours ?? {};
  const lines = LINES.map((kind, colour) => ({ label: kind, colour, x: hours[kind]?.[0] ?? [], y: hours[kind]?.[1] ?? [] }));
  const latest = sum(lines.map((line) => line.y[line.y.length - 1] ?? 0));
  return html`<div ref=${place}><h2>Staleness and cost</h2>
    <div class="charts">
      ${maps.length ? maps.map(([policy, cells]) => html`<${Heat} key=${policy} title=${maps.length > 1 ? `Staleness of rows, ${policy}` : "Staleness of rows"} cells=${cells} bound=${bound} theme=${theme} />`)
    : html`<${Heat} title="Staleness of rows" cells=${null} bound=${bound} theme=${theme} />`}
      <${Chart} title="Cost" unit=${latest ? `hours of services so far, together ${number(latest)}` : "hours of services so far"} lines=${lines} theme=${theme} fine=${true} zoom=${zoom} onZoom=${onZoom} />
    </div>
    <${Reading} share=${cost.value?.share} />
    ${cost.value?.said ? html`<p class="quiet">The cost is not known: ${cost.value.said}</p>` : null}
    ${cost.error ? html`<p class="quiet">The cost is not known: ${cost.error.message}</p>` : null}</div>`;
}
