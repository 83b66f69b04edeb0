// The same units on a second text, to check what a unit responds to.

import { h, setChildren } from "../lib/dom.js";
import { controls, textBox } from "../lib/controls.js";
import { figure } from "../lib/figure.js";
import { mapTable, unitMap } from "./cell-map.js";
import { toggleAfter, scaleOf, shadedText, symbolOf } from "./cell-unit.js";

export class OtherText {
    /** `view` is the CellView with the run and the selected units. */
    constructor(view) {
        this.view = view;
        this.fig = figure({ name: "cell-other", title: "Same units on a second text" });
        this.box = h("div");
        this.shade = h("div");
        this.element = h("div", {}, this.box);
        this.data = null;
    }

    get text() {
        return this.view.get("other");
    }

    async show() {
        const { view, text } = this;
        this.drawBox();
        toggleAfter(this.fig.element, text, this.box);
        this.data = null;
        if (!text) return;
        const [{ units, quantity, maximum }, { latestRequest }] = [view.data, view];
        const data = await view.page.request("cell", { ...view.where(text), target: null, quantity, units });
        if (view.page.signal.aborted || text !== this.text || latestRequest !== view.latestRequest) return;
        this.data = data;
        const scaled = { ...data, maximum: Math.max(data.maximum, maximum) };
        this.map = unitMap(scaled, view.widthFor(data.tokens), (row) => view.pick(units[row], view.chosenPosition));
        setChildren(this.fig.body, this.shade, this.map.element);
        this.fig.setText(
            "Same units on a second text",
            "Rows are the units of the first heat map, in the same order and with the same colour scale. A unit that responds to a feature should do so here as well.",
        );
        this.fig.table(() => mapTable(data.units, data.tokens, data.arrays.map));
        await this.drawText();
    }

    /** Draw the text box, once per run. */
    drawBox() {
        const { view } = this;
        if (this.run === view.run.id) return;
        this.run = view.run.id;
        const compare = (other) => {
            view.page.setParams({ other });
            this.show().catch((error) => view.page.fail(error));
        };
        const options = { button: "Compare", placeholder: "A text to compare with" };
        const label = "Second text";
        setChildren(this.box, controls(textBox(label, this.text ?? "", compare, options)));
    }

    /** The second text coloured by the selected unit. */
    async drawText() {
        if (!this.data) return;
        const { view, data } = this;
        const unit = view.chosenUnit;
        const question = { ...view.where(this.text), target: null, unit };
        const { values, tokens } = await view.page.request("cell/unit", question);
        if (view.page.signal.aborted || unit !== view.chosenUnit || data !== this.data) return;
        const { quantity, quantities, units } = view.data;
        const firstValues = view.unitData?.values[quantity] ?? [];
        const gate = quantities.find((item) => item.name === quantity).gate;
        const high = gate ? 1 : Math.max(1e-6, ...values[quantity].map(Math.abs), ...firstValues.map(Math.abs));
        const label = `Second text coloured by unit ${unit}`;
        setChildren(
            this.shade,
            h("p", { class: "hint" }, `${symbolOf(quantity)} of unit ${unit}:`),
            shadedText(tokens, values[quantity], { signed: scaleOf(gate), high, width: view.width, label }),
        );
        const row = units.indexOf(unit);
        this.map.heatmap.highlight(row < 0 ? null : row, null);
    }
}
