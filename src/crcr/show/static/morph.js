// Makes one tree of elements like another by changing as little as possible, so that what the reader has opened,
// scrolled, selected, focused or typed stays as it is. Elements are matched by id or `data-key`, else by tag and
// first class in their order. `crcr.morph(old, fresh)` returns the cells whose words have changed.
"use strict";

(() => {
  const OURS = new Set(["open", "style", "tabindex", "aria-expanded", "aria-selected", "data-told"]);
  const CELLS = "td, th, .card, li, dd, .chip";

  function keyOf(node) {
    if (node.nodeType !== Node.ELEMENT_NODE) return "";
    const key = node.getAttribute("data-key");
    return node.getAttribute("id") || (key ? `${node.localName} ${key}` : "");
  }

  function kindOf(node) {
    if (node.nodeType !== Node.ELEMENT_NODE) return node.nodeName;
    const cell = node.localName === "td" || node.localName === "th";
    return cell ? node.localName : `${node.localName} ${node.getAttribute("class")?.split(" ", 1)[0] ?? ""}`;
  }

  function mark(node, changed) {
    const element = node.nodeType === Node.ELEMENT_NODE ? node : node.parentElement;
    const cell = element?.closest("tr") === element ? element : element?.closest(CELLS);
    if (cell) changed.add(cell);
  }

  // A part of the page that is not in the new one, but that a script put there, stays until that script removes it.
  function drop(node) {
    if (!(node.nodeType === Node.ELEMENT_NODE && "keep" in node.dataset)) node.remove();
  }

  function place(parent, node, before) {
    if (node.parentNode === parent && parent.moveBefore) parent.moveBefore(node, before);
    else parent.insertBefore(node, before);
  }

  function changeChildren(old, fresh, changed) {
    const keyed = new Map();
    for (const child of old.children) if (keyOf(child)) keyed.set(keyOf(child), child);
    const wanted = new Set();
    for (const child of fresh.children) if (keyOf(child)) wanted.add(keyOf(child));
    let next = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      // What stands here and will not be needed further on makes room.
      while (next && keyOf(next) && !wanted.has(keyOf(next))) { const gone = next; next = next.nextSibling; drop(gone); }
      const key = keyOf(child);
      const match = key ? keyed.get(key) : alike(next, child);
      keyed.delete(key);
      if (match && match.nodeName === child.nodeName) {
        while (!key && next !== match) { const gone = next; next = next.nextSibling; if (!keyOf(gone)) drop(gone); }
        if (match === next) next = next.nextSibling;
        else place(old, match, next);
        change(match, child, changed);
      } else {
        const added = document.importNode(child, true);
        old.insertBefore(added, next);
        if (added.nodeType === Node.ELEMENT_NODE || added.data.trim()) mark(added, changed);
      }
    }
    while (next) { const gone = next; next = next.nextSibling; drop(gone); }
  }

  // The first of its kind from here on that nobody else lays claim to.
  function alike(from, child) {
    for (let node = from; node; node = node.nextSibling) {
      if (!keyOf(node) && kindOf(node) === kindOf(child)) return node;
      if (keyOf(node)) return null;
    }
    return null;
  }

  function change(old, fresh, changed) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) { old.data = fresh.data; mark(old, changed); }
      return;
    }
    // The script has changed the words of a time; the moment is what counts.
    if (old.localName === "time" && old.dateTime === fresh.dateTime) return;
    changeAttributes(old, fresh);
    if (old.localName === "time") { old.removeAttribute("data-told"); old.title = fresh.title; mark(old, changed); }
    changeChildren(old, fresh, changed);
    changeField(old, fresh);
  }

  function changeAttributes(old, fresh) {
    const fading = old.classList.contains("fresh");
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !OURS.has(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) {
      if (name === "open" || (name === "value" && isField(old)) || (fading && name === "class" && old.className === `${value} fresh`)) continue;
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
  }

  function isField(element) {
    return element.localName === "input" && element.type !== "hidden";
  }

  // What somebody is typing, or has typed and not sent, is theirs.
  function changeField(old, fresh) {
    if (old === document.activeElement) return;
    if (isField(old) && old.value === old.defaultValue) old.value = old.defaultValue = fresh.defaultValue;
    else if (old.localName === "select") old.value = fresh.value;
  }

  function morph(old, fresh) {
    const scrolled = [...old.querySelectorAll("[id^=scroll-]")].map((each) => [each, each.scrollLeft, each.scrollTop]);
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    const changed = new Set();
    changeChildren(old, fresh, changed);
    // Where the browser cannot move an element it takes it out and puts it in, which loses these two.
    for (const [each, left, top] of scrolled) if (each.scrollLeft !== left || each.scrollTop !== top) each.scrollTo(left, top);
    if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
    return changed;
  }

  globalThis.crcr = { morph };
})();
