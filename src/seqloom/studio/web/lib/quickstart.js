// The command that trains a first run.

/** `seqloom quickstart` with the displayed folder as output. */
export function quickstartCommand(folder) {
    if (/^(\.\/)?runs\/?$/.test(folder)) return "seqloom quickstart";
    const path = `${folder.replace(/\/+$/, "")}/quickstart`;
    const plain = /^[\w./~:@%+,=-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`;
    return `seqloom quickstart --out ${plain}`;
}
