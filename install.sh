#!/usr/bin/env bash
# Sets cosyd up. `try` needs no root and touches nothing outside this folder (but for apt, when it may). `install` looks
# at the machine, says what it will do, and lets the playbook in ansible/ do it.
#
# Order below: texts, small helpers, checks (each ends with its own exit code), steps, commands.
# Running it again is always safe: finished work is recognised by a stamp, half-finished work is started afresh.
set -euo pipefail
shopt -s inherit_errexit

readonly MIN_PYTHON="3.11"
readonly NEED_MIB=2048            # free disk for a first `try`: 535 MB stay, pip needs as much again while it works
readonly NEED_TORCH_MIB=12288     # with PyTorch: 6.8 GB stay, 3 GB of wheels lie beside them while pip works
readonly APT_BUILD=(gcc pkg-config python3-dev libsystemd-dev)

# One exit code a cause. 2, 70, 75 and 78 are those of `cosyd` itself, which `try` becomes.
readonly E_USAGE=2 E_PYTHON=10 E_VENV=11 E_NETWORK=12 E_DISK=13 E_PORT=14 E_CHECKOUT=15
readonly E_RUNNING=16 E_BUSY=17 E_DECLINED=18 E_PIP=19 E_READONLY=20
readonly E_ROOT=21 E_SYSTEMD=22 E_PLAYBOOK=24 E_RESTART=25 # 23, 13 and 14 are also those of daemon.preflight

readonly APPLIANCE=/opt/cosyd           # programs; also what the installer itself needs and remembers
readonly PROVISION=$APPLIANCE/provision # Ansible, in a virtual environment of its own
readonly APT_WAIT_S=900                 # for another program that installs packages

# ---- Texts: same keys and same %s in both (tests/unit/test_install_sh.py holds that) -------------------------------

# shellcheck disable=SC2016  # $(...) in a text is for the reader to run
declare -A EN=(
[usage]='Sets cosyd up: text to speech and voice cloning at home.

  ./install.sh try        sets up .venv here without root and starts cosyd on http://127.0.0.1:7860
  ./install.sh test       sets up .venv with the test tools and runs the whole test suite
  ./install.sh install    (root) the appliance: a service under systemd, for your home network
  ./install.sh uninstall  removes what install and try made; keeps your voices and recordings

Options of try:
  --port N      another port than 7860
  --lan         open it to your home network, behind a one-time link
  --state DIR   where voices and recordings lie (default: .cosyd here)
  --no-start    only set up
Options of try and test:
  --yes         also install missing Debian packages (through sudo when not root)
  --no-torch    (test) without PyTorch: 5.5 GB less, but CosyVoice is not tested
  -- ARGS       (test) arguments for pytest, e.g.  ./install.sh test -- -k queue
Options of install (it says first what it will do, and asks):
  --dry-run         only say it; changes nothing, needs no root
  --unattended      do not ask
  --cosyvoice       also PyTorch and the model (4.4 GB), for voice cloning
  --model-dir DIR   take the model from this folder (implies --cosyvoice)
  --mirror cn       take the model from ModelScope
  --profile NAME    cpu, gpu-4g, gpu-6g or gpu-12g instead of what suits the machine
  --no-gpu          use no graphics card
  --driver POLICY   keep (default: never touch it), install (where there is none), replace
  --port N          another port than 7860
Options of uninstall:
  --purge       also delete voices and recordings, after you typed a word to confirm it
  --state DIR   the folder to delete with --purge

COSYD_PYTHON=/path/to/python3.12 picks the Python.
Proxies (HTTPS_PROXY), PIP_INDEX_URL, PIP_NO_INDEX and PIP_FIND_LINKS are honoured; with sudo: sudo -E ./install.sh install
Example:  ./install.sh try --port 8080'
[menu]='What shall it be?

  1) try        look at it: no root, everything in this folder       135 MB download, 540 MB disk
  2) test       run the test suite                                   3 GB download, 6.8 GB disk
  3) install    the appliance under systemd (root)
  4) uninstall  remove what 1) and 2) made
  q) quit
'
[menu_ask]='Your choice: '
[menu_no_tty]='Nothing chosen. Say what to do, for example: ./install.sh try'
[bad_option]='Unknown option or command: %s. See: ./install.sh --help'
[bad_port]='--port wants a number from 1 to 65535, not: %s'
[needs_value]='%s wants a value. See: ./install.sh --help'
[not_checkout]='This is not a complete copy of cosyd: %s is missing in %s.
Clone the repository and run install.sh inside it:  git clone <repository> && cd cosyd && ./install.sh try'
[readonly]='The folder %s cannot be written by %s.
Clone it again as this user, or give it over:  sudo chown -R %s .'
[busy]='Another install.sh is at work in this folder. Wait until it is done, then run this again.'
[no_python]='cosyd needs Python %s or newer; found: %s.'
[no_python_debian]='Get it with:  sudo apt-get install python3 python3-venv'
[no_python_ubuntu]='Ubuntu 22.04 comes with 3.10. A newer one can stand beside it:
  sudo add-apt-repository ppa:deadsnakes/ppa && sudo apt-get install python3.12-venv
or without root:  uv python install 3.12
then:  COSYD_PYTHON=$(command -v python3.12 || uv python find 3.12) ./install.sh try'
[no_venv]='%s is there, but cannot make virtual environments (module ensurepip is missing).
Get it with:  sudo apt-get install %s      or run this again with --yes'
[venv_failed]='Making .venv with %s failed:'
[disk]='Only %s MB are free in %s; this needs %s MB. Free some space, or clone cosyd onto a larger disk.'
[port]='Port %s is already used by %s.
Stop that program, or choose another port:  ./install.sh try --port %s'
[port_own]='another cosyd (process %s)'
[port_other]='process %s (%s)'
[port_user]='a program of the user %s (run as root to see which)'
[network]='The Python package index cannot be reached, and packages are still to be fetched.
What pip said:  %s
Check the network (DNS, proxy: HTTPS_PROXY), then run this again: what was fetched is kept.
Without a network: on a machine with the same Debian and Python run
  python3 -m pip wheel -w wheels %s "setuptools>=77" wheel
