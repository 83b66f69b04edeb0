// Search results in the order of Sphinx's scores, but the Python API after the other pages: it mentions most words somewhere.
var Scorer = {
    score: ([docname, , , , score]) => (docname.startsWith("docs/reference/python/") ? score - 100 : score),
    objNameMatch: 11,
    objPartialMatch: 6,
    objPrio: { 0: 15, 1: 5, 2: -5 },
    objPrioDefault: 0,
    title: 15,
    partialTitle: 7,
    term: 5,
    partialTerm: 2,
};
