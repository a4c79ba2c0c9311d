"use strict";
// Live parts of the console: htmx fetches them, `morph` changes what differs and leaves the rest as it is, so
// that focus, selection, scroll position and a click that is half done survive each reading.
(() => {
  const LATE_MS = 3000;

  const sameKind = (a, b) =>
    a.nodeType === b.nodeType && a.nodeName === b.nodeName && (a.id ?? "") === (b.id ?? "");

  function morphAttributes(from, to) {
    for (const { name, value } of to.attributes) {
      if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    }
    for (const { name } of [...from.attributes]) {
      // What is unfolded stays so: the reader did that, not the server.
      if (!to.hasAttribute(name) && name !== "open") from.removeAttribute(name);
    }
  }

  function morphChildren(from, to, added) {
    const known = new Map();
    for (const child of from.children) if (child.id) known.set(child.id, child);
    let place = from.firstChild;
    for (const next of [...to.childNodes]) {
      const named = next.id ? known.get(next.id) : undefined;
      if (named && named !== place && sameKind(named, next)) from.insertBefore(named, place), (place = named);
      if (place && sameKind(place, next)) {
        if (next.nodeType === Node.ELEMENT_NODE) {
          morphAttributes(place, next);
          morphChildren(place, next, added);
        } else if (place.nodeValue !== next.nodeValue) {
          place.nodeValue = next.nodeValue;
        }
        place = place.nextSibling;
      } else {
        from.insertBefore(next, place);
        added.push(next);
      }
    }
    while (place) {
      const rest = place.nextSibling;
      place.remove();
      place = rest;
    }
  }

  // Where focus goes when the element that had it is gone: to what can be done in the same row or card now.
  const homeOf = (element) => element?.closest("[id^=row-], [id^=card-], [data-live]")?.id;

  function focusIn(home) {
    const place = home && document.getElementById(home);
    (place?.querySelector(".actions a, .button") ?? place?.querySelector("a"))?.focus();
  }

  htmx.defineExtension("console-morph", {
    isInlineSwap: (style) => style === "morph",
    handleSwap: (style, target, fragment) => {
      if (style !== "morph") return false;
      const focused = target.contains(document.activeElement) ? document.activeElement : null;
      const home = homeOf(focused);
      const added = [];
      morphChildren(target, fragment, added);
      if (focused && !focused.isConnected) focusIn(home);
      return added;
    },
  });

  // How old a reading is.

  const readAt = new Map();

  function tellAge(element) {
    const now = performance.now();
    const source = element.dataset.age;
    if (!readAt.has(source)) readAt.set(source, now);
    const late = now - readAt.get(source) > LATE_MS;
    const text = late ? `Last update ${Math.round((now - readAt.get(source)) / 1000)} s ago` : "Live";
    const shown = element.querySelector("[data-age-text]");
    if (shown.textContent !== text) shown.textContent = text;
    if (element.classList.toggle("age-late", late) !== (element.dataset.late === "yes")) {
      element.dataset.late = late ? "yes" : "no";
      element.querySelector("[data-age-told]").textContent = late ? "Updates have stopped" : "Updates are back";
    }
  }

  const tellAges = () => document.querySelectorAll("[data-age]").forEach(tellAge);
  setInterval(tellAges, 1000);
  tellAges();

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden && event.detail.elt.matches("[data-live]")) event.preventDefault();
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.successful && event.detail.elt.id) readAt.set(event.detail.elt.id, performance.now());
    tellAges();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    document.querySelectorAll("[data-live]").forEach((live) => htmx.trigger(live, "console:look"));
  });

  // The dialog.

  const dialog = document.getElementById("dialog");
  const content = document.getElementById("dialog-content");

  let opener = null;

  function open() {
    if (!dialog.open) {
      const button = document.activeElement;
      opener = { id: button?.id, home: homeOf(button) };
      dialog.showModal();
    }
    for (const age of content.querySelectorAll("[data-age]")) readAt.set(age.dataset.age, performance.now());
    tellAges();
    const wanted = content.querySelector("[autofocus], .form-row input:not([type=hidden])");
    (wanted ?? content).focus();
  }

  document.addEventListener("htmx:afterSettle", (event) => {
    // Empty: it was closed between the swap and this.
    if (event.detail.target === content && content.hasChildNodes()) open();
  });
  for (const failure of ["htmx:responseError", "htmx:sendError", "htmx:timeout"]) {
    document.addEventListener(failure, (event) => {
      if (event.detail.target !== content) return;
      const status = event.detail.xhr?.status;
      const told = document.createElement("p");
      told.className = "note note-bad";
      told.setAttribute("role", "alert");
      told.textContent = status
        ? `The router refused with status ${status}. Nothing is known to have changed.`
        : "The router did not answer. What was asked for may or may not have happened: look at the fleet.";
      content.prepend(told);
      open();
    });
  }
  dialog?.addEventListener("click", (event) => {
    if (!event.target.closest("[data-close]")) return;
    event.preventDefault();
    dialog.close();
  });
  dialog?.addEventListener("close", () => {
    content.replaceChildren();
    // Back to the button that opened it; where that has turned into another one, to that.
    const button = opener?.id ? document.getElementById(opener.id) : null;
    if (button) button.focus();
    else focusIn(opener?.home);
    document.querySelectorAll("[data-live]").forEach((live) => htmx.trigger(live, "console:look"));
  });
})();
