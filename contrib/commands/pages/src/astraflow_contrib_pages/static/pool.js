// The services of a run, who waits for whom, and what can be done about it.
import { html, useState } from "./vendor/htm-preact.js";
import { act, useAnswer, usePeriod } from "./api.js";
import { number, percent, seconds, shown, when } from "./format.js";
import { ServiceMap } from "./map.js";
import { Confirm, Empty, Loading, Problem, State, Table } from "./parts.js";

const versions = (serving) => Object.entries(serving ?? {}).map(([policy, version]) => `${policy} ${version}`).join(", ") || "–";
const state = (raas) => (raas.set_aside ? "set aside" : raas.draining ? "draining" : raas.state === "alive" && !raas.ready ? "starting" : raas.state);

const BY = { dataflow: "a request", pages: "the pages", mcp: "an agent" };
const who = (line) => [line.who, line.name && line.name !== line.who ? line.name : ""].filter(Boolean).join(", ") || (line.role === "run" ? "the run" : line.role) || "–";
const parameters = ({ asked: given }) => (typeof given === "string" ? given : Object.fromEntries(Object.entries(given).filter(([key]) => !["id", "author", "at", "reason"].includes(key))));

function Swap({ places, onAsk }) {
  const [place, setPlace] = useState(places[0]?.[0] ?? "prompts");
  const [name, setName] = useState("");
  const [table, setTable] = useState("");
  const known = places.find(([given]) => given === place)?.[1] ?? [];
  const ask = (event) => {
    event.preventDefault();
    const action = event.submitter?.value ?? "swap";
    onAsk({
      action, given: action === "swap" ? { place, name, table } : { place, name },
      title: action === "swap" ? `Swap ${name} of ${place}?` : `Undo the last swap of ${name}?`,
      text: action === "swap" ? `The run goes on with ${table} in its place.` : "The data policy before it takes its place again.",
      verb: action === "swap" ? "Swap" : "Undo",
    });
  };
  return html`<form class="form" onSubmit=${ask}>
    <label>place <select value=${place} onChange=${(event) => setPlace(event.target.value)}>${places.map(([given]) => html`<option value=${given}>${given}</option>`)}</select></label>
    <label>data policy <input required list="data-policies" value=${name} onInput=${(event) => setName(event.target.value)} /></label>
    <datalist id="data-policies">${known.map((one) => html`<option value=${one}></option>`)}</datalist>
    <label class="grow">table <input value=${table} placeholder='{ use = "replay", ratio = 0.5 }' onInput=${(event) => setTable(event.target.value)} /></label>
    <button type="submit" value="swap" disabled=${!table}>swap…</button><button type="submit" value="rollback">undo the last swap…</button>
  </form>`;
}

function Add({ onAsk }) {
  const [count, setCount] = useState("1");
  const ask = (event) => {
    event.preventDefault();
    onAsk({ action: "add", given: { count }, title: `Start ${count} more RaaS?`, text: "The launcher of the run starts as many more, each with engines of its own, and so with the devices that these take.", verb: "Add" });
  };
  return html`<form class="form" onSubmit=${ask}><label>more RaaS <input type="number" required min="1" max="256" value=${count} onInput=${(event) => setCount(event.target.value)} /></label>
    <button type="submit">add RaaS…</button></form>`;
}

// All leases, those that are held longest first.
const Leases = ({ run, leases }) => html`<details><summary>${number(leases.count)} leases${leases.oldest.length ? `, the oldest ${seconds(leases.oldest[0].age_s)}` : ""}</summary>
  ${leases.oldest.length < leases.count ? html`<p class="quiet">the oldest ${leases.oldest.length} of them</p>` : null}
  <${Table} label="leases" rows=${leases.oldest} columns=${[
    ["task", (lease) => html`<a href=${`#/run/${encodeURIComponent(run)}/explain?group=${encodeURIComponent(lease.task)}`}>${lease.task}</a>`],
    ["RaaS", (lease) => lease.raas], ["held for", (lease) => seconds(lease.age_s), true], ["", (lease) => (lease.second ? "beside another one" : "")]]} /></details>`;

