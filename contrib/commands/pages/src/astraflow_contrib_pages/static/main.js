// The frame of all pages: which one is shown, and in which theme.
import { html, render, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { useAnswer } from "./api.js";
import { Compare, Runs } from "./runs.js";
import { Run } from "./run.js";
import { Problem } from "./parts.js";
import { Config, Data, Plugins, Weights } from "./facts.js";
import { Explain } from "./explain.js";
import { Pool } from "./pool.js";
import { Trajectories } from "./trajectories.js";

const TABS = { "": Run, trajectories: Trajectories, pool: Pool, data: Data, explain: Explain, weights: Weights, config: Config, plugins: Plugins };
const TITLES = { "": "Curves", trajectories: "Trajectories", pool: "Services", data: "Data", explain: "Explain", weights: "Weights", config: "Config", plugins: "Plugins" };

function place() {
  const [path, search = ""] = location.hash.replace(/^#/, "").split("?");
  let parts;
  try {
    parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  } catch (error) {
    parts = [];
  }
  return { parts, asked: new URLSearchParams(search) };
}

function usePlace() {
  const [found, set] = useState(place());
  const drawn = useRef(location.hash);
  useEffect(() => {
    const look = () => { set(place()); window.scrollTo(0, 0); };
    window.addEventListener("hashchange", look);
    if (location.hash !== drawn.current) look(); // it changed after the first drawing, before anybody listened
    return () => window.removeEventListener("hashchange", look);
  }, []);
  return found;
}

function useTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const [chosen, choose] = useState(document.documentElement.dataset.theme ?? "auto");
  const [system, setSystem] = useState(dark.matches);
  useEffect(() => {
    const look = () => setSystem(dark.matches);
    dark.addEventListener("change", look);
    return () => dark.removeEventListener("change", look);
  }, []);
  const set = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    localStorage.setItem("astraflow-theme", theme);
    choose(theme);
  };
  return { chosen, set, effective: chosen === "auto" ? (system ? "dark" : "light") : chosen };
}

function Page({ where, theme, scope }) {
  const [first, name, tab = ""] = where.parts;
  // On a narrow screen the tab may be out of sight.
  useEffect(() => document.querySelector(".tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }), [name, tab]);
  if (first === "compare") return html`<${Compare} names=${where.asked.getAll("run")} theme=${theme} />`;
  if (first === "run" && TABS[tab]) {
    return html`<nav class="tabs" aria-label="pages of the run">${Object.keys(TABS).map((key) => html`<a href=${`#/run/${encodeURIComponent(name)}${key && `/${key}`}`} aria-current=${key === tab ? "page" : undefined}>${TITLES[key]}</a>`)}</nav>
      <${TABS[tab]} key=${`${name}/${tab}`} name=${name} theme=${theme} scope=${scope} asked=${where.asked} rest=${where.parts.slice(3)} />`;
  }
  if (first) return html`<${Problem} error="There is no such page." />`;
  return html`<${Runs} />`;
}

function App() {
  const where = usePlace();
  const theme = useTheme();
  const session = useAnswer("session");
  const name = where.parts[0] === "run" ? where.parts[1] : "";
  useEffect(() => { document.title = name ? `${name} – AstraFlow` : "AstraFlow runs"; }, [name]);
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>to the content</a>
    <header><a class="brand" href="#/">AstraFlow</a>${name ? html`<span class="crumb"><span aria-hidden="true">/</span> ${name}</span>` : null}
      <span class="grow"></span>
      ${session.value?.scope === "read" ? html`<span class="chip">read-only</span>` : null}
      <label class="theme"><span class="unseen">theme</span><select value=${theme.chosen} onChange=${(event) => theme.set(event.target.value)}>
        <option value="auto">auto</option><option value="light">light</option><option value="dark">dark</option></select></label>
    </header>
    <main id="main" tabindex="-1">${session.error ? html`<${Problem} error=${session.error} />` : html`<${Page} where=${where} theme=${theme.effective} scope=${session.value?.scope} />`}</main>`;
}

render(html`<${App} />`, document.getElementById("app"));
