// Makes pages live: relative times, and a stream of changes; after a change the parts of <main> that differ are loaded
// (parts.js) and <main> is updated in place. Without this script a page is complete and can be reloaded.
//
// For the other scripts: `crcr:changed` is dispatched on the document after <main> was updated. A script dispatches
// `crcr:refresh` there to load it again, and `crcr:shown` after it has added something to the page itself. A refresh does
// not remove an element with `data-keep`.
"use strict";

(() => {
  const { morph, keepPlaces, read, retry, status, follow, shownParts, versionsOf, completeParts } = globalThis.crcr;
  const SOON_MS = 25;
  const QUIET_MS = 250;
  const LONGEST_MS = 750;
  const TYPING_MS = 200;
  const FRESH_MS = 1500;
  const CALM_MS = 5000;
  const TICK_MS = 10000;
  const POLL_MS = 15000;
  const main = document.getElementById("main");
  const { events, number, backend, health } = document.body.dataset;
  const upstream = events && new URL(events, location.href).searchParams.get("upstream")?.toLowerCase();

  // Times

  const STEPS = [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]];
  const words = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "narrow" });
  const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

  function formatTimes(root = document) {
    const now = Date.now();
    for (const time of root.querySelectorAll("time[datetime]")) {
      const at = Date.parse(time.dateTime);
      if (Number.isNaN(at)) continue;
      // A reader's clock that is behind ours makes nothing happen in the future, but what is meant to.
      const exact = Math.round((at - now) / 1000);
      const seconds = "ahead" in time.dataset ? exact : Math.min(0, exact);
      const step = STEPS.find(([size]) => Math.abs(seconds) >= size) || [1, "second"];
      const text = Math.abs(seconds) < 2 ? "just now" : words.format(Math.trunc(seconds / step[0]), step[1]);
      if (time.textContent !== text) time.textContent = text;
      if (time.dataset.formatted !== time.dateTime) {
        time.dataset.formatted = time.dateTime;
        time.title = `${time.title}\n${local.format(at)}`;
      }
    }
  }

  // Reading anew

  // A parser without the tag <body> would take a stub at the beginning for a part of the head.
  const parse = (html) => new DOMParser().parseFromString(`<body>${html}`, "text/html").body;

  // A reader who asked for another view begins at its top.
  function change(fresh, { byReader, fields }) {
    // Before anything comes in: words of another length would wrap lines, and the reader's place would be kept for that layout.
    formatTimes(fresh);
    const cells = byReader ? replace(fresh, fields) : keepPlaces(main, () => replace(fresh, fields));
    if (!byReader) flash(cells);
    document.dispatchEvent(new Event("crcr:changed"));
  }

  function replace(fresh, fields) {
    // What stands outside of <main> and goes with its address, such as the relay's health above it.
    for (const part of fresh.querySelectorAll("template[data-outside]")) {
      const place = document.getElementById(part.dataset.outside);
      part.remove();
      formatTimes(part.content);
      if (place) morph(place, part.content);
    }
    // What was typed while the page was read is newer than the answer.
    return morph(main, fresh, { fields: fields && typedAt < began });
  }

  const flashed = new WeakMap();

  // A cell that changes all the time says nothing by flashing.
  function flash(cells) {
    const now = Date.now();
    const due = [...cells].filter((cell) => now - (flashed.get(cell) ?? 0) > CALM_MS);
    for (const cell of due) { flashed.set(cell, now); cell.classList.add("fresh"); }
    setTimeout(() => { for (const cell of due) cell.classList.remove("fresh"); }, FRESH_MS);
  }

  let over = false;
  let reading = false;
  let began = 0;
  let typedAt = 0;
  let wanted = null;
  let shown = pageOf(location.href);
  let version = null;
  let wholeNext = false;
  let waitsUntil = 0;
  let troubles = 0;
  let notAgain = () => {};

  // A page without what scripts add to its address: which job's details stand beside it, and where it is scrolled to.
  function pageOf(href) {
    const address = new URL(href);
    address.hash = "";
    address.searchParams.delete("job");
    return address.href;
  }

  function want({ byReader = false, fields = false }) {
    wanted = { byReader: wanted?.byReader || byReader, fields: wanted?.fields || fields };
  }

  // By a reader's wish at once and without marking what differs; else when the page is looked at. `fields` says that
  // the filter is to show what the rows are filtered by, and not what is being typed.
  async function refresh(how = {}) {
    want(how);
    if (over || reading || (!wanted.byReader && (document.hidden || Date.now() < waitsUntil))) return;
    notAgain();
    const [at, asked] = [location.href, wanted];
    // Another view of the page is read whole, with the values of its fields.
    const parts = asked.byReader || wholeNext ? [] : shownParts();
    [reading, wanted, began, waitsUntil] = [true, null, Date.now(), 0];
    const answer = await read(at, parts.length ? "parts" : "main", { have: versionsOf(parts), v: version });
    reading = false;
    if (location.href !== at) want(asked);
    else if (!take(answer, asked, parts)) return;
    if (wanted?.byReader) refresh();
    else if (wanted && !document.hidden) changed();
  }

  // Whether the answer is the last word. The page stays as it is until there is something to show in its place.
  function take({ means, html, code, waitMs }, asked, parts) {
    if (means === "page") return show(parse(html), asked, parts);
    // A busy relay is reported when it stays busy.
    status.trouble("page", means === "trouble" || (means === "busy" && troubles) ? means : null);
    if (asked.byReader && (means === "login" || means === "other")) location.reload();
    else if (means === "login" || code === 403) end("signed out", "Sign in again and reload the page");
    else if (means === "refused") end("gone", "The content of this page no longer exists");
    else {
      want(asked);
      waitsUntil = Date.now() + (waitMs ?? 0);
      notAgain = retry(troubles++, () => { waitsUntil = 0; refresh(); }, waitMs);
      return false;
    }
    return true;
  }

  // An answer that does not fit the page makes it read the whole.
  function show(fresh, asked, parts) {
    wholeNext = !completeParts(fresh, parts, main);
    if (wholeNext) { want(asked); return true; }
    [troubles, shown] = [0, pageOf(location.href)];
    status.trouble("page", null);
    change(fresh, asked);
    return true;
  }

  let timer = 0;
  let since = 0;
  let turn = 0;

  // The first change after a while shows at once. What follows waits for a quiet moment, but not for ever: a busy
  // relay never is quiet. Where many pages are open, the relay says over how long they spread their reads, and each
  // takes a turn by chance.
  function changed(spread = 0) {
    const now = Date.now();
    if (!timer) [since, turn] = [now, Math.random() * spread];
    clearTimeout(timer);
    const quiet = now - began > LONGEST_MS ? SOON_MS : QUIET_MS;
    const wait = Math.max(0, turn + Math.min(quiet, since + LONGEST_MS - now));
    timer = setTimeout(() => { timer = 0; refresh(); }, wait);
  }

  // Sorting and filtering without leaving the page: the same links and forms, read into this page.

  let typing = 0;

  // A job whose details are open stays open.
  function go(address, { replace = false, fields = false } = {}) {
    clearTimeout(typing);
    const job = new URL(location.href).searchParams.get("job");
    if (job && address.pathname === location.pathname && !address.searchParams.has("job")) address.searchParams.set("job", job);
    if (address.href === location.href) return;
    if (over) { location.assign(address); return; }
    history[replace ? "replaceState" : "pushState"](null, "", address);
    refresh({ byReader: true, fields });
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
      go(new URL(link.href), { fields: true });
    });
    main.addEventListener("submit", (event) => {
      if (!event.target.matches("form[data-in-place]")) return;
      event.preventDefault();
      go(addressOf(event.target));
    });
    main.addEventListener("change", (event) => {
      if (event.target.localName === "select" && event.target.form?.matches("[data-in-place]")) go(addressOf(event.target.form));
    });
    main.addEventListener("input", (event) => {
      const form = event.target.type === "search" && event.target.closest("form[data-in-place]");
      clearTimeout(typing);
      if (!form) return;
      typedAt = Date.now();
      typing = setTimeout(() => go(addressOf(form), { replace: true }), TYPING_MS);
    });
    addEventListener("popstate", () => {
      clearTimeout(typing);
      if (pageOf(location.href) === shown) return;
      if (over) location.reload();
      refresh({ byReader: true, fields: true });
    });
  }

  // The stream of changes

  let stop = () => {};

  function end(text, title) {
    over = true;
    status.end(text, title);
    stop();
  }

  // A page about one pull request or backend ignores changes of another; a change without either concerns every page.
  function concerns(change) {
    if (upstream && change.upstream && change.upstream !== upstream) return false;
    if (number && change.number && change.number !== Number(number)) return false;
    return !backend || !change.downstream || change.downstream === backend;
  }

  const STATES = {
    on: ["on", "live", "New results appear automatically"],
    lost: ["lost", "reconnecting", "The connection was lost; missed changes are loaded once it is back"],
  };

  // The stream gets the health that the page shows, so that a change since then is sent at once.
  function streamAddress() {
    const address = new URL(events, location.href);
    if (health) address.searchParams.set("health", health);
    return address.href;
  }

  function listen() {
    status.stream("lost", "connecting", "Connecting to the stream of changes");
    const after = new URL(events, location.href).searchParams.get("after") ?? "";
    version = after;
    stop = follow({
      address: streamAddress(),
      after,
      group: document.querySelector(".account .text")?.textContent ?? "",
      onChange: (type, data, id) => {
        const change = JSON.parse(data);
        if (!concerns(change)) return;
        // Health has no place in the log of changes; its signature makes the address another one.
        version = change.mark ? `${id}-${change.mark}` : id;
        changed(change.spread_ms);
      },
      onMissed: (id) => { version = id; changed(); },
      // Load the page to learn whether the reader may still see it.
      onRefused: () => changed(),
      onState: (state) => status.stream(...STATES[state]),
    });
    document.addEventListener("visibilitychange", () => { if (wanted && !document.hidden) changed(); });
    addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  }

  // Without a stream the page is read again from time to time, while it is looked at.
  function poll() {
    status.stream("on", "updated every 15 s", "This relay sends no stream of changes; the page is read again every 15 seconds");
    const polling = setInterval(() => refresh(), POLL_MS);
    stop = () => clearInterval(polling);
    document.addEventListener("visibilitychange", () => { if (!document.hidden) changed(); });
    addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  }

  // The notice of an action is shown once: a reload does not repeat it.
  function forgetNotice() {
    const address = new URL(location.href);
    if (!document.getElementById("notice") || !address.searchParams.has("done")) return;
    address.searchParams.delete("done");
    address.searchParams.delete("n");
    history.replaceState(history.state, "", address);
  }

  formatTimes();
  setInterval(() => formatTimes(), TICK_MS);
  forgetNotice();
  if (!main) return;
  followInPlace();
  document.addEventListener("crcr:refresh", () => refresh({ byReader: true }));
  document.addEventListener("crcr:shown", () => formatTimes());
  if (events) listen();
  else if ("polls" in document.body.dataset) poll();
})();