copy the folder wheels here, and run  PIP_NO_INDEX=1 PIP_FIND_LINKS=wheels ./install.sh %s'
[no_space_pip]='The disk filled up while packages were installed.'
[pip_failed]='Installing the Python packages failed. The end of %s:'
[installing]='Installing Python packages into .venv (%s; a few minutes at the first time) ...'
[size_base]='135 MB to download, 540 MB on disk'
[size_lean]='380 MB to download, 1.2 GB on disk'
[size_dev]='3 GB to download, 6.8 GB on disk, nearly all of it PyTorch'
[no_torch]='Without PyTorch: CosyVoice is not tested (its tests are skipped), all else is.'
[no_torch_disk]='Only %s MB are free in %s, and PyTorch needs %s MB: going on without it. CosyVoice is not tested (its tests are
skipped), all else is.'
[resume]='The last set-up was interrupted; starting it afresh.'
[installed]='Installed in %s s.'
[ready]='Already set up.'
[missing_espeak]='No espeak-ng: it speaks English only (no Chinese, no other language).'
[missing_ffmpeg]='No ffmpeg: no AAC (m4a) files; all other formats work.'
[missing_build]='No build tools for systemd-python: its tests are skipped.'
[missing_chromium]='No chromium: the tests of the page are skipped.'
[missing_fonts]='No CJK fonts: Chinese pages show boxes in the browser tests.'
[apt_line]='This mends it:  sudo apt-get install %s'
[apt_run]='Installing Debian packages: %s'
[apt_failed]='apt-get could not install them; going on without. What it said: %s'
[starting]='Starting. Stop it with Ctrl+C.'
[not_started]='Start it with:  ./install.sh try'
[root]='This needs root:  sudo -E ./install.sh %s'
[no_systemd]='systemd does not run here, and cosyd is a service of systemd. In a container without it:  ./install.sh try'
[nothing_changed]='Nothing was changed.'
[go_on]='Go on? [y/N] '
[yes]='^[yY]'
[not_asked]='Nobody is there to be asked. To go on without:  --unattended'
[declined]='Nothing was changed.'
[bad_profile]='--profile wants cpu, gpu-4g, gpu-6g or gpu-12g, not: %s'
[bad_mirror]='--mirror knows cn, not: %s'
[bad_driver]='--driver wants keep, install or replace, not: %s'
[no_folder]='There is no folder %s.'
[apt_waits]='Another program is installing packages (unattended-upgrades, most likely). Waiting for it, at most %s s ...'
[tools]='Fetching the tools of the installer (Ansible, 25 MB) ...'
[working]='Installing. The first time takes some minutes; what is done stays done if it is interrupted.'
[removing]='Removing the appliance ...'
[playbook_failed]='It stopped here. The reason stands above; everything is in %s.
When it is mended, run the same command again: it goes on from here.'
[restart]='The graphics driver needs a restart of the machine. After it, run this again, and it goes on from here:
  sudo ./install.sh %s'
[sentence]='Hello. I am at home now.'
[spoke]='It spoke a sentence: %s s of sound.'
[all_well]='All was well: nothing had to be changed.'
[mute]='The service runs, but a first sentence did not come out. Look:  sudo cosyd doctor'
[address]='The page:  http://%s'
[login]='A link that lets one device in (15 minutes, once):  %s
Another one:  sudo cosyd login-link'
[pairing]='Programs that know OpenAI (Open WebUI: Settings, Audio):  base URL http://%s/v1, with a key from
  sudo cosyd key add "Open WebUI"'
[appliance_gone]='cosyd is removed from this machine.'
[running]='cosyd is running with the state folder %s. Stop it first (Ctrl+C where it runs).'
[removed]='Removed: %s'
[nothing]='Nothing to remove.'
[kept]='Kept: %s (voices and recordings). To delete them too:  ./install.sh uninstall --purge'
[purge_ask]='This deletes all voices and recordings in %s, for good. Type "%s" to do it: '
[purge_word]='delete'
[purge_no]='Not confirmed: %s is still there.'
[kept_appliance]='Kept: /var/lib/cosyd and /etc/cosyd (voices, recordings, settings). An installation takes them up again. To delete
them:  sudo rm -r /var/lib/cosyd /etc/cosyd'
[not_state]='%s does not look like a state folder of cosyd (no cosyd.db in it); not deleted.'
)

# shellcheck disable=SC2016
declare -A ZH=(
[usage]='安装 cosyd：在家里的机器上合成语音、复刻声音。

  ./install.sh try        不需要 root：在本目录建 .venv，并在 http://127.0.0.1:7860 启动 cosyd
  ./install.sh test       在 .venv 里装好测试工具，运行全部测试
  ./install.sh install    （root）安装成 systemd 服务，供家里的局域网使用
  ./install.sh uninstall  删除 install 和 try 装的东西；音色和生成记录会保留

try 的选项：
  --port N      不用 7860，改用别的端口
  --lan         对家里的局域网开放，凭一次性链接进入
  --state DIR   音色和生成记录放在哪里（默认：本目录的 .cosyd）
  --no-start    只安装，不启动
try 和 test 的选项：
  --yes         顺便安装缺少的 Debian 软件包（不是 root 时通过 sudo）
  --no-torch    （test）不装 PyTorch：少占 5.5 GB，但不测试 CosyVoice
  -- ARGS       （test）交给 pytest 的参数，例如  ./install.sh test -- -k queue
install 的选项（先说明要做什么，再询问）：
  --dry-run         只说明，不改动任何东西，不需要 root
  --unattended      不询问
  --cosyvoice       同时安装 PyTorch 和模型（4.4 GB），用于声音复刻
  --model-dir DIR   从这个目录取模型（包含 --cosyvoice）
  --mirror cn       从 ModelScope 下载模型
  --profile NAME    cpu、gpu-4g、gpu-6g 或 gpu-12g，不用自动选的
  --no-gpu          不使用显卡
  --driver POLICY   keep（默认：不动驱动）、install（没有才装）、replace（更换）
  --port N          不用 7860，改用别的端口
uninstall 的选项：
  --purge       输入确认词之后，音色和生成记录也一起删除
  --state DIR   与 --purge 一起用：要删除的目录

COSYD_PYTHON=/path/to/python3.12 可指定 Python。
代理（HTTPS_PROXY）、PIP_INDEX_URL、PIP_NO_INDEX 和 PIP_FIND_LINKS 都有效；用 sudo 时：  sudo -E ./install.sh install
例子：  ./install.sh try --port 8080'
[menu]='想做什么？

  1) try        先试用：不需要 root，全部放在本目录      下载 135 MB，占用 540 MB
  2) test       运行测试                                 下载 3 GB，占用 6.8 GB
  3) install    作为 systemd 服务安装（root）
  4) uninstall  删除 1) 和 2) 装的东西
  q) 退出
