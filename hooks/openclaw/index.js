// clawstop's bridge inside the gateway: registers the host's hooks and hands them to one Bridge.
//
// The host loads this module two or three times in one process and spreads the hooks over the instances, so
// the Bridge lives on globalThis. An instance of another version takes over what the old one knew.
import path from "node:path";
import os from "node:os";
import { Bridge } from "./bridge.js";
import { listensOn } from "./host.js";
import { configOf } from "./sdk.js";
import { restoreShell } from "./shell.js";

const VERSION = "0.1.0";
const KEY = Symbol.for("clawstop.bridge");
const STOPPED = new Set(["stop", "rpc"]); // why the host says a run was aborted, when a person wanted it
const FIRST = { priority: 1000 }; // before other plugins: what they claim never comes to us
const LAST = { priority: -1000 }; // behind them: what they take long for, or change, is judged as it is then
const FROZEN_MS = 86400000; // how long a tool of a frozen session may wait; the host would refuse it after 15 s
const COMMANDS = {
  halt: "Stop what runs here; with a name, that agent · 停止任务",
  stops: "The last stops · 最近的停止记录",
  restore: "Bring back what a stop made the agent forget · 恢复被停止的任务",
};
const bridge = () => globalThis[KEY].bridge;

function adopt(options) {
  const held = globalThis[KEY];
  if (held?.version === VERSION) {
    held.bridge.configure(options);
    return;
  }
  const next = new Bridge(options);
  globalThis[KEY] = { version: VERSION, bridge: next };
  if (!held) return;
  next.inherit(held.bridge);
  held.bridge.stop();
  void next.start();
}

function agentIds(config) {
  const { entries, list } = config?.agents ?? {};
  return entries ? Object.keys(entries) : (list ?? []).map((agent) => agent.id);
}

// The agent that owns what names none.
function ownerOf(config) {
  const ids = agentIds(config);
  return config?.agents?.defaults?.systemAgent?.agentId ?? (ids.length === 0 || ids.includes("main") ? "main" : ids[0]);
}

// Who gives a command from a channel's menu, and where.
const orderer = ({ sessionKey, senderId, channel, to, from, accountId, messageThreadId, isAuthorizedSender }) => ({
  session: sessionKey,
  sender: String(senderId ?? ""),
  channel,
  to,
  account: accountId,
  thread: messageThreadId,
  group: !String(from ?? "").endsWith(`:${senderId}`),
  authorised: isAuthorizedSender,
});

