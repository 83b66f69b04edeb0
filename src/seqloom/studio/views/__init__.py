"""The views of the studio: which runs each suits, and what its endpoints answer.

A `View` has its questions under /api/<name>; its page is `web/views/<name>.js`.
"""

from seqloom.studio.endpoints import View
from seqloom.studio.views import attention, cell, runs, understand, vectors, walk, write

# By name, in the order of the page's menu.
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
