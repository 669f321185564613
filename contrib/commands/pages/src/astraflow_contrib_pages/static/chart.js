// A chart of curves: uPlot, with our colours and a table of the newest values for those who do not see it.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import uPlot from "./vendor/uPlot.js";
import { number } from "./format.js";

const COLOURS = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"];
const HEIGHT_REM = 13.4;
// A browser without a GPU draws lines of one pixel five to ten times as fast as broader ones, and of many points nobody sees which it was.
const MANY_POINTS = 200;
const broad = (line) => (line.x.length > MANY_POINTS ? 1 : 1.5);

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A wide screen has larger letters, and so larger charts.
const rem = () => parseFloat(getComputedStyle(document.documentElement).fontSize);

// Curves have steps of their own: joined, with gaps (undefined) that a line spans.
const joined = (lines) => uPlot.join(lines.map((line) => [line.x, line.y]));

// The range of values with some room; that of a line without height around it.
function roomy(_, low, high) {
  if (low === null) return [0, 1];
  const room = 0.06 * (high - low || Math.abs(low) || 1);
  if (high > low) return [low - room, high + room];
  return low >= 0 ? [-room, 2 * low || 1] : [2 * low, room];
}

const FORMATS = Array.from({ length: 7 }, (_, digits) => new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }));

// With the digits that the distance of neighbours has.
function tick(value, step) {
  let digits = 0;
  while (digits < 7 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6) digits += 1;
  if (Math.abs(value) >= 1e6 || digits > 6) return number(value);
  return FORMATS[digits].format(value);
}

function options(lines, width, onZoom) {
  const axis = { stroke: style("--quiet"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line"), width: 1 }, font: `${Math.round(0.74 * rem())}px system-ui, sans-serif` };
  return {
    width,
    height: Math.round(HEIGHT_REM * rem()),
    scales: { x: { time: false }, y: { range: roomy } },
    legend: { show: false },
    cursor: { drag: { x: true, y: false }, sync: { key: "steps" } },
    axes: [{ ...axis, size: Math.round(1.8 * rem()) }, { ...axis, size: Math.round(3.7 * rem()), values: (_plot, splits, _axis, _space, step) => splits.map((v) => tick(v, step)) }],
    series: [{}, ...lines.map((line) => ({
      label: line.label,
      stroke: style(COLOURS[line.colour % COLOURS.length]),
      width: broad(line),
      dash: line.dash ? [4, 4] : undefined,
      spanGaps: true,
      points: { show: line.x.length < 40, size: 5 },
    }))],
    hooks: {
      setSelect: [(plot) => {
        const { left, width: wide } = plot.select;
        if (wide > 4) onZoom([plot.posToVal(left, "x"), plot.posToVal(left + wide, "x")]);
        plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      }],
    },
  };
}

export function Chart({ title, unit, lines, theme, zoom, fine, onZoom }) {
  const place = useRef(null);
  const plot = useRef(null);
  const shown = useRef(null);
  const zoomed = useRef(onZoom);
  const [width, setWidth] = useState(0);
  const [near, setNear] = useState(false);
  const drawn = lines.filter((line) => line.x.length);
  zoomed.current = onZoom;
  const everNear = useRef(false);
  everNear.current ||= near;
  const shape = drawn.map((line) => `${line.label}/${line.colour}/${line.x.length < 40}`).join("|");
  const range = zoom ? zoom.join() : "";

  useEffect(() => {
    const observer = new ResizeObserver((entries) => setWidth(Math.floor(entries[0].contentRect.width)));
    observer.observe(place.current);
    // A chart out of sight is drawn when somebody scrolls to it.
    const sight = new IntersectionObserver((entries) => setNear(entries[entries.length - 1].isIntersecting), { rootMargin: "100px" });
    sight.observe(place.current);
    return () => { observer.disconnect(); sight.disconnect(); };
  }, []);
  const draw = () => {
    if (place.current) place.current.dataset.fine = fine;
    const now = plot.current;
    if (!now || !near || (shown.current.lines === lines && shown.current.range === range)) return;
    // A plot is kept while people zoom: to make one takes as long as to draw it ten times.
    now.batch(() => {
      drawn.forEach((line, index) => { now.series[index + 1].width = broad(line); });
      if (shown.current.lines !== lines) now.setData(joined(drawn), !zoom);
      else if (!zoom) now.setData(now.data, true);
      if (zoom) now.setScale("x", { min: zoom[0], max: zoom[1] });
    });
    shown.current = { lines, range };
    place.current.dataset.range = range || "all";
  };
  useEffect(() => {
    if (!width || !drawn.length || !everNear.current) return undefined;
    plot.current = new uPlot(options(drawn, width, (range) => zoomed.current?.(range)), joined(drawn), place.current);
    shown.current = { lines, range: "" };
    place.current.dataset.range = "all";
    draw();
    return () => { plot.current.destroy(); plot.current = null; };
  }, [shape, theme, width > 0, everNear.current]);
  useEffect(() => { plot.current?.setSize({ width, height: Math.round(HEIGHT_REM * rem()) }); }, [width]);
  // In the same frame as what was clicked.
  useLayoutEffect(draw, [lines, range, fine, shape, theme, width > 0, near]);

  // What a zoom does not change is not made again for it.
  const newest = useMemo(() => drawn.map((line) => `${line.label} ${number(line.y[line.y.length - 1])} at ${number(line.x[line.x.length - 1])}`).join("; "), [lines]);
  const legend = useMemo(() => html`<ul class="legend">${drawn.map((line) => html`<li key=${line.label}>
      <span class=${`swatch s${(line.colour % COLOURS.length) + 1}${line.dash ? " dashed" : ""}`}></span>${line.label}
      <span class="value">${number(line.y[line.y.length - 1])}</span></li>`)}</ul>`, [lines]);
  return html`<figure class="chart">
    <figcaption><b>${title}</b> <span class="quiet">${unit}</span></figcaption>
    <div class="plot" role="img" aria-label=${`${title}: ${newest || "no value yet"}`} ref=${place} onDblClick=${() => zoomed.current?.(null)}>
      ${drawn.length ? null : html`<p class="nothing">no value yet</p>`}
    </div>
    ${legend}
  </figure>`;
}
