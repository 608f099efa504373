"""Hostile files for tests of uploads: what names other files and addresses, lies, or is broken."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

from tests.unit.clipkit import RATE


def playlists(target: str) -> dict[str, str]:
    """Every way we know to say "play that" in text."""
    mpd = (
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" '
        'profiles="urn:mpeg:dash:profile:isoff-on-demand:2011" mediaPresentationDuration="PT4S" '
        f'minBufferTime="PT1S"><BaseURL>{target}</BaseURL><Period><AdaptationSet mimeType="audio/mp4" '
        'contentType="audio"><Representation id="1" bandwidth="1" codecs="mp4a.40.2"><BaseURL>'
        f"{target}</BaseURL><SegmentList><SegmentURL media=\"{target}\"/></SegmentList></Representation>"
        "</AdaptationSet></Period></MPD>"
    )  # fmt: skip
    return {
        "m3u": f"#EXTM3U\n#EXTINF:4,x\n{target}\n",
        "m3u8": "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:4\n#EXT-X-MEDIA-SEQUENCE:0\n#EXTINF:4,\n"
        f"{target}\n#EXT-X-ENDLIST\n",
        "m3u8 master": f"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\n{target}\n",
        "m3u8 key": "#EXTM3U\n#EXT-X-TARGETDURATION:4\n"
        f'#EXT-X-KEY:METHOD=AES-128,URI="{target}",IV=0x0\n#EXTINF:4,\n{target}\n#EXT-X-ENDLIST\n',
        "m3u8 map": f'#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXT-X-MAP:URI="{target}"\n#EXTINF:4,\n{target}\n',
        "concat": f"ffconcat version 1.0\nfile '{target}'\nduration 4\n",
        "concat bare": f"file '{target}'\n",
        "dash": mpd,
        "imf": '<?xml version="1.0"?><CompositionPlaylist xmlns="http://www.smpte-ra.org/schemas/2067-3/2016">'
        f"<Id>urn:uuid:1</Id><x>{target}</x></CompositionPlaylist>",
        "smooth": f'<?xml version="1.0"?><SmoothStreamingMedia MajorVersion="2"><c n="{target}"/>'
        "</SmoothStreamingMedia>",
        "pls": f"[playlist]\nNumberOfEntries=1\nFile1={target}\nLength1=4\nVersion=2\n",
        "asx": f'<asx version="3.0"><entry><ref href="{target}"/></entry></asx>',
        "wpl": f'<?wpl version="1.0"?><smil><body><seq><media src="{target}"/></seq></body></smil>',
        "smil": f'<smil><body><audio src="{target}"/></body></smil>',
        "xspf": '<?xml version="1.0"?><playlist version="1" xmlns="http://xspf.org/ns/0/"><trackList><track>'
        f"<location>{target}</location></track></trackList></playlist>",
        "cue": f'FILE "{target}" WAVE\n  TRACK 01 AUDIO\n    INDEX 01 00:00:00\n',
        "b4s": f'<WinampXML><playlist><entry Playstring="file:{target}"/></playlist></WinampXML>',
        "ram": f"{target}\n--stop--\n",
        "qtl": '<?xml version="1.0"?><?quicktime type="application/x-quicktime-media-link"?>'
        f'<embed src="{target}"/>',
        "rtsptext": f"RTSPtext\r\n{target}\r\n",
        "sdp": "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
        f"m=audio 5004 RTP/AVP 0\r\na=control:{target}\r\n",
        "avisynth": f'DirectShowSource("{target}")\n',
        "vapoursynth": f"import vapoursynth\nvapoursynth.core.ffms2.Source('{target}').set_output()\n",
        "lavfi": f"amovie={target}",
        "ffmetadata": f";FFMETADATA1\ntitle={target}\n",
        "svg": '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
        f'<image xlink:href="{target}"/></svg>',
        "html": f'<html><audio src="{target}" autoplay></audio></html>',
        "rss": f'<rss version="2.0"><channel><item><enclosure url="{target}" type="audio/wav"/></item>'
        "</channel></rss>",
        "xml entity": f'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY x SYSTEM "{target}">]><MPD>&x;</MPD>',
        "internet shortcut": f"[InternetShortcut]\nURL={target}\n",
        "vobsub": "# VobSub index file, v7\nid: en, index: 0\ntimestamp: 00:00:00:000, filepos: 0\n"
        f"{target}\n",
        "sami": f"<SAMI><BODY><SYNC Start=0><P>{target}</BODY></SAMI>",
        "yuv image list": "img%03d.ppm\n",
    }  # fmt: skip


TARGETS = ("absolute", "relative", "file", "http", "concat:", "data", "subfile", "climb", "fd")


def target(tone: Path, url: str, kind: str) -> str:
    """The neighbour `tone`, or an address of `url`, in one of the ways of `TARGETS`."""
    return {
        "absolute": str(tone),
        "relative": "tone.wav",
        "file": f"file://{tone}",
        "http": f"{url}/tone.wav",
        "concat:": f"concat:{tone}|{tone}",
        "data": "data:audio/wav;base64,UklGRg==",
        "subfile": f"subfile,,start,0,end,0,,:{tone}",
        "climb": "../" * 12 + str(tone).lstrip("/"),
        "fd": "/dev/fd/0",
    }[kind]


def box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I", 8 + len(body)) + kind + body


def full(kind: bytes, *parts: bytes, flags: int = 0) -> bytes:
    return box(kind, struct.pack(">I", flags), *parts)


def references(where: str, name: str) -> list[bytes]:
    """Data references of an MP4 that lie outside of it: url, urn, and QuickTime's alias."""
    text = where.encode() + b"\0"
    path = name.encode()
    alias = bytearray(150)
    alias[4:6] = struct.pack(">H", 150)
    alias[10:12] = b"\0\0"
    alias[50 : 51 + min(63, len(path))] = bytes([min(63, len(path))]) + path[:63]
    alias[132:134], alias[134:136] = struct.pack(">h", 1), struct.pack(">h", 1)
    tail = struct.pack(">hH", 2, len(path)) + path + (b"\0" if len(path) % 2 else b"")
    tail += struct.pack(">hH", 18, len(text) - 1) + text[:-1] + struct.pack(">hH", -1, 0)
    return [full(b"url ", text), full(b"urn ", b"x\0" + text), full(b"alis", bytes(alias) + tail)]


