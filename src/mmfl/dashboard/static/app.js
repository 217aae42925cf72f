// The dashboard's page. It asks for the list of runs every so often and, when something about the selection has changed,
// for what is shown of it. Names come from files, so they are only ever put on the page as text.

const EVERY = 1500; // milliseconds between questions
const PANEL = 270; // pixels that a panel of a figure needs to be read
const SYMBOLS = { running: "▶", finished: "✓", stopped: "■", failed: "✕", lost: "?" };
const TABS = ["figures", "table", "log", "config"];
const COSTS = ["trainings", "forward_passes", "megabytes"];
const DIGITS = { trainings: 1, forward_passes: 1, megabytes: 2 };
const HEADINGS = { spread: "± seeds", relative: "of full", forward_passes: "forward passes", megabytes: "MB sent" };

const by = (id) => document.getElementById(id);
const page = {
  folder: "",
  runs: [],
  selection: [], // ids, in the order in which they were chosen
  tab: "figures",
  chosen: false, // whether someone chose the selection, or it is the latest run for want of a choice
  shown: "", // what the panel shows now
};

// ---- asking

class Unreachable extends Error {}

const answers = new Map(); // by address: the mark of the last answer, so that the same is not sent again

/** The answer to a question, or null when it is the one that was given before. */
async function ask(address) {
  const mark = answers.get(address);
  const question = fetch(address, { cache: "no-store", headers: mark ? { "If-None-Match": mark } : {} });
  const reply = await question.catch(() => {
    throw new Unreachable();
  });
  if (reply.status === 304) return null;
  const answer = await reply.json();
  if (!reply.ok) throw new Error(answer.error);
  answers.set(address, reply.headers.get("ETag"));
  return answer;
}

/** The address of what a tab shows of the selection. */
function address(tab) {
  const query = new URLSearchParams(page.selection.map((id) => ["run", id]));
  if (tab === "figures") {
    query.set("columns", Math.max(1, Math.min(3, Math.floor(by("panel").clientWidth / PANEL))));
    if (theme() === "dark") query.set("dark", "1");
  }
  return `/api/${tab}?${query}`;
}

let timer = null;
let busy = false;
let again = false;

/** Brings list and panel up to date, now; while that is under way, once more after it. */
async function update() {
  if (busy) {
    again = true;
    return;
  }
  busy = true;
  clearTimeout(timer);
  do {
    again = false;
    try {
      const listed = await ask("/api/runs");
      if (listed) showRuns(listed);
      connection("");
      await showPanel();
    } catch (error) {
      page.shown = "";
      if (error instanceof Unreachable) connection("The server does not answer; trying again.");
      else showNotes([error.message]);
    }
  } while (again);
  busy = false;
  if (!document.hidden) timer = setTimeout(update, EVERY);
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden) update();
});

function connection(problem) {
  by("connection").textContent = problem;
  by("connection").classList.toggle("lost", problem !== "");
}

// ---- the list

/** An element with attributes and children; texts become text, never markup. */
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const rows = new Map(); // by id: the element in the list and what it shows

function showRuns({ folder, runs }) {
  page.folder = folder;
  page.runs = runs;
  by("folder").textContent = folder;
  by("folder").title = folder;
  if (!page.chosen) page.selection = runs.length ? [runs[0].id] : [];
  const list = by("runs");
  const first = rows.size === 0;
  const ids = new Set(runs.map((run) => run.id));
  for (const [id, row] of rows) {
    if (ids.has(id)) continue;
    row.item.remove();
    rows.delete(id);
  }
  runs.forEach((run, place) => {
    const row = rows.get(run.id) ?? newRow(run.id);
    if (list.children[place] !== row.item) list.insertBefore(row.item, list.children[place] ?? null);
    const told = JSON.stringify(run);
    if (row.told !== told) fillRow(row, run);
    row.told = told;
  });
  showSelection();
  filter();
  if (first) rows.get(page.selection[0])?.item.scrollIntoView({ block: "nearest" });
}

