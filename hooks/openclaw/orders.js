// What a whole message orders us to do. Anything else is the agent's.
import { stopWord } from "./stopwords.js";

const RESTORE = /^\/restore(?:@\S+)?(?:\s+(?![-—–])(\S{1,100}))?(\s+(?:--|[—–])force)?$/iu;
const ASK = /^\/(stops|suspects)(?:@\S+)?$/iu;
const KILL = /^(\/)?(?:(?:kill|stop|halt)(?:@\S+)?\s+|(?:杀掉|停掉|停止|终止)\s*)(\S.{0,80})$/iu;

// {kind: "stop", keep}, {kind: "kill", name, sure}, {kind: "restore", receipt, force}, {kind: "stops" | "suspects"}, or
// undefined. `names` are the bot's own. A kill is only one if somebody has that name; `sure` when nothing else is meant.
export function orderOf(text, names = []) {
  const plain = text.trim();
  const word = stopWord(text, { names });
  if (word) return { kind: "stop", keep: word.keep };
  const ask = ASK.exec(plain);
  if (ask) return { kind: ask[1].toLowerCase() };
  const restore = RESTORE.exec(plain);
  if (restore) return { kind: "restore", receipt: restore[1] ?? "", force: Boolean(restore[2]) };
  const kill = KILL.exec(plain);
  return kill ? { kind: "kill", name: kill[2].trim(), sure: Boolean(kill[1]) } : undefined;
}