def movie(reference: bytes, entries: int = 4 * RATE) -> bytes:
    """An MP4 of PCM whose samples are said to lie in another file, from byte 44 on."""
    entry = box(
        b"sowt", bytes(6), struct.pack(">H", 1), bytes(8), struct.pack(">HHHHI", 1, 16, 0, 0, RATE << 16)
    )
    table = box(
        b"stbl",
        full(b"stsd", struct.pack(">I", 1), entry),
        full(b"stts", struct.pack(">III", 1, entries, 1)),
        full(b"stsc", struct.pack(">IIII", 1, 1, entries, 1)),
        full(b"stsz", struct.pack(">II", 2, entries)),
        full(b"stco", struct.pack(">II", 1, 44)),
    )
    information = box(
        b"minf",
        full(b"smhd", bytes(4)),
        box(b"dinf", full(b"dref", struct.pack(">I", 1), reference)),
        table,
    )
    media = box(
        b"mdia",
        full(b"mdhd", struct.pack(">IIIIHH", 0, 0, RATE, entries, 0, 0)),
        full(b"hdlr", b"mhlrsoun", bytes(13)),
        information,
    )
    track = box(b"trak", full(b"tkhd", struct.pack(">IIIII", 0, 0, 1, 0, entries), bytes(60), flags=3), media)
    header = full(b"mvhd", struct.pack(">IIII", 0, 0, RATE, entries), bytes(80))
    return box(b"ftyp", b"qt  \0\0\0\0qt  ") + box(b"moov", header, track)


def avi_with_gab2(playlist: str) -> bytes:
    """An AVI with a subtitle "file" inside that is a playlist: what made ffmpeg read /etc/passwd in 2017."""
    data = b"GAB2\0\x02\0" + struct.pack("<I", 2) + b"\0\0" + b"\x04\0" + struct.pack("<I", len(playlist))
    data += playlist.encode()

    def chunk(kind: bytes, body: bytes) -> bytes:
        return kind + struct.pack("<I", len(body)) + body + (b"\0" if len(body) % 2 else b"")

    stream = b"txts" + bytes(4) + bytes(12) + struct.pack("<IIIIIII", 1, 1, 0, 1, 0, 0, 0) + bytes(8)
    listed = chunk(b"LIST", b"strl" + chunk(b"strh", stream) + chunk(b"strf", bytes(8)))
    header = chunk(
        b"LIST",
        b"hdrl" + chunk(b"avih", struct.pack("<14I", 1, 0, 0, 16, 1, 0, 1, 0, 2, 2, 0, 0, 0, 0)) + listed,
    )
    return chunk(b"RIFF", b"AVI " + header + chunk(b"LIST", b"movi" + chunk(b"00tx", data)))


