// The subset of the canvas API that scatter.js uses, drawing to SVG.

import { s } from "./dom.js";

/** A pen for a `drawing` of this size: `stroke` and `fill` as on a canvas, `write` for text, `add` for shapes. */
export function svgPen({ width, height }) {
    const drawing = s("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
    const round = (value) => Math.round(100 * value) / 100;
    let path = "";
    const pen = {
        drawing,
        strokeStyle: "",
        fillStyle: "",
        lineWidth: 1,
        beginPath: () => (path = ""),
        moveTo: (x, y) => (path += `M${round(x)} ${round(y)}`),
        lineTo: (x, y) => (path += `L${round(x)} ${round(y)}`),
        closePath: () => (path += "Z"),
        /** Only full circles are supported. */
        arc(x, y, r) {
            const half = `A${round(r)} ${round(r)} 0 1 1 `;
            path += `M${round(x + r)} ${round(y)}${half}${round(x - r)} ${round(y)}${half}${round(x + r)} ${round(y)}Z`;
        },
        stroke: () =>
            drawing.append(
                s("path", { d: path, fill: "none", stroke: pen.strokeStyle, "stroke-width": pen.lineWidth }),
            ),
        fill: () => drawing.append(s("path", { d: path, fill: pen.fillStyle })),
        write(text, x, y, colour, { paper, text: font, size }) {
            drawing.append(
                s(
                    "text",
                    {
                        x: round(x),
                        y: round(y),
                        fill: colour,
                        stroke: paper,
                        "stroke-width": 3.5,
                        "paint-order": "stroke",
                        "stroke-linejoin": "round",
                        "font-family": font,
                        "font-size": size,
                        "dominant-baseline": "central",
                        "unicode-bidi": "plaintext",
                    },
                    text,
                ),
            );
        },
        add(shape, opacity) {
            for (const name of ["x", "y", "cx", "cy"])
                if (shape.hasAttribute(name)) shape.setAttribute(name, round(shape.getAttribute(name)));
            if (opacity !== null) shape.setAttribute("opacity", opacity);
            drawing.append(shape);
        },
    };
    return pen;
}
