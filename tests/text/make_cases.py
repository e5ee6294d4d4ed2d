# SPDX-License-Identifier: MIT
"""Writes the tokenizer cases of tests/text/data with the Rust `tokenizers` package, the reference for ids and text.

Usage: make_cases.py V4_TOKENIZER_JSON TOY_TOKENIZER_JSON OUT_FOLDER
  v4_cases.json   10,000 texts: the first 500 with their ids, the others with the 64-bit FNV-1a of their ids (as
                  little-endian int32); then id lists with their decoded text, special tokens kept and dropped.
  toy_cases.json  variants of the toy tokenizer (added tokens with every flag, both merge spellings, ignore_merges, the
                  GPT-2 split), each with texts, ids and decoded text.
Everything is seeded, so the same package version writes the same files.
"""
import copy
import json
import pathlib
import random
import sys

from tokenizers import Tokenizer, __version__

SPACES = "\t\n\v\f\r \x1c\x85\xa0\u1680\u180e\u2000\u2007\u2009\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
POOLS = [
    "0123456789\uff11\uff12\u0663\u096a\u2167\u00bd\U0001d7d8", "abcdeXYZ\u00e9\u00df\u00f1\u01c5\u0130\u017f\u03c2",
    "\u4f60\u597d\u4e16\u754c\u4e00\u9fa5\u9fa6\u3041\u3093\u30a1\u30fc\u30ff\u3040\u30a0\U00020000",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "\u0301\u0308\u0345\u20dd\u0903\u200d\ufe0f", "\U0001f600\U0001f468\U0001f469\U0001f1e9\U0001f1ea\U0001f3fd\u2764",
    "\u05d0\u05d1\u05b7\u062f\u0651\uac00\ud55c\u0e01\u0e31\u0905\u093f\u10d0\u1200", "\uff5c\u2581<>think/|DSML",
    "\u3002\uff0c\u00ab\u20ac\u00a9\u2200\u1ce9\ua4cf",
    "\u1c89\U00031350\U0001fae8\U00011f02\U00010efd\U000e0001",  # assigned after Unicode 14, and a format character
]
FRAGMENTS = [" the", " of", "ing", "er", "'s", " 12", "\r\n", "\n\n", "  ", ". ", "ab", " Q", "\u7684"]
FNV_START, FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


def fnv(ids):
    h = FNV_START
    for i in ids:
        for b in i.to_bytes(4, "little"):
            h = (h ^ b) * FNV_PRIME % 2**64
    return f"{h:016x}"


def any_char(rng):
    c = rng.randrange(0x110000 - 0x800)
    return chr(c if c < 0xD800 else c + 0x800)


def text(rng, added, most):
    out, size = "", rng.randint(0, most)
    while len(out) < size:
        kind = rng.random()
        if kind < 0.06:
            out += rng.choice(added)
        elif kind < 0.10:
            out += any_char(rng)
        elif kind < 0.18:
            out += rng.choice(SPACES) * rng.randint(1, 5)
        elif kind < 0.5:
            out += rng.choice(FRAGMENTS)
        else:
            pool = rng.choice(POOLS)
            out += "".join(rng.choice(pool) for _ in range(rng.randint(1, 4)))
    return out


def v4_cases(path):
    tok, rng = Tokenizer.from_file(path), random.Random(41)
    added = [t.content for t in tok.get_added_tokens_decoder().values()]
    texts = [text(rng, added, 22) for _ in range(10000)]
    cases = []
    for i, (t, e) in enumerate(zip(texts, tok.encode_batch(texts, add_special_tokens=False))):
        assert tok.decode(e.ids, skip_special_tokens=False) == t
        cases.append([t, e.ids if i < 500 else fnv(e.ids)])
    partial = [i for i in range(tok.get_vocab_size()) if "\ufffd" in tok.decode([i])]
    decodes = []
    for i in range(1500):
        if i < 300:
            ids = [rng.choice(partial)]
        else:
            ids = [rng.choice(partial) if rng.random() < 0.6 else rng.randrange(tok.get_vocab_size())
                   for _ in range(rng.randint(0, 7))]
        decodes.append([ids, tok.decode(ids, skip_special_tokens=False), tok.decode(ids, skip_special_tokens=True)])
    return {"written_by": f"tests/text/make_cases.py, tokenizers {__version__}", "encode": cases, "decode": decodes}


CONTENTS = ["<a>", "<a>b", "ab", "b c", " x", "x ", "\u00e9", "<", "the", "fox", "a", "\u0120q", "<<", "\u2028z",
            "z\u00a0", "\u65e5", "\u65e5\u672c", "\u4e2d\u56fd", "cat", "Cat"]
PARTS = ["a", "b", " ", "  ", "x", "<", ">", "\u00e9", "the fox", "it's", "_", "9", "\u2028", "\u00a0", "\u24b6", "\u200d",
         "\u0301", "z", "\u65e5", "\u672c", "."]


def variant(base, rng):
    """Added tokens and options to put on top of the toy file."""
    vocab = base["model"]["vocab"]
    free = max([*vocab.values(), *(a["id"] for a in base["added_tokens"])]) + 1
    contents, added = rng.sample(CONTENTS, rng.randint(4, len(CONTENTS))), []
    for c in contents:
        token_id = vocab.get(c, free)
        free += c not in vocab
        flags = {f: rng.random() < 0.35 for f in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        added.append({"id": token_id, "content": c, **flags})
    return {"added": added, "ignore_merges": rng.random() < 0.5, "gpt2_split": rng.random() < 0.4,
            "merges_as_text": rng.random() < 0.4}


def apply(base, v):
    out = copy.deepcopy(base)
    out["added_tokens"] = sorted(out["added_tokens"] + v["added"], key=lambda a: a["id"])
    out["model"]["ignore_merges"] = v["ignore_merges"]
    if v["gpt2_split"]:
        out["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    if v["merges_as_text"]:
        out["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in out["model"]["merges"]]
    return out


def toy_cases(path):
    base, rng = json.loads(pathlib.Path(path).read_text()), random.Random(4)
    variants = [{"added": [], "ignore_merges": False, "gpt2_split": False, "merges_as_text": False}]
    variants += [variant(base, rng) for _ in range(7)]
    for v in variants:
        tok = Tokenizer.from_str(json.dumps(apply(base, v)))
        contents = [a["content"] for a in v["added"]] or ["<\uff5cbegin\u2581of\u2581sentence\uff5c>", "fox"]
        v["cases"] = []
        for i in range(250):
            if i % 2:
                t = "".join(rng.choice(contents) if rng.random() < 0.4 else rng.choice(PARTS)
                            for _ in range(rng.randint(0, 10)))
            else:
                t = text(rng, contents, 12)
            e = tok.encode(t, add_special_tokens=False)
            v["cases"].append([t, e.ids, tok.decode(e.ids, skip_special_tokens=True)])
    return {"written_by": f"tests/text/make_cases.py, tokenizers {__version__}", "variants": variants}


def main():
    v4, toy, out = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    for name, cases in (("v4_cases.json", v4_cases(v4)), ("toy_cases.json", toy_cases(toy))):
        rows = json.dumps(cases, separators=(",", ":")).replace("],[", "],\n[")  # one case a line, for diffs
        (out / name).write_text(rows + "\n")


main()