'
[menu_ask]='请选择：'
[menu_no_tty]='没有选择任何操作。请写明要做什么，例如：./install.sh try'
[bad_option]='不认识的选项或命令：%s。用法见：./install.sh --help'
[bad_port]='--port 要 1 到 65535 之间的数字，而不是：%s'
[needs_value]='%s 后面要跟一个值。用法见：./install.sh --help'
[not_checkout]='这里的 cosyd 不完整：缺少 %s（目录 %s）。
请先克隆仓库，再在里面运行 install.sh：  git clone <仓库地址> && cd cosyd && ./install.sh try'
[readonly]='目录 %s 不能由用户 %s 写入。
请用这个用户重新克隆，或者改一下归属：  sudo chown -R %s .'
[busy]='另一个 install.sh 正在本目录里工作。等它结束后再运行一次。'
[no_python]='cosyd 需要 Python %s 或更新的版本；现有：%s。'
[no_python_debian]='这样安装：  sudo apt-get install python3 python3-venv'
[no_python_ubuntu]='Ubuntu 22.04 自带的是 3.10。可以在旁边装一个新的：
  sudo add-apt-repository ppa:deadsnakes/ppa && sudo apt-get install python3.12-venv
不用 root 的办法：  uv python install 3.12
然后：  COSYD_PYTHON=$(command -v python3.12 || uv python find 3.12) ./install.sh try'
[no_venv]='有 %s，但不能建虚拟环境（缺少 ensurepip 模块）。
这样安装：  sudo apt-get install %s      或者加上 --yes 再运行一次'
[venv_failed]='用 %s 建 .venv 失败：'
[disk]='只剩 %s MB 空间（%s），需要 %s MB。请腾出一些空间，或把 cosyd 克隆到更大的磁盘上。'
[port]='端口 %s 已被占用：%s。
请停掉那个程序，或换一个端口：  ./install.sh try --port %s'
[port_own]='另一个 cosyd（进程 %s）'
[port_other]='进程 %s（%s）'
[port_user]='用户 %s 的程序（用 root 运行可以看到是哪一个）'
[network]='连不上 Python 软件包索引，而有些软件包还没下载。
pip 的原话：  %s
请检查网络（DNS、代理 HTTPS_PROXY），然后再运行一次：已下载的会保留。
没有网络时：在另一台 Debian 和 Python 版本都相同的机器上运行
  python3 -m pip wheel -w wheels %s "setuptools>=77" wheel
把 wheels 目录复制到这里，再运行  PIP_NO_INDEX=1 PIP_FIND_LINKS=wheels ./install.sh %s'
[no_space_pip]='安装软件包时磁盘满了。'
[pip_failed]='安装 Python 软件包失败。%s 的结尾：'
[installing]='正在把 Python 软件包装进 .venv（%s；第一次要几分钟）……'
[size_base]='下载 135 MB，占用 540 MB'
[size_lean]='下载 380 MB，占用 1.2 GB'
[size_dev]='下载 3 GB，占用 6.8 GB，几乎全是 PyTorch'
[no_torch]='不装 PyTorch：不测试 CosyVoice（跳过它的测试），其余照测。'
[no_torch_disk]='只剩 %s MB 空间（%s），PyTorch 需要 %s MB：先不装它。不测试 CosyVoice（跳过它的测试），其余照测。'
[resume]='上次安装中断了，现在重新来过。'
[installed]='安装完成，用时 %s 秒。'
[ready]='已经装好。'
[missing_espeak]='没有 espeak-ng：只能说英语（不能说中文和其他语言）。'
[missing_ffmpeg]='没有 ffmpeg：不能生成 AAC（m4a）文件；其他格式都可以。'
[missing_build]='没有编译 systemd-python 的工具：跳过相关测试。'
[missing_chromium]='没有 chromium：跳过页面测试。'
[missing_fonts]='没有中文字体：浏览器测试里的中文会显示成方框。'
[apt_line]='这样补上：  sudo apt-get install %s'
[apt_run]='正在安装 Debian 软件包：%s'
[apt_failed]='apt-get 没能装上，先不管它们继续。它的原话：%s'
[starting]='正在启动。按 Ctrl+C 停止。'
[not_started]='这样启动：  ./install.sh try'
[root]='需要 root：  sudo -E ./install.sh %s'
[no_systemd]='这里没有运行 systemd，而 cosyd 是 systemd 服务。没有 systemd 的容器请用：  ./install.sh try'
[nothing_changed]='没有改动任何东西。'
[go_on]='继续吗？[y/N] '
[yes]='^[yY]|^是'
[not_asked]='没有人可以回答。要直接继续：  --unattended'
[declined]='没有改动任何东西。'
[bad_profile]='--profile 应为 cpu、gpu-4g、gpu-6g 或 gpu-12g，而不是：%s'
[bad_mirror]='--mirror 只认 cn，而不是：%s'
[bad_driver]='--driver 应为 keep、install 或 replace，而不是：%s'
[no_folder]='没有目录 %s。'
[apt_waits]='另一个程序正在安装软件包（多半是自动更新）。等它完成，最多 %s 秒……'
[tools]='正在下载安装程序用的工具（Ansible，25 MB）……'
[working]='正在安装。第一次要几分钟；中断了也不会白做。'
[removing]='正在卸载……'
[playbook_failed]='停在这里了。原因见上面，全部记录在 %s。
解决以后再运行同一条命令，会从这里继续。'
[restart]='显卡驱动需要重启机器。重启后再运行下面这条命令，会从这里继续：
  sudo ./install.sh %s'
