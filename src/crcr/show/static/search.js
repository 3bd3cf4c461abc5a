// Keys: `/` goes to the search, arrows move through the links of lists, `?` lists the keys.
"use strict";

(() => {
  const KEYS = [
    ["/", "search"],
    ["Esc", "leave the search, close the open panel"],
    ["↑ ↓", "the row before or after, from a link in a list"],
    ["← →", "the link before or after in the same row"],
    ["Home End", "the first or the last row"],
    ["j k", "the failure after or before, in the matrix and in an open job; arrows too in an open job"],
    ["?", "these keys"],
  ];
  const find = document.getElementById("find");

  function isTyping(place) {
    return place instanceof HTMLElement && (place.isContentEditable || place.matches("input, textarea, select"));
  }

  function dialog() {
    let box = document.querySelector("dialog.shortcuts");
    if (box) return box;
    box = document.createElement("dialog");
    box.className = "shortcuts";
    const title = document.createElement("h2");
    title.id = "keys-title";
    title.textContent = "Keys";
    box.setAttribute("aria-labelledby", title.id);
    const list = document.createElement("dl");
    for (const [keys, what] of KEYS) {
      const term = document.createElement("dt");
      for (const key of keys.split(" ")) {
        const cap = document.createElement("kbd");
        cap.textContent = key;
        term.append(cap, " ");
      }
      const says = document.createElement("dd");
      says.textContent = what;
      list.append(term, says);
    }
    const close = document.createElement("button");
    close.type = "button";
    close.textContent = "Close";
    close.addEventListener("click", () => box.close());
    box.append(title, list, close);
    document.body.append(box);
    return box;
  }

  const linksIn = (row) => [...row.querySelectorAll("a[href]")].filter((link) => link.checkVisibility());

  // Rows without a link are passed over; a row that is shorter than the one before gives its last link.
  function move(link, key) {
    const row = link.closest("tr");
    const table = row && row.closest("[data-rows]");
    if (!table) return null;
    const within = linksIn(row);
    const place = within.indexOf(link);
    if (key === "ArrowLeft") return within[place - 1];
    if (key === "ArrowRight") return within[place + 1];
    const rows = [...table.querySelectorAll("tbody tr")].filter((each) => linksIn(each).length);
    const at = rows.indexOf(row);
    const to = { ArrowUp: at - 1, ArrowDown: at + 1, Home: 0, End: rows.length - 1 }[key];
    const links = rows[to] ? linksIn(rows[to]) : [];
    return links[Math.min(place, links.length - 1)];
  }

  if (find) {
    find.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      find.blur();
    });
  }

  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey || isTyping(event.target)) return;
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "/" && find) {
      event.preventDefault();
      find.focus();
      find.select();
    } else if (event.key === "?") {
      event.preventDefault();
      dialog().showModal();
    } else if (/^(Arrow(Up|Down|Left|Right)|Home|End)$/.test(event.key) && event.target instanceof HTMLAnchorElement) {
      const next = move(event.target, event.key);
      if (next) {
        event.preventDefault();
        next.focus();
      }
    }
  });
})();
