"""The web application of `vitkit studio`: label photographs, train classifiers and use them, in a browser.

`studio.py` opens a workspace (`workspace.py`), makes the application (`app.py`) and serves it. The page is
`static/index.html`; `static/shell.js` asks `/api/studio` for the list of tabs and shows one at a time. There is no
build step: the browser runs the files in `static/`, and nothing is loaded from the network.

To add a tab:

1. A row in `app.TABS`: its name, its title and its purpose in one line.
2. `NAME.py` with `router(workspace: Workspace) -> APIRouter`, whose paths begin with `/api/NAME`. Handlers that
   compute or read files are plain `def` functions, which run in threads. Errors that users can fix raise
   `VitkitError`; the answer is `{"error": MESSAGE, "code": CODE}`, and the page shows the message as a line.
3. `static/NAME.js` with `export async function show(main, studio)`, which fills the element `main`. It may return a
   function that is called when the user leaves the tab. `studio` is the answer of `/api/studio`, with two additions:
   `where` is the part of the URL after the tab's name (`#train/again:RUN`), and `goto(tab, where)` opens another
   tab. `static/api.js` fetches and posts. `static/dom.js` makes elements; text from people and files becomes text
   nodes, never HTML. If there is a style sheet `static/NAME.css`, it is loaded with the tab.

Three rules apply. Photographs are only read, never written. The browser refers to photographs by number and to runs by
name, never by path. All state that must survive is written to disk before a request is answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitkit.system import lazily

if TYPE_CHECKING:
    from vitkit.webapp.app import create_app
    from vitkit.webapp.jobs import Job, Jobs, command, work
    from vitkit.webapp.photographs import Photographs
    from vitkit.webapp.results import decide, file_of, summaries, suspects_of
    from vitkit.webapp.workspace import Workspace, open_workspace, state_of_runs
else:
    __getattr__ = lazily(__name__)
