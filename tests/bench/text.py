"""Times the text front end, in CPU seconds: `python -m tests.bench.text [MB]`, a text of each kind."""

from __future__ import annotations

import sys
import time

from pipeline.text.segment import plan

UNITS = {
    "English prose": "The quick brown fox jumped over the lazy dog, and then it slept for a while. ",
    "Chinese prose": "今天先去菜场再去银行，然后回家做饭。",
    "Chinese numbers": "在2024年3月5日，价格是$1,299.50，涨了12.5%。",
    "English numbers": "On March 5, 2024 it cost $1,299.50, up 12.5% from 1999. ",
    "mixed": "我用iPhone 15 Pro拍了3张照片。",
    "Markdown": "# A **title**\n\n- one `item`\n- [two](http://example.com)\n\n",
}


def main(megabytes: float) -> None:
    """One line for each kind."""
    for name, unit in UNITS.items():
        text = unit * int(megabytes * 1_000_000 / len(unit))
        begun = time.process_time()
        count = len(plan(text, longest_s=25, first_short=True))
        print(f"{name:16} {time.process_time() - begun:6.2f} s  {count} segments")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
