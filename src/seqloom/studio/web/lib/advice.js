// What to type where there is nothing to see yet.

/** The command that trains a first run into the folder that is shown. */
export function quickstart(folder) {
    if (/^(\.\/)?runs\/?$/.test(folder)) return "seqloom quickstart";
    const place = `${folder.replace(/\/+$/, "")}/quickstart`;
    const plain = /^[\w./~:@%+,=-]+$/.test(place) ? place : `'${place.replaceAll("'", "'\\''")}'`;
    return `seqloom quickstart --out ${plain}`;
}
