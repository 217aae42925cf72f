// The figures of a selection: asked for one by one, so that the first is there soon, and drawn once they are in sight.
// When records have changed only those in sight are asked for again; the others when they come into sight.

import { ask, by, element, forget, Unreachable } from "./parts.js";

const TALLEST = 90; // pixels of a legend; one of more lines is scrolled
const figures = new Map(); // by name
let addressOf = null; // the address of a figure of the selection, by name
let revision = ""; // as long as it stays the same, so do zoom and hidden lines

const sight = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      const figure = figures.get(entry.target.dataset.name);
      if (figure) figure.inSight = entry.isIntersecting;
    }
    load();
  },
  { rootMargin: "300px" },
);

/** Puts these figures onto the page, or brings them up to date; they are drawn as they come. */
export function showFigures(names, address, selection) {
  const panel = by("panel");
  if (!figures.size) panel.replaceChildren();
  for (const [name, figure] of figures) if (!names.includes(name)) discard(name, figure);
  for (const name of names) {
    if (!figures.has(name)) figures.set(name, newFigure(name, panel));
    const figure = figures.get(name);
    figure.stale = true;
    figure.known &&= figure.address === address(name); // what is there is of another selection, or in other colours
    figure.section.classList.toggle("old", !figure.known);
  }
  addressOf = address;
  revision = selection;
  load();
}

/** Takes all figures off the page. */
export function discardFigures() {
  for (const [name, figure] of figures) discard(name, figure);
  addressOf = null;
}

function newFigure(name, panel) {
  const title = element("h3");
  const caption = element("p");
  const place = element("div", { class: "plot" });
  const section = element("section", { class: "figure", "data-name": name, hidden: "" }, title, caption, place);
  panel.append(section);
  sight.observe(section);
  return { section, title, caption, place, address: "", known: false, stale: true, inSight: false };
}

function discard(name, figure) {
  sight.unobserve(figure.section);
  if (figure.place.data) Plotly.purge(figure.place);
  figure.section.remove();
  forget(figure.address);
  figures.delete(name);
}

let loading = false;

/** Asks for what is needed, those in sight first, until nothing is or the server does not answer. */
async function load() {
  if (loading) return;
  loading = true;
  by("panel").ariaBusy = true;
  let next = wanted();
  while (next && (await renew(...next))) next = wanted();
  by("panel").ariaBusy = false;
  loading = false;
}

function wanted() {
  const stale = [...figures].filter(([, figure]) => figure.stale);
  return stale.find(([, figure]) => figure.inSight) ?? stale.find(([, figure]) => !figure.known);
}

/** Brings a figure up to date; false where the server does not answer. */
async function renew(name, figure) {
  const address = addressOf(name);
  if (figure.address !== address) forget(address);
  figure.stale = false;
  let answer;
  try {
    answer = await ask(address);
  } catch (error) {
    figure.stale = error instanceof Unreachable;
    if (figure.stale) return false;
    answer = { title: name, caption: error.message };
  }
  if (figures.get(name) !== figure) return true;
  if (addressOf(name) !== address) {
    figure.stale = true; // something else is wanted by now
    return true;
  }
  figure.address = address;
  figure.known = true;
  figure.section.classList.remove("old");
  if (answer === undefined) return true;
  figure.section.hidden = answer === null;
  if (answer !== null) await draw(figure, answer);
  return true;
}

/** The layout with a legend that leaves room for the plots, however many lines it names. */
function withLegend(layout) {
  const cut = layout.margin.t - TALLEST;
  if (cut <= 0 || parseFloat(Plotly.version) < 3.1) return layout; // before 3.1 legends cannot be made to scroll
  const legend = { ...layout.legend, maxheight: TALLEST - 10 };
  return { ...layout, height: layout.height - cut, margin: { ...layout.margin, t: TALLEST }, legend };
}

function draw(figure, { title, caption, plot }) {
  figure.title.textContent = title;
  figure.caption.textContent = caption;
  figure.place.hidden = !plot;
  if (!plot) return Plotly.purge(figure.place);
  const layout = { ...withLegend(plot.layout), uirevision: revision };
  figure.place.style.height = `${layout.height}px`;
  return Plotly.react(figure.place, plot.data, layout, { responsive: true, displaylogo: false });
}
