// Makes one tree of elements like another by changing as little as possible, so that what the reader has opened,
// scrolled, selected, focused or typed stays as it is. Elements are matched by id or `data-key`, else by tag and
// first class in their order.
//
// `crcr.morph(old, fresh, { fields })` returns the cells whose status has changed. With `fields` the filter fields take
// the new page's values, even the focused one. `crcr.keepPlaces(root, change)` calls `change`, returns its result, and
// keeps the visible rows of `root` where they were.
// `crcr.standIn(element)` returns an element for the fresh tree that stands for one of the old tree, which then takes that
// place and stays as it is.
"use strict";

(() => {
  const OURS = new Set(["open", "style", "tabindex", "aria-expanded", "aria-selected", "data-formatted"]);
  // Highlighted when changed: a status with its count, and a cell of the matrix. Times and sums change all the time.
  const STATUS = ".chip, .matrix tbody td, [data-flash]";
  const FRAMES = "[id^=scroll-]";

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
    const status = element?.closest("time") ? null : element?.closest(STATUS);
    if (status?.textContent.trim()) changed.add(status.closest("td, li") ?? status);
  }

  // A part of the page that is not in the new one, but that a script put there, stays until that script removes it.
  function drop(node) {
    if (!(node.nodeType === Node.ELEMENT_NODE && "keep" in node.dataset)) node.remove();
  }

  function place(parent, node, before) {
    if (node.parentNode === parent && parent.moveBefore) parent.moveBefore(node, before);
    else parent.insertBefore(node, before);
  }

  const isBlank = (node) => node?.nodeType === Node.TEXT_NODE && !node.data.trim();
  const standIns = new WeakMap();

  function standIn(element) {
    const copy = element.cloneNode(false);
    standIns.set(copy, element);
    return copy;
  }

  // What stands for an element of another parent than the old one, or in an added element, becomes a copy of it.
  function fillStandIns(elements, old) {
    for (const element of elements) {
      const meant = standIns.get(element);
      if (meant && (!old || meant.parentNode !== old)) element.replaceWith(meant.cloneNode(true));
    }
  }

  function changeChildren(old, fresh, changed) {
    fillStandIns([...fresh.children], old);
    const keyed = new Map();
    for (const child of old.children) if (keyOf(child)) keyed.set(keyOf(child), child);
    const wanted = new Set();
    const kept = new Set();
    for (const child of fresh.children) {
      if (keyOf(child)) wanted.add(keyOf(child));
      if (standIns.has(child)) kept.add(standIns.get(child));
    }
    let next = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      // What stands here and will not be needed further on makes room.
      while (next && keyOf(next) && !wanted.has(keyOf(next))) { const gone = next; next = next.nextSibling; drop(gone); }
      const key = keyOf(child);
      const meant = standIns.get(child);
      if (meant) {
        keyed.delete(key);
        while (isBlank(next)) { const gone = next; next = next.nextSibling; drop(gone); }
        if (meant === next) next = next.nextSibling;
        else place(old, meant, next);
        continue;
      }
      const match = key ? keyed.get(key) : alike(next, child, kept);
      keyed.delete(key);
      if (match && match.nodeName === child.nodeName) {
        while (!key && next !== match) { const gone = next; next = next.nextSibling; if (!keyOf(gone)) drop(gone); }
        if (match === next) next = next.nextSibling;
        else place(old, match, next);
        change(match, child, changed);
      } else {
        if (child.nodeType === Node.ELEMENT_NODE) fillStandIns(child.querySelectorAll("[data-part]"));
        const added = document.importNode(child, true);
        old.insertBefore(added, next);
        if (added.nodeType === Node.ELEMENT_NODE || added.data.trim()) mark(added, changed);
      }
    }
    while (next) { const gone = next; next = next.nextSibling; drop(gone); }
  }

  // The first of its kind from here on that nobody else lays claim to.
  function alike(from, child, kept) {
    for (let node = from; node && !keyOf(node) && !kept.has(node); node = node.nextSibling) {
      if (kindOf(node) === kindOf(child)) return node;
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
    if (old.localName === "time") { old.removeAttribute("data-formatted"); old.title = fresh.title; mark(old, changed); }
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

  let allFields = false;

  // What somebody is typing, or has typed and not sent, is theirs.
  function changeField(old, fresh) {
    const ours = allFields && old.form?.matches("[data-in-place]");
    const idle = old !== document.activeElement;
    if (isField(old)) {
      if (ours || (idle && old.value === old.defaultValue)) old.value = fresh.defaultValue;
      if (old.value === fresh.defaultValue) old.defaultValue = fresh.defaultValue;
    } else if (old.localName === "select" && (ours || idle)) old.value = fresh.value;
  }

  // Where a reader is: the outermost parts with a name that begin in view, and how far from its top.
  function partsIn(root, top, bottom, counts) {
    const parts = [];
    for (const part of root.querySelectorAll("[data-key], [id]")) {
      if (parts.length && parts[parts.length - 1][0].contains(part)) continue;
      const box = part.getBoundingClientRect();
      if (box.height && box.top >= top && box.top < bottom && counts(part)) parts.push([part, box.top - top]);
    }
    return parts;
  }

  const scrollsDown = (frame) => frame.scrollHeight > frame.clientHeight + 1;

  function isOnPage(part) {
    const frame = part.parentElement.closest(FRAMES);
    return !part.closest("#panel") && !(frame && scrollsDown(frame));
  }

  // Who is at the top sees what comes in; for everybody else the place is kept. Frames come before the window, since
  // their rows are no part of it.
  function placesIn(root) {
    const places = [];
    for (const frame of root.querySelectorAll(FRAMES)) {
      const box = frame.getBoundingClientRect();
      if (!scrollsDown(frame) || (frame.scrollTop <= 0 && box.top >= 0)) continue;
      const top = () => frame.getBoundingClientRect().top;
      places.push({ parts: partsIn(frame, box.top, box.bottom, () => true), top, by: (down) => { frame.scrollTop += down; } });
    }
    if (scrollY > 0) places.push({ parts: partsIn(root, 0, innerHeight, isOnPage), top: () => 0, by: (down) => scrollBy(0, down) });
    return places;
  }

  // A row that went elsewhere, as in a table that is sorted anew, leads nobody after it: the first step that two of
  // them made alike is the one to follow.
  function keepPlace({ parts, top, by }) {
    const edge = top();
    const steps = parts.filter(([part]) => part.isConnected).map(([part, was]) => part.getBoundingClientRect().top - edge - was);
    const step = steps.find((one, at) => steps.some((other, place) => place !== at && Math.abs(other - one) < 1)) ?? steps[0] ?? 0;
    if (Math.abs(step) >= 1) by(step);
  }

  // `change` may also touch what stands above `root`.
  function keepPlaces(root, change) {
    const places = placesIn(root);
    const result = change();
    for (const place of places) keepPlace(place);
    return result;
  }

  function morph(old, fresh, { fields = false } = {}) {
    const scrolled = [...old.querySelectorAll(FRAMES)].map((each) => [each, each.scrollLeft, each.scrollTop]);
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    const changed = new Set();
    allFields = fields;
    changeChildren(old, fresh, changed);
    // Where the browser cannot move an element it takes it out and puts it in, which loses these two.
    for (const [each, left, top] of scrolled) if (each.scrollLeft !== left || each.scrollTop !== top) each.scrollTo(left, top);
    if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
    return changed;
  }

  globalThis.crcr = { morph, keepPlaces, standIn };
})();
