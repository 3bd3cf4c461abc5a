// Values of a chart under the pointer: one tip for all charts. Without this script the browser shows each `<title>`.
// A click on a part opens its day where the chart's table links to days.
"use strict";

(() => {
  const AWAY = 12;
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);
  let over = null;

  // The browser would show the title as well, so it is removed while the tip is visible.
  function leave() {
    if (over && !over.querySelector("title")) over.append(over.named);
    over = null;
    tip.hidden = true;
  }

  function enter(hit) {
    leave();
    const title = hit.querySelector("title");
    if (!title) return;
    hit.named = title;
    title.remove();
    over = hit;
    tip.textContent = title.textContent;
    tip.hidden = false;
  }

  document.addEventListener("pointermove", (event) => {
    const hit = event.target instanceof Element ? event.target.closest(".hit") : null;
    if (hit !== over) { if (hit) enter(hit); else leave(); }
    if (!over) return;
    const { width, height } = tip.getBoundingClientRect();
    const left = event.clientX + AWAY + width > innerWidth ? event.clientX - AWAY - width : event.clientX + AWAY;
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${Math.max(0, Math.min(event.clientY + AWAY, innerHeight - height))}px`;
  });
  document.addEventListener("click", (event) => {
    const hit = event.target instanceof Element && event.target.closest(".plot.days .hit");
    if (!hit) return;
    const place = [...hit.parentElement.querySelectorAll(".hit")].indexOf(hit);
    hit.closest("figure").querySelectorAll("tbody th > a")[place]?.click();
  });
  document.addEventListener("pointerleave", leave);
  document.addEventListener("scroll", leave, { capture: true, passive: true });
  // A refresh replaces the title: the tip under the pointer continues with the new values.
  document.addEventListener("crcr:changed", () => { if (over?.isConnected) enter(over); else leave(); });
})();
