"""What a language tag, such as en, pt-BR or zh_Hant, tells."""

import re

# Written without spaces between words.
UNSPACED = frozenset({"bo", "dz", "ja", "km", "lo", "my", "th", "yue", "zh"})


def unspaced(tag: str) -> bool:
    return re.split("[-_]", tag)[0].lower() in UNSPACED
