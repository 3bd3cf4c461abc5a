// The open panel of a job as a dialog: Tab stays in it, `j` and `k` or the arrows go from failure to failure, buttons copy.
// Without this script the panel is a section of the page, and its fields can be selected.
"use strict";

(() => {
  const CONFIRMED_MS = 2500;
  const STEPS = { j: 1, ArrowRight: 1, k: -1, ArrowLeft: -1 };
  const CELLS = "#matrix-table tbody td.bad > a[href]";
  const LISTED = "#main a[data-panel]";
  const STOPS = "a[href], button:not([disabled], [hidden]), input, select, textarea, summary, [tabindex='0']";
  const main = document.getElementById("main");
  if (!main) return;

  const panel = () => document.getElementById("panel");
  const jobIn = (address) => new URL(address, location.href).searchParams.get("job");
  const jobsOf = (link) => link.dataset.jobs?.split(" ") ?? [jobIn(link.href)];

  function isFailed(link) {
    const item = link.closest("li, tr");
    const chip = item?.querySelector(".chip");
    return !link.closest("#panel") && link.checkVisibility() && (chip ? chip.matches(".bad") : Boolean(item?.closest("[data-rows], .like")));
  }

  // The failures of the page in their order, each once: those of a matrix, or else those of its lists.
  function failures() {
    const cells = document.getElementById("matrix-table") ? main.querySelectorAll(CELLS) : null;
    const links = cells ?? [...main.querySelectorAll(LISTED)].filter(isFailed);
    const found = new Map();
    for (const link of links) for (const job of jobsOf(link)) if (job && !found.has(job)) found.set(job, link);
    return [...found].map(([job, link]) => ({ job, link }));
  }

  // Beside a job that did not fail, the failures before and after its place are the next ones.
  function placeIn(list) {
    const job = jobIn(location.href);
    const at = list.findIndex((each) => each.job === job);
    if (at >= 0) return { at, before: at - 1, after: at + 1 };
    const focused = document.activeElement?.closest("#matrix-table td > a");
    const here = main.querySelector("#matrix-table td > a[aria-current]") ?? focused;
    const follows = (link) => here.compareDocumentPosition(link) & Node.DOCUMENT_POSITION_FOLLOWING;
    const after = here ? list.findIndex(({ link }) => link === here || follows(link)) : 0;
    const next = after < 0 ? list.length : after;
    return { at, before: next - 1, after: next };
  }

  function step(by) {
    const list = failures();
    const { before, after } = placeIn(list);
    const next = list[by > 0 ? after : before];
    if (next) document.dispatchEvent(new CustomEvent("crcr:open-job", { detail: next }));
  }

  // What applies only with this script; a refresh brings the page's own state back.
  function dress() {
    const open = panel();
    if (!open) return;
    open.setAttribute("role", "dialog");
    for (const button of open.querySelectorAll("button[data-copies]")) button.hidden = false;
    const list = failures();
    const { at, before, after } = placeIn(list);
    const steps = open.querySelector("#panel-steps");
    if (!steps) return;
    steps.hidden = !list.length || (at === 0 && list.length === 1);
    steps.querySelector("#panel-position").textContent = at < 0 ? "" : `${at + 1} of ${list.length}`;
    steps.querySelector("[data-step='-1']").disabled = !list[before];
    steps.querySelector("[data-step='1']").disabled = !list[after];
  }

  // Tab goes round in the panel: what lies under it is not to be seen.
  function keepFocus(event) {
    const open = panel();
    const stops = [...open.querySelectorAll(STOPS)].filter((each) => each.checkVisibility());
    const [first, last] = [stops[0], stops[stops.length - 1]];
    const from = document.activeElement;
    const leaves = event.shiftKey ? from === first || from === open : from === last;
    if (!leaves) return;
    event.preventDefault();
    (event.shiftKey ? last : first)?.focus();
  }

  const isTyping = (place) => place.matches("input, textarea, select") || place.isContentEditable;

  document.addEventListener("keydown", (event) => {
    const target = event.target;
    const open = panel();
    if (!(target instanceof HTMLElement) || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Tab" && open?.contains(target)) { keepFocus(event); return; }
    const by = STEPS[event.key];
    if (!by || event.shiftKey || isTyping(target)) return;
    // Arrows move in the matrix, and scroll a long message; letters work there too.
    const inPanel = Boolean(open?.contains(target) || (open && target === document.body));
    const works = event.key.length === 1 ? inPanel || Boolean(target.closest("#matrix")) : inPanel && !target.matches("pre");
    if (!works) return;
    event.preventDefault();
    step(by);
  });

  async function copy(field) {
    try {
      await navigator.clipboard.writeText(field.value);
      return "Copied";
    } catch {
      field.focus();
      field.select();
      return "Selected: press Ctrl+C";
    }
  }

  async function copyBy(button, field) {
    button.dataset.words ??= button.textContent;
    button.textContent = await copy(field);
    setTimeout(() => { button.textContent = button.dataset.words; }, CONFIRMED_MS);
  }

  main.addEventListener("click", (event) => {
    const button = event.target.closest("#panel button");
    if (!button) return;
    if (button.dataset.step) step(Number(button.dataset.step));
    const field = button.dataset.copies && document.getElementById(button.dataset.copies);
    if (field) copyBy(button, field);
  });

  document.addEventListener("crcr:shown", dress);
  document.addEventListener("crcr:changed", dress);
  dress();
})();
