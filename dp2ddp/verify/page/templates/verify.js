// Reading values off the curves, by pointer and by arrow keys.
for (const figure of document.querySelectorAll("figure.chart")) {
  const svg = figure.querySelector("svg");
  const cursor = figure.querySelector(".cursor");
  const read = figure.querySelector(".read");
  const { x, curves } = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
  const count = Math.max(...curves.map(([, values]) => values.length));
  const grid = figure.querySelector(".grid");
  const [left, right] = [Number(grid.getAttribute("x1")), Number(grid.getAttribute("x2"))];
  let at = -1;

  const said = (value) => value === undefined ? "none" : value === null ? "not finite" : value === 0 ? "0" : value.toPrecision(6);

  function show(index) {
    at = Math.min(Math.max(index, 0), count - 1);
    const place = count > 1 ? left + at / (count - 1) * (right - left) : (left + right) / 2;
    cursor.setAttribute("x1", place);
    cursor.setAttribute("x2", place);
    cursor.setAttribute("visibility", "visible");
    const values = curves.map(([name, all]) => `${name} ${said(all[at])}`);
    read.textContent = `${x} ${at + 1}: ${values.join(", ")}`;
  }
  function hide() {
    cursor.setAttribute("visibility", "hidden");
    read.textContent = "";
  }

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const place = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    show(Math.round((place - left) / (right - left) * (count - 1)));
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -count, End: count }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    show(at + step);
  });
}
