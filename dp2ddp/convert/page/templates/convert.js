// The page of a conversion: searching, opening and closing files, counting what is ticked off.
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const files = all("details.file");
  const todos = all(".todos > li");
  const field = document.getElementById("filter");

  function count() {
    const counter = document.getElementById("ticked");
    if (counter) counter.textContent = all(".todos input:checked").length;
  }

  // What can be found of an element: its text, read once, when it is first asked for.
  const texts = new Map();
  function textOf(element) {
    if (!texts.has(element)) texts.set(element, element.textContent.toLowerCase());
    return texts.get(element);
  }

  function filter() {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const show = (element) => {
      const fits = words.every((word) => textOf(element).includes(word));
      element.classList.toggle("matches-not", !fits);
      return fits;
    };
    const shown = new Set(files.filter(show).map((file) => file.id));
    todos.forEach(show);
    for (const leaf of all(".leaf")) leaf.classList.toggle("matches-not", !shown.has(leaf.dataset.file));
    document.getElementById("found").textContent = words.length
      ? `${shown.size} of ${files.length} files`
      : "";
  }

  function search(text) {
    field.value = text;
    filter();
  }

  // Lines that didn't change lie in one piece; each gets its numbers once it is to be seen.
  function number(piece) {
    if (piece.querySelector(".l")) return;
    const [old, now] = [Number(piece.dataset.n), Number(piece.dataset.m)];
    const lines = piece.firstElementChild.innerHTML.split("\n");
    piece.firstElementChild.innerHTML = lines
      .map((line, at) => `<span class="l" data-n="${old + at}" data-m="${now + at}">${line}\n</span>`)
      .join("");
  }

  async function copyNew(button) {
    const file = document.getElementById(button.dataset.file);
    const lines = all(".rows > .n:not(.gap), pre.folded > code", file);
    const label = button.textContent;
    let done = "Copied";
    try { await dp2ddp.copy(lines.map((line) => dp2ddp.textOf(line).replace(/\n?$/, "\n")).join("")); } catch { done = "Can't copy here"; }
    button.textContent = done;
    dp2ddp.say(done);
    setTimeout(() => { button.textContent = label; dp2ddp.say(""); }, 1500);
  }

  document.addEventListener("change", count);
  document.addEventListener("toggle", (event) => {
    if (event.target.matches("details.fold") && event.target.open) all("pre.folded", event.target).forEach(number);
  }, { capture: true });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.matches(".copy-file")) copyNew(button);
    if (button.id === "open-all" || button.id === "close-all") for (const file of files) file.open = button.id === "open-all";
  });
  // A link to what the search has hidden ends the search.
  addEventListener("hashchange", () => {
    const target = document.getElementById(location.hash.slice(1));
    if (field && target && target.closest(".matches-not")) {
      search("");
      dp2ddp.reveal();
    }
  });
  if (field) {
    field.addEventListener("input", filter);
    field.addEventListener("keydown", (event) => { if (event.key === "Escape") search(""); });
    // As on many sites: / goes to the search.
    document.addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.matches("input, textarea")) return;
      event.preventDefault();
      field.focus();
    });
    filter();  // the browser may have kept what was typed
  }
  for (const button of all("#open-all, #close-all")) button.hidden = files.length < 2;
  for (const button of all(".copy-file")) button.hidden = false;
  count();
})();
