"""Take the screenshots of docs/how-to/studio.md, which show every view on the demo models in both themes.

    python benchmarks/studio_screenshots.py --runs runs/studio-demo --out docs/pictures/studio

Missing demo models are trained first. The script requires Chromium and the extras `studio` and `test`.
"""

import argparse
import io
import shutil
import sys
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 1440, 900
EXACT_COLOURS = 32  # number of colours that are kept exactly, of 256
DATE = "Sunday, November 15, 2026"
CLASS = "The class statement defines a new type of object."
# The address parameters of each view, and the height of the screenshot in pixels.
VIEWS: dict[str, tuple[dict[str, str | list[str]], int]] = {
    "runs": ({"runs": ["lm-lstm", "lm-elman", "gpt"]}, 1330),
    "write": ({"run": "translate-gru", "text": DATE}, 900),
    "alignment": ({"run": "translate-gru", "other": "translate-transformer", "text": DATE, "as": "heat"}, 1040),
    "heads": ({"run": "gpt", "text": CLASS, "as": "both"}, 1060),
    "beam": ({"run": "translate-gru", "text": DATE}, 1100),
    "cell": ({"run": "lm-lstm", "text": CLASS}, 1500),
    "gradients": ({"run": "lm-lstm", "runs": "lm-elman", "text": CLASS}, 1100),
    "vectors": ({"run": "words", "map": "tsne"}, 1000),
    "walk": ({"run": "translate-transformer", "text": DATE, "stage": "cross-weights", "step": "2"}, 1700),
    "understand": ({"run": "tagger", "other": "hmm-tagger"}, 1100),
    "images": ({"run": "draw", "samples": "12", "seed": "1", "step": "3"}, 760),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/studio-demo"))
    parser.add_argument("--out", type=Path, default=Path("docs/pictures/studio"))
    parser.add_argument("--views", nargs="*", default=list(VIEWS))
    args = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        sys.exit("No browser was found; on Debian and Ubuntu: apt install chromium")
    from playwright.sync_api import sync_playwright

    from seqloom.studio.demo import train_demo
    from seqloom.studio.server import Studio

    train_demo(args.runs, print)
    args.out.mkdir(parents=True, exist_ok=True)
    with Studio(args.runs).running() as serving, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for theme in ("light", "dark"):
            page = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=theme).new_page()
            for view in args.views:
                parameters, height = VIEWS[view]
                page.goto("about:blank")
                page.goto(serving.address(view, **parameters))
                page.locator("main figure").first.wait_for()
                page.wait_for_load_state("networkidle")
                page.evaluate("() => scrollTo(0, 0)")
                page.wait_for_timeout(12_000 if view == "vectors" else 2_000)  # wait until t-SNE has finished
                path = args.out / f"{view}-{theme}.png"
                path.write_bytes(compress(page.screenshot(full_page=True), height))
                print(f"{path}: {path.stat().st_size // 1024} KB")
        browser.close()


def compress(png: bytes, height: int) -> bytes:
    """Crop to `height` and reduce to 256 colours.

    The most frequent colours, which include the background, are kept. MAXCOVERAGE selects the other colours, which keep
    the colours of thin lines.
    """
    from PIL import Image

    picture: Any = Image.open(io.BytesIO(png)).convert("RGB")
    picture = picture.crop((0, 0, picture.width, min(height, picture.height)))
    counted = sorted(picture.getcolors(picture.width * picture.height), reverse=True)
    frequent = [part for _, colour in counted[:EXACT_COLOURS] for part in colour]
    rest = picture.quantize(256 - len(frequent) // 3, Image.Quantize.MAXCOVERAGE).getpalette()
    palette = Image.new("P", (1, 1))
    palette.putpalette(frequent + rest)
    file = io.BytesIO()
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


if __name__ == "__main__":
    main()
