"use strict";
// What every page does: the theme, copy buttons, boxes that stay ticked, links into what is folded.
const dp2ddp = (() => {
  const KEY = "dp2ddp:";

  // A browser may forbid storage to a file; the page works without it, and forgets.
  function stored(key) {
    try { return localStorage.getItem(KEY + key); } catch { return null; }
  }
  function store(key, value) {
    try {
      if (value === null) localStorage.removeItem(KEY + key);
      else localStorage.setItem(KEY + key, value);
    } catch { /* as above */ }
  }

  function say(text) {
    document.getElementById("said").textContent = text;
  }

  function theme() {
    const button = document.getElementById("theme");
    const preference = matchMedia("(prefers-color-scheme: dark)");
    const root = document.documentElement;
    const show = () => {
      const chosen = stored("theme");
      if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;
      else delete root.dataset.theme;
      button.setAttribute("aria-checked", String((root.dataset.theme || (preference.matches ? "dark" : "light")) === "dark"));
    };
    button.addEventListener("click", () => {
      const wanted = button.getAttribute("aria-checked") === "true" ? "light" : "dark";
      store("theme", wanted);
      show();
      // Where nothing can be stored, for as long as the page is open.
      root.dataset.theme = wanted;
      button.setAttribute("aria-checked", String(wanted === "dark"));
    });
    preference.addEventListener("change", show);
    button.hidden = false;
    show();
  }

  // The text of an element, with the characters back that the page spells out.
  function textOf(element) {
    const copy = element.cloneNode(true);
    for (const odd of copy.querySelectorAll(".odd")) odd.replaceWith(String.fromCodePoint(Number(odd.dataset.char)));
    return copy.textContent;
  }

  // Puts text on the clipboard; fails where the browser doesn't let it.
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const field = document.createElement("textarea");
      field.value = text;
      document.body.append(field);
      field.select();
      const done = document.execCommand("copy");
      field.remove();
      if (!done) throw new Error("the browser doesn't let this page copy");
    }
  }

  async function copyFor(button) {
    let done = "Copied";
    try { await copy(textOf(document.getElementById(button.dataset.copy))); } catch { done = "Can't copy here"; }
    button.dataset.label ??= button.textContent;
    button.textContent = done;
    say(done);
    setTimeout(() => { button.textContent = button.dataset.label; say(""); }, 1500);
  }

  // Opens what is folded around the target of a link.
  function reveal() {
    let name = location.hash.slice(1);
    try { name = decodeURIComponent(name); } catch { /* as it is */ }
    const target = name && document.getElementById(name);
    if (!target) return;
    for (let above = target; above; above = above.parentElement) {
      if (above instanceof HTMLDetailsElement) above.open = true;
      if (above.hidden) above.hidden = false;
    }
    target.scrollIntoView({ block: "start" });
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.copy");
    if (button) copyFor(button);
    // A second click on the same link is no change of the address.
    const link = event.target.closest('a[href^="#"]');
    if (link && link.getAttribute("href") === location.hash) reveal();
  });
  document.addEventListener("change", (event) => {
    const box = event.target.closest("input[data-remember]");
    if (box) store(box.dataset.remember, box.checked ? "1" : null);
  });
  addEventListener("hashchange", reveal);

  theme();
  for (const button of document.querySelectorAll("button.copy")) button.hidden = false;
  for (const box of document.querySelectorAll("input[data-remember]")) box.checked = stored(box.dataset.remember) === "1";
  reveal();
  return { copy, reveal, say, textOf };
})();
