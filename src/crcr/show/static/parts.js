// Small refreshes: a page asks only for the parts that changed. The relay marks elements that it can send alone with
// the version of their content (`data-part`). A request carries the versions of the parts that the page shows, and in
// the answer a stub, `<template data-same="0-3 7">`, stands for each run of parts that are still the same, by their
// places in the request.
//
// `crcr.shownParts()` returns the parts of the page, in their order, for `versionsOf(parts)` and for
// `completeParts(fresh, parts, main)`, which puts what stands for them (morph.js) in the place of the stubs. It returns
// whether all were found; the tree then stands for the whole page.
"use strict";

(() => {
  const { standIn } = globalThis.crcr;
  // An address has a limit. Parts beyond this number are always sent.
  const MOST_PARTS = 500;

  function shownParts() {
    return [...document.querySelectorAll("[data-part]")].slice(0, MOST_PARTS);
  }

  function versionsOf(parts) {
    return parts.map((part) => part.dataset.part).join("");
  }

  function placesIn(stub) {
    return stub.dataset.same.split(" ").flatMap((range) => {
      const [first, last = first] = range.split("-").map(Number);
      return Array.from({ length: last - first + 1 }, (_, index) => first + index);
    });
  }

  // A part outside of <main> that is still the same stays as it is.
  function completeParts(fresh, parts, main) {
    for (const stub of fresh.querySelectorAll("template[data-same]")) {
      const same = placesIn(stub).map((place) => parts[place]);
      if (!same.every(Boolean)) return false;
      stub.replaceWith(...same.filter((part) => !isOutside(part, main)).map(standIn));
    }
    return true;
  }

  function isOutside(part, main) {
    return part.isConnected && !main.contains(part);
  }

  Object.assign(globalThis.crcr, { shownParts, versionsOf, completeParts });
})();
