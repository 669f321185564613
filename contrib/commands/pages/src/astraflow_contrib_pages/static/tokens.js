// The tokens of a sequence, coloured by what engine and trainer thought of them, or as a table.
import { html, useEffect, useMemo, useState } from "./vendor/htm-preact.js";
import { number } from "./format.js";
import { VirtualList } from "./parts.js";

const STEPS = 6;
const PIECE = 2000;
const clamp = (value) => Math.max(0, Math.min(STEPS, Math.round(value)));

// Each gives a class for a token, or "" for one without a value; `value` is what a reader gets.
const LOOKS = {
  logprob: { title: "log-prob of the engine", value: (s, i) => (s.mask[i] ? s.logprobs[i] : null), look: (v) => `h${clamp(-v * 1.5)}`, note: "darker: less likely; 0 to −4 nats" },
  entropy: { title: "entropy of the trainer", value: (s, i) => (s.mask[i] && s.entropies ? s.entropies[i] : null), look: (v) => `h${clamp(v * 1.5)}`, note: "darker: less certain; 0 to 4 nats" },
  gap: { title: "engine − trainer", value: (s, i) => (s.mask[i] && s.trainer ? s.logprobs[i] - s.trainer[i] : null), look: (v) => `${v < 0 ? "n" : "p"}${clamp(Math.abs(v) * 60)}`, note: "difference of log-probs; full colour at 0.1 nats" },
  reference: { title: "engine − reference", value: (s, i) => (s.mask[i] && s.reference ? s.logprobs[i] - s.reference[i] : null), look: (v) => `${v < 0 ? "n" : "p"}${clamp(Math.abs(v) * 6)}`, note: "difference of log-probs; full colour at 1 nat" },
  advantage: { title: "advantage", value: (s, i) => (s.mask[i] && s.advantages ? s.advantages[i] : null), look: (v, most) => `${v < 0 ? "n" : "p"}${clamp((Math.abs(v) / most) * STEPS)}`, note: "orange: negative, blue: positive; full colour at the largest" },
  version: { title: "version", value: (s, i) => (s.versions[i] >= 0 ? s.versions[i] : null), look: (v, most, least) => `v${(v - least) % 6}`, note: "a colour for each version" },
  mask: { title: "loss mask", value: (s, i) => s.mask[i], look: (v) => (v ? "p3" : ""), note: "coloured: the token is trained" },
  none: { title: "nothing", value: () => null, look: () => "", note: "" },
};

const available = (sequence) => Object.keys(LOOKS).filter((name) => {
  if (name === "gap") return sequence.trainer;
  if (name === "entropy") return sequence.entropies;
  if (name === "reference") return sequence.reference;
  if (name === "advantage") return sequence.advantages;
  return true;
});

const textOf = (sequence, index) => (sequence.texts ? sequence.texts[index] : String(sequence.ids[index]));
const visible = (text) => (text === "" ? "∅" : text.replaceAll("\n", "⏎\n").replaceAll("\t", "⇥"));

function facts(s, i) {
  const parts = [`token ${i}: id ${s.ids[i]}`];
  if (s.mask[i]) parts.push(`log-prob ${number(s.logprobs[i])}`);
  if (s.mask[i] && s.trainer) parts.push(`trainer ${number(s.trainer[i])}`);
  if (s.mask[i] && s.reference) parts.push(`reference ${number(s.reference[i])}`);
  if (s.mask[i] && s.entropies) parts.push(`entropy ${number(s.entropies[i])}`);
  if (s.mask[i] && s.advantages) parts.push(`advantage ${number(s.advantages[i])}`);
  parts.push(s.versions[i] >= 0 ? `version ${s.versions[i]}` : "not sampled", s.mask[i] ? "trained" : "not trained");
  return parts.join(", ");
}

function AsTable({ sequence: s }) {
  const cell = (value) => html`<span role="cell" class="right">${number(value)}</span>`;
  const header = html`<div class="token-row head" role="row">${["#", "token", "id", "log-prob", "trainer", "advantage", "version", "trained"].map((title) => html`<span role="columnheader">${title}</span>`)}</div>`;
  return html`<${VirtualList} label="tokens" length=${s.ids.length} height=${32} header=${header} row=${(i) => html`<div class="token-row" role="row" key=${i}>
    <span role="cell">${i}</span><span role="cell"><code>${visible(textOf(s, i))}</code></span>${cell(s.ids[i])}${cell(s.mask[i] ? s.logprobs[i] : null)}${cell(s.trainer && s.mask[i] ? s.trainer[i] : null)}${cell(s.advantages && s.mask[i] ? s.advantages[i] : null)}${cell(s.versions[i] >= 0 ? s.versions[i] : null)}<span role="cell">${s.mask[i] ? "yes" : "no"}</span></div>`} />`;
}

