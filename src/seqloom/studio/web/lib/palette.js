// The colours of gates and states, as in seqloom/inspect/plots/figures.py. A test compares the two.

export const PALETTE = {
    "gateScale": ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"],
    "quantities": {
        "f": { "light": "#6b4fbb", "dark": "#9a6bff" },
        "i": { "light": "#c2510a", "dark": "#ff7f2a" },
        "o": { "light": "#009e73", "dark": "#2fa37c" },
        "z": { "light": "#6b4fbb", "dark": "#9a6bff" },
        "r": { "light": "#c2510a", "dark": "#ff7f2a" },
        "T": { "light": "#7a1f5c", "dark": "#ffb3d9" },
        "g": { "light": "#e0679f", "dark": "#e0679f" },
        "candidate": { "light": "#e0679f", "dark": "#e0679f" },
        "c": { "light": "#8a6d00", "dark": "#e8cf5a" },
        "h": { "light": "#1f5fbf", "dark": "#4f8ff7" },
        "y": { "light": "#2b2b2b", "dark": "#eceff4" }
    },
    "others": {
        "light": ["#3d87b5", "#5c5c5c", "#b8860b", "#00695c"],
        "dark": ["#8fd3f5", "#c4c4c4", "#fff3a0", "#a6f0d0"]
    }
};
