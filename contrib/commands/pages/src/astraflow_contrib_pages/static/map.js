// A map of the services: who talks to whom, who waits for whom, which versions are served, and who is well.
import { html } from "./vendor/htm-preact.js";
import { number, percent, seconds } from "./format.js";

const MOST = 24;
const GAP = 1;
const LINE = 1.35;
// Left edge and width of each column, in rem.
const COLUMNS = { trainer: [0.2, 14], dataflow: [20.5, 14], raas: [40, 15], engine: [58.5, 15] };
const WIDTH = 73.7;

const cut = (text, most = 27) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const WELL = { alive: "good", running: "good", finished: "good", suspect: "warn", starting: "warn", draining: "warn", stopped: "warn", left: "quiet" };
const TRAINER = { absent: "warn", failed: "bad" };
const healthOf = (state) => WELL[state] ?? "bad";

const high = (box) => LINE * box.lines.length + 0.9;

// Boxes of a column below each other, around the middle of the map.
function stacked(boxes, column, middle) {
  const all = boxes.reduce((sum, box) => sum + high(box) + GAP, -GAP);
  let top = middle - all / 2;
  return boxes.map((box) => {
    const placed = { ...box, x: COLUMNS[column][0], wide: COLUMNS[column][1], y: top, high: high(box) };
    top += placed.high + GAP;
    return placed;
  });
}

const right = (box) => [box.x + box.wide, box.y + box.high / 2];
const left = (box) => [box.x, box.y + box.high / 2];

function engines(raas, policies) {
  const names = [...new Set([...Object.keys(raas.serving), ...Object.keys(raas.metrics).filter((key) => key.endsWith("/replicas_serving")).map((key) => key.slice(0, -17))])];
  return names.map((name) => {
    const hosts = raas.metrics[`${name}/replicas_serving`];
    const restarts = raas.metrics[`${name}/host_restarts`];
    const behind = policies[name] && raas.serving[name] !== undefined ? policies[name].version - raas.serving[name] : 0;
    return {
      health: hosts === 0 ? "bad" : restarts ? "warn" : hosts === undefined ? "quiet" : "good",
      lines: [`engines of ${name}`, raas.serving[name] === undefined ? "serve no version yet" : `version ${number(raas.serving[name])}${behind > 0 ? `, ${number(behind)} behind` : ""}`,
        `${number(hosts)} answering${restarts ? `, ${number(restarts)} restarted` : ""}`],
    };
  });
}

function layout(status, leases, stateOf) {
  const policies = status.policies ?? {};
  const there = (status.raas ?? []).filter((one) => one.state !== "left" && one.state !== "gone");
  const shown = there.slice(0, MOST);
  const oldest = (name) => leases?.oldest.find((lease) => lease.raas === name)?.age_s;
  const rows = shown.map((one) => ({
    box: { id: one.name, health: one.set_aside ? "bad" : healthOf(stateOf(one)), lines: [one.name, `${stateOf(one)}, heard ${seconds(one.heard_s)} ago`, `${number(one.running)} leases${oldest(one.name) === undefined ? "" : `, oldest ${seconds(oldest(one.name))}`}`] },
    engines: engines(one, policies),
  }));
  const trainers = Object.entries(policies).map(([name, policy]) => ({
    id: `trainer ${name}`, health: status.live ? (TRAINER[policy.trainer] ?? "good") : "quiet", transport: policy.announced?.transport,
    lines: [`trainer ${name}${TRAINER[policy.trainer] ? ` (${policy.trainer})` : ""}`, `version ${number(policy.version)}`, `waits ${percent(policy.trainer_wait_fraction)}`],
  }));
  const high = Math.max(12, rows.reduce((sum, row) => sum + Math.max(rowHigh([row.box]), rowHigh(row.engines)) + GAP, GAP), rowHigh(trainers) + 2 * GAP);
  let top = (high - rows.reduce((sum, row) => sum + Math.max(rowHigh([row.box]), rowHigh(row.engines)) + GAP, -GAP)) / 2;
  const placed = rows.map((row) => {
    const room = Math.max(rowHigh([row.box]), rowHigh(row.engines));
    const middle = top + room / 2;
    top += room + GAP;
    return { raas: stacked([row.box], "raas", middle)[0], engines: stacked(row.engines, "engine", middle) };
  });
  const tasks = status.tasks ?? {};
  const [dataflow] = stacked([{ id: "dataflow", health: status.live ? healthOf(status.state) : "quiet", lines: ["dataflow", status.state ?? "–", `${number(tasks.running)} tasks run, ${number(tasks.queued)} wait`] }], "dataflow", high / 2);
  return { trainers: stacked(trainers, "trainer", high / 2), dataflow, rows: placed, high, hidden: there.length - shown.length };
}

const rowHigh = (boxes) => boxes.reduce((sum, box) => sum + high(box) + GAP, -GAP);

const line = ([x, y], [to, end]) => `M${x} ${y} C${(x + to) / 2} ${y} ${(x + to) / 2} ${end} ${to} ${end}`;