export function Pool({ name, scope }) {
  const [again, setAgain] = useState(0);
  const [asked, setAsked] = useState(null);
  const [said, setSaid] = useState(null);
  const { value, error } = useAnswer(`runs/${encodeURIComponent(name)}/pool`, usePeriod(2) + 1e6 * again);
  if (!value) return error ? html`<${Problem} error=${error} />` : html`<${Loading} />`;
  const { status, waits, audit, leases, launched } = value;
  // A dataflow that is late with one answer still runs: what was typed for it stays.
  const acting = (status.live || status.trouble) && scope === "full";
  const now = async () => {
    const { action, given } = asked;
    setAsked(null);
    try {
      await act(name, action, given);
      setSaid({ text: `${action}: done` });
    } catch (problem) {
      setSaid({ problem });
    }
    setAgain(again + 1);
  };
  const raas = status.raas ?? [];
  const oldest = (name) => leases?.oldest.find((lease) => lease.raas === name)?.age_s;
  const policies = Object.entries(status.policies ?? {});
  const places = [["prompts", Object.keys(status.decisions?.prompts ?? {})], ...policies.map(([policy]) => [policy, Object.keys(status.decisions?.[policy] ?? {})])];
  return html`<h1>Services</h1>
    <${Problem} error=${error || status.trouble} />
    ${said?.problem ? html`<${Problem} error=${said.problem} />` : null}
    <p role="status" class="quiet">${said?.text ?? (status.live || status.trouble ? "" : "The run does not run: what its services said last.")}</p>
    ${policies.length || raas.length ? null : html`<${Empty}>The run left no status.<//>`}
    <${ServiceMap} status=${status} leases=${leases} waits=${waits} stateOf=${state} />
    ${policies.length ? html`<h2>Trainers</h2><${Table} label="trainers" rows=${policies} columns=${[
      ["policy", ([policy]) => policy], ["trainer", ([, p]) => p.trainer || "–"], ["version", ([, p]) => number(p.version), true], ["updates", ([, p]) => number(p.updates), true],
      ["waits for data", ([, p]) => percent(p.trainer_wait_fraction), true], ["rows buffered", ([, p]) => number(p.buffered), true], ["under way", ([, p]) => `${number(p.under_way)} of ${number(p.limit)}`, true],
      ["staleness seen", ([, p]) => number(p.max_staleness_seen), true]]} />` : null}
    ${raas.length ? html`<h2>RaaS</h2><${Table} label="RaaS" rows=${raas} rowKey=${(one) => one.name} columns=${[
      ["name", (one) => one.name], ["state", (one) => html`<${State} state=${state(one)} />${one.set_aside ? html` <span class="error-text">${one.set_aside}</span>` : null}`],
      ["serves", (one) => versions(one.serving)], ["tasks", (one) => number(one.running), true], ["oldest lease", (one) => seconds(oldest(one.name)), true], ["episodes at once", (one) => number(one.capacity), true],
      ["heard", (one) => `${seconds(one.heard_s)} ago`, true], ["host", (one) => `${one.host || "–"}, pid ${one.pid}`],
      ["", (one) => (acting && one.state === "alive" && !one.draining ? html`<button type="button" onClick=${() => setAsked({ action: "drain", given: { raas: one.name }, title: `Drain ${one.name}?`, text: "It gets no new task, finishes what it has, and leaves.", verb: "Drain" })}>drain…</button>` : null)]]} />` : null}
    ${leases ? html`<${Leases} run=${name} leases=${leases} />` : null}
    ${acting && launched ? html`<${Add} onAsk=${setAsked} />` : null}
    ${acting && !launched ? html`<p class="quiet">The launcher of the run is not on this host: add a RaaS where it is, with astraflow raas add.</p>` : null}
    <h2>Waits</h2>
    ${waits.length ? html`<${Table} label="waits" rows=${waits} columns=${[
      ["#", (wait) => waits.indexOf(wait) + 1, true], ["who", (wait) => wait.who], ["for whom", (wait) => wait.for_whom || "–"], ["for what", (wait) => wait.what], ["since", (wait) => seconds(wait.since_s), true], ["deadline in", (wait) => seconds(wait.until_s), true]]} />` : html`<${Empty}>Nobody waits.<//>`}
    ${acting ? html`<h2>Data policies</h2><${Swap} places=${places} onAsk=${setAsked} />
      <h2>End of the run</h2><p><button type="button" class="danger" onClick=${() => setAsked({ action: "stop", given: {}, title: `Stop ${name}?`, text: "Trainers save and everyone leaves. astraflow run --resume continues it.", verb: "Stop the run" })}>stop the run…</button></p>` : null}
    ${status.live && scope === "read" ? html`<p class="quiet">This login may look only, so that there are no actions.</p>` : null}
    <h2>Audit</h2>
    ${audit.length ? html`<${Table} label="actions" rows=${audit} columns=${[
      ["time", (line) => when(line.time)], ["who", (line) => who(line)], ["by", (line) => BY[line.by]], ["request", (line) => line.request], ["asked", (line) => html`<code>${shown(parameters(line))}</code>`], ["reason", (line) => line.reason || "–"], ["outcome", (line) => line.outcome]]} />` : html`<${Empty}>No action has been taken on this run.<//>`}
    ${asked ? html`<${Confirm} title=${asked.title} text=${asked.text} verb=${asked.verb} onYes=${now} onNo=${() => setAsked(null)} />` : null}`;
}
