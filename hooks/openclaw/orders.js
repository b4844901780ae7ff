// What a whole message orders us to do. Anything else is the agent's.
import { stopWord } from "./stopwords.js";

const RESTORE = /^\/restore(?:@\S+)?(?:\s+(?![-—–])(\S{1,100}))?(\s+(?:--|[—–])force)?$/iu;
const ASK = /^\/(stops|suspects|boot-resume)(?:@\S+)?$/iu;
const YES = /^(?:y|yes|yes please|yep|yeah|sure|ok|okay|go on|continue|resume|是|是的|好|好的|继续|可以|行|嗯|要)$/iu;
const NO = /^(?:n|no|no thanks|nope|don't|do not|leave it|never mind|否|不|不要|不用|不用了|不必|不是|算了|别)$/iu;
const KILL = /^(\/)?(?:(?:kill|stop|halt)(?:@\S+)?\s+|(?:杀掉|殺掉|停掉|停止|终止|終止)\s*)@?(\S.{0,80})$/iu;
const KEEP = /\s(?:--|[—–])(?:keep|no-rollback)$/iu;
const AROUND = /(?:\s|(?![#)])\p{P}|\p{Extended_Pictographic})+$|(?<!\(.*)\)$|\s(?:now|please|pls|at once|immediately|right now|asap)$/iu; // "kill dev1 now!!"; not "C#", not "Anna (QA)"
const ASKED = /\?[\s\p{P}]*$/u;

// {kind: "stop", keep}, {kind: "kill", name, bare, sure, keep}, {kind: "restore", receipt, force},
// {kind: "stops" | "suspects" | "boot-resume"},
// or undefined. `names` are the bot's own. A kill is only one if somebody has that name, or has it without what is said around
// it (`bare`); `sure` when nothing else is meant.
export function orderOf(text, names = []) {
  const word = stopWord(text, { names });
  if (word) return { kind: "stop", keep: word.keep };
  const plain = unnamed(text.normalize("NFKC").trim(), names);
  const ask = ASK.exec(plain);
  if (ask) return { kind: ask[1].toLowerCase() };
  const restore = RESTORE.exec(plain);
  if (restore) return { kind: "restore", receipt: restore[1] ?? "", force: Boolean(restore[2]) };
  const keep = KEEP.test(plain);
  const kill = KILL.exec(plain.replace(KEEP, ""));
  if (!kill || (!kill[1] && ASKED.test(kill[2]))) return undefined;
  return { kind: "kill", name: kill[2], bare: bare(kill[2]) || kill[2], sure: Boolean(kill[1]), keep };
}

// Whether a question was answered with yes or no; undefined when it was not answered.
export function answerOf(text) {
  const plain = bare(text.normalize("NFKC").trim());
  return YES.test(plain) ? true : NO.test(plain) ? false : undefined;
}

// Which one of several, when that is all that was said: 2, "2.", ２, #2.
export function choiceOf(text) {
  const found = /^#?([1-9])[.)、。]?$/u.exec(text.normalize("NFKC").trim());
  return found ? Number(found[1]) : undefined;
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