[sentence]='你好，我到家了。'
[spoke]='说了一句话：%s 秒的声音。'
[all_well]='一切正常，没有需要改动的。'
[mute]='服务在运行，但第一句话没有说出来。请看：  sudo cosyd doctor'
[address]='页面：  http://%s'
[login]='让一台设备进入的链接（15 分钟内有效，一次）：  %s
再要一个：  sudo cosyd login-link'
[pairing]='认识 OpenAI 接口的程序（Open WebUI：设置，语音）：  地址 http://%s/v1，密钥用这条命令生成
  sudo cosyd key add "Open WebUI"'
[appliance_gone]='已从这台机器上卸载 cosyd。'
[running]='cosyd 正在使用目录 %s 运行。请先停止它（在运行它的地方按 Ctrl+C）。'
[removed]='已删除：%s'
[nothing]='没有可以删除的东西。'
[kept]='保留：%s（音色和生成记录）。要一起删除：  ./install.sh uninstall --purge'
[purge_ask]='这会彻底删除 %s 里的全部音色和生成记录。输入“%s”确认：'
[purge_word]='删除'
[purge_no]='没有确认：%s 还在。'
[kept_appliance]='保留：/var/lib/cosyd 和 /etc/cosyd（音色、生成记录、设置）。再次安装会接着用。要删除：
  sudo rm -r /var/lib/cosyd /etc/cosyd'
[not_state]='%s 不像 cosyd 的数据目录（里面没有 cosyd.db），没有删除。'
)

# ---- Small helpers -----------------------------------------------------------------------------------------------

chinese() { case "${LC_ALL:-${LC_MESSAGES:-${LANG:-}}}" in zh*) return 0 ;; *) return 1 ;; esac }

text() { # KEY ARGS...: the text in the person's language
    local key=$1 format
    shift
    if chinese; then format=${ZH[$key]}; else format=${EN[$key]}; fi
    # shellcheck disable=SC2059  # the table is the format
    printf -- "$format\n" "$@" # --: some texts begin with an option's name
}

say() { text "$@"; }
warn() { text "$@" >&2; }
die() { # CODE KEY ARGS...
    local code=$1
    shift
    warn "$@"
    exit "$code"
}

is_root() { [[ $EUID -eq 0 ]]; }
has() { command -v "$1" >/dev/null 2>&1; }

# ---- Checks --------------------------------------------------------------------------------------------------------

check_checkout() {
    local part
    for part in pyproject.toml daemon/cli pipeline ui; do
        [[ -e $part ]] || die $E_CHECKOUT not_checkout "$part" "$PWD"
    done
}

check_writable() {
    local who
    who=$(id -un)
    [[ -w . && (! -e .venv || -w .venv) ]] || die $E_READONLY readonly "$PWD" "$who" "$who"
}

one_at_a_time() { # the lock is install.sh itself: nothing to leave behind
    exec 9<"$SELF"
    if has flock; then flock -n 9 || die $E_BUSY busy; fi
}

new_enough() { "$1" -c "import sys; sys.exit(sys.version_info < (${MIN_PYTHON/./, }))" >/dev/null 2>&1; }

find_python() { # prints the first Python that is new enough
    local candidate found=""
    for candidate in ${COSYD_PYTHON:+"$COSYD_PYTHON"} python3 python3.13 python3.12 python3.11 python3.14; do
        has "$candidate" || continue
        if new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
        found+="${found:+, }$("$candidate" -V 2>/dev/null || true)"
    done
    warn no_python "$MIN_PYTHON" "${found:--}"
    if grep -qs '^VERSION_ID="22\.04"' "$OS_RELEASE"; then warn no_python_ubuntu; else warn no_python_debian; fi
    exit $E_PYTHON
}

venv_package() { # which Debian package holds ensurepip for this Python
    local version
    version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if [[ $(command -v python3 || true) == "$1" ]]; then echo python3-venv; else echo "python$version-venv"; fi
}

check_venv_module() {
    "$1" -m ensurepip --version >/dev/null 2>&1 && return
    local package
    package=$(venv_package "$1")
    if may_apt; then apt_install "$package"; fi
    "$1" -m ensurepip --version >/dev/null 2>&1 || die $E_VENV no_venv "$("$1" -V)" "$package"
}

free_mib() { df -Pm . | awk 'NR == 2 { print $4 }'; }

check_disk() {
    local free
    free=$(free_mib)
    ((free >= NEED_MIB)) || die $E_DISK disk "$free" "$PWD" "$NEED_MIB"
}

listener() { # PORT: "INODE UID" of whoever listens there in our way; nothing when it is free
    local hex any
    hex=$(printf '%04X' "$1")
    any=$LAN
    # Field 2 is ADDRESS:PORT in hex, 0A is LISTEN. Without --lan only the loopback and the any-addresses matter.
    awk -v port="$hex" -v any="$any" '
        $4 == "0A" { split($2, a, ":")
            if (a[2] == port && (any == "yes" || a[1] ~ /^0+$/ || a[1] ~ /0100007F$/)) { print $10, $8; exit } }' \
        /proc/net/tcp /proc/net/tcp6 2>/dev/null || true # no IPv6: no tcp6
}