def polyglots(tone: Path) -> dict[str, bytes]:
    """Files that are two things at once, or claim to be what they are not."""
    playlist = playlists(str(tone))["m3u8"]
    tiny = bytes(tone.read_bytes()[:44])
    jpeg = b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0" + bytes(64) + b"\xff\xd9"
    zipped = b"PK\x03\x04" + bytes(26) + b"a.wav" + bytes(100)
    return {
        "avi gab2": avi_with_gab2(playlist),
        "id3 then playlist": b"ID3\x03\0\0\0\0\0\x0a" + bytes(10) + playlist.encode(),
        "bom playlist": b"\xef\xbb\xbf" + playlist.encode(),
        "utf16 playlist": playlist.encode("utf-16"),
        "wav header, playlist body": tiny + playlist.encode(),
        "playlist in a wav chunk": b"RIFF" + struct.pack("<I", 4 + 8 + len(playlist)) + b"WAVELIST"
        + struct.pack("<I", len(playlist)) + playlist.encode(),
        "gzip": b"\x1f\x8b\x08\0\0\0\0\0\0\x03" + zlib.compress(playlist.encode())[2:-4] + bytes(8),
        "zip": zipped, "jpeg": jpeg, "elf": b"\x7fELF" + bytes(200), "pdf": b"%PDF-1.7\n" + playlist.encode(),
        "png": b"\x89PNG\r\n\x1a\n" + bytes(64), "class": b"\xca\xfe\xba\xbe" + bytes(64),
        "iso": bytes(32769) + b"CD001" + bytes(4000), "shebang": b"#!/bin/sh\ntouch /tmp/owned\n",
        "mkv with an attachment": b"\x1a\x45\xdf\xa3\x9fB\x86\x81\x01B\xf7\x81\x01" + playlist.encode(),
        "ogg page of text": b"OggS\0\x02" + bytes(20) + b"\x01\xff" + playlist.encode(),
        "flac of text": b"fLaC" + playlist.encode(), "caf of text": b"caff\0\x01\0\0" + playlist.encode(),
    }  # fmt: skip


def huge_headers() -> dict[str, bytes]:
    """Headers that promise the moon."""

    def wav(channels: int, rate: int, bits: int, length: int, form: int = 1) -> bytes:
        block = max(1, channels * bits // 8) & 0xFFFF
        head = struct.pack(
            "<HHIIHH", form, channels & 0xFFFF, rate & 0xFFFFFFFF, (rate * block) & 0xFFFFFFFF, block, bits
        )
        return (
            b"RIFF\xff\xff\xff\x7fWAVEfmt \x10\0\0\0"
            + head
            + b"data"
            + struct.pack("<I", length)
            + bytes(4000)
        )

    flac = b"fLaC\0\0\0\x22" + struct.pack(">HH", 65535, 65535) + bytes(6) + b"\xff" * 24
    return {
        "65535 channels": wav(65535, 48000, 16, 4000), "rate 0": wav(1, 0, 16, 4000),
        "rate 2^32": wav(1, 2**32 - 1, 16, 4000), "0 channels": wav(0, 48000, 16, 4000),
        "999 bits": wav(1, 48000, 999, 4000), "odd form": wav(2, 48000, 16, 4000, 0x1234),
        "4 GB of data": wav(1, 48000, 16, 0xFFFFFFF0), "negative": wav(1, 48000, 16, 0x80000001),
        "flac of 2^36": flac, "flac of pictures": b"fLaC\x06\xff\xff\xff" + bytes(100),
        "ogg of 255 channels": b"OggS\0\x02" + bytes(20) + b"\x01\x1e\x01vorbis\0\0\0\0\xff" + b"\xff" * 24,
        "id3 of 256 MB": b"ID3\x04\0\0\x7f\x7f\x7f\x7f" + bytes(100),
        "box of 2^63": b"\0\0\0\x18ftypM4A " + bytes(12) + b"\0\0\0\x01moov" + struct.pack(">Q", 2**63 - 1),
        "a table of 2^32 samples": movie(full(b"url ", flags=1), entries=0xFFFFFFFF),
        "boxes in boxes": b"\0\0\0\x18ftypM4A " + bytes(12)
        + b"".join(struct.pack(">I", 80_000 - 8 * i) + b"moov" for i in range(9000)),
        "ebml of 2^56": b"\x1a\x45\xdf\xa3\x01" + b"\xff" * 7 + bytes(100),
        "caf of packets": b"caff\0\x01\0\0desc" + struct.pack(">qd", 32, 1e300) + b"lpcm" + b"\xff" * 20,
        "aiff of 2^31 frames": b"FORM\x7f\xff\xff\xffAIFFCOMM\0\0\0\x12\0\x01\x7f\xff\xff\xff\0\x10"
        b"@\x0e\xbb\x80" + bytes(6),
        "w64": b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\0\0" + b"\xff" * 100,
        "au": b".snd\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\x03\0\0\xbb\x80\xff\xff\xff\xff" + bytes(500),
    }  # fmt: skip


def spoil(data: bytes, rng: np.random.Generator) -> bytes:
    """Cut off, bits turned, a hole, a piece doubled, a field set to the extreme, another's tail."""
    broken = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        if not broken:
            break
        at, length = int(rng.integers(0, len(broken))), int(rng.integers(1, 64))
        match int(rng.integers(0, 6)):
            case 0:
                del broken[at:]
            case 1:
                for _ in range(length):
                    broken[int(rng.integers(0, len(broken)))] ^= 1 << int(rng.integers(0, 8))
            case 2:
                del broken[at : at + length]
            case 3:
                broken[at:at] = broken[at : at + length * 16]
            case 4:
                at = int(rng.integers(0, min(len(broken), 512)))
                broken[at : at + 4] = bytes(rng.choice([0, 255, 127, 128], 4).astype(np.uint8))
            case _:
                broken[at:] = rng.bytes(length)
    return bytes(broken)
