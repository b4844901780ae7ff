// Who may say what. The host's word on a message's sender counts; where its word is about one chat only, the lists in
// its config are looked at too, and the stricter of the two holds.

// Whether the host lets this person command the agent. In a direct chat whoever got this far may: some channels work
// it out only for commands.
export const mayCommand = (ctx) => ctx.CommandAuthorized === true || (ctx.ChatType === "direct" && ctx.InboundAccessAuthorized === true);

// A chat that is open to everybody lets strangers command its own agent, and no other. Operators at a page may.
export function mayCommandOthers(config, { channel, account, sender }) {
  if (!channel || channel === "webchat") return true;
  const { open, listed } = lists(config, channel, account);
  return !open || listed.has(String(sender));
}

// A command from a channel's own menu comes with the word of the direct chat also in a group: there the sender must
// be on a list by name.
export function mayUseMenu(config, { channel, account, sender, group, authorised }) {
  return authorised === true && (!group || lists(config, channel, account).listed.has(String(sender)));
}

function lists(config, channel, account) {
  const whole = config?.channels?.[channel] ?? {};
  const own = { ...whole, ...whole.accounts?.[account] };
  const named = [own.allowFrom, own.groupAllowFrom, config?.commands?.ownerAllowFrom].flatMap((list) => list ?? []).map(String);
  const listed = new Set(named.flatMap((name) => [name, name.replace(/^[a-z]+:/i, "")]));
  return { open: own.dmPolicy === "open" || listed.has("*"), listed };
}
