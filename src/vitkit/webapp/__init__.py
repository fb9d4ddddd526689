"""vitkit studio: the whole way from photographs to a classifier, in a browser, on this machine.

`studio.py` opens a workspace (`workspace.py`), makes the application (`app.py`) and serves it. The page is
`static/index.html`; `static/shell.js` asks `/api/studio` which tabs there are and shows one at a time. There is no
build step: what the browser runs are the files in `static/`, and nothing comes from the network.

To add a tab:

1. A row in `tabs.TABS`: its name, its title and what it is for, in one line.
2. `NAME.py` with `router(workspace: Workspace) -> APIRouter`; its paths begin with `/api/NAME`. Handlers that
   compute or read files are plain `def` functions, which run in threads. What a user can fix raises `VitkitError`, and
   reaches the page as a line.
3. `static/NAME.js` with `export async function show(main, studio)`, which fills the element `main` and may give back a
   function that is called when the tab is left. `studio` is what `/api/studio` answered, with `where`, what follows
   the tab's name in the address (`#train/again:RUN`), and `goto(tab, where)`. `static/api.js` fetches and posts,
   `static/dom.js` makes elements: text from people and files becomes text nodes, never HTML. A style sheet of its own,
   `static/NAME.css`, is loaded with it where there is one.

The rules: photographs are read and never written; the browser names photographs by their numbers and runs by their
names, never by paths; state that matters is on disk before a request is answered.
"""

from __future__ import annotations

from vitkit.system.lazy import public

__all__, __getattr__ = public(
    __name__,
    {
        "app": "create_app",
        "jobs": "Job Jobs command work",
        "photographs": "Photographs",
        "results": "decide file_of summaries suspects_of",
        "ship": "model_card",
        "workspace": "Workspace open_workspace state_of_runs",
    },
)