check_port() {
    local found inode uid pid command other
    found=$(listener "$1")
    [[ -n $found ]] || return 0
    read -r inode uid <<<"$found"
    pid=$(find /proc/[0-9]*/fd -lname "socket:\[$inode\]" 2>/dev/null | head -n 1 | cut -d / -f 3 || true)
    if [[ -z $pid ]]; then
        other=$(text port_user "$(getent passwd "$uid" | cut -d : -f 1 || true)")
    else
        command=$(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | cut -c 1-100 || true)
        case $command in
        *daemon.supervisor* | *cosyd\ run*) other=$(text port_own "$pid") ;;
        *) other=$(text port_other "$pid" "${command% }") ;;
        esac
    fi
    die $E_PORT port "$1" "$other" "$(($1 < 65535 ? $1 + 1 : 7860))"
}

state_in_use() { # DIR: does a running cosyd hold its lock? (pipeline/paths.py: instance_lock)
    [[ -e $1/instance.lock ]] && has flock && ! flock -n "$1/instance.lock" true
}

# ---- Steps ---------------------------------------------------------------------------------------------------------

may_apt() { has apt-get && { is_root || [[ $YES == yes ]]; }; }

apt_patiently() { # COMMAND...: again while another program holds a lock; prints what an attempt in vain said last
    local until=$((SECONDS + APT_WAIT_S)) said=no out
    while ! out=$("$@" 2>&1); do
        if [[ ! $out =~ get\ lock|lock\ was\ locked|is\ locked\ by ]] || ((SECONDS > until)); then
            printf '%s\n' "$out"
            return 1
        fi
        if [[ $said == no ]]; then warn apt_waits "$APT_WAIT_S"; fi
        said=yes
        sleep 3
    done
}

apt_install() { # PACKAGE...: tries; a failure is told and is not the end
    local apt=(env LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive) log
    is_root || apt=(sudo "${apt[@]}")
    log=$(mktemp)
    say apt_run "$*"
    local install=(apt-get install -y -o DPkg::Lock::Timeout="$APT_WAIT_S" --no-install-recommends)
    { # dpkg and `update` do not wait for their locks by themselves; that we wait is said on stderr
        local cut=""
        if has dpkg; then cut=$(dpkg --audit; find /var/lib/dpkg/updates -type f); fi
        # apt-get refuses everything until what was cut short is finished: what can be set up, then what that needs.
        [[ -z $cut ]] || apt_patiently "${apt[@]}" dpkg --configure -a || true
        apt_patiently "${apt[@]}" apt-get update &&
            { [[ -z $cut ]] || "${apt[@]}" "${install[@]}" --fix-broken 2>&1; } &&
            "${apt[@]}" "${install[@]}" "$@" 2>&1
    } </dev/null >"$log" || warn apt_failed "$(tail -n 2 "$log")"
    rm -f "$log"
}

installed_packages() { dpkg-query -W -f '${db:Status-Abbrev}${Package}\n' | sed -n 's/^[ih]i.//p' | LC_ALL=C sort; }

packages_begin() { # the list of before lies on disk first: roles/cosyd/tasks/packages.yml does the same
    local list=$APPLIANCE/packages.before
    mkdir -p "$APPLIANCE"
    if [[ ! -s $list ]]; then # what it lacks counts as ours: it is there whole, also after a power cut, or not at all
        installed_packages >"$list.new"
        sync "$list.new"
        mv "$list.new" "$list"
    fi
    trap packages_end EXIT
}

packages_end() { # what came is written down, so that an uninstall takes exactly that away
    trap - EXIT
    installed_packages | LC_ALL=C comm -13 <(LC_ALL=C sort "$APPLIANCE/packages.before") - >>"$APPLIANCE/packages"
    sync "$APPLIANCE/packages"
    rm -f "$APPLIANCE/packages.before"
}

can_build_systemd() {
    has gcc && has pkg-config && pkg-config --exists libsystemd &&
        "$1" -c 'import sysconfig, pathlib, sys
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())'
}

missing_packages() { # LEVEL PYTHON: fills WANTED (Debian packages) and LOST (keys of what is lost without them)
    WANTED=() LOST=()
    has espeak-ng || { WANTED+=(espeak-ng) LOST+=(missing_espeak); }
    has ffmpeg || { WANTED+=(ffmpeg) LOST+=(missing_ffmpeg); }
    [[ $1 != base ]] || return 0
    can_build_systemd "$2" || { WANTED+=("${APT_BUILD[@]}") LOST+=(missing_build); }
    has chromium || { WANTED+=(chromium) LOST+=(missing_chromium); }
    [[ -n $(find /usr/share/fonts -iname '*noto*cjk*' -print -quit 2>/dev/null) ]] ||
        { WANTED+=(fonts-noto-cjk) LOST+=(missing_fonts); }
}

