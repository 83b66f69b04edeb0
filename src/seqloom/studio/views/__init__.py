"""The views of the studio and their endpoints.

A view is a `View` in a module of this package, with endpoints under /api/<name>. The page draws it with
web/views/<name>.js and, if that file exists, web/views/<name>.css. `VIEWS` finds the views, and the server adds them to
the page.
"""

from importlib import import_module
from pkgutil import iter_modules

from seqloom.studio.endpoints import View

# The first views in the menu. The other views follow.
MENU = ("runs", "write", "alignment", "heads", "beam", "cell", "gradients", "vectors", "walk", "understand", "images")


def find_views() -> dict[str, View]:
    """Import every module of this package and return their views by name, in the order of the menu."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    views = {view.name: view for module in modules for view in vars(module).values() if isinstance(view, View)}
    names = [*(name for name in MENU if name in views), *sorted(views.keys() - set(MENU))]
    return {name: views[name] for name in names}


VIEWS = find_views()
