// Keeps the page up to date. The server renders; this fetches the page's own address again with each event and lays what
// differs over what is there, so that focus, selection and scrolling stay.

const slow = 10000; // milliseconds until a broken stream is tried again

const connection = () => document.getElementById("connection");
let paused = false;
let busy = false;
let stream = null;

// same tells whether one node can become the other. An element with an id is only itself.
const same = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && (a.id || "") === (b.id || "");

// lay makes the children of `have` those of `want`, changing as little as possible. No node that stays is moved: a
// moved one would lose the focus.
function lay(have, want) {
  for (let i = 0; i < want.childNodes.length; i++) {
    const to = want.childNodes[i];
    let from = have.childNodes[i];
    if (from && !same(from, to) && to.id) {
      const later = [...have.childNodes].slice(i).find((n) => same(n, to));
      while (later && from !== later) {
        from.remove();
        from = have.childNodes[i];
      }
    }
    if (!from || !same(from, to)) {
      have.insertBefore(to.cloneNode(true), from || null);
    } else if (to.nodeType !== Node.ELEMENT_NODE) {
      if (from.data !== to.data) from.data = to.data;
    } else {
      attributes(from, to);
      lay(from, to);
    }
  }
  while (have.childNodes.length > want.childNodes.length) have.lastChild.remove();
}

// attributes takes over what differs. What a reader has typed stays: it is a property, not an attribute.
function attributes(have, want) {
  for (const { name, value } of want.attributes) {
    if (have.getAttribute(name) !== value) have.setAttribute(name, value);
  }
  for (const { name } of [...have.attributes]) {
    if (!want.hasAttribute(name)) have.removeAttribute(name);
  }
}

function say(text) {
  if (connection().textContent !== text) connection().textContent = text;
}

// selecting tells whether a reader marks text now: then nothing may move under the pointer.
function selecting() {
  const s = getSelection();
  return s && s.type === "Range";
}

async function renew() {
  if (busy || paused || document.hidden || selecting()) return;
  busy = true;
  try {
    const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(slow) });
    if (!(answer.headers.get("Content-Type") || "").startsWith("text/html")) throw new Error("no page");
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (paused) return;
    document.title = next.title;
    lay(document.querySelector("main"), next.querySelector("main"));
    for (const part of ["h1", "header .summary:not(:last-child)", "header time", "footer nav"]) {
      const [have, want] = [document.querySelector(part), next.querySelector(part)];
      if (have && want) { attributes(have, want); lay(have, want); }
    }
    say("live");
  } catch {
    say("no answer, trying again");
  } finally {
    busy = false;
  }
}

function connect() {
  stream = new EventSource("api/v1/events");
  stream.addEventListener("status", renew);
  stream.onerror = () => {
    if (paused) return;
    say("no answer, trying again");
    // A browser gives up for good when the server refuses.
    if (stream.readyState === EventSource.CLOSED) setTimeout(() => { if (!paused) connect(); }, slow);
  };
}

const button = document.getElementById("pause");
button.hidden = false;
button.addEventListener("click", () => {
  paused = !paused;
  button.textContent = paused ? "Go on" : "Pause";
  stream.close();
  if (paused) say("paused"); else connect();
});
document.addEventListener("visibilitychange", renew);
connect();
