// A tree from left to right, a column for each step. Every column keeps the order of the column before it, so no two
// edges cross; whatever comes first under the root is a straight line at the top.

/**
 * Rows for nodes [{id, parent, step}]: the root first, then step by step, the children of a node in the order they
 * shall stand. Gives a Map from id to row; a column is as high as it has nodes.
 */
export function rowsOf(nodes) {
    const rows = new Map();
    for (const column of columnsOf(nodes)) {
        const ordered = column
            .map((node, place) => [rows.get(node.parent) ?? 0, place, node])
            .sort((a, b) => a[0] - b[0] || a[1] - b[1]);
        ordered.forEach(([, , node], row) => rows.set(node.id, row));
    }
    return rows;
}

function columnsOf(nodes) {
    const columns = new Map();
    for (const node of nodes) columns.set(node.step, [...(columns.get(node.step) ?? []), node]);
    return [...columns.entries()].sort((a, b) => a[0] - b[0]).map(([, column]) => column);
}

export function childrenOf(nodes) {
    const children = new Map(nodes.map((node) => [node.id, []]));
    for (const node of nodes) children.get(node.parent)?.push(node);
    return children;
}
