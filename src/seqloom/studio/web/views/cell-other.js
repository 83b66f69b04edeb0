// The same units on another text: what a unit stands for should hold there, too.

import { h, fill } from "../lib/dom.js";
import { controls, textBox } from "../lib/controls.js";
import { figure } from "../lib/figure.js";
import { mapTable, unitMap } from "./cell-map.js";
import { present, scaleOf, shadedText, symbolOf } from "./cell-unit.js";

export class OtherText {
    /** `view` is the page inside the cell: the run, the units and what is chosen of them. */
    constructor(view) {
        this.view = view;
        this.picture = figure({ name: "cell-other", title: "The same units on another text" });
        this.box = h("div");
        this.shade = h("div");
        this.element = h("div", {}, this.box);
        this.found = null;
    }

    get text() {
        return this.view.get("other");
    }

    async show() {
        const { view, text } = this;
        this.drawBox();
        present(this.picture.element, text, this.box);
        this.found = null;
        if (!text) return;
        const [{ units, quantity, reach }, { asked }] = [view.found, view];
        const found = await view.page.ask("cell", { ...view.where(text), target: null, quantity, units });
        if (view.page.signal.aborted || text !== this.text || asked !== view.asked) return;
        this.found = found;
        const shown = { ...found, reach: Math.max(found.reach, reach) };
        this.map = unitMap(shown, view.wideFor(found.tokens), (row) => view.pick(units[row], view.chosenPlace));
        fill(this.picture.body, this.shade, this.map.element);
        this.picture.say(
            "The same units on another text",
            "Rows are the units of the picture above, in the same order and with the same colours: what a unit stands for should hold here, too.",
        );
        this.picture.table(() => mapTable(found.units, found.tokens, found.arrays.map));
        await this.drawText();
    }

    /** A box to type the text in, once for each run. */
    drawBox() {
        const { view } = this;
        if (this.run === view.run.id) return;
        this.run = view.run.id;
        const compare = (other) => {
            view.page.set({ other });
            this.show().catch((error) => view.page.fail(error));
        };
        const look = { placeholder: "Type a sentence to compare with" };
        const label = "Another text, the same units in the same order";
        fill(this.box, controls(textBox(label, this.text ?? "", compare, look)));
    }

    /** The text on the colours of the unit that is chosen. */
    async drawText() {
        if (!this.found) return;
        const { view, found } = this;
        const unit = view.chosenUnit;
        const question = { ...view.where(this.text), target: null, unit };
        const { values, tokens } = await view.page.ask("cell/unit", question);
        if (view.page.signal.aborted || unit !== view.chosenUnit || found !== this.found) return;
        const { quantity, quantities, units } = view.found;
        const own = view.unitFound?.values[quantity] ?? [];
        const gate = quantities.find((one) => one.name === quantity).gate;
        const high = gate ? 1 : Math.max(1e-6, ...values[quantity].map(Math.abs), ...own.map(Math.abs));
        const label = `The other text shaded by unit ${unit}`;
        fill(
            this.shade,
            h("p", { class: "hint" }, `${symbolOf(quantity)} of unit ${unit}:`),
            shadedText(tokens, values[quantity], { signed: scaleOf(gate), high, width: view.wide, label }),
        );
        const row = units.indexOf(unit);
        this.map.picture.light(row < 0 ? null : row, null);
    }
}
