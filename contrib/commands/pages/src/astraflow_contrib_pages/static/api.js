// What the server is asked, and how its answers and refusals reach a page.
import { useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm-preact.js";

export class Refusal extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

const UNREACHABLE = "The server does not answer: it was ended, or the connection is lost. Start astraflow ui again, then reload.";

async function asked(path, options) {
  let answer;
  try {
    answer = await fetch(`api/${path}`, { credentials: "same-origin", signal: AbortSignal.timeout(60000), ...options });
  } catch (error) {
    throw new Refusal(0, error.name === "TimeoutError" ? "The server took longer than 60 s." : UNREACHABLE);
  }
  let body = null;
  try {
    body = await answer.json();
  } catch (error) {
    throw new Refusal(answer.status, `The server gave no JSON (status ${answer.status}).`);
  }
  if (!answer.ok) throw new Refusal(answer.status, body.error ?? `status ${answer.status}`);
  return body;
}

export const get = (path) => asked(path, {});

export const act = (run, action, given) =>
  asked(`runs/${encodeURIComponent(run)}/actions/${action}`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-astraflow-action": "1" },
    body: JSON.stringify(given),
  });

export const query = (values) => {
  const given = new URLSearchParams();
  for (const [key, value] of Object.entries(values)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") given.append(key, one);
    }
  }
  return given.toString();
};

async function ask(asking, set) {
  const { path } = asking;
  asking.again = true;
  if (asking.busy) return;
  asking.busy = true;
  while (asking.wanted && asking.again) {
    asking.again = false;
    try {
      const value = await get(path);
      if (asking.wanted) set({ value, of: path, error: null, path });
    } catch (error) {
      if (asking.wanted) set((before) => ({ value: before.path === path ? before.value : null, of: before.of, error, path }));
    }
  }
  asking.busy = false;
}

// The answer to `path`, asked again when it changes or `again` does; what was there stays until the next is, and `of` is the path
// that was asked for it. One request at a time: what changes meanwhile is asked for after it, since a server slower than the period
// would otherwise never be heard.
export function useAnswer(path, again = 0) {
  const [state, set] = useState({ value: null, of: null, error: null, path: null });
  const current = useRef(null);
  // Before the next frame and not after it, which is what an ordinary effect waits for.
  useLayoutEffect(() => {
    if (path === null) return undefined;
    const asking = { path, wanted: true, busy: false, again: false };
    current.current = asking;
    return () => { asking.wanted = false; current.current = null; };
  }, [path]);
  useLayoutEffect(() => { if (current.current) ask(current.current, set); }, [path, again]);
  return state.path === path || path === null ? state : { value: state.value, of: state.of, error: null, path };
}

// The answer to `path` about a journal, asked again at once as long as the server has not read all of that.
export function useJournal(path, again = 0) {
  const [answers, setAnswers] = useState(0);
  const asked = useAnswer(path, again + answers);
  useEffect(() => { if (asked.value?.share < 1 && asked.of === path) setAnswers((n) => n + 1); }, [asked.value]);
  return asked;
}

// What changes in a running run; `trouble` while the stream is interrupted.
export function useChanges(run) {
  const [state, set] = useState({ change: null, trouble: "" });
  const closed = useRef(false);
  useEffect(() => {
    closed.current = false;
    const source = new EventSource(`api/runs/${encodeURIComponent(run)}/events`);
    source.addEventListener("change", (event) => set({ change: JSON.parse(event.data), trouble: "" }));
    source.addEventListener("end", () => { closed.current = true; source.close(); });
    source.onerror = () => {
      if (closed.current) return;
      set((before) => ({ ...before, trouble: "The live connection is interrupted; the browser tries again." }));
      if (source.readyState === EventSource.CLOSED) {
        get("session").catch((error) => set((before) => ({ ...before, trouble: error.message })));
      }
    };
    return () => { closed.current = true; source.close(); };
  }, [run]);
  return state;
}

export function usePeriod(seconds) {
  const [count, set] = useState(0);
  useEffect(() => {
    if (!seconds) return undefined;
    const timer = setInterval(() => { if (!document.hidden) set((n) => n + 1); }, seconds * 1000);
    return () => clearInterval(timer);
  }, [seconds]);
  return count;
}
