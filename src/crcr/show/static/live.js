// Makes pages live: relative times, and a stream of changes that refreshes <main> when something changed.
// Without this script a page is complete and shows what is new when it is reloaded.
"use strict";

(() => {
  const STEPS = [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]];
  const words = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "narrow" });
  const QUIET_MS = 250;
  const LONGEST_MS = 1500;
  const RETRY_MS = [1000, 2000, 5000, 10000, 30000];
  const dot = document.getElementById("live");
  const events = document.body.dataset.events;
  const number = Number(document.body.dataset.number || 0);

  function tellTimes() {
    const now = Date.now();
    for (const time of document.querySelectorAll("time[datetime]")) {
      // A reader's clock that is behind ours makes nothing happen in the future, but what is meant to.
      const exact = Math.round((Date.parse(time.dateTime) - now) / 1000);
      const seconds = "ahead" in time.dataset ? exact : Math.min(0, exact);
      const step = STEPS.find(([size]) => Math.abs(seconds) >= size) || [1, "second"];
      time.textContent = Math.abs(seconds) < 2 ? "just now" : words.format(Math.trunc(seconds / step[0]), step[1]);
    }
  }

  function show(state, text, title) {
    dot.dataset.state = state;
    dot.lastElementChild.textContent = text;
    dot.title = title;
  }

  // What the reader opened, scrolled to and stands on survives a refresh.
  function keepPlace(main) {
    const open = [...main.querySelectorAll("details[open][id]")].map((each) => each.id);
    const scrolled = [...main.querySelectorAll("[id^=scroll-]")].map((each) => [each.id, each.scrollLeft, each.scrollTop]);
    const focused = main.contains(document.activeElement) ? document.activeElement : null;
    const href = focused && focused.getAttribute("href");
    return () => {
      for (const id of open) { const each = document.getElementById(id); if (each) each.open = true; }
      for (const [id, left, top] of scrolled) { const each = document.getElementById(id); if (each) each.scrollTo(left, top); }
      const again = focused && (focused.id ? document.getElementById(focused.id)
        : href && main.querySelector(`a[href="${CSS.escape(href)}"]`));
      if (again) again.focus({ preventScroll: true });
    };
  }

  let refreshing = false;
  let wanted = false;

  async function refresh() {
    if (refreshing || document.hidden) { wanted = true; return; }
    refreshing = true;
    wanted = false;
    try {
      const address = new URL(location.href);
      address.searchParams.set("fragment", "main");
      const answer = await fetch(address, { headers: { Accept: "text/html" } });
      if (answer.ok) {
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        const main = document.getElementById("main");
        const restore = keepPlace(main);
        main.replaceChildren(...fresh.body.childNodes);
        tellTimes();
        restore();
      } else { setTimeout(changed, 5000); }
    } catch { setTimeout(changed, 5000); } finally {
      refreshing = false;
      if (wanted && !document.hidden) changed();
    }
  }

  let timer = 0;
  let since = 0;

  // Wait for a quiet moment, but not for ever: a busy relay never is quiet.
  function changed() {
    const now = Date.now();
    if (!timer) since = now;
    clearTimeout(timer);
    const wait = Math.max(0, Math.min(QUIET_MS, since + LONGEST_MS - now));
    timer = setTimeout(() => { timer = 0; refresh(); }, wait);
  }

  // A pull request's page leaves out what is told of another one; what names none may be its own.
  function concerns(change) {
    return !number || !change.number || change.number === number;
  }

  let last = "";
  let failures = 0;

  function listen() {
    const address = new URL(events, location.href);
    if (last) address.searchParams.set("after", last);
    const source = new EventSource(address);
    const heard = (event) => { if (event.lastEventId) last = event.lastEventId; if (concerns(JSON.parse(event.data))) changed(); };
    source.addEventListener("change", heard);
    source.addEventListener("reset", heard);
    source.addEventListener("open", () => { failures = 0; show("on", "live", "New results appear by themselves"); });
    source.addEventListener("error", () => {
      show("lost", "reconnecting", "The connection was lost; what happened meanwhile will be caught up");
      // After a refusal (503, or a proxy's answer) the browser gives up; we do not.
      if (source.readyState === EventSource.CLOSED) {
        setTimeout(listen, RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)]);
      }
    });
    addEventListener("pagehide", () => source.close(), { once: true });
  }

  tellTimes();
  setInterval(tellTimes, 10000);
  if (!dot || !events) return;
  document.addEventListener("visibilitychange", () => { if (!document.hidden && wanted) changed(); });
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  show("lost", "connecting", "Connecting to the stream of changes");
  listen();
})();