function newRow(id) {
  const box = element("input", { type: "checkbox", "aria-label": `Compare ${id}` });
  const what = element("div", { class: "what" });
  const item = element("li", { class: "run" }, box, what);
  const row = { item, box, what, told: "" };
  box.addEventListener("change", () => choose(box.checked ? [...page.selection, id] : page.selection.filter((x) => x !== id)));
  what.addEventListener("click", (event) => {
    const several = event.ctrlKey || event.metaKey || event.shiftKey;
    const others = page.selection.filter((x) => x !== id);
    choose(several ? (others.length < page.selection.length ? others : [...others, id]) : [id]);
  });
  rows.set(id, row);
  return row;
}

function fillRow(row, run) {
  const focused = row.what.contains(document.activeElement);
  const name = element("button", { type: "button", class: "name" }, run.id);
  const seeds = run.seeds > 1 ? ` × ${run.seeds} seeds` : "";
  const share = run.rounds ? Math.min(100, (100 * run.round) / run.rounds) : 0;
  const fill = element("span");
  fill.style.width = `${share}%`;
  const bar = element(
    "div",
    { class: `bar ${run.condition}`, role: "progressbar", "aria-label": "Rounds", "aria-valuemin": 0, "aria-valuemax": run.rounds, "aria-valuenow": run.round },
    fill,
  );
  row.what.replaceChildren(
    name,
    element("div", { class: "methods" }, run.methods.join(", ") + seeds),
    element("div", { class: "line" }, bar, element("span", { class: "rounds" }, `${run.round}/${run.rounds || "?"}`)),
    element(
      "div",
      { class: "line" },
      state(run),
      element("span", { class: "metric", title: "mean of the tasks' test metrics, when last tested" }, metric(run)),
      element("span", { class: "when", title: `began ${new Date(1000 * run.began).toLocaleString()}` }, when(run.began)),
    ),
  );
  row.words = [run.id, run.condition, ...run.methods, ...run.tasks].join(" ").toLowerCase();
  if (focused) name.focus();
}

function state(run) {
  const shown = element("span", { class: `state ${run.condition}` }, `${SYMBOLS[run.condition]} ${run.condition}`);
  if (run.reason) shown.title = run.reason;
  return shown;
}

/** The mean metric of a run, or of its methods from the lowest to the highest. */
function metric(run) {
  const values = Object.values(run.metrics).sort((a, b) => a - b);
  if (!values.length) return "";
  const [low, high] = [values[0], values[values.length - 1]].map((value) => value.toFixed(3));
  return low === high ? low : `${low} to ${high}`;
}

function when(seconds) {
  const date = new Date(1000 * seconds);
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
  if (date.toDateString() === new Date().toDateString()) return time;
  return `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`;
}

function filter() {
  const words = by("filter").value.toLowerCase().split(/\s+/);
  let shown = 0;
  for (const row of rows.values()) {
    row.item.hidden = !words.every((word) => row.words.includes(word));
    shown += row.item.hidden ? 0 : 1;
  }
  by("unfound").hidden = shown > 0 || rows.size === 0;
}

by("filter").addEventListener("input", filter);
by("none").addEventListener("click", () => choose([]));
by("all").addEventListener("click", () => {
  choose(page.runs.map((run) => run.id).filter((id) => !rows.get(id).item.hidden));
});

// ---- the selection

/** Takes a selection over from whoever made it, and writes it into the address, for a reload to show the same. */
function choose(ids, tab = page.tab) {
  page.selection = ids;
  page.tab = tab;
  page.chosen = true;
  const query = new URLSearchParams(ids.map((id) => ["run", id]));
  query.set("tab", tab);
  history.replaceState(null, "", `#${query}`);
  showSelection();
  update();
}

function readAddress() {
  const query = new URLSearchParams(location.hash.slice(1));
  page.tab = TABS.includes(query.get("tab")) ? query.get("tab") : "figures";
  page.chosen = query.has("run") || query.has("tab");
  if (page.chosen) page.selection = [...new Set(query.getAll("run"))];
}

window.addEventListener("hashchange", () => {
  readAddress();
  showSelection();
  update();
});

