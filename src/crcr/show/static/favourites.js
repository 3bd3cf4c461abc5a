// Favourite backends, kept in this browser: a star in each row, and a button that shows the starred rows only.
//
// The markup has both, hidden by the style sheet until this script sets a class on the root: without it, or without storage,
// nothing is shown. A refresh of the page resets what the script has set on the rows, so it is applied again after each.
"use strict";

(() => {
  const KEY = "crcr.favourites";
  const ONLY = "crcr.favourites.only";
  const root = document.documentElement;

  function read(key, otherwise) {
    try { return JSON.parse(localStorage.getItem(key)) ?? otherwise; } catch { return otherwise; }
  }

  // A full or forbidden storage must not break the page.
  function write(key, value) {
    try { localStorage.setItem(key, JSON.stringify(value)); return true; } catch { return false; }
  }

  function favourites() {
    const names = read(KEY, []);
    return new Set(Array.isArray(names) ? names.filter((name) => typeof name === "string") : []);
  }

  function apply() {
    const names = favourites();
    const only = read(ONLY, false) === true;
    let starred = 0;
    for (const star of document.querySelectorAll("[data-star]")) {
      const row = star.closest("tr");
      const on = names.has(row.dataset.key);
      star.type = "button";
      star.setAttribute("aria-label", `Favourite: ${row.dataset.key}`);
      star.setAttribute("aria-pressed", String(on));
      star.title = on ? "Remove from your favourites" : "Add to your favourites";
      row.toggleAttribute("data-favourite", on);
      starred += on ? 1 : 0;
    }
    for (const button of document.querySelectorAll("[data-favourites-only]")) button.setAttribute("aria-pressed", String(only));
    root.classList.toggle("only-favourites", only);
    sayNone(only && !starred);
  }

  // An empty table must say why it is empty.
  function sayNone(none) {
    let place = document.getElementById("no-favourites");
    const table = document.getElementById("scroll-backends");
    if (none && table && !place) {
      place = document.createElement("p");
      place.id = "no-favourites";
      place.className = "no-favourites";
      place.dataset.keep = "";
      place.setAttribute("role", "status");
      place.textContent = "None of these backends is a favourite. Press ★ Favourites again to see all, and the star before a name to add one.";
      table.append(place);
    } else if (!none) place?.remove();
  }

  function toggle(name) {
    const names = favourites();
    if (!names.delete(name)) names.add(name);
    write(KEY, [...names].sort());
    apply();
  }

  document.addEventListener("click", (event) => {
    const target = event.target instanceof Element ? event.target : null;
    const star = target?.closest("[data-star]");
    if (star) toggle(star.closest("tr").dataset.key);
    else if (target?.closest("[data-favourites-only]")) { write(ONLY, read(ONLY, false) !== true); apply(); }
  });
  document.addEventListener("crcr:changed", apply);
  addEventListener("storage", (event) => { if (event.key === KEY || event.key === ONLY) apply(); });
  if (!write(`${KEY}.test`, 1)) return;
  localStorage.removeItem(`${KEY}.test`);
  root.classList.add("with-favourites");
  apply();
})();
