// A job's details over the page, and the matrix by keyboard.
// Every link here also works as a full page, without scripts.
//
// For the other scripts: `crcr:open-job` on the document, with `job` and `link` (where it stands, if anywhere) in its
// detail, opens another job in the panel; `crcr:shown` follows.
"use strict";

(() => {
  const main = document.getElementById("main");
  if (!main) return;
  const { read, retry, status } = globalThis.crcr;
  const CELLS = "#matrix-table tbody td > a[href]";
  const OPENERS = `${CELLS}:not([data-in-place]), #main a[data-panel]`;
  let shown = location.href;
  let opener = null;
  let asked = 0;

  const jobIn = (address) => new URL(address, location.href).searchParams.get("job");
  const panel = () => document.getElementById("panel");
  const plain = (event) => event.button === 0 && !(event.ctrlKey || event.metaKey || event.shiftKey || event.altKey);

  function withJob(job) {
    const address = new URL(location.href);
    address.searchParams.delete("fragment");
    if (job) address.searchParams.set("job", job); else address.searchParams.delete("job");
    return address;
  }

  // Which links lead to the job that is open.
  function point(job) {
    for (const link of main.querySelectorAll(OPENERS)) {
      if (job && jobIn(link.href) === job) link.setAttribute("aria-current", "true");
      else if (link.hasAttribute("aria-current")) link.removeAttribute("aria-current");
    }
  }

  function linkTo(job) {
    return job && [...main.querySelectorAll(OPENERS)].find((each) => jobIn(each.href) === job && !each.closest("#panel"));
  }

  let notAgain = () => {};

  // What is open, or was asked for and did not come yet, makes way.
  function turnTo() {
    notAgain();
    status.trouble("panel", null);
    return ++asked;
  }

  // The page stays while its details cannot be read; they come when they can.
  async function open(job, how, troubles = 0) {
    const mine = troubles ? asked : turnTo();
    const address = withJob(job);
    const { means, html, waitMs } = await read(address, "panel");
    if (mine !== asked) return;
    if (means === "login" || means === "other") { location.assign(address); return; }
    const fresh = means === "page" && new DOMParser().parseFromString(html, "text/html").getElementById("panel");
    status.trouble("panel", fresh ? null : means === "busy" ? "busy" : "trouble");
    if (fresh) place(fresh, job, address, how);
    else notAgain = retry(troubles, () => open(job, how, troubles + 1), waitMs);
  }

  // What the reader clicked stays where it is; a job that was reached in another way is scrolled to.
  function place(fresh, job, address, { push, replace, focus, scroll = true }) {
    const old = panel();
    if (old) old.replaceWith(fresh); else main.append(fresh);
    if (push) history.pushState(null, "", address);
    else if (replace) history.replaceState(history.state, "", address);
    shown = location.href;
    point(job);
    const cell = linkTo(job);
    if (cell && cell.matches(CELLS)) take(cell);
    if (scroll) (cell ?? opener)?.scrollIntoView({ block: "nearest", inline: "nearest" });
    if (focus) fresh.focus({ preventScroll: true });
    document.dispatchEvent(new Event("crcr:shown"));
  }

  function close({ push }) {
    turnTo();
    const job = jobIn(shown);
    const had = panel();
    if (had) had.remove();
    if (push) history.pushState(null, "", withJob(null));
    shown = location.href;
    point(null);
    const back = (opener && opener.isConnected && opener) || linkTo(job) || linkTo(opener && jobIn(opener.href));
    if (back && had) back.focus({ preventScroll: true });
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest && event.target.closest("a[href]");
    if (!link || !plain(event) || event.defaultPrevented) return;
    if (link.id === "panel-close") { event.preventDefault(); close({ push: true }); return; }
    if (!link.matches(OPENERS) || !jobIn(link.href)) return;
    event.preventDefault();
    if (!link.closest("#panel")) opener = link;
    open(jobIn(link.href), { push: true, focus: true, scroll: false });
  });

  // A step from failure to failure is no page to come back to; the first one is.
  document.addEventListener("crcr:open-job", ({ detail: { job, link } }) => {
    if (link) opener = link;
    open(job, panel() ? { replace: true, focus: true } : { push: true, focus: true });
  });

  // Where more than the job differs, the whole page is read anew (live.js).
  addEventListener("popstate", () => {
    if (withoutJob(shown) !== withoutJob(location.href)) { turnTo(); return; }
    const job = jobIn(location.href);
    if (job) open(job, { push: false, focus: false }); else close({ push: false });
  });

  function withoutJob(address) {
    const bare = new URL(address);
    bare.searchParams.delete("job");
    bare.hash = "";
    return bare.href;
  }

  // One stop for the Tab key in the whole matrix; arrow keys go from cell to cell.
  let stop = null;

  function take(link) {
    if (stop && stop !== link) stop.tabIndex = -1;
    stop = link;
    link.tabIndex = 0;
  }

  function rove() {
    const links = main.querySelectorAll(CELLS);
    if (!links.length) { stop = null; return; }
    if (!stop || !stop.isConnected || !stop.matches(CELLS)) stop = main.querySelector(`${CELLS}[aria-current]`) || links[0];
    for (const link of links) {
      const wanted = link === stop ? 0 : -1;
      if (link.getAttribute("tabindex") !== String(wanted)) link.tabIndex = wanted;
    }
  }

  const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

  function neighbour(link, [down, right]) {
    const cell = link.parentElement;
    if (right) {
      let next = cell;
      do { next = right > 0 ? next.nextElementSibling : next.previousElementSibling; } while (next && !next.querySelector(":scope > a"));
      return next && next.tagName === "TD" ? next.querySelector(":scope > a") : null;
    }
    let row = cell.parentElement;
    for (;;) {
      row = down > 0 ? row.nextElementSibling : row.previousElementSibling;
      if (!row) return null;
      const found = row.cells[cell.cellIndex] && row.cells[cell.cellIndex].querySelector(":scope > a");
      if (found) return found;
    }
  }

  function edge(link, last) {
    const links = [...link.closest("tr").querySelectorAll(":scope > td > a")];
    return links[last ? links.length - 1 : 0];
  }

  main.addEventListener("keydown", (event) => {
    const link = event.target;
    if (!link.matches || !link.matches(CELLS) || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = STEPS[event.key];
    const next = step ? neighbour(link, step) : event.key === "Home" || event.key === "End" ? edge(link, event.key === "End") : null;
    if (!step && !next) return;
    event.preventDefault();
    if (next) { take(next); next.focus({ preventScroll: true }); next.scrollIntoView({ block: "nearest", inline: "nearest" }); }
  });

  main.addEventListener("focusin", (event) => {
    if (event.target.matches(CELLS)) take(event.target);
    if (event.target.id === "panel-link") event.target.select();
  });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.defaultPrevented || !panel()) return;
    const field = event.target.closest && event.target.closest("input, select, textarea, dialog");
    if (field && !field.closest("#panel")) return;
    event.preventDefault();
    close({ push: true });
  });

  // A live update may bring new cells, and another page in this one's place.
  document.addEventListener("crcr:changed", () => { shown = location.href; rove(); });

  rove();
  const current = main.querySelector(`${CELLS}[aria-current]`);
  if (current) current.scrollIntoView({ block: "nearest", inline: "nearest" });
  panel()?.focus({ preventScroll: true });
})();
