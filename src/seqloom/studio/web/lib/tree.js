// Layout of a tree from left to right, one column per step. Each column keeps the order of the previous one, so that no
// edges cross and the first child of the root starts a straight line at the top.

/**
 * Assign rows to nodes [{id, parent, step}], which are sorted by step and, within a step, in display order.
 * Returns a Map from id to row.
 */
export function rowsOf(nodes) {
    const rows = new Map();
    for (const column of columnsOf(nodes)) {
        const ordered = column
            .map((node, index) => [rows.get(node.parent) ?? 0, index, node])
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
