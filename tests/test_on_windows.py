"""What differs on Windows, as far as it can be tried on another system: Windows itself runs the tests in CI."""

import ast
import ntpath
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from refusals import refused
from vitkit.serving.guard import claim_port
from vitkit.system import environment, exclusive, files, is_locked, processes, python_command
from vitkit.system.files import common_folder, replacing
from vitkit.webapp.folders import upload_path

SOURCE = Path(__file__).parents[1] / "src" / "vitkit"


@pytest.fixture
def on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows' ways of locks, signals and sockets, with processes as this system knows them."""
    monkeypatch.setattr(environment, "IS_WINDOWS", True)
    monkeypatch.setattr(psutil, "pid_exists", lambda process: Path(f"/proc/{process}").is_dir())


def test_who_holds_a_lock_can_be_read(on_windows: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setattr(os, "kill", lambda *arguments: pytest.fail("os.kill(process, 0) would be Ctrl-C"))
    with exclusive(folder, folder / ".lock"):
        assert (folder / ".lock").read_text() == ""  # its only byte is locked
        assert is_locked(folder)
    assert not is_locked(folder)
    assert list(folder.iterdir()) == []


def test_a_lock_that_a_killed_process_left_is_free(on_windows: None, tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / ".lock").touch()
    (tmp_path / ".lock.holder").write_text(f"process {ended.pid} of {socket.gethostname()} since yesterday")
    assert not is_locked(tmp_path)
    with exclusive(tmp_path, tmp_path / ".lock"):
        assert is_locked(tmp_path)


def test_a_file_is_replaced_once_closed(on_windows: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace, refused = Path.replace, []

    def busy(path: Path, target: Path) -> Path:
        refused.append(path)
        if len(refused) > 3:
            return replace(path, target)
        raise PermissionError(13, "Access is denied")

    monkeypatch.setattr(Path, "replace", busy)
    with replacing(tmp_path / "file") as temporary:
        temporary.write_text("new")
    monkeypatch.setattr(files, "_REPLACE_TIMEOUT", 0.1)
    monkeypatch.setattr(Path, "replace", Mock(side_effect=PermissionError(13, "denied")))
    with pytest.raises(PermissionError), replacing(tmp_path / "file") as temporary:
        temporary.write_text("newer")
    assert (tmp_path / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_paths_on_two_drives_have_no_common_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "commonpath", ntpath.commonpath)
    assert common_folder({r"C:\photos\a", r"C:\photos\b"}) == r"C:\photos"
    with refused("system.drives-differ", "one drive"):
        common_folder({r"C:\photos", r"D:\photos"})


@pytest.mark.parametrize("name", ["con.jpg", "com1.tar.jpg", "aux .jpg", "a<b>.jpg", "dot..jpg"])
def test_photographs_are_sent_under_names_that_windows_allows(name: str, tmp_path: Path) -> None:
    kept = upload_path(tmp_path, name).name
    assert not re.search(r'[<>:"/\\|?*]', kept)
    assert not re.fullmatch(r"(con|prn|aux|nul|com\d|lpt\d)", kept.partition(".")[0].strip(), re.IGNORECASE)
    assert kept.endswith(Path(name).suffix)


def test_every_file_is_opened_with_an_encoding_or_as_bytes() -> None:
    """The default of Windows is the code page of the country."""
    wrong = [
        f"{path.relative_to(SOURCE)}:{call.lineno}"
        for path in sorted(SOURCE.rglob("*.py"))
        if re.search(r"\bopen\(|_text\(", text := path.read_text(encoding="utf-8"))
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and lacks_encoding(call)
    ]
    assert wrong == []


def lacks_encoding(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    given = {keyword.arg for keyword in call.keywords}
    if name in ("read_text", "write_text"):
        is_path = isinstance(call.func, ast.Attribute) and not isinstance(call.func.value, ast.Name)
        return is_path and "encoding" not in given and len(call.args) < (1 if name == "read_text" else 2)
    if name != "open" or not isinstance(call.func, ast.Name):
        return False
    mode = next((own.value for own in call.keywords if own.arg == "mode"), call.args[1] if len(call.args) > 1 else None)
    is_binary = isinstance(mode, ast.Constant) and "b" in str(mode.value)
    return not is_binary and "encoding" not in given


def test_a_process_stops_cleanly_when_its_stop_file_appears(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\nfrom vitkit.system.processes import stoppable\n"
        "with stoppable():\n    print(os.environ.get('VITKIT_STOP_FILE'), flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {processes.STOP_FILE: str(tmp_path / "1.stop")},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "None\n"  # processes that it starts have no business with the file
    (tmp_path / "1.stop").touch()
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (128 + signal.SIGTERM, "stopped by SIGTERM\n")


def test_on_windows_a_file_tells_another_process_to_stop_and_a_signal_to_this_one_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill, raised, stop = Mock(), Mock(), tmp_path / "1.stop"
    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(signal, "raise_signal", raised)
    processes.request_stop(123, stop)
    kill.assert_called_once_with(123, signal.SIGTERM)
    assert not stop.exists()
    monkeypatch.setattr(environment, "IS_WINDOWS", True)
    processes.request_stop(123, stop)
    processes.signal_this_process(signal.SIGTERM)
    raised.assert_called_once_with(signal.SIGTERM)
    assert kill.call_count == 1 and stop.exists(), "there, os.kill ends the process"


def test_a_detached_process_is_started_as_the_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(python_command("this"), stdout=subprocess.DEVNULL, **processes.detached_options())
    assert process.wait() == 0
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0x200, raising=False)
    monkeypatch.setattr(subprocess, "CREATE_NO_WINDOW", 0x8000000, raising=False)
    assert processes.detached_options() == {"creationflags": 0x8000200}


def test_two_servers_never_share_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Mock()
    claim_port(listener)
    monkeypatch.setattr(environment, "IS_WINDOWS", True)
    monkeypatch.setattr(socket, "SO_EXCLUSIVEADDRUSE", -5, raising=False)
    claim_port(listener)
    assert [call.args[1] for call in listener.setsockopt.call_args_list] == [socket.SO_REUSEADDR, -5]


def test_processes_are_known_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    birth = processes.start_time_of(child.pid)
    assert birth == processes.start_time_of(child.pid) != ""
    child.communicate(b"\n")
    assert processes.start_time_of(child.pid) == ""
