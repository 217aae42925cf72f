// What every part of the page does: ask the server, and put elements on the page.

export class Unreachable extends Error {}

const marks = new Map(); // by address: the mark of the last answer, so that the same is not sent again

/** The answer to a question; undefined when it is the one that was given before. */
export async function ask(address) {
  const mark = marks.get(address);
  const question = fetch(address, { cache: "no-store", headers: mark ? { "If-None-Match": mark } : {} });
  const reply = await question.catch(() => {
    throw new Unreachable();
  });
  if (reply.status === 304) return undefined;
  const answer = await reply.json();
  if (!reply.ok) throw new Error(answer.error);
  marks.set(address, reply.headers.get("ETag"));
  return answer;
}

/** Has an address answered in full when it is asked next, because what it said is no longer on the page. */
export function forget(address) {
  marks.delete(address);
}

export const by = (id) => document.getElementById(id);

/** An element with attributes and children. Texts, which come from files, become text and never markup. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
