// The dashboard's page. It asks for the list of runs every so often and, when something about the selection has changed,
// for what is shown of it.

import { ask, by, element, forget, Unreachable } from "./parts.js";
import { showDeployments } from "./deployment.js";
import { discardFigures, showFigures } from "./figures.js";

const EVERY = 1500; // milliseconds between questions
const PANEL = 270; // pixels that a panel of a figure needs to be read
const SYMBOLS = { running: "▶", finished: "✓", stopped: "■", failed: "✕", lost: "?", unreadable: "!" };
const TABS = ["figures", "table", "deployment", "log", "config"];
const page = {
  folder: "",
  runs: [],
  maxCompared: Infinity, // runs side by side; the server tells it with the list
  selection: [], // ids, in the order in which they were chosen
  beyond: 0, // how many more were chosen than can be compared
  tab: "figures",
  chosen: false, // whether someone chose the selection, or it is the latest run for want of a choice
  shown: "", // what the panel shows now
};

// ---- asking

/** The address of what a tab shows of the selection. */
function address(tab, more = {}) {
  return `/api/${tab}?${new URLSearchParams([...page.selection.map((id) => ["run", id]), ...Object.entries(more)])}`;
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

const rows = new Map(); // by id: the element in the list and what it shows

function showRuns({ folder, runs, max_compared_runs: maxCompared }) {
  page.folder = folder;
  page.runs = runs;
  page.maxCompared = maxCompared;
  if (page.selection.length > maxCompared) keep(page.selection); // it was read from the address before the limit was known
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
      element("span", { class: "metric", title: "mean of the tasks' test metrics in the last round that was tested; final results are means over several" }, metric(run)),
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
  const values = Object.values(run.means).sort((a, b) => a - b);
  if (!values.length) return "";
  const [low, high] = [values[0], values[values.length - 1]].map((value) => value.toFixed(3));
  return `last ${low === high ? low : `${low} to ${high}`}`;
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
  if (ids !== page.selection) keep(ids);
  page.tab = tab;
  page.chosen = true;
  const query = new URLSearchParams(page.selection.map((id) => ["run", id]));
  query.set("tab", tab);
  history.replaceState(null, "", `#${query}`);
  showSelection();
  update();
}

/** Makes these the selection, or the first of them, if they are too many to be told apart. */
function keep(ids) {
  page.selection = ids.slice(0, page.maxCompared);
  page.beyond = ids.length - page.selection.length;
  page.shown = ""; // so that what is said of those beyond is shown, even if the rest stays
}

function readAddress() {
  const query = new URLSearchParams(location.hash.slice(1));
  page.tab = TABS.includes(query.get("tab")) ? query.get("tab") : "figures";
  page.chosen = query.has("run") || query.has("tab");
  if (page.chosen) keep([...new Set(query.getAll("run"))]);
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
  const deployed = known.some((run) => run.deployed);
  if (page.tab === "deployment" && !deployed) page.tab = "figures";
  for (const tab of TABS) {
    const button = by(`tab-${tab}`);
    button.hidden = tab === "deployment" && !deployed;
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
  const names = element("p", { class: "names", tabindex: 0, "aria-label": "Runs that are compared" }, runs.map((run) => run.id).join(", "));
  return [element("h2", {}, `${runs.length} runs side by side`), names];
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
  const tabs = TABS.filter((each) => !by(`tab-${each}`).hidden);
  const tab = tabs[(tabs.indexOf(page.tab) + step + tabs.length) % tabs.length];
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
  if (page.shown !== wanted) forget(wanted);
  const answer = await ask(wanted);
  if (page.tab !== tab || address(tab) !== wanted) return forget(wanted); // no longer asked for
  if (answer === undefined) return;
  page.shown = wanted;
  const most = page.beyond ? [`${page.maxCompared} runs are compared at most: ${page.beyond} more are left out.`] : [];
  showNotes([...most, ...gone.map((id) => `${id} is no longer there.`), ...(answer.notes ?? [])]);
  if (tab !== "figures") discardFigures();
  PANELS[tab](answer);
}

function showNotes(notes) {
  by("notes").replaceChildren(...notes.map((note) => element("p", {}, note)));
}

const PANELS = {
  figures: showNamed,
  table: showTables,
  deployment: (found) => showDeployments(by("panel"), found),
  log: showLogs,
  config: showConfigs,
};

function showNamed({ names }) {
  showFigures(names, look(), page.selection.join("\n"));
}

/** The addresses of figures in the present colours, with as many panels in a row as there is room for. */
function look() {
  const how = { columns: columns() };
  if (theme() === "dark") how.dark = 1;
  return (name) => address("figure", { name, ...how });
}

function columns() {
  return Math.max(1, Math.min(3, Math.floor(by("panel").clientWidth / PANEL)));
}

/** Shows what is there in other colours or at another width. */
function redraw() {
  if (page.tab === "figures" && page.shown) page.shown = "";
  update();
}

function showTables({ tables }) {
  const parts = tables.flatMap(({ title, columns, rows: values }) => [
    element("h3", {}, title),
    element("div", { class: "scroll", tabindex: 0 }, table(columns, values)),
  ]);
  by("panel").replaceChildren(...parts);
}

function table(columns, values) {
  const head = columns.map((text) => element("th", { scope: "col" }, text));
  const row = ([name, ...cells]) => [element("th", { scope: "row" }, name), ...cells.map((text) => element("td", {}, text))];
  const body = values.map((cells) => element("tr", {}, ...row(cells)));
  return element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
}

function showLogs(logs) {
  const main = document.querySelector("main");
  const atEnd = main.scrollTop > 0 && main.scrollTop + main.clientHeight >= main.scrollHeight - 40;
  showTexts(logs.map(({ id, lines }) => [id, lines.join("\n") || "This run has no log: it was made before there were any."]));
  if (atEnd) main.scrollTop = main.scrollHeight;
}

function showConfigs(configs) {
  showTexts(configs.map(({ id, text }) => [id, text]));
}

function showTexts(texts) {
  const named = (id) => (texts.length > 1 ? [element("h3", {}, id)] : []);
  by("panel").replaceChildren(...texts.flatMap(([id, text]) => [...named(id), element("pre", {}, text)]));
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
  redraw();
});
system.addEventListener("change", () => {
  showTheme();
  redraw();
});

let fitting = 0;
new ResizeObserver(() => {
  if (columns() === fitting) return;
  fitting = columns();
  redraw();
}).observe(by("panel"));

showTheme();
readAddress();
update();