function showSelection() {
  for (const [id, row] of rows) {
    row.box.checked = page.selection.includes(id);
    row.item.classList.toggle("chosen", row.box.checked);
  }
  const known = page.selection.map((id) => page.runs.find((run) => run.id === id)).filter(Boolean);
  by("count").textContent = `${known.length} of ${page.runs.length} selected`;
  by("chosen").hidden = page.runs.length === 0;
  by("selection").hidden = known.length === 0;
  by("welcome").hidden = known.length > 0;
  if (known.length === 0) return showWelcome();
  by("heading").replaceChildren(...(known.length === 1 ? headingOfOne(known[0]) : headingOfSeveral(known)));
  for (const tab of TABS) {
    const button = by(`tab-${tab}`);
    button.setAttribute("aria-selected", tab === page.tab);
    button.tabIndex = tab === page.tab ? 0 : -1;
  }
  by("panel").setAttribute("aria-labelledby", `tab-${page.tab}`);
  document.title = `${known.length === 1 ? known[0].id : `${known.length} runs`} · mmfl`;
}

function headingOfOne(run) {
  const clients = run.clients ? `, ${run.clients} clients` : "";
  const parts = [
    element("h2", {}, run.id),
    element("p", {}, state(run), ` · round ${run.round} of ${run.rounds || "?"} · ${run.methods.join(", ")} · ${run.tasks.join(", ")}${clients}`),
  ];
  if (run.reason) parts.push(element("p", { class: "reason" }, run.reason));
  return parts;
}

function headingOfSeveral(runs) {
  return [element("h2", {}, `${runs.length} runs side by side`), element("p", {}, runs.map((run) => run.id).join(", "))];
}

function showWelcome() {
  const lost = page.selection.filter((id) => !rows.has(id));
  const parts = page.runs.length
    ? [element("h2", {}, "Nothing is selected"), element("p", {}, "Choose a run on the left, or tick several to compare them.")]
    : [
        element("h2", {}, "No runs yet"),
        element("p", {}, "There are none in ", element("code", {}, page.folder), ". Start one with ", element("code", {}, "mmfl run"), "; it appears here by itself."),
      ];
  if (lost.length && page.runs.length) parts.push(element("p", {}, `No longer there: ${lost.join(", ")}.`));
  by("welcome").replaceChildren(...parts);
  document.title = "mmfl runs";
  page.shown = "";
}

by("tabs").addEventListener("click", (event) => {
  if (event.target.dataset.tab) choose(page.selection, event.target.dataset.tab);
});
by("tabs").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const tab = TABS[(TABS.indexOf(page.tab) + step + TABS.length) % TABS.length];
  choose(page.selection, tab);
  by(`tab-${tab}`).focus();
});

// ---- the panel

async function showPanel() {
  const gone = page.selection.filter((id) => !rows.has(id));
  if (gone.length) page.selection = page.selection.filter((id) => rows.has(id));
  if (!page.selection.length) return;
  const tab = page.tab;
  const wanted = address(tab);
  if (page.shown !== wanted) answers.delete(wanted);
  const answer = await ask(wanted);
  if (!answer || page.tab !== tab || address(tab) !== wanted) return; // the same as before, or no longer asked for
  const anew = page.shown !== wanted;
  page.shown = wanted;
  showNotes([...gone.map((id) => `${id} is no longer there.`), ...(answer.notes ?? [])]);
  PANELS[tab](answer, anew);
}

function showNotes(notes) {
  by("notes").replaceChildren(...notes.map((note) => element("p", {}, note)));
}

const PANELS = { figures: showFigures, table: showTable, log: showLog, config: showConfig };

const plots = new Map(); // by element: the figure that is to be drawn in it once it is in sight

const sight = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      const plot = plots.get(entry.target);
      if (!plot) continue;
      plot.inSight = entry.isIntersecting;
      draw(entry.target);
    }
  },
  { rootMargin: "300px" },
);

function draw(place) {
  const plot = plots.get(place);
  if (!plot.inSight || !plot.due) return;
  plot.due = false;
  Plotly.react(place, plot.data, plot.layout, { responsive: true, displaylogo: false, displayModeBar: "hover" });
}

