// Display of tokens.

/** A token with visible symbols for white space. */
export function displayToken(token) {
    return token.replace(/ /g, "␣").replace(/\n/g, "↵").replace(/\t/g, "⇥") || "∅";
}
