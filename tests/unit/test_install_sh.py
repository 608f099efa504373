"""install.sh without a network: its texts, its checks and exit codes, its stamp, its removal.

A copy of the checkout's outline stands in a folder of its own; a fake `python3` (a script) plays the Python
that a machine has, and records how pip was called. What really installs is tested in tests/system.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "install.sh"

# Answers what install.sh asks a Python; FAKE_* switch troubles on; `-m venv DIR` lays a copy of itself there.
FAKE_PYTHON = r"""#!/bin/bash
echo "$*" >>"$FAKE_LOG"
case "$*" in
-V|-VV) echo "Python ${FAKE_VERSION:-3.11.9}" ;;
"-c import sys; sys.exit(sys.version_info"*) [[ ${FAKE_VERSION:-3.11.9} == 3.1[1-9]* ]] ;;
*print*version_info*) echo "${FAKE_VERSION:-3.11.9}" | cut -d . -f 1,2 ;;
"-m ensurepip"*) [[ -z ${FAKE_NO_ENSUREPIP:-} ]] ;;
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
*"import pip"*) exit 0 ;;
*sysconfig*) exit 1 ;;
"-m pip install"*)
    [[ -z ${FAKE_PIP_KILL:-} ]] || kill -9 $$
    if [[ -n ${FAKE_PIP_SAYS:-} ]]; then echo "$FAKE_PIP_SAYS"; exit 1; fi
    printf '#!/bin/bash\necho "cosyd $*"\n' >"$(dirname "$0")/cosyd"; chmod +x "$(dirname "$0")/cosyd" ;;
"-m daemon.preflight"*) echo "preflight: $*"; exit "${FAKE_PREFLIGHT:-0}" ;;
"-m pytest"*) echo "pytest ran: $*; no torch: ${COSYD_NO_TORCH:-}" ;;
*) echo "fake python does not know: $*" >&2; exit 99 ;;
esac
"""
FAKE_DF = "#!/bin/bash\necho 'Filesystem 1M-blocks Used Available Use% Mounted'\necho 'x 9 9 {free} 9% /'\n"
TOOLS = (
    "bash env cat tail head grep awk find cut tr df id realpath dirname rm mkdir cp mktemp sha256sum flock "
    "getent chmod kill touch true sleep"
).split()


class Checkout:
    """A folder with install.sh in it, and a PATH that has nothing but the fake Python and coreutils."""

    def __init__(self, base: Path) -> None:
        self.folder = base / "a dir with 空格"
        self.bin = base / "bin"
        self.log = base / "python.log"
        for path in (self.bin, *(self.folder / part for part in ("daemon/cli", "pipeline", "ui"))):
            path.mkdir(parents=True)
        shutil.copy(SCRIPT, self.folder / "install.sh")
        (self.folder / "pyproject.toml").write_text("[project]\nname='cosyd'\n", encoding="utf-8")
        for tool in TOOLS:
            real = shutil.which(tool)
            if real:
                (self.bin / tool).symlink_to(real)
        self.tool("python3", FAKE_PYTHON)
        self.tool("sudo", '#!/bin/bash\nexec "$@"\n')
        self.tool("df", FAKE_DF.format(free=99_999))  # how full this machine's disk is changes no test
        self.tool("sync", "#!/bin/bash\n")  # nor does what others write to it
        self.log.touch()

    def tool(self, name: str, body: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(body, encoding="utf-8")
        path.chmod(0o755)

    def run(self, *arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.bin / "bash"), str(self.folder / "install.sh"), *arguments],
            input=stdin,
            env={"PATH": str(self.bin), "FAKE_LOG": str(self.log), "HOME": "/nonexistent", **environment},
            cwd=self.bin.parent,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def pip_runs(self) -> int:
        return self.log.read_text(encoding="utf-8").count("-m pip install")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.fixture
def listener() -> Iterator[int]:
    """A port of loopback on which this very process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


# ---- texts ---------------------------------------------------------------------------------------