// Tokens from number `from` on; made again only when they look otherwise.
function Piece({ sequence, from, looks }) {
  return useMemo(() => sequence.ids.slice(from, from + PIECE).map((_, place) => {
    const index = from + place;
    return html`<span key=${index} data-index=${index} class=${looks[index]}>${visible(textOf(sequence, index))}</span>`;
  }), [sequence, from, looks]);
}

export function Tokens({ sequence, title }) {
  const [by, setBy] = useState("logprob");
  const [table, setTable] = useState(false);
  const [most, setMost] = useState(PIECE);
  const [made, setMade] = useState(PIECE);
  const [told, setTold] = useState(null);
  const chosen = LOOKS[by];
  const looks = useMemo(() => {
    const values = sequence.ids.map((_, index) => chosen.value(sequence, index));
    const given = values.filter((value) => value !== null);
    const largest = given.reduce((a, b) => Math.max(a, Math.abs(b)), 1e-9);
    const least = given.reduce((a, b) => Math.min(a, b), Infinity);
    return values.map((value) => (value === null ? "t" : `t ${chosen.look(value, largest, least)}`));
  }, [sequence, by]);
  // One piece in each frame gets other colours, or is added, so that none of the frames is late.
  const [last, setTurn] = useState({ looks, before: looks, upto: 1 });
  const turn = last.looks === looks ? last : { looks, before: last.looks, upto: 1 };
  const adds = turn.upto * PIECE >= made;
  useEffect(() => {
    if (table || (adds && made >= most)) return undefined;
    const frame = requestAnimationFrame(() => {
      if (adds) setMade(made + PIECE);
      setTurn({ ...turn, upto: turn.upto + 1 });
    });
    return () => cancelAnimationFrame(frame);
  }, [turn.looks, turn.upto, made, most, table]);
  // A text for each of ten thousand tokens takes longer to make than to draw them: one is made when somebody points at its token.
  const point = (event) => { const index = event.target.dataset?.index; if (index !== undefined) event.target.title = facts(sequence, Number(index)); };
  const tell = (event) => { const index = event.target.dataset?.index; if (index !== undefined) setTold(Number(index)); };
  const pieces = Array.from({ length: Math.ceil(Math.min(made, sequence.ids.length) / PIECE) }, (_, piece) => html`<${Piece} key=${piece} sequence=${sequence} from=${piece * PIECE} looks=${piece < turn.upto ? looks : turn.before} />`);
  const estimate = sequence.ids.reduce((sum, _, i) => (sequence.mask[i] ? sum - sequence.logprobs[i] : sum), 0) / Math.max(1, sequence.mask.reduce((a, b) => a + b, 0));
  const mean = (values) => sequence.mask.reduce((sum, trained, i) => (trained ? sum + values[i] : sum), 0) / Math.max(1, sequence.mask.reduce((a, b) => a + b, 0));
  return html`<section class="tokens" aria-label=${title}>
    <div class="bar"><b>${title}</b><span class="quiet">${number(sequence.length)} tokens, entropy estimate ${number(estimate, 3)} nats${sequence.entropies ? `, entropy ${number(mean(sequence.entropies), 3)} nats` : ""}${sequence.updates.map((use) => `, ${use.policy} step ${use.step}`).join("")}</span>
      <label>colour by <select value=${by} onChange=${(event) => setBy(event.target.value)}>${available(sequence).map((name) => html`<option value=${name}>${LOOKS[name].title}</option>`)}</select></label>
      <span class="quiet">${chosen.note}</span>
      <label><input type="checkbox" checked=${table} onChange=${(event) => setTable(event.target.checked)} /> as a table</label></div>
    ${table ? html`<${AsTable} sequence=${sequence} />` : html`<pre class="token-text" tabindex="0" role="group" aria-label=${`${title}; the table has the figures of each token`} onClick=${tell} onPointerOver=${point}>${pieces}</pre>`}
    ${sequence.ids.length > most && !table ? html`<button type="button" onClick=${() => setMost(most + 5 * PIECE)}>show more tokens</button>` : null}
    ${sequence.length > sequence.ids.length ? html`<p class="quiet">The first ${number(sequence.ids.length)} of ${number(sequence.length)} tokens.</p>` : null}
    ${sequence.texts ? null : html`<p class="quiet">The tokenizer of the model is not on this host: ids instead of texts.</p>`}
    <p role="status" class="told">${told === null ? "" : facts(sequence, told)}</p>
  </section>`;
}
