"use strict";
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const themes = read("themes");
const dark = matchMedia("(prefers-color-scheme: dark)");
const figures = [...document.querySelectorAll(".figure")];
const methods = [...document.querySelectorAll("fieldset input")];
const drawn = new Set();
const settings = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] };

function draw(figure) {
  if (drawn.has(figure)) return;
  drawn.add(figure);
  const { data, layout } = read(figure.dataset.spec);
  layout.template = dark.matches ? themes.dark : themes.light;
  Plotly.newPlot(figure, data, layout, settings);
  choose(figure);
  figure.on("plotly_legendclick", (event) => {
    const box = methods.find((each) => each.value === event.data[event.curveNumber].legendgroup);
    if (box) box.click();
    return !box;
  });
}

// A method is shown or hidden in all figures at once.
function choose(figure) {
  for (const box of methods) {
    const traces = [];
    figure.data.forEach((trace, n) => { if (trace.legendgroup === box.value) traces.push(n); });
    const visible = box.checked ? true : "legendonly";
    if (traces.some((n) => (figure.data[n].visible ?? true) !== visible)) Plotly.restyle(figure, { visible }, traces);
  }
}

function dress(template, width) {
  drawn.forEach((figure) => Plotly.relayout(figure, { template, width, autosize: !width }));
}

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
}, { rootMargin: "600px" });
figures.forEach((figure) => seen.observe(figure));
methods.forEach((box) => box.addEventListener("change", () => drawn.forEach(choose)));
dark.addEventListener("change", () => dress(dark.matches ? themes.dark : themes.light, null));

// Paper is white and has a width of its own, whatever the window.
addEventListener("beforeprint", () => { figures.forEach(draw); dress(themes.light, 1010); });
addEventListener("afterprint", () => dress(dark.matches ? themes.dark : themes.light, null));
