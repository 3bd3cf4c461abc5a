// Suggestions below the search field, as an ARIA combobox. Without this script the field is an ordinary form.
// At most one request is in flight; a newer text aborts it. Everything from the answer is set as text.
"use strict";

(() => {
  const WAIT_MS = 150;
  const SHORTEST = 2;
  const MOST_KEPT = 50;
  const find = document.getElementById("find");
  const form = find && find.form;
  if (!form) return;

  const kept = new Map();
  let timer = 0;
  let request = null;
  let active = -1;

  const list = document.createElement("ul");
  list.id = "find-list";
  list.className = "suggestions";
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Suggestions");
  list.hidden = true;
  const told = document.createElement("span");
  told.className = "sr";
  told.setAttribute("role", "status");
  form.append(list, told);
  for (const [name, value] of [["role", "combobox"], ["aria-autocomplete", "list"], ["aria-expanded", "false"], ["aria-controls", list.id]]) {
    find.setAttribute(name, value);
  }

  const options = () => [...list.children];

  function choose(index) {
    active = index;
    options().forEach((option, place) => option.setAttribute("aria-selected", String(place === active)));
    const option = list.children[active];
    if (option) {
      find.setAttribute("aria-activedescendant", option.id);
      option.scrollIntoView({ block: "nearest" });
    } else {
      find.removeAttribute("aria-activedescendant");
    }
  }

  function close() {
    clearTimeout(timer);
    if (request) request.abort();
    request = null;
    list.hidden = true;
    find.setAttribute("aria-expanded", "false");
    choose(-1);
  }

  function element(tag, className, text) {
    const made = document.createElement(tag);
    made.className = className;
    made.textContent = text;
    return made;
  }

  function chip(status) {
    const made = element("span", `chip ${/^[a-z]+$/.test(status.tone) ? status.tone : "off"}`, "");
    const letter = element("b", "", status.letter);
    letter.setAttribute("aria-hidden", "true");
    made.append(letter, element("span", "word", status.word));
    return made;
  }

  function makeOption(suggestion, index) {
    const option = document.createElement("li");
    option.id = `find-option-${index}`;
    option.setAttribute("role", "option");
    option.setAttribute("aria-selected", "false");
    option.dataset.url = suggestion.url;
    option.append(element("span", "kind", suggestion.kind), element("span", "text what", suggestion.title));
    const side = element("span", "side", "");
    if (suggestion.detail) side.append(element("span", "text soft", suggestion.detail));
    side.append(...suggestion.chips.map(chip));
    option.append(side);
    return option;
  }

  function show(suggestions) {
    list.replaceChildren(...suggestions.map(makeOption));
    list.hidden = suggestions.length === 0;
    find.setAttribute("aria-expanded", String(!list.hidden));
    choose(-1);
    const number = suggestions.length;
    told.textContent = number ? `${number} suggestion${number === 1 ? "" : "s"}` : "No suggestions";
  }

  function keep(address, suggestions) {
    kept.set(address, suggestions);
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
  }

  async function load() {
    const text = find.value.trim();
    if (request) request.abort();
    request = null;
    if (text.length < SHORTEST) {
      close();
      return;
    }
    const query = new URLSearchParams(new FormData(form));
    query.set("q", text);
    const address = `/api/v1/search/suggest?${query}`;
    if (kept.has(address)) {
      show(kept.get(address));
      return;
    }
    const mine = new AbortController();
    request = mine;
    try {
      const answer = await fetch(address, { signal: mine.signal, headers: { Accept: "application/json" } });
      const suggestions = answer.ok ? (await answer.json()).suggestions : null;
      if (request !== mine) return;
      request = null;
      if (suggestions === null) {
        close();
        return;
      }
      keep(address, suggestions);
      if (document.activeElement === find) show(suggestions);
    } catch {
      if (request === mine) close(); // an aborted one has a successor
    }
  }

  function open(option) {
    // Only addresses of this site: the answer comes from it, but a link that leaves it would be a fault.
    const url = new URL(option.dataset.url, location.href);
    if (url.origin === location.origin) location.assign(url.href);
  }

  find.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(load, WAIT_MS);
  });

  find.addEventListener("keydown", (event) => {
    if (event.isComposing || event.ctrlKey || event.altKey || event.metaKey) return;
    const number = list.children.length;
    if (event.key === "ArrowDown" && list.hidden) {
      event.preventDefault();
      load();
    } else if (list.hidden) {
      return;
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const step = event.key === "ArrowDown" ? 1 : -1;
      // Before the first and after the last stands the field itself.
      choose(((active + 1 + step + number + 1) % (number + 1)) - 1);
    } else if (event.key === "Enter" && active >= 0) {
      event.preventDefault();
      open(list.children[active]);
    } else if (event.key === "Escape") {
      event.preventDefault();
      event.stopImmediatePropagation(); // the next one leaves the field
      close();
    } else if (event.key === "Tab") {
      close();
    }
  });

  // A press would take the focus from the field, and close the list before the click.
  list.addEventListener("mousedown", (event) => event.preventDefault());
  list.addEventListener("click", (event) => {
    const option = event.target.closest("[role=option]");
    if (option) open(option);
  });
  find.addEventListener("blur", close);
  form.addEventListener("submit", close);
  addEventListener("pagehide", close);
})();
