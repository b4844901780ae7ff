// Runs the bridge outside a gateway: commands come in as JSON lines, answers go out. The host's registry of replies
// is played here: a reply that is aborted ends its run.
import path from "node:path";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const [, , plugin, folder] = process.argv;
const { Bridge } = await import(pathToFileURL(plugin));
const registry = new Map();
globalThis[Symbol.for("openclaw.replyRunRegistry")] = { activeRunsByKey: registry };
const aborted = [];
const log = Object.fromEntries(["info", "warn", "error"].map((level) => [level, (text) => console.error(text)]));
const channel = { outbound: { loadAdapter: async () => ({ sendText: async ({ to, text }) => said.push([to, text]) }) } };
const api = { runtime: { channel, config: { current: () => ({}) } } };
const make = () => new Bridge({ folder, log, config: {}, agents: () => ["main"], owner: () => "main", version: "test", api });
let bridge = make();
const said = []; // what a person would read
const hooks = new Map(); // of the plugin, as it has registered them

const actions = {
  reply(session, run) {
    registry.set(session, {
      abortByUser() {
        aborted.push(session);
        registry.delete(session);
        bridge.runEnded(run);
      },
    });
  },
  stubborn: (session) => {
    registry.set(session, {
      abortByUser() {
        throw new Error("this host cannot");
      },
    });
  },
  older: () => void (globalThis[Symbol.for("openclaw.embeddedRunState")] = { activeRuns: new Map() }), // only a list of who is at work
  aborted: () => aborted,
  message: ({ session, id, sender, authorised, text = "hi", ...ctx }) =>
    bridge.chat.dispatched({ sessionKey: session, ctx: { MessageSid: id, SenderId: sender, RawBody: text, CommandAuthorized: authorised, ...ctx } }, {}),
  chat: (call, ...args) => bridge.chat[call](...args),
  emit: (output) => bridge.fence.emit(output),
  sending: (session, text) => bridge.fence.holds(session, text),
  ours: (line) => bridge.fence.ours(line),
  said: () => said,
  connected: () => bridge.engine.connected,
  latched: (session) => bridge.mirror.latched(session),
  // The whole plugin, in a host without resolve_exec_env; what a process gets takes so long to be found.
  async register(slow) {
    const { default: plugin_ } = await import(new URL("index.js", pathToFileURL(plugin)));
    const state = { resolveStateDir: () => path.dirname(folder) };
    plugin_.register({ ...api, runtime: { ...api.runtime, state }, logger: log, on: (name, handler) => hooks.set(name, handler) });
    bridge.stop();
    ({ bridge } = globalThis[Symbol.for("clawstop.bridge")]);
    const { execParams } = bridge;
    bridge.execParams = async (...args) => {
      const params = await execParams.apply(bridge, args);
      await new Promise((resolve) => setTimeout(resolve, slow));
      return params;
    };
    await bridge.start();
  },
  hook: (name, event, ctx) => hooks.get(name)(event, ctx),
  replace() {
    const next = make();
    next.inherit(bridge);
    bridge.stop();
    bridge = next;
    return next.start();
  },
};

process.stdin.ref(); // the bridge itself keeps nothing alive
for await (const line of readline.createInterface({ input: process.stdin })) {
  const { id, call, args } = JSON.parse(line);
  Promise.resolve()
    .then(() => (actions[call] ? actions[call](...args) : bridge[call](...args)))
    .then((result) => console.log(JSON.stringify({ id, result: result ?? null })))
    .catch((error) => console.log(JSON.stringify({ id, error: String(error?.stack ?? error) })));
}
process.exit(0);
