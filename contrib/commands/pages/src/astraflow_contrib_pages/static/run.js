// One run: where it stands, and its curves.
import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import { query, useAnswer, useChanges } from "./api.js";
import { Curves } from "./curves.js";
import { count, number, percent, seconds, when } from "./format.js";
import { Loading, Problem, State, Tile, Tiles } from "./parts.js";

const FRESH_MS = 2000;

// Counts up when `read` is no longer what the curves were drawn from, at most once in two seconds.
function useThrottled(read, drawn) {
  const [count, set] = useState(0);
  const last = useRef(0);
  useEffect(() => {
    if (read === undefined || drawn === undefined || read === drawn) return undefined;
    const wait = Math.max(0, last.current + FRESH_MS - performance.now());
    const timer = setTimeout(() => { last.current = performance.now(); set((n) => n + 1); }, wait);
    return () => clearTimeout(timer);
  }, [read, drawn]);
  return count;
}

// About as many points as a chart has pixels; charts are as wide as pages.css makes them.
function pixels() {
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
  const room = document.getElementById("main").clientWidth;
  const beside = Math.max(1, Math.floor(room / (24.8 * rem)));
  return Math.min(1200, Math.max(200, Math.round((room / beside - 4 * rem) * devicePixelRatio)));
}

function Now({ run, status, state }) {
  const summary = run.summary ?? {};
  const live = status?.live ? status : null;
  const policies = Object.entries((live ?? status)?.policies ?? {});
  const wait = live ? null : summary.trainer_wait_fraction;
  return html`<${Tiles}>
    <${Tile} name="steps" value=${`${number(live?.steps ?? run.steps)} / ${number(live?.steps_total ?? run.steps_planned)}`} note=${live?.eta_s ? `${seconds(live.eta_s)} left` : ""} />
    <${Tile} name="reward" value=${number(policies[0]?.[1].reward ?? run.reward, 3)} />
    <${Tile} name="held-out accuracy" value=${percent(run.accuracy)} />
    <${Tile} name="staleness" value=${`≤ ${number(live?.max_staleness_seen ?? summary.max_staleness_seen)}`} note=${`bound ${number(run.max_staleness)}`} />
    <${Tile} name="tokens sampled" value=${count(live?.tokens_generated ?? summary.tokens_generated ?? run.tokens)} note=${`${count(live?.tokens_trained ?? summary.tokens_trained)} trained`} />
    <${Tile} name="time" value=${seconds(live?.elapsed_s ?? summary.wall_s)} note=${when(run.started)} />
    ${policies.length && live ? policies.map(([name, policy]) => html`<${Tile} key=${name} name=${`trainer ${name} waits`} value=${percent(policy.trainer_wait_fraction)} note=${`version ${policy.version}, ${policy.buffered} rows buffered`} />`)
    : html`<${Tile} name="trainers wait" value=${percent(wait)} />`}
    ${live ? html`<${Tile} name="RaaS" value=${(live.raas ?? []).filter((raas) => raas.state === "alive").length} note=${`${live.tasks?.running ?? 0} tasks running`} />` : null}
  <//>`;
}

const Waits = ({ waits }) => (waits?.length
  ? html`<section aria-label="waits"><h2>Who waits for whom</h2><ul class="waits">${waits.map((wait) => html`<li>
      <b>${wait.who}</b> waits ${seconds(wait.since_s)} for <b>${wait.for_whom || "nobody"}</b>: ${wait.what}</li>`)}</ul></section>` : null);

export function Run({ name, theme }) {
  const [zoom, setZoom] = useState(null);
  const [others, setOthers] = useState([]);
  const { change, trouble } = useChanges(name);
  const state = change?.state;
  const path = `runs/${encodeURIComponent(name)}`;
  const range = zoom ? { first: Math.floor(zoom[0]), last: Math.ceil(zoom[1]) } : {};
  const [buckets] = useState(pixels);
  const [drawnFrom, setDrawnFrom] = useState(undefined);
  const again = useThrottled(change?.read, drawnFrom);
  const ran = useRef(false);
  ran.current ||= state === "running";
  const run = useAnswer(path, `${again}${ran.current && state !== "running"}`);
  const wanted = `${path}/curves?${query({ buckets, ...range })}`;
  const drawn = useAnswer(wanted, again);
  const more = useAnswer(others.length ? `${path}/curves?${query({ figure: others, buckets, ...range })}` : null, again);
  useEffect(() => setDrawnFrom(drawn.value?.read), [drawn.value]);
  const curves = useMemo(() => drawn.value && { name, ...drawn.value, policies: merged(drawn.value.policies, more.value?.policies) }, [drawn.value, more.value]);
  // What is drawn changes once, when there are curves of the new range.
  const inSight = useRef(null);
  if (drawn.of === wanted || drawn.error) inSight.current = zoom;
  const share = change?.share ?? drawn.value?.share ?? 1;
  if (!run.value) return run.error ? html`<${Problem} error=${run.error} />` : html`<${Loading} />`;
  const status = change?.status;
  const now = state ?? run.value.state;
  return html`<div class="title"><h1>${name}</h1><${State} state=${now} />
      ${now === "running" ? html`<span class="live" role="status">${trouble ? "interrupted" : "live"}</span>` : null}</div>
    <${Problem} error=${trouble || run.error || drawn.error} />
    ${now === "crashed" ? html`<${Problem} error=${"Its processes are gone and it left no summary. astraflow run --resume continues it from its last checkpoint."} />` : null}
    <${Problem} error=${status?.trouble || run.value.error} />
    <${Problem} error=${run.value.damaged ? `${run.value.damaged} lines of metrics.jsonl are damaged and left out.` : ""} />
    <${Now} run=${run.value} status=${status} state=${now} />
    <h2>Curves</h2>
    ${share < 1 ? html`<p class="quiet" role="status">A sample of the steps; ${percent(share)} of them are read so far.</p>` : null}
    ${curves ? html`<${Curves} runs=${[curves]} theme=${theme} zoom=${inSight.current} wanted=${zoom} onZoom=${setZoom} others=${others} />` : html`<${Loading} />`}
    <label class="more">another figure <select onChange=${(event) => { if (event.target.value) setOthers([...others, event.target.value]); event.target.value = ""; }}>
      <option value="">choose…</option>${run.value.figures.filter((figure) => !others.includes(figure)).map((figure) => html`<option value=${figure}>${figure}</option>`)}</select></label>
    <${Waits} waits=${status?.waits} />`;
}

function merged(policies, others) {
  if (!others) return policies;
  return Object.fromEntries(Object.keys(policies).map((name) => [name, { ...policies[name], ...others[name] }]));
}
