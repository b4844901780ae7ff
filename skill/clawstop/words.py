"""What a person reads, in English and Chinese, and which of the two."""

from __future__ import annotations

import os
from collections.abc import Mapping

TEXTS: dict[str, tuple[str, str]] = {
    "stopped": (
        "stopped {target}: runs ended {runs}, processes killed {killed}, {ms:.0f} ms, receipt {id}",
        "已停止 {target}：结束运行 {runs} 个，杀死进程 {killed} 个，用时 {ms:.0f} 毫秒，回执 {id}",
    ),
    "nothing_ran": (
        "stopped {target}: nothing was running; it waits for your next message, receipt {id}",
        "已停止 {target}：没有正在运行的任务；等待你的下一条消息，回执 {id}",
    ),
    "sentence": (". ", "。"),
    "chat_stopped": (
        "stopped{name}: {runs}, {killed}, {seconds} s",
        "已停止{name}：{runs}，{killed}，用时 {seconds} 秒",
    ),
    "chat_nothing_ran": (
        "stopped{name}: nothing was running. It waits for your next message",
        "已停止{name}：没有正在运行的任务，等待你的下一条消息",
    ),
    "chat_taken": (
        "the earlier task was ended: {runs}, {killed}, {seconds} s",
        "之前的任务已结束：{runs}，{killed}，用时 {seconds} 秒",
    ),
    "chat_waits": ("your message waits until it is over", "你的消息将在其结束后处理"),
    "chat_left": (
        "NOT COMPLETE: {left}. Send {again} to try again",
        "尚未完成：{left}。发送 {again} 可再试一次",
    ),
    "left_runs": (
        "runs still alive: {count} (restarting the gateway ends them)",
        "仍有 {count} 个任务在运行（重启网关可结束）",
    ),
    "left_processes": (
        "processes still alive: {count} ({commands})",
        "仍存活的进程：{count} 个（{commands}）",
    ),
    "left_held": (
        "OpenClaw still holds the conversation's file; it forgets the task by itself within two "
        "minutes, and says so",
        "OpenClaw 仍占用对话文件；两分钟内会自动忘记该任务并通知你",
    ),
    "one_run": ("{count} run ended", "结束 {count} 个任务"),
    "some_runs": ("{count} runs ended", "结束 {count} 个任务"),
    "one_killed": ("{count} process killed", "终止 {count} 个进程"),
    "some_killed": ("{count} processes killed", "终止 {count} 个进程"),
    "chat_forgotten": (
        "it has forgotten the task; {undo} brings it back",
        "任务已从记忆中移除，发送 {undo} 可恢复",
    ),
    "chat_kept": ("kept by their lease: {commands}", "按租约保留：{commands}"),
    "chat_suspected": (
        "also at work in its folder, not proven to be its own: {commands} (/suspects ends them)",
        "另有进程在其工作目录中运行，无法确认归属：{commands}（发送 /suspects 可结束它们）",
    ),
    "chat_suspected_elsewhere": (
        "also at work in its folder, not proven to be its own: {commands}",
        "另有进程在其工作目录中运行，无法确认归属：{commands}",
    ),
    "chat_suspects_ended": (
        "suspects ended: {killed}; nothing else was stopped",
        "已结束可疑进程 {killed} 个；其他均未停止",
    ),
    "chat_spared": (
        "not stopped: {agents} (`kill everything` stops all)",
        "未停止：{agents}（发送 kill everything 可全部停止）",
    ),
    "chat_line": (
        "{when}  {target}: {word}, processes killed: {killed}  ({id})",
        "{when}  {target}：{word}，终止进程 {killed} 个（{id}）",
    ),
    "chat_memory_back": (
        "It remembers the task again: {count} entries. Undo: {how}",
        "任务已恢复到记忆中：{count} 条记录。撤销：{how}",
    ),
    "chat_memory_gone": (
        "It has forgotten the task again: {count} entries. Undo: {how}",
        "任务已再次从记忆中移除：{count} 条记录。撤销：{how}",
    ),
    "chat_receipt": ("receipt {id}", "回执 {id}"),
    "which_one": (
        "Several go by {name}. Reply with the number",
        "有多个对象符合 {name}，请回复编号",
    ),
    "not_protected": (
        "NOT PROTECTED: a gateway answers on port {port}, and clawstop is not loaded in it; run: "
        "clawstop install, then restart the gateway",
        "未受保护：端口 {port} 上有网关在运行，但其中没有加载 clawstop；请运行 clawstop install，"
        "然后重启网关",
    ),
    "installed": (
        "installed; restart the gateway, then look again with: clawstop doctor",
        "已安装；请重启网关，然后运行 clawstop doctor 再检查一次",
    ),
    "uninstalled": (
        "done; restart the gateway if it is running",
        "完成；如果网关正在运行，请重启它",
    ),
    "canary_ask": (
        "This starts a small run of {agent} on your gateway and stops it. Go on?",
        "将在你的网关上启动 {agent} 的一个小任务并停止它。继续吗？",
    ),
    "replace_ask": ("Replace what they have left?", "要替换它们留下的内容吗？"),
    "watching": ("watching; Ctrl-C ends it", "正在监视；按 Ctrl-C 结束"),
    "no_access": (
        "{why}; look at that file or folder, and try again",
        "{why}；请检查该文件或文件夹后重试",
    ),
    "could_be": ("{name} could be", "{name} 可能是"),
    "no_target": (
        "no agent or session is called {name}; agents: {agents}",
        "没有名为 {name} 的智能体或会话；现有：{agents}",
    ),
    "no_target_near": (
        "no agent or session is called {name}; did you mean {agents}?",
        "没有名为 {name} 的智能体或会话；是否指：{agents}？",
    ),
    "choose": ("Which number", "选择编号"),
    "nobody_near": (
        "Nobody is called {name}. Did you mean {agents}?",
        "没有名为 {name} 的智能体。是否指：{agents}？",
    ),
    "nobody": (
        "Nobody is called {name}. Agents: {agents}",
        "没有名为 {name} 的智能体。现有：{agents}",
    ),
    "unread": (
        "the gateway restarted before anybody read your message; please send it again: {text}",
        "网关在读取你的消息之前重启了，请重新发送：{text}",
    ),
    "no_words": ("a message without words", "一条没有文字的消息"),
    "ask_resume": (
        'the gateway went down {minutes} min ago in the middle of this: "{text}"{will}. '
        "Shall it go on? Answer yes or no",
        "网关在 {minutes} 分钟前中断，当时正在处理：“{text}”{will}。是否继续？请回复“是”或“否”",
    ),
    "ask_suspended": (
        'this was cut off again and again and does not go on by itself: "{text}"{will}. '
        "Shall it go on? Answer yes or no",
        "该任务多次中断，不会自动继续：“{text}”{will}。是否继续？请回复“是”或“否”",
    ),
    "will_says": (" (it had noted: {will})", "（它曾记录：{will}）"),
    "resume_yes": ("it goes on as soon as it can", "任务将尽快继续"),
    "not_yours": (
        "only who gave the task can say that",
        "只有布置该任务的人可以决定",
    ),
    "resume_no": ("it does not go on", "任务不再继续"),
    "nothing_cut": ("nothing was cut off", "没有被中断的任务"),
    "resume_text": (
        "[clawstop] The gateway went down in the middle of your task and is back. Nobody stopped "
        "the task. Go on from what this conversation shows, and do not do again what is done.",
        "[clawstop] 网关在你执行任务时中断，现已恢复。没有人停止该任务。"
        "请根据对话内容继续，已完成的步骤不要重复。",
    ),
    "resume_quote": ("The person's message was:\n{text}", "用户的消息是：\n{text}"),
    "resume_unknown": (
        "Effect unknown: {call}. Look whether it happened before you do it again.",
        "结果未知：{call}。请先确认是否已执行，再决定是否重做。",
    ),
    "resume_will": ("You had noted for yourself: {will}", "你曾为自己记录：{will}"),
    "cut_line": ("{state}  {session}  {why}{did}", "{state}  {session}  {why}{did}"),
    "cut_finished": ("finished", "已完成"),
    "cut_cut_off": ("CUT OFF", "已中断"),
    "cut_stopped": ("stopped", "已停止"),
    "cut_waiting": ("waiting", "等待中"),
    "cut_unknown": ("unknown", "不明"),
    "cut_running": ("running", "运行中"),
    "did_cut": ("it is looked at", "正在核查"),
    "did_found": ("it is about to go on", "即将继续"),
    "did_asked": ("its person is asked; yes lets it go on", "已询问用户，回复“是”即可继续"),
    "did_suspended": ("suspended; yes lets it go on", "已暂停，回复“是”即可继续"),
    "did_resumed": ("it goes on", "正在继续"),
    "did_done": ("it is over", "已结束"),
    "did_left": ("left alone: {why}", "未处理：{why}"),
    "no_cuts": ("nothing was cut off", "没有被中断的任务"),
    "recover_yes": (
        "to let what waits go on: clawstop recover --yes",
        "继续等待中的任务：clawstop recover --yes",
    ),
    "waits_for_word": (
        "cut off by a crash, waits for your word: {session}; clawstop recover",
        "因崩溃中断，等待你的答复：{session}；运行 clawstop recover",
    ),
    "no_gateway_yet": (
        "no gateway with clawstop came up within {seconds} s",
        "{seconds} 秒内没有启用 clawstop 的网关上线",
    ),
    "will_kept": ("noted for {session}", "已为 {session} 记录"),
    "no_will": ("{session} has left no will", "{session} 没有留言"),
    "recovered": ("recovered", "已恢复"),
    "forgotten": (
        "forgotten, as if never asked: {text} ({count} entries; /restore or "
        "`clawstop restore {id}` brings them back)",
        "已忘记该任务：{text}（{count} 条记录；发送 /restore 或运行 clawstop restore {id} 可恢复）",
    ),
    "remembered": (
        "memory of {session} was not touched: {why}",
        "{session} 的记忆未改动：{why}",
    ),
    "why_gone_on": ("the conversation has gone on", "对话已继续"),
    "why_alive": (
        "not before everything is dead; stop it again",
        "须先确认所有进程已结束；请再次停止",
    ),
    "cooperated": ("saved its place first: {places}", "已先保存进度：{places}"),
    "checkpoint_done": ("finished", "已完成"),
    "checkpoint_open": ("can be resumed", "可继续"),
    "no_checkpoints": ("no task has saved its place", "没有任务保存过进度"),
    "noted": (
        "files that it wrote for itself meanwhile, left as they are: {files}",
        "任务期间它写过的记忆文件（未改动）：{files}",
    ),
    "memory_back": (
        "{session} remembers again: {count} entries (undo: {how})",
        "{session} 的记忆已恢复：{count} 条记录（撤销：{how}）",
    ),
    "memory_gone": (
        "{session} has forgotten again: {count} entries (undo: {how})",
        "{session} 已再次忘记：{count} 条记录（撤销：{how}）",
    ),
    "would_forget": ("would forget", "将忘记"),
    "gone_on": (
        "{why}; add --force to go back to what was, what was said since stays as a branch",
        "{why}；加 --force 可回到当时，之后的对话会作为分支保留",
    ),
    "gone_on_chat": (
        "not restored: the conversation has gone on. Send `/restore{id} --force` to go back to "
        "what was; what was said since stays as a branch.",
        "未恢复：对话已继续。发送 /restore{id} --force 可回到当时；之后的对话会作为分支保留。",
    ),
    "nothing_taken": (
        "no stop of this chat took anything out of its memory, or it is back already",
        "此对话没有可恢复的记忆，或已经恢复",
    ),
    "why_not_there": ("there is no such turn or entry", "没有这一轮或这条记录"),
    "not_restored": ("not restored: {why}", "未恢复：{why}"),
    "is_standby": ("standby", "待命"),
    "restored": ("restored", "已恢复"),
    "already_done": ("already done: {calls}", "停止前已完成：{calls}"),
    "tried": ("tried, and failed: {calls}", "已尝试但失败：{calls}"),
    "maybe_done": ("cut off, outcome unknown: {calls}", "被中断，结果未知：{calls}"),
    "and_more": ("{calls} and {count} more", "{calls}，以及另外 {count} 项"),
    "jobs_off": (
        "scheduled jobs turned off: {count} (clawstop restore {id} turns them on)",
        "已停用定时任务 {count} 个（可用 clawstop restore {id} 恢复）",
    ),
    "scheduled_elsewhere": (
        "scheduled outside OpenClaw, still there: {calls}",
        "在 OpenClaw 之外安排的任务仍然存在：{calls}",
    ),
    "withdrawn": ("messages not delivered any more: {count}", "不再发送的消息：{count} 条"),
    "discarded": ("messages not answered any more: {count}", "不再回复的消息：{count} 条"),
    "not_complete": (
        "NOT COMPLETE: {target} is stopped, but:",
        "尚未完成：{target} 已停止，但是：",
    ),
    "again": (
        "Run the same command again to finish.",
        "请再次运行同一命令以完成。",
    ),
    "spared": (
        "not stopped: {agents} (add --include-main, or stop `everything`)",
        "未停止：{agents}（可加 --include-main，或停止 everything）",
    ),
    "would_stop": ("would stop {target}: {scopes}", "将停止 {target}：{scopes}"),
    "run": ("run", "运行"),
    "process": ("process", "进程"),
    "ask_previews": (
        "Show Telegram's live previews? Then one or two late edits may be seen after a stop.",
        "保留 Telegram 的实时预览吗？若保留，停止后可能还会看到一两次延迟的编辑。",
    ),
    "mark_ask": ("Make it {session}'s own?", "登记为 {session} 所有？"),
    "left_alone": ("left alone", "不受影响"),
    "leased": ("kept by its lease", "按租约保留"),
    "suspect": ("suspect, not ended without --suspects", "可疑（加 --suspects 才会结束）"),
    "strangers": ("other processes, untouched: {count}", "其他进程，不受影响：{count} 个"),
    "kept": (
        "kept by their lease: {commands} (`clawstop stop everything --now` ends them)",
        "按租约保留：{commands}（可用 clawstop stop everything --now 结束）",
    ),
    "suspected": (
        "also at work in its folder, not proven to be its own: {commands} "
        "(send /suspects to end them, or run `clawstop stop {target} --suspects`)",
        "另有进程在其工作目录中运行，无法确认归属：{commands}"
        "（发送 /suspects 或运行 clawstop stop {target} --suspects 可结束它们）",
    ),
    "suspects_ended": (
        "suspects ended: {killed}, receipt {id}; nothing else was stopped",
        "已结束可疑进程 {killed} 个，回执 {id}；其他均未停止",
    ),
    "still_frozen": (
        "still frozen: {scopes} (release that)",
        "仍被冻结：{scopes}（请解除该范围）",
    ),
    "no_suspects": (
        "the last stop here named no suspects; nothing was ended",
        "此会话上次停止没有列出可疑进程；未结束任何进程",
    ),
    "not_verified": ("remote, not verified: {calls}", "远程执行，无法确认：{calls}"),
    "released": ("released: {scopes}", "已解除：{scopes}"),
    "job_on": ("scheduled job is on again: {id}", "定时任务已恢复：{id}"),
    "job_gone": ("scheduled job is gone by itself: {id}", "定时任务已不存在：{id}"),
    "nothing_to_restore": (
        "stop {id} took nothing away that can be brought back",
        "停止 {id} 没有可恢复的内容",
    ),
    "not_stopped": ("{target} was not stopped", "{target} 并未被停止"),
    "waiting": ("still working, {seconds} s ...", "仍在进行，{seconds} 秒……"),
    "demo_step_engine": ("starting an engine ...", "启动引擎……"),
    "demo_step_wild": ("an agent runs wild ...", "智能体失控运行……"),
    "demo_step_stop": ("stop! now watching that nothing happens ...", "停！观察是否还有动静……"),
    "demo_step_gateway": (
        "starting a real gateway; the first time it is fetched, which takes minutes ...",
        "启动真实网关；首次需要下载，可能要几分钟……",
    ),
    "zoo_kind": ("{kind}: {results}", "{kind}:{results}"),
    "problem": ("PROBLEM: {text}", "问题：{text}"),
    "no_gateway": ("no gateway is connected", "没有已连接的网关"),
    "gateway": ("gateway", "网关"),
    "reduced": ("reduced", "功能受限"),
    "is_stopped": ("stopped", "已停止"),
    "is_frozen": ("frozen", "已冻结"),
    "frozen": (
        "frozen {target}: {count} processes stand still, its tools wait",
        "已冻结 {target}：{count} 个进程暂停，工具调用等待中",
    ),
    "frozen_then": (
        "now: `clawstop stop {target}` ends it, `clawstop release {target}` lets it go on",
        "接下来：clawstop stop {target} 结束，clawstop release {target} 继续",
    ),
    "is_running": ("running", "运行中"),
    "is_idle": ("idle", "空闲"),
    "unfinished": ("unfinished stop {id}", "未完成的停止 {id}"),
    "no_stops": ("nothing was stopped yet", "还没有停止记录"),
    "receipt": (
        "{when}  {id}  {target}  killed {killed}  {word}",
        "{when}  {id}  {target}  杀死 {killed}  {word}",
    ),
    "converged": ("converged", "已确认"),
    "incomplete": ("NOT COMPLETE", "尚未完成"),
    "ok": ("ok", "正常"),
    "bad": ("BAD", "异常"),
    "emergency_stopped": (
        "stopped {target} without the engine: {latched}, processes killed {killed}",
        "已在没有引擎的情况下停止 {target}：{latched}，杀死进程 {killed} 个",
    ),
    "emergency_latched": ("closed on disk", "已写入磁盘"),
    "emergency_open": ("NOT closed on disk", "未能写入磁盘"),
    "emergency_left": ("left out or left alive:", "未做或仍存活："),
    "emergency_would": (
        "would close {scopes}, and kill {count} processes",
        "将关闭 {scopes}，并杀死 {count} 个进程",
    ),
    "demo_person": ("person", "用户"),
    "demo_agent": ("agent", "智能体"),
    "demo_clawstop": ("clawstop", "clawstop"),
    "demo_starts": ("starts: {text}", "启动：{text}"),
    "demo_mails": (
        "... {count} messages so far, nobody asked for them",
        "……已发出 {count} 条，没人要求",
    ),
    "demo_latched": (
        "session closed, on disk; run generation bumped",
        "会话已关闭并写入磁盘；代数加一",
    ),
    "demo_ended": ("run ended in the host: {count}", "宿主中的运行已结束：{count}"),
    "demo_killed": (
        "killed and verified dead: {command} ({signal})",
        "已杀死并确认：{command}（{signal}）",
    ),
    "demo_forgotten": (
        "the task is out of its memory: {count} entries, in a backup",
        "任务已从记忆中移除：{count} 条记录，已备份",
    ),
    "demo_woken": (
        "the dying process wakes the agent: refused",
        "进程结束试图唤醒智能体：已拒绝",
    ),
    "demo_watched": (
        "watched for {seconds:g} s: messages {said}, tools {tools}, files written {files}, "
        "processes alive {alive}",
        "观察 {seconds:g} 秒：消息 {said}，工具 {tools}，写入 {files}，存活进程 {alive}",
    ),
    "demo_back": ("answers again: {text}", "恢复应答：{text}"),
    "demo_title": ("A runaway agent is stopped", "停止一个失控的智能体"),
    "demo_good": (
        "It stopped. The receipt is above; `clawstop install` does this for your gateway.",
        "已停止。回执如上；运行 clawstop install 即可用于你的网关。",
    ),
    "demo_failed": ("THE DEMO FAILED: {text}", "演示失败：{text}"),
}


def language(environ: Mapping[str, str] = os.environ) -> str:
    """ "zh" or "en", by the locale that the usual variables name."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANGUAGE", "LANG"):
        if environ.get(name):
            return "zh" if environ[name].lower().startswith("zh") else "en"
    return "en"


def say(key: str, lang: str | None = None, /, **values: object) -> str:
    """The text in `lang`, or in the language of this shell."""
    return TEXTS[key][(lang or language()) == "zh"].format(**values)
