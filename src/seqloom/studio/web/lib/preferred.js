// Which run a view begins with where the address names none: what each view shows best comes first.

const translates = (run) => run.task === "translate";
const attends = (run) => translates(run) && run.views.includes("alignment");
const speaks = (run) => run.task === "language-model";
const has = (cell) => (run) => run.cell === cell;
const CELLS = [
    (run) => speaks(run) && run.cell === "lstm",
    (run) => speaks(run) && run.cell === "gru",
    has("lstm"),
    has("gru"),
    (run) => run.cell !== "elman",
];

// Of two runs that one begins which suits an earlier line of its view.
const FIRST = {
    write: [translates, speaks, (run) => run.task !== "masked-lm"],
    beam: [translates, (run) => run.task === "denoise"],
    alignment: [attends],
    heads: [translates, (run) => run.kind === "gpt"],
    cell: CELLS,
    gradients: CELLS,
    vectors: [(run) => run.task === "word-vectors"],
    walk: [attends, translates, speaks],
    understand: [(run) => run.task === "tag", (run) => run.task === "classify"],
};

/** The run to begin with; imported models whose last layers were never trained come after all others. */
export function preferred(view, runs) {
    const tests = FIRST[view] ?? [];
    const place = (run) => {
        const found = tests.findIndex((test) => test(run));
        return (found < 0 ? tests.length : found) + (run.untaught ? 100 : 0);
    };
    return runs.reduce((best, run) => (best === null || place(run) < place(best) ? run : best), null);
}