function showFigures({ figures }) {
  const panel = by("panel");
  const kept = new Map([...panel.querySelectorAll(".figure")].map((section) => [section.dataset.name, section]));
  const sections = figures.map((figure) => {
    const section = kept.get(figure.name) ?? newFigure(figure.name);
    kept.delete(figure.name);
    section.querySelector("h3").textContent = figure.title;
    section.querySelector("p").textContent = figure.caption;
    const place = section.querySelector(".plot");
    place.style.height = `${figure.plot.layout.height}px`;
    const layout = { ...figure.plot.layout, uirevision: page.selection.join("\n") };
    plots.set(place, { inSight: plots.get(place)?.inSight ?? false, due: true, data: figure.plot.data, layout });
    draw(place);
    return section;
  });
  for (const section of kept.values()) forget(section.querySelector(".plot"));
  replaceUnlessSame(panel, sections);
}

function newFigure(name) {
  const place = element("div", { class: "plot" });
  const section = element("section", { class: "figure", "data-name": name }, element("h3"), element("p"), place);
  sight.observe(place);
  return section;
}

function forget(place) {
  sight.unobserve(place);
  plots.delete(place);
  if (place.data) Plotly.purge(place);
}

/** Puts elements into a place; where they are there already nothing moves, and nothing is drawn again. */
function replaceUnlessSame(place, elements) {
  const same = place.childNodes.length === elements.length && elements.every((made, n) => made === place.childNodes[n]);
  if (same) return;
  for (const old of place.querySelectorAll(".plot")) if (!elements.some((made) => made.contains(old))) forget(old);
  place.replaceChildren(...elements);
}

function showTable({ columns, rows: values }) {
  const told = "The tasks' test metrics, their mean and worst, averaged over the last rounds that were tested and over seeds.";
  const parts = [
    element("h3", {}, "Test metric"),
    element("p", { class: "empty" }, told),
    table(columns.filter((column) => !COSTS.includes(column)), columns, values),
    element("h3", {}, "Cost of a round"),
    table(columns.filter((column) => COSTS.includes(column)), columns, values),
  ];
  replaceUnlessSame(by("panel"), values.length ? parts : []);
}

/** Some columns of a table, with a row per method. */
function table(shown, columns, values) {
  const heading = (column) => element("th", { scope: "col" }, HEADINGS[column] ?? column);
  const row = ([method, ...numbers]) => {
    const cells = shown.map((column) => element("td", {}, number(numbers[columns.indexOf(column)], DIGITS[column] ?? 3)));
    return element("tr", {}, element("th", { scope: "row" }, method), ...cells);
  };
  const head = element("thead", {}, element("tr", {}, heading("method"), ...shown.map(heading)));
  const body = element("tbody", {}, ...values.map(row));
  return element("div", { class: "scroll", tabindex: 0 }, element("table", {}, head, body));
}

function number(value, digits) {
  return value === null ? "" : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

function showLog(logs, anew) {
  const main = document.querySelector("main");
  const atEnd = main.scrollTop + main.clientHeight >= main.scrollHeight - 40;
  showTexts(logs.map(({ id, lines }) => [id, lines.length ? lines.join("\n") : "This run has no log: it was made before there were any."]));
  if (atEnd && !anew) main.scrollTop = main.scrollHeight;
}

function showConfig(configs) {
  showTexts(configs.map(({ id, text }) => [id, text]));
}

function showTexts(texts) {
  const several = texts.length > 1;
  replaceUnlessSame(by("panel"), texts.flatMap(([id, text]) => [...(several ? [element("h3", {}, id)] : []), element("pre", {}, text)]));
}

// ---- light and dark

const system = matchMedia("(prefers-color-scheme: dark)");

function theme() {
  return localStorage.getItem("mmfl-theme") ?? (system.matches ? "dark" : "light");
}

function showTheme() {
  document.documentElement.dataset.theme = theme();
  by("theme").textContent = theme() === "dark" ? "Light" : "Dark";
  by("theme").setAttribute("aria-label", `Use ${theme() === "dark" ? "light" : "dark"} colours`);
}

by("theme").addEventListener("click", () => {
  localStorage.setItem("mmfl-theme", theme() === "dark" ? "light" : "dark");
  showTheme();
  update();
});
system.addEventListener("change", () => {
  showTheme();
  update();
});

let width = 0;
new ResizeObserver(() => {
  if (by("panel").clientWidth === width) return;
  width = by("panel").clientWidth;
  update();
}).observe(by("panel"));

showTheme();
readAddress();
update();
