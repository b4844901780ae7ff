// What a whole message orders us to do. Anything else is the agent's.
import { stopWord } from "./stopwords.js";

const RESTORE = /^\/restore(?:@\S+)?(?:\s+(?![-—–])(\S{1,100}))?(\s+(?:--|[—–])force)?$/iu;
const ASK = /^\/(stops|suspects)(?:@\S+)?$/iu;
const KILL = /^(\/)?(?:(?:kill|stop|halt)(?:@\S+)?\s+|(?:杀掉|停掉|停止|终止)\s*)@?(\S.{0,80})$/iu;
const KEEP = /\s(?:--|[—–])(?:keep|no-rollback)$/iu;
const AROUND = /[\s\p{P}\p{Extended_Pictographic}]+$|\s(?:now|please|pls|at once|immediately|right now|asap)$/iu; // "kill dev1 now!!"

// {kind: "stop", keep}, {kind: "kill", name, sure, keep}, {kind: "restore", receipt, force}, {kind: "stops" | "suspects"},
// or undefined. `names` are the bot's own. A kill is only one if somebody has that name; `sure` when nothing else is meant.
export function orderOf(text, names = []) {
  const word = stopWord(text, { names });
  if (word) return { kind: "stop", keep: word.keep };
  const plain = unnamed(text.trim(), names);
  const ask = ASK.exec(plain);
  if (ask) return { kind: ask[1].toLowerCase() };
  const restore = RESTORE.exec(plain);
  if (restore) return { kind: "restore", receipt: restore[1] ?? "", force: Boolean(restore[2]) };
  const keep = KEEP.test(plain);
  const kill = KILL.exec(plain.replace(KEEP, ""));
  return kill ? { kind: "kill", name: bare(kill[2]), sure: Boolean(kill[1]), keep } : undefined;
}

// Without the bot's own name in front, as a group that asks for a mention needs it.
function unnamed(text, names) {
  const [first, ...rest] = text.split(/\s+/u);
  const own = names.filter(Boolean).map((name) => `@${name.replace(/^@/, "")}`.toLowerCase());
  return own.includes(first.toLowerCase()) ? rest.join(" ") : text;
}

function bare(name) {
  for (let next = name.replace(AROUND, ""); ; next = name.replace(AROUND, "")) {
    if (next === name) return name;
    name = next;
  }
}
