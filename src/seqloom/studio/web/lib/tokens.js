// Tokens as people can see them.

/** A token as people can see it: a space and the end of a line have signs. */
export function shown(token) {
    return token.replace(/ /g, "␣").replace(/\n/g, "↵").replace(/\t/g, "⇥") || "∅";
}
