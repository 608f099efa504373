"""The markup that CosyVoice 3 knows, by kind. Data only; a test holds it equal to the model's token list.

Light on purpose: the web and the CLI check what people type against it, without any engine.
"""

from __future__ import annotations

EVENTS: frozenset[str] = frozenset(
    "breath noise laughter cough clucking accent quick_breath hissing sigh vocalized-noise lipsmack mn".split()
)
"""`[breath]`: sounds that are no words."""

TAGS: frozenset[str] = frozenset({"strong", "laughter"})
"""`<strong>...</strong>`."""

ARPABET: frozenset[str] = frozenset(
    """
    AA AA0 AA1 AA2 AE AE0 AE1 AE2 AH AH0 AH1 AH2 AO AO0 AO1 AO2 AW AW0 AW1 AW2 AY AY0 AY1 AY2 B CH D DH EH EH0
    EH1 EH2 ER ER0 ER1 ER2 EY EY0 EY1 EY2 F G HH IH IH0 IH1 IH2 IY IY0 IY1 IY2 JH K L M N NG OW OW0 OW1 OW2 OY
    OY0 OY1 OY2 P R S SH T TH UH UH0 UH1 UH2 UW UW0 UW1 UW2 V W Y Z ZH
    """.split()
)

INITIALS: frozenset[str] = frozenset("b p m f d t n l g k h j q x zh ch sh r z c s y w".split())

FINALS: frozenset[str] = frozenset(
    """
    a ai an ang ao e ei en eng i ian in ing iu o ong ou u uang ue un uo
    ià iàn iàng iào iá ián iáng iáo iè ié iòng ióng iù iú iā iān iāng iāo iē iě iōng iū iǎ iǎn iǎng iǎo iǒng iǔ
    uà uài uàn uàng uá uái uán uáng uè ué uì uí uò uó uā uāi uān uāng uē uě uī uō uǎ uǎi uǎn uǎng uǐ uǒ vè
    à ài àn àng ào á ái án áng áo è èi èn èng èr é éi én éng ér ì ìn ìng í ín íng ò òng òu ó óng óu
    ù ùn ú ún ā āi ān āng āo ē ēi ēn ēng ě ěi ěn ěng ěr ī īn īng ō ōng ōu ū ūn
    ǎ ǎi ǎn ǎng ǎo ǐ ǐn ǐng ǒ ǒng ǒu ǔ ǔn ǘ ǚ ǜ
    """.split()
)

PINYIN: frozenset[str] = INITIALS | FINALS

ALL: frozenset[str] = EVENTS | ARPABET | PINYIN
"""Everything that may stand in square brackets."""
