"""Links, e-mail and IP addresses as they are read in Chinese and English. Pure.

One policy: the scheme, `www.`, the query and the fragment are not spoken; host and a short path are, with the
dots and slashes as words. A long path is left out: nobody can follow it by ear.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pipeline.text import numbers_en, numbers_zh
from pipeline.text.rule import Rule, rule

_TLD = (
    "com|org|net|edu|gov|io|ai|dev|app|cn|de|uk|fr|jp|eu|info|me|tv|co|us|ca|au|ru|hk|tw|ch|at|it|es|nl|kr|in"
    "|local|lan|example|test|xyz|site|online|tech|cloud|club|shop|wiki|blog"
)
_HOST = r"(?:[A-Za-z0-9][A-Za-z0-9-]{0,62}\.){1,6}"
_REST = r"[A-Za-z0-9_~!$&'*+;=:@%./?#,-]{0,2000}[A-Za-z0-9_~/=&%-]"
URL = (
    r"(?:[a-z]{2,8}://|www\.)[A-Za-z0-9.\[\]:@_-]{1,255}(?:[/?#](?:" + _REST + r")?)?(?<![.,:!?])"
    r"|" + _HOST + r"(?:" + _TLD + r")(?![A-Za-z0-9-])(?::[0-9]{1,5})?(?:/(?:" + _REST + r")?)?"
)
EMAIL = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}@" + _HOST + r"[A-Za-z]{2,24}(?![A-Za-z0-9])"
IP = (
    r"(?<![0-9.])(?:(?:25[0-5]|2[0-4][0-9]|1?[0-9]{1,2})\.){3}(?:25[0-5]|2[0-4][0-9]|1?[0-9]{1,2})(?![0-9])"
    r"(?!\.[0-9])(?::[0-9]{1,5})?(?:/[0-9]{1,2}(?![0-9]))?"
)
IPV6 = r"(?<![0-9A-Za-z:])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{1,4}(?![0-9A-Za-z:])"

_ZH: Mapping[str, str] = {
    ".": "点", "/": "斜杠", "-": "杠", "_": "下划线", ":": "冒号", "@": "艾特", "~": "波浪号", "+": "加",
    "?": "问号", "=": "等于", "&": "和", "%": "百分号", "#": "井号",
}  # fmt: skip
_EN: Mapping[str, str] = {
    ".": "dot", "/": "slash", "-": "dash", "_": "underscore", ":": "colon", "@": "at", "~": "tilde",
    "+": "plus", "?": "question mark", "=": "equals", "&": "and", "%": "percent", "#": "hash",
}  # fmt: skip
_PARTS = re.compile(r"[A-Za-z]+|[0-9]+|[^\s]")
_LONGEST_PATH = 40


def _spell(text: str, chinese: bool) -> str:
    names = _ZH if chinese else _EN
    said = []
    for part in _PARTS.findall(text):
        if part.isdigit() and part.isascii():
            said.append(numbers_zh.one_by_one(part) if chinese else numbers_en.one_by_one(part))
        else:
            said.append(names.get(part, part if part[0].isalpha() else " "))
    return _joined(said, chinese)


def _joined(said: list[str], chinese: bool) -> str:
    return "".join(said) if chinese else " " + " ".join(" ".join(said).split()) + " "


def link(match: re.Match[str], *, chinese: bool) -> str:
    """A URL. Never empty: the host is always spoken."""
    text = re.sub(r"^[a-z]{2,8}://", "", match[0])
    text = re.sub(r"^www\.", "", text)
    place = re.split(r"[?#]", text)[0].rstrip("/")
    host, slash, path = place.partition("/")
    host = host.rpartition("@")[2]
    if len(path) > _LONGEST_PATH or "%" in path:
        slash = path = ""
    return _spell(host + slash + path, chinese) if host else _spell(text, chinese)


def address(match: re.Match[str], *, chinese: bool) -> str:
    """An e-mail or IP address, every character of it."""
    return _spell(match[0], chinese)


def link_rules(*, chinese: bool) -> list[Rule]:
    """The rules of both languages, in their order; they come before all others."""
    return [
        rule("dl", URL, lambda m: link(m, chinese=chinese), then="[A-Za-z.-]"),
        rule("dl", EMAIL, lambda m: address(m, chinese=chinese), then="[A-Za-z._+@-]"),
        rule("d", IP, lambda m: address(m, chinese=chinese), then="[.]"),
        rule(
            "d",
            IPV6,
            lambda m: address(m, chinese=chinese) if m[0].count(":") > 2 else None,
            then="[A-Za-z:]",
        ),
    ]
