"""The views of the studio and their endpoints.

The endpoints of a `View` are under /api/<name>; `web/views/<name>.js` draws it.
"""

from seqloom.studio.endpoints import View
from seqloom.studio.views import attention, cell, runs, understand, vectors, walk, write

# By name, in the order of the menu.
VIEWS: dict[str, View] = {
    view.name: view
    for view in (
        runs.view,
        write.view,
        attention.alignment_view,
        attention.heads_view,
        write.beam_view,
        cell.view,
        cell.gradients_view,
        vectors.view,
        walk.view,
        understand.view,
    )
}