// Weights go from trainers to RaaS past the dataflow: above it to the upper half, else below it.
function around(from, to, dataflow, many) {
  const [x, y] = right(from);
  const [end, last] = left(to);
  const above = last < dataflow.y + dataflow.high / 2 || many === 1;
  const past = above ? dataflow.y - 1 : dataflow.y + dataflow.high + 1;
  return `M${x} ${y} C${x + 4} ${y} ${dataflow.x - 4} ${past} ${dataflow.x} ${past} L${dataflow.x + dataflow.wide} ${past} C${dataflow.x + dataflow.wide + 3} ${past} ${end - 3} ${last} ${end} ${last}`;
}

// What is waited for without a box of its own is in the dataflow: rollouts, a prompt, the end of an evaluation.
const OF_DATAFLOW = /^(run$|rollouts$|a prompt$|evaluation |task )/;

// Waits between two boxes, with their numbers in the list of all.
function edges(waits, boxes) {
  const known = new Map(boxes.map((box) => [box.id, box]));
  const found = new Map();
  waits.forEach((wait, index) => {
    const [from, to] = [wait.who, wait.for_whom].map((name) => known.get(OF_DATAFLOW.test(name) ? "dataflow" : name));
    if (!from || !to || from === to) return;
    const edge = found.get(`${from.id}/${to.id}`) ?? { from, to, numbers: [], texts: [] };
    edge.numbers.push(index + 1);
    edge.texts.push(`${wait.who} waits ${seconds(wait.since_s)} for ${wait.for_whom}: ${wait.what}`);
    found.set(`${from.id}/${to.id}`, edge);
  });
  return [...found.values()];
}

function Wait({ edge: { from, to, numbers, texts } }) {
  const side = (box, other) => [box.x + (box.x < other.x ? box.wide : 0), box.y + 0.82 * box.high];
  const [x, y] = side(from, to);
  const [end, last] = side(to, from);
  const middle = x === end ? x - 3 : (x + end) / 2; // past the other boxes of a column
  const label = numbers.slice(0, 3).join(",") + (numbers.length > 3 ? "…" : "");
  // A third of the way (Bernstein polynomials), where lines to the same box do not meet yet.
  const at = [(8 * x + 18 * middle + end) / 27, (20 * y + 7 * last) / 27];
  return html`<g><title>${texts.join("\n")}</title>
    <path class="map-wait" d=${`M${x} ${y} C${middle} ${y} ${middle} ${last} ${end} ${last}`} />
    <circle class="map-number" cx=${at[0]} cy=${at[1]} r=${0.55 + 0.25 * label.length} /><text class="map-text" text-anchor="middle" x=${at[0]} y=${at[1] + 0.3}>${label}</text></g>`;
}

const Box = ({ box }) => html`<g><rect class=${`map-box map-${box.health}`} x=${box.x} y=${box.y} width=${box.wide} height=${box.high} rx="0.5" />
  ${box.lines.map((text, index) => html`<text class=${index ? "map-text" : "map-name"} x=${box.x + 0.7} y=${box.y + 1.3 + LINE * index}>${cut(text)}<title>${text}</title></text>`)}</g>`;

export function ServiceMap({ status, leases, waits, stateOf }) {
  const { trainers, dataflow, rows, high: tall, hidden } = layout(status, leases, stateOf);
  if (!trainers.length && !rows.length) return null;
  const said = [...trainers, dataflow, ...rows.flatMap((row) => [row.raas, ...row.engines])].map((box) => box.lines.join(", ")).join("; ");
  const waiting = edges(waits, [...trainers, dataflow, ...rows.map((row) => row.raas)]);
  const transports = [...new Set(trainers.map((box) => box.transport).filter(Boolean))].join(", ");
  return html`<div class="scroll map" tabindex="0" role="region" aria-label="map of services">
      <svg role="img" aria-label=${`Trainers and RaaS call the dataflow; RaaS fetch weights from trainers. ${said}${waiting.length ? `. ${waiting.flatMap((edge) => edge.texts).join("; ")}` : ""}`} viewBox=${`0 0 ${WIDTH} ${tall}`} style=${{ width: `${WIDTH}rem`, height: `${tall}rem` }}>
        ${trainers.flatMap((from) => rows.map((row) => html`<path class="map-weights" d=${around(from, row.raas, dataflow, rows.length)} />`))}
        ${trainers.map((box) => html`<path class="map-call" d=${line(right(box), left(dataflow))} />`)}
        ${rows.map((row) => html`<path class="map-call" d=${line(right(dataflow), left(row.raas))} />`)}
        ${rows.flatMap((row) => row.engines.map((box) => html`<path class="map-call" d=${line(right(row.raas), left(box))} />`))}
        ${[...trainers, dataflow, ...rows.flatMap((row) => [row.raas, ...row.engines])].map((box) => html`<${Box} box=${box} />`)}
        ${waiting.map((edge) => html`<${Wait} edge=${edge} />`)}
      </svg></div>
    <p class="quiet"><span class="swatch s8"></span>trainers ask the dataflow for batches, RaaS lease tasks and push groups; <span class="swatch s1 dashed"></span>RaaS fetch weights from trainers${transports ? ` (${transports})` : ""}${waiting.length ? html`; <span class="swatch s5 dashed"></span>waits, with their numbers in the table of waits` : ""}.${hidden ? ` ${number(hidden)} more RaaS are in the table.` : ""}</p>`;
}
