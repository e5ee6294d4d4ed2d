# SPDX-License-Identifier: MIT
"""Makes the text and the tokenizer of the demo checkpoint.

    bible -f gen1:1-rev22:21 > raw.txt          # Debian packages bible-kjv and bible-kjv-text (public domain)
    python prepare.py raw.txt WORK_DIR

WORK_DIR gets train.txt, validation.txt (Judges), heldout.txt (the Gospel of John), tokenizer.json and the three texts as
token arrays (train.npy, ...). The tokenizer sees train.txt only.
"""
import pathlib
import re
import sys

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCAB = 2048
HELDOUT, VALIDATION = "John", "Jdgs"
BOOKS = {
    "Ge": "Genesis", "Exo": "Exodus", "Lev": "Leviticus", "Num": "Numbers", "Deu": "Deuteronomy", "Josh": "Joshua",
    "Jdgs": "Judges", "1Sm": "1 Samuel", "2Sm": "2 Samuel", "1Ki": "1 Kings", "2Ki": "2 Kings", "1Chr": "1 Chronicles",
    "2Chr": "2 Chronicles", "Neh": "Nehemiah", "Est": "Esther", "Psa": "Psalms", "Prv": "Proverbs",
    "Eccl": "Ecclesiastes", "SSol": "Song of Solomon", "Isa": "Isaiah", "Jer": "Jeremiah", "Lam": "Lamentations",
    "Eze": "Ezekiel", "Dan": "Daniel", "Hos": "Hosea", "Obad": "Obadiah", "Mic": "Micah", "Hab": "Habakkuk",
    "Zep": "Zephaniah", "Hag": "Haggai", "Zec": "Zechariah", "Mal": "Malachi", "Mat": "Matthew", "Rom": "Romans",
    "1Cor": "1 Corinthians", "2Cor": "2 Corinthians", "Gal": "Galatians", "Eph": "Ephesians", "Phi": "Philippians",
    "Col": "Colossians", "1Th": "1 Thessalonians", "2Th": "2 Thessalonians", "1Tim": "1 Timothy", "2Tim": "2 Timothy",
    "Phmn": "Philemon", "Heb": "Hebrews", "Jas": "James", "1Pet": "1 Peter", "2Pet": "2 Peter", "1Jn": "1 John",
    "2Jn": "2 John", "3Jn": "3 John", "Rev": "Revelation"}

SPECIAL = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
# The chat encoder's markers: plain (not special), normalised added tokens, as in the release.
ADDED = [AddedToken(t, special=False, normalized=True) for t in (
    "<｜System｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "<｜latest_reminder｜>")]


def chapters(raw):
    """[(book, text of one chapter)]: a heading line, then the verses as one paragraph."""
    out, last = [], None
    for line in raw.splitlines():
        book, chapter, text = re.fullmatch(r"(\d?[A-Za-z]+)(\d+):\d+ +(.*?) *", line).groups()
        if (book, chapter) != last:
            out.append((book, f"{BOOKS.get(book, book)} {chapter}\n"))
            last = (book, chapter)
            out[-1] = (book, out[-1][1] + text)
        else:
            out[-1] = (book, out[-1][1] + " " + text)
    return out


def train_tokenizer(text):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
        pre_tokenizers.Split(Regex("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), "isolated"),
        pre_tokenizers.Split(Regex(
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(add_prefix_space=True, trim_offsets=False, use_regex=True)
    trainer = trainers.BpeTrainer(vocab_size=VOCAB - len(ADDED), special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator(text.split("\n\n"), trainer)
    tok.add_tokens(ADDED)
    assert tok.get_vocab_size() == VOCAB
    return tok


def main():
    raw, work = pathlib.Path(sys.argv[1]).read_text(), pathlib.Path(sys.argv[2])
    work.mkdir(parents=True, exist_ok=True)
    parts = {"train": [], "validation": [], "heldout": []}
    for book, text in chapters(raw):
        parts["heldout" if book == HELDOUT else "validation" if book == VALIDATION else "train"].append(text)
    texts = {k: "\n\n".join(v) + "\n" for k, v in parts.items()}
    tok = train_tokenizer(texts["train"])
    tok.save(str(work / "tokenizer.json"))
    for k, text in texts.items():
        (work / f"{k}.txt").write_text(text)
        ids = np.array(tok.encode(text, add_special_tokens=False).ids, np.int32)
        assert tok.decode(ids.tolist(), skip_special_tokens=False) == text
        np.save(work / f"{k}.npy", ids)
        print(f"{k}: {len(text.encode())} bytes, {len(ids)} tokens, {len(text.encode()) / len(ids):.3f} bytes a token")


if __name__ == "__main__":
    main()
