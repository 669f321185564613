// The life of a prompt or of a group as a timeline, as `astraflow trace` tells it.
import { html, useState } from "./vendor/htm-preact.js";
import { query, useJournal } from "./api.js";
import { number, seconds } from "./format.js";
import { Empty, Loading, Problem, Reading } from "./parts.js";

const at = (time, kind, text, more = []) => ({ time, kind, text, more });

function offered(offer) {
  const shadows = offer.shadow_rejections.map((one) => `shadow ${one.shadow} would have refused: ${one.reason}`);
  if (!offer.admitted) return at(offer.at_s, "bad", `refused by ${offer.by}: ${offer.reason}`, shadows);
  return at(offer.at_s, "good", `admitted as group ${offer.group}${offer.forced ? " (forced)" : ""}`, shadows);
}

function* ofGroup(group) {
  for (const attempt of group.attempts) {
    yield at(attempt.since_s, "now", `${attempt.raas} takes group ${group.group}`);
    if (attempt.until_s !== null && attempt.ended !== "pushed") yield at(attempt.until_s, "bad", `came back without a result: ${attempt.ended}`);
  }
  if (group.pushed_s !== null) {
    const accepted = group.state === "accepted";
    const more = group.shares.flatMap((share) => [
      `${share.policy}: ${share.accepted ? "kept" : `rejected by ${share.by || "the dataflow"}: ${share.reason}`}; rewards ${share.rewards.map((one) => number(one, 3)).join(", ")}; sampled from version ${[...new Set(share.min_versions)].join(", ")}, newest ${share.newest}`,
      ...share.shadow_rejections.map((one) => `shadow ${one.shadow} would have rejected it: ${one.reason}`),
      ...(share.stale ? [`${share.stale} sequences were too stale already`] : []),
    ]);
    yield at(group.pushed_s, accepted ? "good" : "bad", `${group.state}: ${group.trajectories} ${group.trajectories === 1 ? "trajectory" : "trajectories"}${group.late ? `, ${group.late} cut off by the deadline` : ""}${group.eval_set ? ` of evaluation set ${group.eval_set}` : ""}`, more);
  }
  for (const share of group.shares) {
    const batches = new Map();
    for (const row of share.rows) {
      for (const use of row.batches) {
        const found = batches.get(use.batch) ?? { use, rows: [] };
        found.rows.push(row);
        batches.set(use.batch, found);
      }
    }
    for (const { use, rows } of batches.values()) {
      yield at(use.served_s, "now", `${rows.length} rows served in ${use.batch} to update version ${use.updates}`, [`staleness ${[...new Set(rows.map((row) => use.updates - row.min_version))].join(", ")}`]);
      if (use.trained_s !== null) yield at(use.trained_s, "good", `${use.batch} trained${use.published === null ? "" : `, version ${use.published} published`}`);
    }
    const lost = share.rows.filter((row) => row.state === "stale" || row.state === "evicted");
    if (lost.length) yield at(Infinity, "bad", `${lost.length} rows ended as ${[...new Set(lost.map((row) => row.state))].join(", ")}`);
  }
}

function Timeline({ found }) {
  const told = [...found.offers.map(offered), ...found.groups.flatMap((group) => [...(found.offers.length || !group.offered ? [] : [offered(group.offered)]), ...ofGroup(group)])]
    .sort((a, b) => a.time - b.time);
  return html`<ol class="timeline">${told.map((event) => html`<li class=${`event ${event.kind}`}>
    <span class="time">${Number.isFinite(event.time) ? seconds(event.time) : "since"}</span><div><b>${event.text}</b>${event.more.map((line) => html`<div class="quiet">${line}</div>`)}</div></li>`)}</ol>`;
}

function Found({ name, subject, id }) {
  const { value, error } = useJournal(`runs/${encodeURIComponent(name)}/life/${subject}?${query({ id })}`);
  if (!value) return error ? html`<${Problem} error=${error} />` : html`<${Loading} />`;
  if (!value.offers) return html`<${Problem} error=${error} /><${Reading} share=${value.share} />`;
  return html`<h2>${subject} ${id}</h2><p class="quiet">times are seconds of the run</p><${Timeline} found=${value} />`;
}

export function Explain({ name, asked }) {
  const given = ["group", "prompt"].find((one) => asked.get(one));
  const [subject, setSubject] = useState(given ?? "group");
  const [id, setId] = useState(given ? asked.get(given) : "");
  const go = (event) => { event.preventDefault(); location.hash = `#/run/${encodeURIComponent(name)}/explain?${query({ [subject]: id.trim() })}`; };
  return html`<h1>Explain</h1>
    <form class="form" onSubmit=${go}><label>what <select value=${subject} onChange=${(event) => setSubject(event.target.value)}><option value="group">group</option><option value="prompt">prompt</option></select></label>
      <label class="grow">id <input required value=${id} placeholder=${subject === "group" ? "train-12" : "train/17"} onInput=${(event) => setId(event.target.value)} /></label><button type="submit">explain</button></form>
    ${given ? html`<${Found} key=${given + asked.get(given)} name=${name} subject=${given} id=${asked.get(given)} />`
    : html`<${Empty}>Give the id of a group or a prompt; the page Data lists the newest groups.<//>`}`;
}
