// A stop on a web page, in a session where no run is alive, is seen by no hook of the host: it only answers the page.
// Its background processes run on all the same. So the stops among the operators' frames are watched here, where the
// host's `ws` library hands them over, together with the host's own answer: only what it allowed counts. And what a dead
// run would still show on a page is held here, and a line of ours is shown: older releases have no other way.
import path from "node:path";
import { own } from "./sdk.js";

const SEEN = Symbol.for("clawstop.frames");
const PAGES = Symbol.for("clawstop.pages");
const METHODS = ["chat.send", "chat.abort", "sessions.abort", "sessions.reset"];
const READING = ["chat.history", "chat.send"]; // what a page asks first; whom the host answers may read what is said
const ANSWER = /^\{"type":"res","id":"([^"]+)"(,"ok":true)?/;
const CHAT = '{"type":"event","event":"chat"';
const RUN = /"runId":"([^"]+)"/;
const NODE = /"role"\s*:\s*"node"/; // a machine that runs commands, not a page
const TOLD_MS = 300; // a host that tells the end of a run does so within this
const MOST = 100; // unanswered requests remembered of one socket
const LONGEST = 4000; // bytes; a stop is short, and nothing else is looked at

const FINAL = /"state":"(?:final|aborted|error)"/;
const over = new Set(); // the last runs of which the pages were told that they are over
let WebSocket;

function parsed(data) {
  try {
    return JSON.parse(data);
  } catch {
    return undefined;
  }
}

// Calls `asked({session, text, method})` when a stop may be coming, `stopped(...)` when the host said yes to it and
// `refused(...)` when it said no. What
// `waits(...)` gives is waited for before the host gets the frame; `patient()` when any might have to. False where the
// library cannot be found: then a stop is seen only while a run is alive. Of a run that is `stale` no words are shown.
export function watchFrames(seen) {
  try {
    const load = own();
    WebSocket = load(path.join(path.dirname(load.resolve("ws/package.json")), "lib", "websocket.js"));
  } catch {
    return false;
  }
  const watched = WebSocket.prototype[SEEN];
  WebSocket.prototype[SEEN] = seen;
  if (watched) return true; // an older instance of this plugin did the rest

  const waiting = new WeakMap(); // socket -> request id -> what was asked
  const nodes = new WeakSet();
  const welcome = new WeakSet(); // sockets that the host has said yes to
  const pages = (WebSocket.prototype[PAGES] = new Set()); // sockets that it lets read
  const reading = new WeakMap(); // socket -> the id of its last request to
  const { emit, send } = WebSocket.prototype;

  function incoming(socket, data) {
    if (!welcome.has(socket) && data?.length < LONGEST && NODE.test(data)) nodes.add(socket);
    if (!pages.has(socket) && !nodes.has(socket) && data?.length < LONGEST && READING.some((method) => data.includes(`"${method}"`))) reads(socket, parsed(data));
    if (!(data?.length < LONGEST || socket[SEEN].patient?.()) || !METHODS.some((method) => data.includes(`"${method}"`))) return undefined;
    const { type, id, method, params } = parsed(data) ?? {};
    const session = params?.sessionKey ?? params?.key;
    if (type !== "req" || !METHODS.includes(method) || typeof session !== "string") return undefined;
    const told = { session, method, text: method === "chat.send" ? params.message : undefined, at: Date.now() };
    if (!waiting.has(socket)) waiting.set(socket, new Map());
    const pending = waiting.get(socket).set(id, told);
    if (pending.size > MOST) pending.delete(pending.keys().next().value);
    if (!welcome.has(socket)) return undefined;
    const wait = socket[SEEN].waits?.(told); // an older instance knows none
    if (!wait) socket[SEEN].asked(told);
    return wait;
  }

  function reads(socket, { type, method, id } = {}) {
    if (type === "req" && READING.includes(method)) reading.set(socket, id);
  }

  function outgoing(socket, data) {
    if (typeof data !== "string" || !data.startsWith('{"type":"res"')) return;
    const [, answered, yes] = ANSWER.exec(data) ?? [];
    if (yes && !nodes.has(socket)) welcome.add(socket);
    if (answered && reading.get(socket) === answered) {
      reading.delete(socket); // an id may be used again
      if (yes) pages.add(socket);
    }
    const pending = waiting.get(socket);
    if (!pending?.size || data.length > LONGEST) return;
    const { id, ok, payload } = parsed(data) ?? {};
    const told = pending.get(id);
    pending.delete(id);
    if (told && ok === false) socket[SEEN].refused?.(told);
    // Only the answer to a stop says whether something was aborted.
    if (told && ok && (typeof payload?.aborted === "boolean" || told.method === "sessions.abort")) socket[SEEN].stopped(told);
  }

  // What may be shown of an event; undefined for nothing. A page is told that the run was aborted, as by the host itself.
  function fenced(socket, data) {
    const run = typeof data === "string" && data.startsWith(CHAT) ? RUN.exec(data)?.[1] : undefined;
    if (run && FINAL.test(data)) over.add(run);
    if (over.size > MOST) over.delete(over.values().next().value);
    if (!run || !socket[SEEN].stale?.(run)) return data;
    const frame = parsed(data);
    if (frame?.payload?.state === "delta") return frame.payload.message ? undefined : data;
    if (!frame?.payload || !FINAL.test(data)) return data;
    const { message, errorMessage, ...rest } = frame.payload;
    return JSON.stringify({ ...frame, payload: { ...rest, state: "aborted" } });
  }

  WebSocket.prototype.emit = function (name, data, ...rest) {
    if (name === "close") pages.delete(this);
    const wait = name === "message" && this._isServer && quietly(() => incoming(this, data));
    if (!wait) return emit.call(this, name, data, ...rest);
    void wait.then(() => this.emit(name, data, ...rest)).catch(() => undefined); // the socket is gone
    return true;
  };
  WebSocket.prototype.send = function (data, ...rest) {
    if (this._isServer) quietly(() => outgoing(this, data));
    const shown = this._isServer ? quietly(() => ({ data: fenced(this, data) })) ?? { data } : { data };
    if (shown.data === undefined) return void rest.findLast((one) => typeof one === "function")?.();
    return send.call(this, shown.data, ...rest);
  };
  return true;
}

// A line of ours on every page that may read it, in this conversation and in no transcript.
export function show(session, text) {
  const message = { role: "assistant", content: [{ type: "text", text }], timestamp: Date.now() };
  tellPages({ runId: `clawstop-${crypto.randomUUID()}`, sessionKey: session, seq: 0, state: "final", message });
}

// That a run was aborted, where the host tells the pages nothing of it.
export function showAborted(session, run) {
  const told = { runId: run, sessionKey: session, seq: 0, state: "aborted", stopReason: "stop" };
  setTimeout(() => over.has(run) || tellPages(told), TOLD_MS).unref();
}

function tellPages(payload) {
  const frame = JSON.stringify({ type: "event", event: "chat", payload });
  for (const socket of WebSocket?.prototype[PAGES] ?? []) quietly(() => socket.send(frame));
}

function quietly(work) {
  try {
    return work();
  } catch {
    return undefined; // the gateway's own traffic never suffers
  }
}