def table(language: str) -> dict[str, str]:
    body = SCRIPT.read_text(encoding="utf-8").split(f"declare -A {language}=(\n")[1].split("\n)\n")[0]
    return dict(re.findall(r"^\[(\w+)\]='(.*?)'$", body, flags=re.MULTILINE | re.DOTALL))


def test_both_languages_have_the_same_texts_with_the_same_places() -> None:
    english, chinese = table("EN"), table("ZH")
    assert len(english) > 30
    assert english.keys() == chinese.keys()
    for key, text in english.items():
        assert text.count("%s") == chinese[key].count("%s"), key
        assert not re.search(r"%(?!s)", text + chinese[key]), key
        assert re.search(r"[\u4e00-\u9fff]", chinese[key]), key
        assert not re.search(r"[\u4e00-\u9fff]", text), key


def test_every_text_is_used_and_every_used_text_exists() -> None:
    source = SCRIPT.read_text(encoding="utf-8")
    code = re.sub(r"(^|\s)# .*", "", source[source.index("# ---- Small helpers") :])
    used = set(re.findall(r"\b(?:say|warn|text|die \$E_\w+) (\w+)", code)) | set(
        re.findall(r"missing_\w+", code)
    )
    used -= {"missing_packages"}
    dynamic = {"size_base", "size_lean", "size_dev", "size_"}
    used |= set(re.findall(r"\$\(text (\w+)", code))
    assert set(table("EN")) - used - dynamic == set()
    assert used - set(table("EN")) - dynamic == set()


def test_chinese_texts_have_blanks_between_han_and_latin() -> None:
    for key, text in table("ZH").items():
        assert not re.search(r"[\u4e00-\u9fff][A-Za-z0-9]|[A-Za-z0-9][\u4e00-\u9fff]", text), key