export default {
  id: "clawstop",
  name: "clawstop",
  description: "The stop button for AI agents.",

  register(api) {
    const begun = performance.now();
    const stateDir = api.runtime?.state?.resolveStateDir?.(process.env) ?? process.env.OPENCLAW_STATE_DIR ?? path.join(os.homedir(), ".openclaw");
    restoreShell(path.join(stateDir, "clawstop", "shell"));
    const current = () => configOf(api);
    adopt({
      folder: path.join(stateDir, "clawstop"),
      log: api.logger,
      config: api.pluginConfig ?? {},
      agents: () => [...new Set(["main", ...agentIds(current())])],
      owner: () => ownerOf(current()),
      version: api.runtime?.version ?? "unknown",
      api,
    });
    // What the host waits for is counted: a tool call, or all else of a turn in a session.
    const on = (name, kind, keyOf, handler, options) => api.on(name, (event, ctx) => bridge().spent.time(kind, keyOf(event ?? {}, ctx ?? {}), () => handler(event ?? {}, ctx ?? {})), options);
    const sessionOf = (event, ctx) => event.sessionKey ?? ctx.sessionKey ?? "";
    const callOf = (event, ctx) => event.toolCallId ?? ctx.toolCallId ?? "";

    api.on("gateway_start", async (event, ctx) => {
      delete process.env.CLAWSTOP_COOKIE; // a gateway that a run has started is nobody's, and so is what it starts
      bridge().cron = ctx?.getCron;
      listensOn(event?.port ?? ctx?.port);
      await bridge().spent.time("start", "", () => bridge().start());
      bridge().spent.close("start", "");
    });
    api.on("gateway_stop", () => bridge().stop());

    const heard = (session, { messageId, content, senderId, metadata, channelId, conversationId, accountId, timestamp }) =>
      bridge().chat.heard(session, {
        id: messageId,
        text: content,
        sender: senderId ?? metadata?.senderId,
        said: timestamp,
        // A command of a channel's menu may go to a place of its own.
        route: { channel: channelId, to: [metadata?.originatingTo, metadata?.to, conversationId].find((to) => to && !/^slash:/.test(to)), account: accountId, thread: metadata?.threadId },
      });
    let named = false; // up to 2026.4.24 only an internal hook tells in which session
    on("message_received", "turn", sessionOf, (event, ctx) => {
      named ||= Boolean(sessionOf(event, ctx));
      heard(sessionOf(event, ctx), { ...ctx, ...event });
    });
    api.registerHook?.("message:received", ({ sessionKey, context }) => (named ? undefined : heard(sessionKey, context)), { name: "clawstop-heard", description: "Hears a stop on a channel." });
    on("reply_dispatch", "turn", sessionOf, (event, ctx) => bridge().chat.dispatched(event, ctx), FIRST);
    for (const [name, description] of Object.entries(COMMANDS)) {
      const handler = async (ctx) => ({ text: (await bridge().chat.menu([`/${name}`, ctx.args].filter(Boolean).join(" "), orderer(ctx))) || description });
      api.registerCommand?.({ name, description, acceptsArgs: true, handler });
    }
    api.on("before_message_write", (event, ctx) => (bridge().keepsOut(ctx?.sessionKey ?? event?.sessionKey, event?.message) ? { block: true } : undefined));
    api.on("before_reset", (event, ctx) => bridge().chat.reset(ctx?.sessionKey, event?.reason));

    // A run that may not be is answered with silence, before it reaches the model. The host fails open here.
    on("before_agent_reply", "turn", sessionOf, async (event, ctx) => {
      try {
        void bridge().start();
        const refusal = await bridge().turn(ctx.runId, ctx.sessionKey, { sessionId: ctx.sessionId, trigger: ctx.trigger, jobId: ctx.jobId, prompt: event.cleanedBody });
        return refusal ? { handled: true } : undefined;
      } catch {
        return { handled: true };
      }
    }, FIRST);

    // The first that names a run, and its session, where before_agent_reply does not, or there is none. The host waits for
    // it: what may not be is known then, and ended before it has asked the model.
    api.on("before_model_resolve", async (event, ctx = {}) => {
      const { run, session } = bridge().place(ctx.runId, ctx.sessionKey, { prompt: event?.prompt, trigger: ctx.trigger });
      await bridge().admit(run, session, { sessionId: ctx.sessionId, trigger: ctx.trigger, prompt: event?.prompt })?.catch(() => undefined);
    });
    api.runtime?.events?.onAgentEvent?.((event) => {
      if (event.stream !== "lifecycle") return;
      const { phase, aborted, stopReason, executionSettled } = event.data ?? {};
      const { run, session } = bridge().place(event.runId, event.sessionKey, phase === "start" ? {} : undefined);
      if (phase === "start") {
        void bridge().start();
        void bridge().started(run, session, event.sessionId);
      }
      // A stop (typed: "stop", a page's button or RPC: "rpc") is told at once; the run is over when it has settled.
      if (phase === "end" && aborted === true && STOPPED.has(stopReason)) bridge().runStopped(run, session);
      if (phase === "end" && aborted === undefined) void bridge().runGone(run);
      else if (phase === "error" || (phase === "end" && aborted === false)) bridge().runEnded(run, phase === "end");
      else if (phase === "end") void bridge().runAborted(run, executionSettled);
    });
    api.on("agent_end", (event, ctx = {}) => bridge().runResult(bridge().place(ctx.runId, ctx.sessionKey).run, event?.success));

    on("before_tool_call", "tool", callOf, async (event, ctx) => {
      void bridge().start();
      const { run, session } = bridge().place(event.runId ?? ctx.runId, ctx.sessionKey, {});
      const params = await bridge().execParams(event, session); // takes its time: the gate judges after it
      const refusal = await bridge().gate({ id: callOf(event, ctx), run, session, key: ctx.sessionKey, tool: event.toolName, params: event.params, signal: ctx.abortSignal });
      if (refusal) return { block: true, blockReason: refusal };
      return params ? { params } : undefined;
    }, { ...LAST, timeoutMs: FROZEN_MS });
    on("after_tool_call", "tool", callOf, (event, ctx) => {
      bridge().toolEnded({ id: callOf(event, ctx), ...bridge().place(event.runId ?? ctx.runId, ctx.sessionKey), tool: event.toolName, params: event.params, result: event.result, error: event.error });
      queueMicrotask(() => bridge().spent.close("tool", callOf(event, ctx)));
    });

    api.on("resolve_exec_env", async (event) => {
      void bridge().start();
      return bridge().execEnv(bridge().place(undefined, event.sessionKey).session, event.host);
    });

    // What a dead run still wants to say goes nowhere; what the host says of a stop by itself becomes our line.
    api.on("reply_payload_sending", async (event, ctx = {}) => {
      const { run, session } = bridge().place(event.runId ?? ctx.runId, sessionOf(event, ctx));
      const emit = () => bridge().fence.emit({ run, session, kind: event.kind ?? "final", text: event.payload?.text });
      const reason = await bridge().spent.time("turn", session, emit);
      if (reason) return { cancel: true, reason };
      const line = run ? undefined : await bridge().chat.instead(session);
      if (line) bridge().fence.ours(line);
      return line ? { payload: { ...event.payload, text: line } } : undefined;
    }, LAST);
    api.on("message_sending", (event, ctx = {}) => {
      const reason = bridge().fence.holds(ctx.sessionKey ?? event.sessionKey, event.content);
      return reason ? { cancel: true, cancelReason: reason } : undefined;
    }, LAST);

    // Beside what the host reads from the workspace; under this name subagents and cron jobs read it too.
    api.registerHook?.("agent:bootstrap", async ({ context }) => {
      const content = await bridge().block(context.agentId, context.workspaceDir);
      const file = path.join(stateDir, "clawstop", "AGENTS.md");
      if (content) context.bootstrapFiles = [...context.bootstrapFiles.filter((one) => one.path !== file), { name: "AGENTS.md", path: file, content, missing: false }];
    }, { name: "clawstop-protocol", description: "Tells agents what a stop means for them." });

    api.on("before_compaction", (event, ctx) => bridge().takeover.compacts(ctx?.sessionKey, true));
    api.on("after_compaction", (event, ctx) => bridge().takeover.compacts(ctx?.sessionKey, false));

    api.on("subagent_spawned", (event, ctx) => bridge().childSpawned({ child: event.childSessionKey ?? ctx?.childSessionKey, parent: bridge().place(undefined, ctx?.requesterSessionKey).session }));
    bridge().spent.add("start", "", performance.now() - begun);
  },
};
