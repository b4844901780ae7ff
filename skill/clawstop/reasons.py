"""Why a conversation stands as it does, in Chinese. Records and logs have the English words."""

from __future__ import annotations

import re

CHINESE = {
    r"a person stopped it": "已被用户停止",
    r"its last message asks for nothing": "最后一条消息无需处理",
    r"a run was at work when its gateway went": "网关中断时任务正在运行",
    r"a person's message was not read by any run": "用户的消息未被读取",
    r"its last entry is damaged": "最后一条记录已损坏",
    r"the agent was aborted while it worked": "智能体在工作时被中止",
    r"the agent had said its last word": "智能体已作出最终回复",
    r"the host left it (.+)": r"网关记录其状态为 \1",
    r"the agent chose to say nothing": "智能体选择不回复",
    r"the host noted that somebody aborted it": "网关记录为被人中止",
    r"the host noted that it was done": "网关记录为已完成",
    r"the host noted a run, and nothing is there": "网关记录过运行，但没有内容",
    r"the host noted that its last run was aborted": "网关记录上次运行被中止",
    r"nothing was said": "没有内容",
    r"a person's message was not answered": "用户的消息未得到回复",
    r"a tool had answered, and the agent had not": "工具已返回，智能体尚未回复",
    r"a tool was at work": "工具正在运行",
    r"it ended with an error": "以错误结束",
    r"the agent had not said anything": "智能体尚未回复",
    r"(.+) goes on with it": r"将由 \1 继续",
    r"it cannot be judged: (.+)": r"无法判断：\1",
    r"it was stopped": "已被停止",
    r"it ended meanwhile": "期间已结束",
    r"its gateway crashes again and again": "网关反复崩溃",
    r"asked for": "已获准继续",
    r"recovery is off": "恢复功能已关闭",
    r"it was cut off (\d+) times in a row": r"已连续中断 \1 次",
    r"it was begun (\d+) times, and nothing ran": r"已尝试 \1 次，均未开始",
    r"the setting says so": "设置要求先询问",
    r"it was cut off too long ago, or the clock has jumped": "中断过久，或系统时钟变动",
    r"its will says so": "任务要求先询问",
    r"its pictures are gone": "图片已丢失",
    r"it failed": "运行失败",
    r"it did not begin": "未能开始",
    r"its person has said something since": "用户此后已有新消息",
    r"(.+) said no": r"\1 表示不继续",
    r"its parent decides": "由其上级任务决定",
    r"it runs again when it is due": "到期时会再次运行",
    r"its own client goes on with it": "由其客户端继续",
    r"no person asked for it, and the host tells it again": "并非用户任务，网关会再次通知",
}
_KNOWN = {re.compile(english): chinese for english, chinese in CHINESE.items()}


def told(why: str, lang: str) -> str:
    """As the person reads it; what has no other words stays as it is."""
    if lang == "zh":
        for english, chinese in _KNOWN.items():
            if found := english.fullmatch(why):
                return found.expand(chinese)
    return why
