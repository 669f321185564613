// One run: where it stands, and its curves.
import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import { query, useAnswer, useChanges } from "./api.js";
import { Curves } from "./curves.js";
import { Beside } from "./heat.js";
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

const atMost = (value) => (value === undefined ? number(value) : `≤ ${number(value)}`);
const trained = (tokens) => (tokens === undefined ? "" : `${count(tokens)} trained`);

function Now({ run, status, state }) {
  const summary = run.summary ?? {};
  const live = status?.live ? status : null;
  const policies = Object.entries((live ?? status)?.policies ?? {});
  const wait = live ? null : summary.trainer_wait_fraction;
  return html`<${Tiles}>
    <${Tile} name="steps" value=${`${number(live?.steps ?? run.steps)} / ${number(live?.steps_total ?? run.steps_planned)}`} note=${live?.eta_s ? `${seconds(live.eta_s)} left` : ""} />
    <${Tile} name="reward" value=${number(policies[0]?.[1].reward ?? run.reward, 3)} />
    <${Tile} name="held-out accuracy" value=${percent(run.accuracy)} />
    <${Tile} name="staleness" value=${atMost(live?.max_staleness_seen ?? summary.max_staleness_seen)} note=${`bound ${number(run.max_staleness)}`} />
    <${Tile} name="tokens sampled" value=${count(live?.tokens_generated ?? summary.tokens_generated ?? run.tokens)} note=${trained(live?.tokens_trained ?? summary.tokens_trained)} />
    <${Tile} name="time" value=${seconds(live?.elapsed_s ?? summary.wall_s)} note=${when(run.started)} />
    ${policies.length && live ? policies.map(([name, policy]) => html`<${Tile} key=${name} name=${`trainer ${name} waits`} value=${percent(policy.trainer_wait_fraction)} note=${`version ${policy.version}, ${policy.buffered} rows buffered`} />`)
    : html`<${Tile} name="trainers wait" value=${percent(wait)} />`}
    ${live ? html`<${Tile} name="RaaS" value=${(live.raas ?? []).filter((raas) => raas.state === "alive").length} note=${`${live.tasks?.running ?? 0} tasks running`} />` : null}
  <//>`;
}

const Waits = ({ waits }) => (waits?.length
  ? html`<section aria-label="waits"><h2>Who waits for whom</h2><ul class="waits">${waits.map((wait) => html`<li>
      <b>${wait.who}</b> waits ${seconds(wait.since_s)} for <b>${wait.for_whom || "nobody"}</b>: ${wait.what}</li>`)}</ul></section>` : null);

// The curves of all steps, or of those in `zoom`. These are asked for, and until they are there what the page has is drawn, so that
// it answers at once; the way back needs no answer.
function useCurves(path, buckets, figure, zoom, again) {
  const asked = (range) => path && `${path}/curves?${query({ figure, buckets, ...range })}`;
  const seen = useRef(again);
  if (!zoom) seen.current = again; // while a part is shown, only that is asked for again
  const whole = useAnswer(asked({}), seen.current);
  const [settled, settle] = useState(zoom);
  useEffect(() => settle(zoom), [zoom]); // after the frame: what an answer costs is not to delay that
  const wanted = zoom && settled === zoom ? asked({ first: Math.floor(zoom[0]), last: Math.ceil(zoom[1]) }) : null;
  const part = useAnswer(wanted, again);
  const last = useRef(null);
  if (part.of !== null && part.of === wanted) last.current = { zoom, value: part.value, of: whole.of };
  if (last.current && last.current.of !== whole.of) last.current = null;
  const covered = zoom && last.current && last.current.zoom[0] <= zoom[0] && zoom[1] <= last.current.zoom[1];
  return { drawn: covered ? last.current.value : whole.value, error: whole.error || (zoom && part.error), fine: !zoom || (wanted !== null && part.of === wanted) };
}

export function Run({ name, theme }) {
  const [zoom, setZoom] = useState(null);
  const [others, setOthers] = useState([]);
  const { change, trouble } = useChanges(name);
  const state = change?.state;
  const path = `runs/${encodeURIComponent(name)}`;
  const [buckets] = useState(pixels);
  const [drawnFrom, setDrawnFrom] = useState(undefined);
  const again = useThrottled(change?.read, drawnFrom);
  const ran = useRef(false);
  ran.current ||= state === "running";
  const run = useAnswer(path, `${again}${ran.current && state !== "running"}`);
  const { drawn, error, fine } = useCurves(path, buckets, [], zoom, again);
  const more = useCurves(others.length ? path : null, buckets, others, zoom, again).drawn;
  useEffect(() => setDrawnFrom(drawn?.read), [drawn]);
  const curves = useMemo(() => drawn && { name, ...drawn, policies: merged(drawn.policies, more?.policies) }, [drawn, more]);
  const share = change?.share ?? drawn?.share ?? 1;
  const status = change?.status;
  const now = state ?? run.value?.state;
  const tiles = useMemo(() => run.value && html`<${Now} run=${run.value} status=${status} state=${now} />`, [run.value, status, now]);
  if (!run.value) return run.error ? html`<${Problem} error=${run.error} />` : html`<${Loading} />`;
  return html`<div class="title"><h1>${name}</h1><${State} state=${now} />
      ${now === "running" ? html`<span class="live" role="status">${trouble ? "interrupted" : "live"}</span>` : null}</div>
    <${Problem} error=${trouble || run.error || error} />
    ${now === "crashed" ? html`<${Problem} error=${"Its processes are gone and it left no summary. astraflow run --resume continues it from its last checkpoint."} />` : null}
    <${Problem} error=${status?.trouble || run.value.error} />
    <${Problem} error=${run.value.damaged ? `${run.value.damaged} lines of metrics.jsonl are damaged and left out.` : ""} />
    ${tiles}
    <h2>Curves</h2>
    ${share < 1 ? html`<p class="quiet" role="status">A sample of the steps; ${percent(share)} of them are read so far.</p>` : null}
    ${curves ? html`<${Curves} runs=${[curves]} theme=${theme} zoom=${zoom} fine=${fine} onZoom=${setZoom} others=${others} />` : html`<${Loading} />`}
    <label class="more">another figure <select onChange=${(event) => { if (event.target.value) setOthers([...others, event.target.value]); event.target.value = ""; }}>
      <option value="">choose…</option>${run.value.figures.filter((figure) => !others.includes(figure)).map((figure) => html`<option value=${figure}>${figure}</option>`)}</select></label>
    <${Beside} path=${path} bound=${run.value.max_staleness} theme=${theme} zoom=${zoom} onZoom=${setZoom} buckets=${buckets} again=${again} />
    <${Waits} waits=${status?.waits} />`;
}

function merged(policies, others) {
  if (!others) return policies;
  return Object.fromEntries(Object.keys(policies).map((name) => [name, { ...policies[name], ...others[name] }]));
}
