// Loads parts of pages for the other scripts, and shows the connection's state in the header of the page.
//
// `crcr.read(address, part, more)` adds the parameters `more`, resolves to the kind of the answer and never throws: "page"
// (with its `html`), "busy" (the relay says how long to wait: `waitMs`), "trouble" (it is unreachable or fails), "login",
// "refused" (with the `code`), or "other" (not a page).
// `crcr.pause(times)` returns how long to wait after so many failures. `crcr.retry(times, task, waitMs)` runs a task after
// that time, or sooner when the relay is back, or exactly after `waitMs`; it returns a function that cancels it.
// `crcr.status` shows the state of the stream; a failed load takes precedence over it, and an ended page over both.
"use strict";

(() => {
  const RETRY_MS = [1000, 2000, 5000, 10000, 30000];
  const LOGIN = "/crcr/login";
  const dot = document.getElementById("live");

  // All who wait for the same time must not come back in the same moment.
  function busyFor(answer) {
    const seconds = answer.status === 503 ? Number(answer.headers.get("Retry-After") ?? NaN) : NaN;
    return seconds >= 0 ? seconds * 1000 * (1 + Math.random() / 2) : null;
  }

  async function read(at, part, more = {}) {
    const address = new URL(at);
    address.hash = "";
    address.searchParams.set("fragment", part);
    for (const [name, value] of Object.entries(more)) if (value) address.searchParams.set(name, value);
    try {
      const answer = await fetch(address, { headers: { Accept: "text/html" } });
      const html = await answer.text();
      if (answer.status === 401 || new URL(answer.url).pathname === LOGIN) return { means: "login" };
      if ([400, 403, 404, 410].includes(answer.status)) return { means: "refused", code: answer.status };
      const waitMs = busyFor(answer);
      if (waitMs !== null) return { means: "busy", waitMs };
      if (!answer.ok) return { means: "trouble" };
      return { means: answer.headers.get("Content-Type")?.startsWith("text/html") ? "page" : "other", html };
    } catch { return { means: "trouble" }; }
  }

  const pause = (times) => RETRY_MS[Math.min(times, RETRY_MS.length - 1)];
  const waiting = new Set();

  function retry(times, task, waitMs = null) {
    const again = () => { cancel(); task(); };
    const timer = setTimeout(again, waitMs ?? pause(times));
    const cancel = () => { clearTimeout(timer); waiting.delete(again); };
    if (waitMs === null) waiting.add(again);
    return cancel;
  }

  const TROUBLES = {
    trouble: ["lost", "could not be read, trying again", "The relay did not answer; the page shows the last state that was loaded"],
    busy: ["lost", "not up to date, trying again", "The relay asked to wait; the page shows the last state that was loaded"],
  };
  const troubles = new Map();
  let stream = null;
  let ended = null;

  function show() {
    const shown = ended || TROUBLES[[...troubles.values()].sort().at(-1)] || (dot && stream);
    if (!dot) { notice(shown?.[1]); return; }
    if (!shown || (dot.dataset.state === shown[0] && dot.lastElementChild.textContent === shown[1])) return;
    [dot.dataset.state, dot.lastElementChild.textContent, dot.title] = shown;
  }

  // A page without a dot has its own place for it, once it is needed.
  function notice(text) {
    let place = document.getElementById("trouble");
    if (!place && text) {
      place = document.createElement("div");
      place.id = "trouble";
      place.className = "notice";
      place.setAttribute("role", "status");
      document.getElementById("main").before(place);
    }
    place?.replaceChildren();
    if (text) place.appendChild(document.createElement("p")).textContent = text;
  }

  const status = {
    stream(state, text, title) {
      const back = state === "on" && stream?.[0] !== "on";
      stream = [state, text, title];
      show();
      if (back) for (const again of [...waiting]) again();
    },
    // `what` is "trouble", "busy" or nothing.
    trouble(who, what) {
      if (what) troubles.set(who, what); else troubles.delete(who);
      show();
    },
    end(text, title) {
      ended ||= ["over", text, title];
      show();
    },
  };

  Object.assign(globalThis.crcr, { read, pause, retry, status });
})();
