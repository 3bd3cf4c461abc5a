// Onboarding: a choice shows its files at once, and code is copied by a button. Without this script the form has a
// button of its own, and code can be selected.
"use strict";

(() => {
  const CONFIRMED_MS = 2500;
  const main = document.getElementById("main");
  if (!main) return;

  // The fallback where the browser gives no access to the clipboard: select the code.
  function select(code) {
    const range = document.createRange();
    range.selectNodeContents(code);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
    code.focus({ preventScroll: true });
  }

  async function copy(code) {
    try {
      await navigator.clipboard.writeText(code.textContent);
      return "Copied";
    } catch {
      select(code);
      return "Selected: press Ctrl+C";
    }
  }

  const timers = new WeakMap();

  function say(button, text) {
    button.textContent = text;
    clearTimeout(timers.get(button));
    timers.set(button, setTimeout(() => { button.textContent = "Copy"; }, CONFIRMED_MS));
  }

  main.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    const code = button && document.getElementById(button.dataset.copy);
    if (code) say(button, await copy(code));
  });

  main.addEventListener("change", (event) => {
    if (event.target.localName === "input") event.target.form?.matches("#wanted") && event.target.form.requestSubmit();
  });

  // Buttons, and the text about automatic updates, apply only with this script.
  function show() {
    for (const each of main.querySelectorAll("button[data-copy], [data-scripted]")) each.hidden = false;
    for (const each of main.querySelectorAll("[data-unscripted]")) each.hidden = true;
  }

  // What is ticked goes with the address when the reader goes back.
  document.addEventListener("crcr:changed", () => {
    for (const box of main.querySelectorAll("#wanted :is([type=checkbox], [type=radio])")) box.checked = box.defaultChecked;
    show();
  });
  show();
})();
