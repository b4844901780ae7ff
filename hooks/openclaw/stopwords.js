// Whether a whole message is an order to stop, in any language of stopwords.json.
//
// The message must be nothing but stop words, with the polite and urgent words of that language around them, and
// the bot's own name. Quotation marks, code, slashes inside, somebody else's name: any of it, and it is no order.
import fs from "node:fs";

const LONGEST = 80; // longer than any order with all its politeness
const INVISIBLE = /[\u00AD\u200B-\u200F\u202A-\u202C\u2060\u2066-\u2069\uFE0E\uFE0F\uFEFF]/gu;
const REVERSED = /[\u202D\u202E]/u; // what is seen is not what is read
const EMOJI = /[\p{Extended_Pictographic}\p{Emoji_Modifier}\p{Regional_Indicator}]/gu;
const SIGN = /^[\s🛑]*🛑[\s🛑]*$/u; // the sign alone is an order too
// A full stop, comma or colon ends a word, but not within one: "stop.sh" is a file.
const BETWEEN = /(?:[\s!?…¡¿、。—–।؟،]|[,.;:~]+(?=[\s!?]|[^\x00-\x7F]|$))+/gu;
const KEEP = /\s(?:--|[—–])(?:keep|no-rollback|保留|保留记忆)\s*$/iu; // a phone makes one dash of two
const LONG_LETTER = /(\p{L})\1{2,}/gu; // stoooop

const normal = (text) => text.normalize("NFKC").toLowerCase().replace(/i\u0307/g, "i").replace(/[’‘]/g, "'").replace(INVISIBLE, "");
const spoken = (text) => normal(text).replace(EMOJI, " ").replace(BETWEEN, " ").trim();

// "停" and "停止": the longer one is tried first.
const byLength = (words) => words.map(spoken).sort((a, b) => b.length - a.length);
const LANGUAGES = Object.entries(JSON.parse(fs.readFileSync(new URL("./stopwords.json", import.meta.url), "utf8"))).map(([language, { words, polite, spaced = true }]) => ({
  language,
  words: byLength(words),
  polite: byLength(polite),
  spaced,
}));
const ENGLISH = LANGUAGES.find(({ language }) => language === "en").polite; // "please 停止"

// The text without `word` at its beginning; undefined when it does not begin so.
function after(text, word, spaced) {
  if (!text.startsWith(word)) return undefined;
  const rest = text.slice(word.length);
  return rest === "" || rest.startsWith(" ") || !spaced ? rest.trimStart() : undefined;
}

// Whether the text is stop words and polite words to its end. Longest first, and never back: 40 short steps at most.
function orders(text, { words, polite, spaced }) {
  let found;
  while (text) {
    const next = (list, whole) => list.map((word) => [word, after(text, word, whole)]).find(([, rest]) => rest !== undefined);
    const stop = next(words, spaced);
    const step = stop ?? next(polite, spaced) ?? next(ENGLISH, true);
    if (!step) return undefined;
    found ??= stop?.[0];
    text = step[1];
  }
  return found;
}

// Without the bot's name at either end, with or without @; a name in Latin letters needs a space around it.
function unnamed(text, names) {
  for (const name of names.flatMap((one) => [`@${one}`, one])) {
    const spaced = /^[\x20-\x7E]+$/.test(name);
    const front = after(text, name, spaced);
    if (front) return front;
    if (text.endsWith(spaced ? ` ${name}` : name)) return text.slice(0, -name.length).trim();
  }
  return text;
}

// {word, language} for an order to stop, else undefined. `names` are the bot's own. With `keep` when the agent shall
// remember what it was told.
export function stopWord(text, { names = [] } = {}) {
  if (typeof text !== "string" || text.length > 4 * LONGEST || !text.isWellFormed() || REVERSED.test(text)) return undefined;
  const kept = text.replace(KEEP, "");
  if (kept !== text) {
    const order = stopWord(kept, { names });
    return order && { ...order, keep: true };
  }
  if (SIGN.test(normal(text))) return { word: "🛑", language: "en" };
  const own = names.filter((name) => typeof name === "string").map((name) => spoken(name.replace(/^@/, ""))).filter(Boolean);
  let plain = unnamed(spoken(text), own);
  if (plain.startsWith("/")) {
    plain = plain.slice(1); // /stop, /stop@bot
    const at = plain.indexOf("@");
    if (at > 0 && own.includes(plain.slice(at + 1))) plain = plain.slice(0, at);
  }
  if (!plain || plain.length > LONGEST) return undefined;
  for (const said of new Set([plain, plain.replace(LONG_LETTER, "$1")])) {
    for (const one of LANGUAGES) {
      const word = orders(said, one);
      if (word) return { word, language: one.language };
    }
  }
  return undefined;
}
