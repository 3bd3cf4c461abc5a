// "Mine" on the list of pull requests: the reader's login is typed once, and kept in this browser only.
// Without scripts the field for the author does the same.
"use strict";

(() => {
  const KEY = "crcr.login";
  let asking = false;

  function stored() {
    try { return localStorage.getItem(KEY) || ""; } catch { return ""; }
  }

  function store(login) {
    try { if (login) localStorage.setItem(KEY, login); else localStorage.removeItem(KEY); } catch { /* a browser that keeps nothing */ }
  }

  function button(text, title, act) {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.title = title;
    made.addEventListener("click", act);
    return made;
  }

  function show() {
    const place = document.getElementById("mine");
    if (!place) return;
    const login = stored();
    const author = document.getElementById("filter-author");
    place.replaceChildren();
    if (login) {
      const link = document.createElement("a");
      link.href = place.dataset.prefix + encodeURIComponent(login);
      link.textContent = `Mine (${login})`;
      link.dataset.inPlace = "";
      if (author && author.value.trim().toLowerCase() === login.toLowerCase()) link.setAttribute("aria-current", "true");
      const forget = button("forget", "Forget this login in this browser", () => { store(""); show(); });
      forget.className = "forget";
      place.append(link, forget);
    } else {
      place.append(button("Mine", "Show your pull requests: type your login once", () => {
        asking = true;
        if (author) { author.placeholder = "Your login, then Enter"; author.focus(); }
      }));
    }
    place.hidden = false;
  }

  // `change` comes with Enter and when the field is left.
  document.addEventListener("change", (event) => {
    if (!asking || event.target.id !== "filter-author") return;
    const login = event.target.value.trim().replace(/^@/, "");
    if (!login) return;
    asking = false;
    store(login);
    show();
  });

  // A live update brings the element as the server wrote it.
  document.addEventListener("crcr:changed", show);
  show();
})();
