// Makes pages live: relative times, and a stream of changes upon which <main> is read anew and changed in place.
// Without this script a page is complete and shows what is new when it is reloaded.
//
// For the other scripts: `crcr:changed` is dispatched on the document after <main> was changed. A script dispatches
// `crcr:refresh` there to have it read anew, and `crcr:shown` after it has put something into the page itself. An
// element with `data-keep` is not taken away by a refresh that does not bring it.
"use strict";

(() => {
  const { morph } = globalThis.crcr;
  const SOON_MS = 25;
  const QUIET_MS = 250;
  const LONGEST_MS = 1500;
  const TYPING_MS = 200;
  const FRESH_MS = 1500;
  const TICK_MS = 10000;
  const ASLEEP_MS = 60000;
  const RETRY_MS = [1000, 2000, 5000, 10000, 30000];
  const main = document.getElementById("main");
  const dot = document.getElementById("live");
  const { events, number, backend } = document.body.dataset;

  // Times

  const STEPS = [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]];
  const words = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "narrow" });
  const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

  function tellTimes() {
    const now = Date.now();
    for (const time of document.querySelectorAll("time[datetime]")) {
      const at = Date.parse(time.dateTime);
      if (Number.isNaN(at)) continue;
      // A reader's clock that is behind ours makes nothing happen in the future, but what is meant to.
      const exact = Math.round((at - now) / 1000);
      const seconds = "ahead" in time.dataset ? exact : Math.min(0, exact);
      const step = STEPS.find(([size]) => Math.abs(seconds) >= size) || [1, "second"];
      const text = Math.abs(seconds) < 2 ? "just now" : words.format(Math.trunc(seconds / step[0]), step[1]);
      if (time.textContent !== text) time.textContent = text;
      if (time.dataset.told !== time.dateTime) {
        time.dataset.told = time.dateTime;
        time.title = `${time.title}\n${local.format(at)}`;
      }
    }
  }

  // Reading anew

  function change(html, quiet) {
    const fresh = new DOMParser().parseFromString(html, "text/html").body;
    const cells = morph(main, fresh);
    tellTimes();
    if (!quiet) flash(cells);
    document.dispatchEvent(new Event("crcr:changed"));
  }

  function flash(cells) {
    for (const cell of cells) cell.classList.add("fresh");
    setTimeout(() => { for (const cell of cells) cell.classList.remove("fresh"); }, FRESH_MS);
  }

  let over = false;
  let refreshing = false;
  let began = 0;
  let wanted = false;
  let asked = false;
  let shown = pageOf(location.href);
  let soon = 0;
  let troubles = 0;

  // A page without what scripts add to its address: which job's details stand beside it, and where it is scrolled to.
  function pageOf(href) {
    const address = new URL(href);
    address.hash = "";
    address.searchParams.delete("job");
    return address.href;
  }

  // By a reader's wish (`asked`) at once and without marking what differs; else when the page is looked at.
  async function refresh(byReader = false) {
    asked ||= byReader;
    if (over) return;
    if (refreshing || (document.hidden && !asked)) { wanted = true; return; }
    refreshing = true;
    began = Date.now();
    wanted = false;
    const [at, quiet] = [location.href, asked];
    asked = false;
    try {
      const address = new URL(at);
      address.hash = "";
      address.searchParams.set("fragment", "main");
      const answer = await fetch(address, { headers: { Accept: "text/html" } });
      const html = await answer.text();
      if (location.href !== at) { wanted = true; asked ||= quiet; } else take(answer, html, quiet);
    } catch { again(); } finally {
      refreshing = false;
      if (wanted && asked) refresh(true);
      else if (wanted && !document.hidden) changed();
    }
  }

  function take(answer, html, quiet) {
    const signIn = new URL(answer.url).pathname === "/crcr/login";
    if (answer.ok && !signIn) { troubles = 0; shown = pageOf(location.href); change(html, quiet); }
    else if (quiet) location.reload();
    else if (signIn || answer.status === 401 || answer.status === 403) end("signed out", "Sign in again and reload the page to go on");
    else if (answer.status === 404) end("gone", "What this page showed is not there any more");
    else again();
  }

  function again() {
    clearTimeout(soon);
    soon = setTimeout(changed, RETRY_MS[Math.min(2 + troubles++, RETRY_MS.length - 1)]);
  }

  let timer = 0;
  let since = 0;

  // The first change after a while shows at once. What follows waits for a quiet moment, but not for ever: a busy
  // relay never is quiet.
  function changed() {
    const now = Date.now();
    if (!timer) since = now;
    clearTimeout(timer);
    const quiet = now - began > LONGEST_MS ? SOON_MS : QUIET_MS;
    const wait = Math.max(0, Math.min(quiet, since + LONGEST_MS - now));
    timer = setTimeout(() => { timer = 0; refresh(); }, wait);
  }

  // Sorting and filtering without leaving the page: the same links and forms, read into this page.

  function go(address, replace) {
    if (address.href === location.href) return;
    history[replace ? "replaceState" : "pushState"](null, "", address);
    refresh(true);
  }

  // The filter says what the address says, unless it is being typed in.
  function tellFilters() {
    const asked = new URL(location.href).searchParams;
    for (const input of main.querySelectorAll("form[data-in-place] input[type=search]")) {
      if (input !== document.activeElement) input.value = asked.get(input.name) ?? "";
    }
  }

  function addressOf(form) {
    const address = new URL(form.getAttribute("action") || location.pathname, location.href);
    for (const [name, value] of new FormData(form)) if (String(value).trim()) address.searchParams.set(name, String(value).trim());
    return address;
  }

  function followInPlace() {
    main.addEventListener("click", (event) => {
      const link = event.target.closest("a[data-in-place]");
      if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
      event.preventDefault();
      go(new URL(link.href), false);
      tellFilters();
    });
    let typing = 0;
    const send = (form, replace) => { clearTimeout(typing); go(addressOf(form), replace); };
    main.addEventListener("submit", (event) => {
      if (!event.target.matches("form[data-in-place]")) return;
      event.preventDefault();
      send(event.target, false);
    });
    main.addEventListener("change", (event) => {
      if (event.target.localName === "select" && event.target.form?.matches("[data-in-place]")) send(event.target.form, false);
    });
    main.addEventListener("input", (event) => {
      const form = event.target.type === "search" && event.target.closest("form[data-in-place]");
      clearTimeout(typing);
      if (form) typing = setTimeout(send, TYPING_MS, form, true);
    });
    addEventListener("popstate", () => {
      if (pageOf(location.href) === shown) return;
      tellFilters();
      refresh(true);
    });
  }

  // The stream of changes

  let source = null;
  let last = "";
  let failures = 0;
  let retry = 0;

  function show(state, text, title) {
    if (!dot || over) return;
    dot.dataset.state = state;
    dot.lastElementChild.textContent = text;
    dot.title = title;
  }

  function end(text, title) {
    show("over", text, title);
    over = true;
    clearTimeout(retry);
    clearTimeout(soon);
    source?.close();
  }

  // A page about one pull request or one backend leaves out what is told of another; what names none may be its own.
  function concerns(change) {
    if (number && change.number && change.number !== Number(number)) return false;
    return !backend || !change.downstream || change.downstream === backend;
  }

  function listen() {
    clearTimeout(retry);
    source?.close();
    if (over) return;
    const address = new URL(events, location.href);
    if (last) address.searchParams.set("after", last);
    const stream = new EventSource(address);
    source = stream;
    const heard = (event) => {
      if (event.lastEventId) last = event.lastEventId;
      if (concerns(JSON.parse(event.data))) changed();
    };
    stream.addEventListener("change", heard);
    stream.addEventListener("reset", heard);
    stream.addEventListener("open", () => { failures = 0; show("on", "live", "New results appear by themselves"); });
    stream.addEventListener("error", () => {
      if (stream !== source) return;
      show("lost", "reconnecting", "The connection was lost; what happened meanwhile will be caught up");
      if (stream.readyState !== EventSource.CLOSED) return;
      // After a refusal (503, a proxy's answer, a session that is over) the browser gives up; we do not, and look
      // at the page itself to learn whether it is still ours to see.
      if (failures % RETRY_MS.length === 0) changed();
      retry = setTimeout(listen, RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)]);
    });
  }

  // A connection that broke while nobody looked or the machine slept may never say so. Once somebody looks again,
  // it is made anew from the last change we know, and nothing in between is lost.
  let hiddenAt = 0;
  let ticked = Date.now();

  function watchSleep() {
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) { hiddenAt = Date.now(); return; }
      if (hiddenAt && Date.now() - hiddenAt > ASLEEP_MS) listen();
      if (wanted) changed();
    });
    addEventListener("online", listen);
    addEventListener("pagehide", () => source?.close());
    addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  }

  function tick() {
    tellTimes();
    const now = Date.now();
    if (events && now - ticked > TICK_MS + ASLEEP_MS) listen();
    ticked = now;
  }

  // What an act said is said once: a reload does not say it again.
  function forgetNotice() {
    const address = new URL(location.href);
    if (!document.getElementById("notice") || !address.searchParams.has("done")) return;
    address.searchParams.delete("done");
    address.searchParams.delete("n");
    history.replaceState(history.state, "", address);
  }

  tellTimes();
  setInterval(tick, TICK_MS);
  forgetNotice();
  if (!main) return;
  followInPlace();
  document.addEventListener("crcr:refresh", () => refresh(true));
  document.addEventListener("crcr:shown", tellTimes);
  if (!dot || !events) return;
  watchSleep();
  show("lost", "connecting", "Connecting to the stream of changes");
  listen();
})();
