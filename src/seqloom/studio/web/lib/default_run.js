// The default run of each view.

const isTranslator = (run) => run.task === "translate";
const hasAlignment = (run) => isTranslator(run) && run.views.includes("alignment");
const isLanguageModel = (run) => run.task === "language-model";
const hasCell = (cell) => (run) => run.cell === cell;
const CELLS = [
    (run) => isLanguageModel(run) && run.cell === "lstm",
    (run) => isLanguageModel(run) && run.cell === "gru",
    hasCell("lstm"),
    hasCell("gru"),
    (run) => run.cell !== "elman",
];

// Tests in order of preference: a run that passes an earlier test is preferred.
const PREFERENCES = {
    write: [isTranslator, isLanguageModel, (run) => run.task !== "masked-lm"],
    beam: [isTranslator, (run) => run.task === "denoise"],
    alignment: [hasAlignment],
    heads: [isTranslator, (run) => run.kind === "gpt"],
    cell: CELLS,
    gradients: CELLS,
    vectors: [(run) => run.task === "word-vectors"],
    walk: [hasAlignment, isTranslator, isLanguageModel],
    understand: [(run) => run.task === "tag", (run) => run.task === "classify"],
    images: [(run) => run.task === "generate-images", (run) => run.task === "classify-images"],
};

/** The default run of a view. Imported models with untrained layers come last. */
export function defaultRun(view, runs) {
    const tests = PREFERENCES[view] ?? [];
    const rank = (run) => {
        const index = tests.findIndex((test) => test(run));
        return (index < 0 ? tests.length : index) + (run.untrained ? 100 : 0);
    };
    return runs.reduce((best, run) => (best === null || rank(run) < rank(best) ? run : best), null);
}