system_packages() { # LEVEL PYTHON: install what is missing when we may, else say what is lost and what mends it
    local key
    missing_packages "$@"
    if ((${#WANTED[@]})) && may_apt; then
        apt_install "${WANTED[@]}"
        missing_packages "$@"
    fi
    ((${#WANTED[@]})) || return 0
    for key in "${LOST[@]}"; do say "$key"; done
    say apt_line "${WANTED[*]}"
}

fingerprint() { # PYTHON: what a finished .venv was made from. The path is in it because a moved .venv does not work
    { cat pyproject.toml && "$1" -VV && pwd -P; } | sha256sum | cut -d ' ' -f 1
}

venv_is_ready() { # LEVEL FINGERPRINT: a venv of a higher level will do
    local print="" level=""
    [[ -f .venv/.cosyd-stamp && -x .venv/bin/python && -x .venv/bin/cosyd ]] || return 1
    read -r print level <.venv/.cosyd-stamp || true
    [[ $print == "$2" ]] && [[ " base lean dev " == *" $1"*" $level "* || $1 == "$level" ]]
}

run_pip() { # ARGS...: quiet, with a moving line on a terminal; everything goes to pip.log in the venv
    local line
    "$VENV/bin/python" -m pip install --no-input --disable-pip-version-check --retries 3 "$@" 2>&1 </dev/null |
        while IFS= read -r line; do
            printf '%s\n' "$line"
            if [[ -t 2 && $line == Collecting\ * ]]; then printf '\r\033[K  %.70s' "${line#Collecting }" >&2; fi
        done >"$VENV/pip.log"
}

pip_trouble() { # explains pip.log, then ends
    local why log=$VENV/pip.log what=.
    if [[ $COMMAND == install ]]; then what="'.[systemd]' 'ansible-core>=2.17'"; fi
    local offline='Failed to establish a new connection|name resolution|Name or service not known|unreachable'
    offline+='|No route to host|Connection refused|ConnectTimeout|ReadTimeout|ProxyError|Max retries exceeded'
    offline+='|Connection (aborted|reset)|CERTIFICATE_VERIFY_FAILED'
    if grep -q 'No space left on device' "$log"; then
        die $E_DISK no_space_pip
    fi
    if why=$(grep -m 1 -oE "$offline" "$log"); then die $E_NETWORK network "$why" "$what" "$COMMAND"; fi
    warn pip_failed "$(realpath "$log")"
    tail -n 15 "$log" >&2
    exit $E_PIP
}

prepare_venv() { # LEVEL (base; lean: and the test tools; dev: and PyTorch) PYTHON
    local level=$1 python=$2 print extras="" made
    print=$(fingerprint "$python")
    if venv_is_ready "$level" "$print"; then
        say ready
        return
    fi
    check_disk
    # pip believes in half-unpacked packages, so what was interrupted is made anew; downloads are in pip's cache.
    if [[ -e .venv/.cosyd-unfinished ]]; then
        say resume
        rm -rf .venv
    elif [[ -d .venv ]] && ! .venv/bin/python -c "import pip, sys; sys.exit(sys.prefix != '$PWD/.venv')" 2>/dev/null; then
        rm -rf .venv
    fi
    rm -f .venv/.cosyd-stamp
    mkdir -p .venv
    : >.venv/.cosyd-unfinished
    if ! made=$("$python" -m venv .venv 2>&1); then
        warn venv_failed "$python"
        printf '%s\n' "$made" >&2
        exit $E_VENV
    fi
    if [[ $level == dev && $(free_mib) -lt $NEED_TORCH_MIB ]]; then
        say no_torch_disk "$(free_mib)" "$PWD" "$NEED_TORCH_MIB"
        level=lean
    fi
    if [[ $level != base ]]; then
        extras="dev"
        if [[ $level == dev ]]; then extras+=",cosyvoice"; fi
        if can_build_systemd "$python"; then extras+=",systemd"; fi
    fi
    say installing "$(text "size_$level")"
    local started=$SECONDS
    run_pip -e ".${extras:+[$extras]}" || pip_trouble
    if [[ -t 2 ]]; then printf '\r\033[K' >&2; fi
    sync -f .venv # pip syncs nothing, and a power cut in the next half minute must not leave a stamp on empty files
    printf '%s %s\n' "$print" "$level" >.venv/.cosyd-stamp
    rm -f .venv/.cosyd-unfinished
    say installed "$((SECONDS - started))"
}

set_up() { # LEVEL
    local python
    check_checkout
    check_writable
    one_at_a_time
    python=$(find_python)
    check_venv_module "$python"
    system_packages "$1" "$python"
    prepare_venv "$1" "$python"
    exec 9<&- # the lock is for the set-up, not for what it starts
}

# ---- Commands ------------------------------------------------------------------------------------------------------

cmd_try() {
    local arguments=()
    if [[ $START == yes ]]; then check_port "${PORT:-7860}"; fi
    set_up base
    if [[ $START == no ]]; then
        say not_started
        return
    fi
    [[ -z $PORT ]] || arguments+=(--port "$PORT")
    [[ $LAN == no ]] || arguments+=(--lan)
    [[ -z $STATE ]] || arguments+=(--state "$STATE")
    say starting
    exec .venv/bin/cosyd run "${arguments[@]}"
}

cmd_test() {
    if [[ $TORCH == no ]]; then
        say no_torch
        export COSYD_NO_TORCH=1 # tests/cosyvoice3: the skips were asked for
        set_up lean
    else
        set_up dev
    fi
    # Tests of a file share its fixtures; those that measure time take turns (tests/turns.py). -n 0 for one process.
    exec .venv/bin/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile "$@"
}

# ---- The appliance -------------------------------------------------------------------------------------------------

options_again() { # the one command to go on with after a restart
    local arguments=(install)
    [[ $COSYVOICE == no || -n $MODEL_DIR ]] || arguments+=(--cosyvoice)
    [[ -z $MODEL_DIR ]] || arguments+=(--model-dir "$MODEL_DIR")
    [[ -z $MIRROR ]] || arguments+=(--mirror "$MIRROR")
    [[ -z $PROFILE ]] || arguments+=(--profile "$PROFILE")
    [[ $GPU == auto ]] || arguments+=(--no-gpu)
    [[ $DRIVER == keep ]] || arguments+=(--driver "$DRIVER")
    [[ -z $PORT ]] || arguments+=(--port "$PORT")
    [[ $UNATTENDED == no ]] || arguments+=(--unattended)
    printf '%q ' "${arguments[@]}"
}

look() { # PYTHON: what was found, what will be done, what stands in the way. Its exit status is ours
    local arguments=(--port "${PORT:-7860}" --gpu "$GPU" --driver "$DRIVER")
    [[ -z $PROFILE ]] || arguments+=(--profile "$PROFILE")
    [[ $COSYVOICE == no ]] || arguments+=(--cosyvoice)
    [[ -z $MODEL_DIR ]] || arguments+=(--model-dir "$MODEL_DIR")
    [[ -z $MIRROR ]] || arguments+=(--source modelscope)
    PYTHONPATH=$PWD PYTHONDONTWRITEBYTECODE=1 "$1" -m daemon.preflight "${arguments[@]}"
}

ask_to_go_on() {
    local answer=""
    [[ $UNATTENDED == no ]] || return 0
    [[ -t 0 ]] || die $E_USAGE not_asked
    printf '%s' "$(text go_on)"
    read -r answer || true
    [[ $answer =~ $(text yes) ]] || die $E_DECLINED declined
}

environment_for_tools() { # apt reads the small names only; pip runs in other folders than this
    local name
    for name in http_proxy https_proxy no_proxy; do
        if [[ -z ${!name:-} ]]; then
            local large=${name^^}
            if [[ -n ${!large:-} ]]; then export "$name=${!large}"; fi
        fi
    done
    if [[ -d ${PIP_FIND_LINKS:-} ]]; then
        PIP_FIND_LINKS=$(realpath -- "$PIP_FIND_LINKS")
        export PIP_FIND_LINKS
    fi
    export PIP_DISABLE_PIP_VERSION_CHECK=1
}

prepare_tools() { # PYTHON: Ansible, and what a wheel of this checkout is built with
    local python=$1 wanted print
    VENV=$PROVISION/venv
    # The extra `provision` is read and not installed: it would bring all of cosyd along, and the linters.
    mapfile -t wanted < <("$python" -c '
import tomllib
extra = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["provision"]
print(*(line for line in extra if line.startswith("ansible-core")), "setuptools>=77", "pip", sep="\n")')
    print=$({ printf '%s\n' "${wanted[@]}" && "$python" -VV; } | sha256sum | cut -d ' ' -f 1)
    [[ $(cat "$VENV/.stamp" 2>/dev/null || true) != "$print" ]] || return 0
    say tools
    rm -rf "$VENV"
    mkdir -p "$PROVISION"
    if ! "$python" -m venv "$VENV" >"$PROVISION/venv.log" 2>&1; then
        warn venv_failed "$python"
        cat "$PROVISION/venv.log" >&2
        exit $E_VENV
    fi
    run_pip "${wanted[@]}" || pip_trouble
    sync -f "$VENV" # see prepare_venv
    printf '%s\n' "$print" >"$VENV/.stamp"
}

play() { # PLAYBOOK KEY=VALUE...: on this machine. Values are text, or yes and no
    local playbook=$1 language=en
    shift
    if chinese; then language=zh; fi
    "$PROVISION/venv/bin/python" -c '
import json, sys
language, *pairs = sys.argv[1:]
values = {f"{role}_language": language for role in ("hardware_profile", "nvidia_driver", "cuda", "cosyd", "model", "swap")}
for key, value in (pair.split("=", 1) for pair in pairs):
    values[key] = {"yes": True, "no": False}.get(value, int(value) if value.isdecimal() else value)
print(json.dumps(values))' "$language" "$@" >"$PROVISION/variables.json"
    cat >"$PROVISION/inventory.ini" <<END
[cosyd]
localhost ansible_connection=local ansible_become=false ansible_python_interpreter=$PROVISION/venv/bin/python
END
    : >"$PROVISION/last.log" # Ansible adds to it
    # A server's locale may be plain C, and Ansible wants UTF-8. The language of its messages comes with the variables.
    env LC_ALL=C.UTF-8 PATH="$PROVISION/venv/bin:$PATH" ANSIBLE_CONFIG="$PWD/ansible/ansible.cfg" \
        ANSIBLE_HOME="$PROVISION/ansible" ANSIBLE_REMOTE_TEMP="$PROVISION/ansible/tmp" ANSIBLE_LOG_PATH="$PROVISION/last.log" \
        "$PROVISION/venv/bin/ansible-playbook" -i "$PROVISION/inventory.ini" \
        --extra-vars "@$PROVISION/variables.json" "ansible/$playbook" </dev/null
}

first_words() { # speaks a sentence with the service, and shows where the page is
    local sound address url
    sound=$(mktemp)
    if tail -n 3 "$PROVISION/last.log" | grep -q ' changed=0 '; then # a sentence each time would fill the history
        say all_well
    elif /usr/local/bin/cosyd say "$(text sentence)" >"$sound" 2>/dev/null && [[ $(stat -c %s "$sound") -gt 20000 ]]; then
        # 48000 bytes of wav are a second
        say spoke "$(awk -v bytes="$(stat -c %s "$sound")" 'BEGIN { printf "%.1f", (bytes - 44) / 48000 }')"
    else
        say mute
    fi
    rm -f "$sound"
    url=$(/usr/local/bin/cosyd login-link 2>/dev/null || true)
    address=${url#http://}
    address=${address%%/*}
    say address "$address"
    say login "$url"
    say pairing "$address"
}

cmd_install() {
    local python status=0
    check_checkout
    is_root || [[ $DRY_RUN == yes ]] || die $E_ROOT root install
    if [[ -n $MODEL_DIR ]]; then
        [[ -d $MODEL_DIR ]] || die $E_USAGE no_folder "$MODEL_DIR"
        MODEL_DIR=$(realpath -- "$MODEL_DIR")
    fi
    umask 022 # the service is another user, and has to read what comes
    environment_for_tools
    python=$(find_python)
    look "$python" || status=$?
    if [[ ! -d /run/systemd/system ]]; then
        warn no_systemd
        if ((status == 0)); then status=$E_SYSTEMD; fi
    fi
    if [[ $DRY_RUN == yes || $status != 0 ]]; then
        say nothing_changed
        exit "$status"
    fi
    ask_to_go_on
    one_at_a_time
    packages_begin
    check_venv_module "$python"
    packages_end
    prepare_tools "$python"
    say working
    play site.yml cosyd_build_dir="$PROVISION/build" cosyd_build_offline=yes hardware_profile_python="$python" \
        hardware_profile_choice="${PROFILE:-auto}" hardware_profile_gpu="$GPU" nvidia_driver_policy="$DRIVER" \
        cosyd_port="${PORT:-7860}" cosyd_cosyvoice="$COSYVOICE" model_folder="$MODEL_DIR" \
        model_source="$([[ -n $MIRROR ]] && echo modelscope || echo auto)" || die $E_PLAYBOOK playbook_failed "$PROVISION/last.log"
    [[ ! -e $APPLIANCE/restart-needed ]] || die $E_RESTART restart "$(options_again)"
    first_words
}

remove_appliance() { # the whole of /opt/cosyd goes, and with it what did the work
    local python word answer=""
    is_root || die $E_ROOT root uninstall
    if [[ $PURGE == yes ]]; then
        word=$(text purge_word)
        printf '%s' "$(text purge_ask /var/lib/cosyd "$word")" >&2
        read -r answer || true
        [[ $answer == "$word" ]] || die $E_DECLINED purge_no /var/lib/cosyd
    fi
    environment_for_tools
    python=$(find_python)
    if [[ ! -x $PROVISION/venv/bin/ansible-playbook ]]; then
        packages_begin
        check_venv_module "$python"
        packages_end
    fi
    prepare_tools "$python"
    say removing
    play uninstall.yml cosyd_purge="$PURGE" || die $E_PLAYBOOK playbook_failed "$PROVISION/last.log"
    rm -rf "$APPLIANCE"
    say appliance_gone
    if [[ -d /var/lib/cosyd ]]; then say kept_appliance; fi
}

cmd_uninstall() {
    if [[ -e $APPLIANCE && -z $STATE ]]; then
        check_checkout
        one_at_a_time
        remove_appliance
        if [[ ! -e .venv && ! -e cosyd.egg-info ]]; then return; fi
        exec 9<&-
    fi
    local state=${STATE:-${COSYD_STATE_DIR:-$PWD/.cosyd}} gone=() path word answer=""
    check_checkout
    one_at_a_time
    if state_in_use "$state"; then die $E_RUNNING running "$state"; fi
    if [[ $PURGE == yes && -d $state ]]; then # asked before anything is removed
        [[ -e $state/cosyd.db || -e $state/instance.lock ]] || die $E_DECLINED not_state "$state"
        word=$(text purge_word)
        printf '%s' "$(text purge_ask "$state" "$word")" >&2
        read -r answer || true
        [[ $answer == "$word" ]] || die $E_DECLINED purge_no "$state"
        rm -rf "$state"
        gone+=("$state")
    fi
    for path in .venv cosyd.egg-info; do
        if [[ -e $path ]]; then
            rm -rf "$path"
            gone+=("$path")
        fi
    done
    if ((${#gone[@]})); then say removed "${gone[*]}"; else say nothing; fi
    if [[ -d $state ]]; then say kept "$state"; fi
}

menu() {
    local answer=""
    say menu
    [[ -t 0 ]] || die $E_USAGE menu_no_tty
    printf '%s' "$(text menu_ask)"
    read -r answer || true
    case $answer in
    1 | try) cmd_try ;;
    2 | test) cmd_test ;;
    3 | install) cmd_install ;;
    4 | uninstall) cmd_uninstall ;;
    *) exit 0 ;;
    esac
}

main() {
    local command="" rest=()
    PORT="" LAN=no STATE="" YES=no START=yes PURGE=no TORCH=yes VENV=.venv COMMAND=""
    DRY_RUN=no UNATTENDED=no COSYVOICE=no MODEL_DIR="" MIRROR="" PROFILE="" GPU=auto DRIVER=keep
    while (($#)); do
        case $1 in
        try | test | install | uninstall)
            [[ -z $command ]] || die $E_USAGE bad_option "$1"
            command=$1
            ;;
        -h | --help)
            say usage
            exit 0
            ;;
        --port | --state | --model-dir | --mirror | --profile | --driver)
            (($# > 1)) || die $E_USAGE needs_value "$1"
            case $1 in
            --port) PORT=$2 ;;
            --state) STATE=$(realpath -m -- "$2") ;;
            --model-dir) MODEL_DIR=$(realpath -m -- "$2") COSYVOICE=yes ;;
            --mirror) MIRROR=$2 ;;
            --profile) PROFILE=$2 ;;
            --driver) DRIVER=$2 ;;
            esac
            shift
            ;;
        --dry-run) DRY_RUN=yes ;;
        --unattended) UNATTENDED=yes ;;
        --cosyvoice) COSYVOICE=yes ;;
        --no-gpu) GPU=none ;;
        --lan) LAN=yes ;;
        --yes | -y) YES=yes ;;
        --no-start) START=no ;;
        --purge) PURGE=yes ;;
        --no-torch) TORCH=no ;;
        --)
            shift
            rest=("$@")
            break
            ;;
        *) die $E_USAGE bad_option "$1" ;;
        esac
        shift
    done
    if [[ -n $PORT ]]; then
        [[ $PORT =~ ^[1-9][0-9]{0,4}$ && $PORT -le 65535 ]] || die $E_USAGE bad_port "$PORT"
    fi
    if ((${#rest[@]})) && [[ $command != test ]]; then die $E_USAGE bad_option "${rest[0]}"; fi
    [[ -z $MIRROR || $MIRROR == cn ]] || die $E_USAGE bad_mirror "$MIRROR"
    [[ " keep install replace " == *" $DRIVER "* ]] || die $E_USAGE bad_driver "$DRIVER"
    [[ -z $PROFILE || " cpu gpu-4g gpu-6g gpu-12g " == *" $PROFILE "* ]] || die $E_USAGE bad_profile "$PROFILE"
    COMMAND=$command
    SELF=$(realpath -- "${BASH_SOURCE[0]:-$0}")
    cd -- "$(dirname -- "$SELF")"
    OS_RELEASE=/etc/os-release
    case $command in
    try) cmd_try ;;
    test) cmd_test "${rest[@]}" ;;
    install) cmd_install ;;
    uninstall) cmd_uninstall ;;
    "") menu ;;
    esac
}

# A whole function, then its call: an install.sh that was cut short by a broken download does nothing.
main "$@"