def test_shellcheck_finds_nothing() -> None:
    shellcheck = shutil.which("shellcheck") or str(Path(sys.executable).parent / "shellcheck")
    result = subprocess.run([shellcheck, str(SCRIPT), str(ROOT / ".ci/run")], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_exit_codes_are_distinct() -> None:
    codes = re.findall(r"\bE_[A-Z]+=(\d+)", SCRIPT.read_text(encoding="utf-8"))
    assert len(codes) >= 12
    assert len(set(codes)) == len(codes)


# ---- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["C.UTF-8", "zh_CN.UTF-8"])
def test_help_is_in_the_language_of_the_person(checkout: Checkout, language: str) -> None:
    result = checkout.run("--help", LANG=language)
    assert result.returncode == 0
    assert result.stdout.strip() == table("ZH" if language.startswith("zh") else "EN")["usage"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("fly",),
        ("try", "--colour"),
        ("try", "test"),
        ("try", "--port"),
        ("try", "--port", "0"),
        ("try", "--port", "abc"),
        ("try", "--port", "65536"),
        ("try", "--port", "7860; true"),
        ("try", "--", "-x"),
        (),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_made(
    checkout: Checkout, arguments: tuple[str, ...]
) -> None:
    result = checkout.run(*arguments)
    assert result.returncode == 2
    assert (
        "install.sh --help" in result.stderr or "install.sh try" in result.stderr or "65535" in result.stderr
    )
    assert "printf" not in result.stderr
    assert not (checkout.folder / ".venv").exists()


# ---- install (what it does to a machine is tested in tests/system/test_install.py) -----------------


@pytest.mark.parametrize(
    "arguments",
    [("--profile", "gpu-5g"), ("--mirror", "moon"), ("--driver", "newest"), ("--model-dir", "/nowhere")],
)
def test_install_refuses_what_makes_no_sense(checkout: Checkout, arguments: tuple[str, ...]) -> None:
    result = checkout.run("install", "--dry-run", *arguments)
    assert result.returncode == 2
    assert arguments[1] in result.stderr
    assert "preflight" not in checkout.log.read_text(encoding="utf-8")


def test_a_dry_run_passes_on_what_was_asked_and_makes_nothing(checkout: Checkout) -> None:
    (checkout.bin.parent / "model").mkdir()
    words = ("--no-gpu", "--profile", "cpu", "--mirror", "cn", "--model-dir", "model", "--driver", "install")
    result = checkout.run("install", "--dry-run", "--port", "7870", *words)
    assert result.returncode in (0, 22), result.stderr  # 22: no systemd runs here
    assert (
        f"preflight: -m daemon.preflight --port 7870 --gpu none --driver install --profile cpu --cosyvoice"
        f" --model-dir {checkout.bin.parent}/model --source modelscope"
    ) in result.stdout
    assert table("EN")["nothing_changed"] in result.stdout
    assert checkout.pip_runs() == 0


def test_what_stands_in_the_way_is_the_exit_status(checkout: Checkout) -> None:
    result = checkout.run("install", "--dry-run", FAKE_PREFLIGHT="14")
    assert result.returncode == 14
    assert table("EN")["nothing_changed"] in result.stdout


# ---- try -----------------------------------------------------------------------------------------


def test_try_sets_up_once_and_starts_cosyd_with_the_options_given(checkout: Checkout, tmp_path: Path) -> None:
    port = free_port()
    first = checkout.run("try", "--port", port, "--lan", "--state", "my state")
    assert first.returncode == 0, first.stderr
    assert f"cosyd run --port {port} --lan --state {tmp_path / 'my state'}" in first.stdout
    assert checkout.pip_runs() == 1
    second = checkout.run("try", "--port", port)
    assert second.returncode == 0
    assert f"cosyd run --port {port}" in second.stdout
    assert checkout.pip_runs() == 1


def test_a_changed_pyproject_or_python_sets_up_again(checkout: Checkout) -> None:
    checkout.run("try", "--no-start")
    with (checkout.folder / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write("version='2'\n")
    checkout.run("try", "--no-start")
    assert checkout.pip_runs() == 2
    checkout.run("try", "--no-start", FAKE_VERSION="3.12.1")
    assert checkout.pip_runs() == 3


def test_a_moved_checkout_sets_up_again(checkout: Checkout) -> None:
    checkout.run("try", "--no-start")
    checkout.folder = checkout.folder.rename(checkout.folder.parent / "elsewhere")
    checkout.run("try", "--no-start")
    assert checkout.pip_runs() == 2


def test_an_interrupted_set_up_is_started_afresh(checkout: Checkout) -> None:
    killed = checkout.run("try", "--no-start", FAKE_PIP_KILL="1")
    assert killed.returncode != 0
    (checkout.folder / ".venv" / "half").touch()
    again = checkout.run("try", "--no-start")
    assert again.returncode == 0
    assert table("EN")["resume"] in again.stdout
    assert not (checkout.folder / ".venv" / "half").exists()


def test_what_is_missing_and_what_is_lost_by_it_is_said_with_the_line_that_mends_it(
    checkout: Checkout,
) -> None:
    result = checkout.run("try", "--no-start")
    assert "English only" in result.stdout
    assert "m4a" in result.stdout
    assert "sudo apt-get install espeak-ng ffmpeg" in result.stdout
    checkout.tool("espeak-ng", "#!/bin/bash\n")
    checkout.tool("ffmpeg", "#!/bin/bash\n")
    assert "apt-get" not in checkout.run("try", "--no-start").stdout


def test_yes_installs_what_is_missing(checkout: Checkout) -> None:
    checkout.tool(
        "apt-get",
        '#!/bin/bash\n[[ $1 == update ]] && exit\nfor name in "$@"; do case $name in espeak-ng|ffmpeg)\n'
        f"printf '#!/bin/bash\\n' >{checkout.bin}/$name; chmod +x {checkout.bin}/$name;; esac; done\n",
    )
    result = checkout.run("try", "--no-start", "--yes")
    assert result.returncode == 0
    assert (checkout.bin / "espeak-ng").exists()
    assert (checkout.bin / "ffmpeg").exists()
    assert "English only" not in result.stdout


def test_apt_that_fails_is_told_and_is_not_the_end(checkout: Checkout) -> None:
    checkout.tool("apt-get", "#!/bin/bash\necho 'E: no such package' >&2\nexit 100\n")
    result = checkout.run("try", "--no-start", "--yes")
    assert result.returncode == 0
    assert "E: no such package" in result.stderr
    assert "English only" in result.stdout


def test_h07_a_held_package_lock_is_waited_for_and_told(checkout: Checkout) -> None:
    once = checkout.bin / "held"
    checkout.tool(
        "apt-get",
        f"#!/bin/bash\nif [[ $1 == update && ! -e {once} ]]; then touch {once}\n"
        "echo 'E: Could not get lock /var/lib/apt/lists/lock.' >&2; exit 100; fi\n"
        f'echo "apt-get $*" >>{checkout.log}\n',
    )
    result = checkout.run("try", "--no-start", "--yes")
    assert result.returncode == 0
    assert "Another program is installing packages" in result.stderr
    assert "could not install" not in result.stderr
    assert "DPkg::Lock::Timeout=900" in checkout.log.read_text(encoding="utf-8")


def test_packages_that_were_cut_short_are_finished_first(checkout: Checkout) -> None:
    """apt-get refuses until then. What `dpkg` cannot set up lacks something that apt brings."""
    checkout.tool(
        "dpkg",
        "#!/bin/bash\nif [[ $1 == --audit ]]; then echo 'espeak-ng-data is unpacked'; exit; fi\n"
        f"echo \"dpkg $*\" >>{checkout.log}\necho 'dependency problems' >&2\nexit 1\n",
    )
    checkout.tool("apt-get", f'#!/bin/bash\necho "apt-get $1 ${{*: -1}}" >>{checkout.log}\n')
    assert checkout.run("try", "--no-start", "--yes").returncode == 0
    done = [line for line in checkout.log.read_text("utf-8").splitlines() if line.startswith(("apt", "dpkg"))]
    assert done == [
        "dpkg --configure -a", "apt-get update update", "apt-get install --fix-broken",
        "apt-get install ffmpeg",
    ]  # fmt: skip


# ---- honest errors -------------------------------------------------------------------------------


def test_python_too_old(checkout: Checkout) -> None:
    result = checkout.run("try", FAKE_VERSION="3.10.12")
    assert result.returncode == 10
    assert "3.11" in result.stderr
    assert "Python 3.10.12" in result.stderr
    assert "apt-get install" in result.stderr


def test_a_newer_python_beside_the_old_one_is_found(checkout: Checkout) -> None:
    checkout.tool("python3.12", FAKE_PYTHON.replace("FAKE_VERSION:-3.11.9", "FAKE_OTHER:-3.12.4"))
    assert checkout.run("try", "--no-start", FAKE_VERSION="3.10.12").returncode == 0


def test_no_venv_module_names_the_package(checkout: Checkout) -> None:
    result = checkout.run("try", FAKE_NO_ENSUREPIP="1")
    assert result.returncode == 11
    assert "sudo apt-get install python3-venv" in result.stderr


@pytest.mark.parametrize(
    ("said", "code", "hint"),
    [
        ("Failed to establish a new connection: [Errno 111] Connection refused", 12, "PIP_NO_INDEX=1"),
        ("[Errno -3] Temporary failure in name resolution", 12, "network"),
        ("certificate verify failed: CERTIFICATE_VERIFY_FAILED", 12, "CERTIFICATE_VERIFY_FAILED"),
        ("OSError: [Errno 28] No space left on device", 13, "disk"),
        ("ERROR: No matching distribution found for gradio", 19, "No matching distribution"),
    ],
)
def test_what_pip_says_is_understood(checkout: Checkout, said: str, code: int, hint: str) -> None:
    result = checkout.run("try", FAKE_PIP_SAYS=said)
    assert result.returncode == code
    assert hint in result.stderr


def test_a_small_disk_is_refused_before_anything_is_fetched(checkout: Checkout) -> None:
    checkout.tool("df", FAKE_DF.format(free=1024))
    result = checkout.run("try")
    assert result.returncode == 13
    assert "1024 MB" in result.stderr
    assert checkout.pip_runs() == 0


def test_a_used_port_is_named_with_who_uses_it(checkout: Checkout, listener: int) -> None:
    result = checkout.run("try", "--port", str(listener))
    assert result.returncode == 14
    assert f"process {os.getpid()} (" in result.stderr
    assert not (checkout.folder / ".venv").exists()


def test_an_incomplete_copy_is_refused(checkout: Checkout) -> None:
    (checkout.folder / "pyproject.toml").unlink()
    result = checkout.run("try")
    assert result.returncode == 15
    assert "git clone" in result.stderr


def test_two_at_once_do_not_meet(checkout: Checkout) -> None:
    with (checkout.folder / "install.sh").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert checkout.run("try").returncode == 17


# ---- test ----------------------------------------------------------------------------------------


def test_test_runs_pytest_with_the_arguments_given(checkout: Checkout) -> None:
    result = checkout.run("test", "--", "-k", "queue")
    assert result.returncode == 0, result.stderr
    assert re.search(r"pytest ran: -m pytest .*--dist loadfile -k queue;", result.stdout)
    assert "espeak-ng ffmpeg gcc pkg-config python3-dev libsystemd-dev chromium" in result.stdout
    assert "[dev,cosyvoice]" in checkout.log.read_text(encoding="utf-8")
    checkout.run("test", "--no-torch")  # what has more is enough for what needs less
    checkout.run("try", "--no-start")
    assert checkout.pip_runs() == 1


def test_test_without_torch_says_what_is_not_tested_and_asks_for_those_skips(checkout: Checkout) -> None:
    result = checkout.run("test", "--no-torch")
    assert result.returncode == 0, result.stderr
    assert "CosyVoice is not tested" in result.stdout
    assert "no torch: 1" in result.stdout
    assert "[dev]" in checkout.log.read_text(encoding="utf-8")
    assert "no torch: \n" in checkout.run("test").stdout  # what was left out is fetched when it is wanted
    assert "[dev,cosyvoice]" in checkout.log.read_text(encoding="utf-8")


def test_where_torch_does_not_fit_the_rest_is_tested_and_it_is_said(checkout: Checkout) -> None:
    checkout.tool("df", FAKE_DF.format(free=4096))
    result = checkout.run("test")
    assert result.returncode == 0, result.stderr
    assert "4096 MB" in result.stdout
    assert "CosyVoice is not tested" in result.stdout
    assert "[dev]" in checkout.log.read_text(encoding="utf-8")
    assert "no torch: \n" in result.stdout  # nobody asked for it: in CI its skips are failures


# ---- uninstall -----------------------------------------------------------------------------------


def with_state(checkout: Checkout) -> Path:
    checkout.run("try", "--no-start")
    state = checkout.folder / ".cosyd"
    state.mkdir()
    (state / "cosyd.db").touch()
    (state / "instance.lock").touch()
    return state


def test_uninstall_keeps_recordings(checkout: Checkout) -> None:
    state = with_state(checkout)
    result = checkout.run("uninstall")
    assert result.returncode == 0
    assert not (checkout.folder / ".venv").exists()
    assert (state / "cosyd.db").exists()
    assert str(state) in result.stdout


@pytest.mark.parametrize(("typed", "gone"), [("delete\n", True), ("yes\n", False), ("", False)])
def test_purge_wants_the_word(checkout: Checkout, typed: str, gone: bool) -> None:
    state = with_state(checkout)
    result = checkout.run("uninstall", "--purge", stdin=typed)
    assert result.returncode == (0 if gone else 18)
    assert state.exists() is not gone
    assert (checkout.folder / ".venv").exists() is not gone


def test_purge_leaves_a_folder_alone_that_is_not_a_state_folder(checkout: Checkout, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    result = checkout.run("uninstall", "--purge", "--state", str(precious), stdin="delete\n")
    assert result.returncode == 18
    assert precious.exists()


def test_uninstall_refuses_while_cosyd_runs(checkout: Checkout) -> None:
    state = with_state(checkout)
    with (state / "instance.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = checkout.run("uninstall")
    assert result.returncode == 16
    assert (checkout.folder / ".venv").exists()
