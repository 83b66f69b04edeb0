// Marks of a scatter plot: rings, lines, arrows and name flags. `pen` is a canvas context or an SVG pen.

export function ring(pen, [x, y], radius, width, colour) {
    pen.beginPath();
    pen.arc(x, y, radius, 0, 2 * Math.PI);
    pen.lineWidth = width;
    pen.strokeStyle = colour;
    pen.stroke();
}

export function line(pen, [x1, y1], [x2, y2], width, colour) {
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    pen.beginPath();
    pen.moveTo(x1, y1);
    pen.lineTo(x2, y2);
    pen.stroke();
}

/** A line with an arrowhead `before` pixels from its end. */
export function arrow(pen, from, to, width, colour, before) {
    line(pen, from, to, width, colour);
    const angle = Math.atan2(to[1] - from[1], to[0] - from[0]);
    const [x, y] = [to[0] - before * Math.cos(angle), to[1] - before * Math.sin(angle)];
    pen.fillStyle = colour;
    pen.beginPath();
    pen.moveTo(x, y);
    for (const turn of [2.7, -2.7]) pen.lineTo(x + 13 * Math.cos(angle + turn), y + 13 * Math.sin(angle + turn));
    pen.closePath();
    pen.fill();
}

/** A name above a point, or below it at the top edge, within a plot `room` pixels wide. */
export function flag(pen, text, [x, y], room, colours) {
    pen.font = `600 ${colours.size + 1}px ${colours.text}`;
    const width = pen.measureText(text).width;
    const at = Math.min(Math.max(x - width / 2, 8), room - width - 8),
        over = y > 40 ? y - 24 : y + 26;
    pen.fillStyle = colours.ink;
    pen.beginPath();
    pen.roundRect(at - 7, over - 13, width + 14, 26, 6);
    pen.fill();
    pen.fillStyle = colours.paper;
    pen.textBaseline = "middle";
    pen.fillText(text, at, over);
}
