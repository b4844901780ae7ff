// clawstop's bridge inside the gateway: registers the host's hooks and hands them to one Bridge.
//
// The host loads this module two or three times in one process and spreads the hooks over the instances, so
// the Bridge lives on globalThis. An instance of another version takes over what the old one knew.
import path from "node:path";
import os from "node:os";
import { Bridge } from "./bridge.js";

const VERSION = "0.1.0";
const KEY = Symbol.for("clawstop.bridge");
const STOPPED = new Set(["stop", "rpc"]); // why the host says a run was aborted, when a person wanted it
const BY_USER = "Reply operation aborted by user"; // the same on a channel, where it gives no reason
const bridge = () => globalThis[KEY].bridge;

function adopt(options) {
  const held = globalThis[KEY];
  if (held?.version === VERSION) {
    held.bridge.configure(options.config);
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
  const ids = entries ? Object.keys(entries) : (list ?? []).map((agent) => agent.id);
  return [...new Set(["main", ...ids])];
}

export default {
  id: "clawstop",
  name: "clawstop",
  description: "The stop button for AI agents.",

  register(api) {
    const stateDir = api.runtime?.state?.resolveStateDir?.(process.env) ?? process.env.OPENCLAW_STATE_DIR ?? path.join(os.homedir(), ".openclaw");
    adopt({
      folder: path.join(stateDir, "clawstop"),
      log: api.logger,
      config: api.pluginConfig ?? {},
      agents: () => agentIds(api.runtime?.config?.current?.() ?? api.config),
      version: api.runtime?.version ?? "unknown",
    });

    api.on("gateway_start", () => bridge().start());
    api.on("gateway_stop", () => bridge().stop());

    api.on("message_received", (event, ctx) => bridge().received(event.sessionKey ?? ctx?.sessionKey, event.messageId ?? ctx?.messageId));

    // A person's message, with the host's word on their authority. The host may tell it twice: ids are answered once.
    api.on("reply_dispatch", async (event) => {
      const ctx = event.ctx ?? {};
      const person = (ctx.InboundEventKind ?? "user_request") === "user_request";
      await bridge().message({ session: event.sessionKey ?? ctx.SessionKey, id: ctx.MessageSid, sender: ctx.SenderId, authorised: person && ctx.CommandAuthorized === true });
    });

    // A run that may not be is answered with silence, before it reaches the model. The host fails open here.
    api.on("before_agent_reply", async (event, ctx) => {
      try {
        void bridge().start();
        return (await bridge().admit(ctx.runId, ctx.sessionKey, ctx)) ? { handled: true } : undefined;
      } catch {
        return { handled: true };
      }
    });

    api.runtime?.events?.onAgentEvent?.((event) => {
      if (event.stream !== "lifecycle") return;
      const { phase, aborted, stopReason, executionSettled, error } = event.data ?? {};
      if (phase === "start") {
        void bridge().start();
        void bridge().started(event.runId, event.sessionKey, event.sessionId);
      }
      // A stop (typed: "stop", a page's button or RPC: "rpc") is told at once; the run is over when it has settled.
      if (phase === "end" && aborted === true && STOPPED.has(stopReason)) bridge().runStopped(event.runId, event.sessionKey);
      if (phase === "error" && aborted === true && error === BY_USER) void bridge().replyAborted(event.runId, event.sessionKey);
      if (phase === "error" || (phase === "end" && (aborted !== true || executionSettled))) bridge().runEnded(event.runId);
    });

    api.on("before_tool_call", async (event, ctx) => {
      void bridge().start();
      const refusal = await bridge().gate({ id: event.toolCallId ?? ctx.toolCallId ?? "", run: event.runId ?? ctx.runId, session: ctx.sessionKey, tool: event.toolName });
      return refusal ? { block: true, blockReason: refusal } : undefined;
    });
    api.on("after_tool_call", (event, ctx) => bridge().toolEnded({ id: event.toolCallId, session: ctx.sessionKey, ok: !event.error }));

    api.on("resolve_exec_env", (event) => {
      const cookie = bridge().cookie(event.sessionKey);
      return cookie ? { CLAWSTOP_COOKIE: cookie } : undefined;
    });

    // What a dead run still wants to say goes nowhere.
    api.on("reply_payload_sending", async (event, ctx) => {
      const reason = await bridge().emit({ run: event.runId ?? ctx?.runId, session: event.sessionKey ?? ctx?.sessionKey, kind: event.kind ?? "final" });
      return reason ? { cancel: true, reason } : undefined;
    });

    api.on("subagent_spawned", (event, ctx) => bridge().childSpawned({ child: event.childSessionKey ?? ctx?.childSessionKey, parent: ctx?.requesterSessionKey }));
  },
};
