// A stop on a web page, in a session where no run is alive, is seen by no hook of the host: it only answers the page.
// Its background processes run on all the same. So the stops among the operators' frames are watched here, where the
// host's `ws` library hands them over, together with the host's own answer: only what it allowed counts.
import fs from "node:fs";
import path from "node:path";
import { createRequire } from "node:module";

const SEEN = Symbol.for("clawstop.frames");
const METHODS = ["chat.send", "chat.abort", "sessions.abort"];
const MOST = 100; // unanswered requests remembered of one socket
const LONGEST = 4000; // bytes; a stop is short, and nothing else is looked at

function parsed(data) {
  try {
    return JSON.parse(data);
  } catch {
    return undefined;
  }
}

// Calls `asked({session, text, method})` when a stop may be coming and `stopped(...)` when the host said yes to it. What
// `waits(...)` gives is waited for before the host gets the frame; `patient()` when any might have to. False where the
// library cannot be found: then a stop is seen only while a run is alive.
export function watchFrames({ asked, stopped, waits, patient }) {
  let WebSocket;
  try {
    const load = createRequire(fs.realpathSync(process.argv[1]));
    WebSocket = load(path.join(path.dirname(load.resolve("ws/package.json")), "lib", "websocket.js"));
  } catch {
    return false;
  }
  const watched = WebSocket.prototype[SEEN];
  WebSocket.prototype[SEEN] = { asked, stopped, waits, patient };
  if (watched) return true; // an older instance of this plugin did the rest

  const waiting = new WeakMap(); // socket -> request id -> what was asked
  const welcome = new WeakSet(); // sockets that the host has said yes to
  const { emit, send } = WebSocket.prototype;

  function incoming(socket, data) {
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

  function outgoing(socket, data) {
    if (typeof data !== "string" || !data.startsWith('{"type":"res"')) return;
    if (data.slice(0, 200).includes('"ok":true')) welcome.add(socket);
    const pending = waiting.get(socket);
    if (!pending?.size || data.length > LONGEST) return;
    const { id, ok, payload } = parsed(data) ?? {};
    const told = pending.get(id);
    pending.delete(id);
    // Only the answer to a stop says whether something was aborted.
    if (told && ok && (typeof payload?.aborted === "boolean" || told.method === "sessions.abort")) socket[SEEN].stopped(told);
  }

  WebSocket.prototype.emit = function (name, data, ...rest) {
    const wait = name === "message" && this._isServer && quietly(() => incoming(this, data));
    if (!wait) return emit.call(this, name, data, ...rest);
    void wait.then(() => this.emit(name, data, ...rest)).catch(() => undefined); // the socket is gone
    return true;
  };
  WebSocket.prototype.send = function (data, ...rest) {
    if (this._isServer) quietly(() => outgoing(this, data));
    return send.call(this, data, ...rest);
  };
  return true;
}

function quietly(work) {
  try {
    return work();
  } catch {
    return undefined; // the gateway's own traffic never suffers
  }
}
