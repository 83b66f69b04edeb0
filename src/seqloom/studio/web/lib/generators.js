// Labels and default texts of generating models: translators, denoisers and language models.

const GIVEN = {
    translate: { label: "Text to translate", act: "Translate", output: "Translation" },
    denoise: { label: "Corrupted text, with [MASK] tokens", act: "Denoise", output: "Reconstructed text" },
};
const PROMPT = { label: "Prompt", act: "Generate", output: "Generated text" };

/** Labels, examples and a default text; `source` is true if the model has an encoder for the text. */
export function generatorOf(run) {
    const toExample = { translate: (text) => text, denoise: withMask }[run.task] ?? prompt;
    const examples = [...new Set((run.examples ?? []).map(toExample))];
    return { ...(GIVEN[run.task] ?? PROMPT), source: run.task in GIVEN, examples, example: examples[0] ?? toExample("") };
}

/** The first two words of a text. */
function prompt(text) {
    return text.split(" ").slice(0, 2).join(" ");
}

/** A text whose third word is replaced by [MASK]. */
export function withMask(text) {
    const words = text.split(" ");
    if (text.includes("[MASK]") || words.length < 3) return text || "the [MASK] statement";
    words[2] = "[MASK]";
    return words.join(" ");
}
