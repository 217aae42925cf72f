// The live state of deployments: stage and pace, nodes, and events with a filter by kind.

import { element } from "./parts.js";

const hidden = new Set(); // kinds of events that someone has switched off
const views = new Map(); // by run: the elements that show it, which stay, so that focus and place do

/** Shows deployments in a panel, those of an earlier selection no longer. */
export function showDeployments(panel, found) {
  const ids = found.map(({ id }) => id);
  for (const id of views.keys()) if (!ids.includes(id)) views.delete(id);
  const parts = found.map((each) => {
    const view = views.get(each.id) ?? newView(each.id, found.length > 1);
    fill(view, each);
    return view.section;
  });
  if (!parts.length) parts.push(element("p", { class: "empty" }, "The server of this deployment has not begun yet."));
  if (parts.length !== panel.children.length || parts.some((part, n) => panel.children[n] !== part)) panel.replaceChildren(...parts);
}

function newView(id, named) {
  const view = {
    facts: element("dl", { class: "facts" }),
    nodes: element("div", { class: "scroll", tabindex: 0, "aria-label": "Nodes" }),
    kinds: element("div", { class: "kinds", role: "group", "aria-label": "Kinds of events" }),
    nodesTitle: element("h3"),
    events: element("div", { class: "scroll events", tabindex: 0, "aria-label": "Events" }),
    boxes: new Map(), // by kind: its box and the number beside it
    told: [],
  };
  view.section = element("section", {}, ...(named ? [element("h3", {}, id)] : []), view.facts);
  view.section.append(view.nodesTitle, view.nodes, element("h3", {}, "Events"), view.kinds, view.events);
  views.set(id, view);
  return view;
}

function fill(view, { live, running, events }) {
  view.facts.replaceChildren(...(live ? facts(live, running) : []));
  view.nodesTitle.textContent = running ? "Nodes" : "Nodes when the server ended";
  view.nodes.replaceChildren(live && (live.nodes.length || live.left.length) ? nodeTable(live) : element("p", {}, "No node is connected."));
  view.told = events;
  const counts = new Map();
  for (const { kind } of events) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  for (const [kind, count] of [...counts].sort()) {
    const box = view.boxes.get(kind) ?? newBox(view, kind);
    box.checked = !hidden.has(kind);
    box.count.textContent = count;
  }
  fillEvents(view);
}

function newBox(view, kind) {
  const box = element("input", { type: "checkbox" });
  box.count = element("span", { class: "count" });
  box.addEventListener("change", () => {
    if (box.checked) hidden.delete(kind);
    else hidden.add(kind);
    for (const each of views.values()) fillEvents(each);
  });
  view.kinds.append(element("label", {}, box, ` ${kind} `, box.count));
  view.boxes.set(kind, box);
  return box;
}

function fillEvents(view) {
  for (const [kind, box] of view.boxes) box.checked = !hidden.has(kind);
  const shown = view.told.filter(({ kind }) => !hidden.has(kind)).reverse();
  const rows = shown.map((event) => [clock(event.time), event.round, event.kind, event.node, event.client, event.detail]);
  const none = view.told.length ? "No event of the chosen kinds." : "No events yet.";
  view.events.replaceChildren(rows.length ? table(["time", "round", "kind", "node", "client", "detail"], rows) : element("p", {}, none));
}

function facts(live, running) {
  const out = live.messages_sent ? `${live.messages_out} of ${live.messages_sent}` : "none";
  const pace = live.rounds_per_hour ? `${live.rounds_per_hour.toFixed(live.rounds_per_hour < 10 ? 1 : 0)} per hour` : "not known yet";
  const now = {
    "stage": live.stage_began ? `${live.stage} since ${clock(live.stage_began)}` : live.stage,
    "messages out": out,
    "time left": live.seconds_left === null ? "not known yet" : duration(live.seconds_left),
  };
  const shown = {
    "round": `${live.round} of ${live.rounds}`,
    ...(running ? now : {}),
    "rounds": pace,
    "clients": `${live.connected} of ${live.clients} connected`,
    "rate": live.rate,
    "as of": clock(live.updated),
  };
  return Object.entries(shown).map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value))));
}

function nodeTable(live) {
  const rows = live.nodes.map((node) => [
    node.name,
    element("span", { class: `state ${node.is_late ? "stopped" : "finished"}` }, node.is_late ? "late" : "connected"),
    node.clients,
    clock(node.since),
    node.last_reply ? clock(node.last_reply) : "none",
  ]);
  if (live.nodes_not_listed) rows.push([`${live.nodes_not_listed} more`, "", "", "", ""]);
  for (const gone of live.left) rows.push([gone.name, element("span", { class: "state failed" }, `left ${clock(gone.left)}`), gone.clients, "", ""]);
  return table(["node", "state", "clients", "since", "last reply"], rows);
}

function table(columns, rows) {
  const head = columns.map((text) => element("th", { scope: "col" }, text));
  const body = rows.map((cells) => element("tr", {}, ...cells.map((cell) => element("td", {}, cell))));
  return element("table", { class: "texts" }, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
}

function clock(seconds) {
  const date = new Date(1000 * seconds);
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  if (date.toDateString() === new Date().toDateString()) return time;
  return `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`;
}

function duration(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}
