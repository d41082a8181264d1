#!/usr/bin/env python3
"""Writes src/text/unicode_tables.inc: character classes of every code point.

Two stages: kCharStage1[cp >> 7] is a block number, kCharStage2[block * 128 + (cp & 127)] an index
into kCharClasses, whose entries are bit sets (see src/text/unicode.h). The package unicodedata2
is used when it is installed, so that the Unicode version can be chosen: Hugging Face tokenizers
compiles an Oniguruma of Unicode 16, so unicodedata2==16.0.0 reproduces its classes to the code
point.
"""
import sys

try:
    import unicodedata2 as ud
except ImportError:
    import unicodedata as ud

WHITE_SPACE = [*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028,
               0x2029, 0x202F, 0x205F, 0x3000]
# Other_Alphabetic outside the categories L, M and Nl (circled and squared letters).
OTHER_ALPHABETIC = [*range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A), *range(0x1F150, 0x1F16A),
                    *range(0x1F170, 0x1F18A)]
# Hugging Face normalizers hold the tables of Unicode 9 and Punctuation those of Unicode 8. Code
# points that have a combining class, a decomposition or category M, but not there yet:
NEW_MARKS = [
    (0x7FD, 0x7FD), (0x897, 0x89F), (0x8CA, 0x8D3), (0x9FE, 0x9FE), (0xAFA, 0xAFF), (0xB55,
    0xB55), (0xC04, 0xC04), (0xC3C, 0xC3C), (0xCF3, 0xCF3), (0xD00, 0xD00), (0xD3B, 0xD3C),
    (0xD81, 0xD81), (0xEBA, 0xEBA), (0xECE, 0xECE), (0x1715, 0x1715), (0x180F, 0x180F),
    (0x1ABF, 0x1ACE), (0x1CF7, 0x1CF7), (0x1DF6, 0x1DFA), (0x32FF, 0x32FF), (0xA7F2, 0xA7F4),
    (0xA82C, 0xA82C), (0xA8FF, 0xA8FF), (0xAB69, 0xAB69), (0x105C9, 0x105C9), (0x105E4,
    0x105E4), (0x10781, 0x10785), (0x10787, 0x107B0), (0x107B2, 0x107BA), (0x10D24, 0x10D27),
    (0x10D69, 0x10D6D), (0x10EAB, 0x10EAC), (0x10EFC, 0x10EFF), (0x10F46, 0x10F50), (0x10F82,
    0x10F85), (0x11070, 0x11070), (0x11073, 0x11074), (0x110C2, 0x110C2), (0x11145, 0x11146),
    (0x111C9, 0x111C9), (0x111CE, 0x111CF), (0x11241, 0x11241), (0x1133B, 0x1133B), (0x11383,
    0x11383), (0x11385, 0x11385), (0x1138E, 0x1138E), (0x11391, 0x11391), (0x113B8, 0x113C0),
    (0x113C2, 0x113C2), (0x113C5, 0x113C5), (0x113C7, 0x113CA), (0x113CC, 0x113D0), (0x113D2,
    0x113D2), (0x113E1, 0x113E2), (0x1145E, 0x1145E), (0x1182C, 0x1183A), (0x11930, 0x11935),
    (0x11937, 0x11938), (0x1193B, 0x1193E), (0x11940, 0x11940), (0x11942, 0x11943), (0x119D1,
    0x119D7), (0x119DA, 0x119E0), (0x119E4, 0x119E4), (0x11A01, 0x11A0A), (0x11A33, 0x11A39),
    (0x11A3B, 0x11A3E), (0x11A47, 0x11A47), (0x11A51, 0x11A5B), (0x11A8A, 0x11A99), (0x11D31,
    0x11D36), (0x11D3A, 0x11D3A), (0x11D3C, 0x11D3D), (0x11D3F, 0x11D45), (0x11D47, 0x11D47),
    (0x11D8A, 0x11D8E), (0x11D90, 0x11D91), (0x11D93, 0x11D97), (0x11EF3, 0x11EF6), (0x11F00,
    0x11F01), (0x11F03, 0x11F03), (0x11F34, 0x11F3A), (0x11F3E, 0x11F42), (0x11F5A, 0x11F5A),
    (0x13440, 0x13440), (0x13447, 0x13455), (0x1611E, 0x1612F), (0x16D68, 0x16D6A), (0x16F4F,
    0x16F4F), (0x16F7F, 0x16F87), (0x16FE4, 0x16FE4), (0x16FF0, 0x16FF1), (0x1CCD6, 0x1CCF9),
    (0x1CF00, 0x1CF2D), (0x1CF30, 0x1CF46), (0x1E030, 0x1E06D), (0x1E08F, 0x1E08F), (0x1E130,
    0x1E136), (0x1E2AE, 0x1E2AE), (0x1E2EC, 0x1E2EF), (0x1E4EC, 0x1E4EF), (0x1E5EE, 0x1E5EF),
    (0x1F16C, 0x1F16C), (0x1FBF0, 0x1FBF9),
]
# Category P, but not there yet:
NEW_PUNCTUATION = [
    (0x61D, 0x61D), (0x9FD, 0x9FD), (0xA76, 0xA76), (0xC77, 0xC77), (0xC84, 0xC84), (0x1B4E,
    0x1B4F), (0x1B7D, 0x1B7F), (0x2E43, 0x2E4F), (0x2E52, 0x2E5D), (0x10D6E, 0x10D6E),
    (0x10EAD, 0x10EAD), (0x10F55, 0x10F59), (0x10F86, 0x10F89), (0x113D4, 0x113D5), (0x113D7,
    0x113D8), (0x1144B, 0x1144F), (0x1145A, 0x1145B), (0x1145D, 0x1145D), (0x11660, 0x1166C),
    (0x116B9, 0x116B9), (0x1183B, 0x1183B), (0x11944, 0x11946), (0x119E2, 0x119E2), (0x11A3F,
    0x11A46), (0x11A9A, 0x11A9C), (0x11A9E, 0x11AA2), (0x11B00, 0x11B09), (0x11BE1, 0x11BE1),
    (0x11C41, 0x11C45), (0x11C70, 0x11C71), (0x11EF7, 0x11EF8), (0x11F43, 0x11F4F), (0x11FFF,
    0x11FFF), (0x12FF1, 0x12FF2), (0x16D6D, 0x16D6F), (0x16E97, 0x16E9A), (0x16FE2, 0x16FE2),
    (0x1E5FF, 0x1E5FF), (0x1E95E, 0x1E95F),
]
BITS = {"Lu": 1, "Ll": 2, "Lt": 4, "Lm": 8, "Lo": 16}
(MARK, NUMBER, PUNCT, SYMBOL, SPACE, WORD, NFC_INERT, NEW_MARK,
 NEW_PUNCT) = (1 << i for i in range(5, 14))
LIMIT = 0x110000
BLOCK = 128


def second_parts():
    """Code points that may compose with the character before them."""
    parts = set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    for cp in range(LIMIT):
        fields = ud.decomposition(chr(cp)).split()
        if len(fields) == 2 and not fields[0].startswith("<"):
            parts.add(int(fields[1], 16))
    return parts


def members(ranges):
    return {cp for low, high in ranges for cp in range(low, high + 1)}


def classes():
    seconds = second_parts()
    new_marks, new_punctuation = members(NEW_MARKS), members(NEW_PUNCTUATION)
    spaces = set(WHITE_SPACE)
    alphabetic = set(OTHER_ALPHABETIC)
    for cp in range(LIMIT):
        char = chr(cp)
        category = ud.category(char)
        value = BITS.get(category, 0)
        value |= {"M": MARK, "N": NUMBER, "P": PUNCT, "S": SYMBOL}.get(category[0], 0)
        if cp in spaces:
            value |= SPACE
        if (category[0] in "LM" or category in ("Nd", "Nl", "Pc") or cp in alphabetic
                or cp in (0x200C, 0x200D)):
            value |= WORD
        if category == "Cs" or (ud.combining(char) == 0 and cp not in seconds
                                and ud.normalize("NFC", char) == char):
            value |= NFC_INERT
        if cp in new_marks:
            value |= NFC_INERT | NEW_MARK
        if cp in new_punctuation:
            value |= NEW_PUNCT
        yield value


def rows(values):
    line = "   "
    for value in values:
        item = f" {value},"
        if len(line) + len(item) > 100:
            yield line
            line = "   "
        line += item
    yield line


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else "src/text/unicode_tables.inc"
    values = list(classes())
    distinct = sorted(set(values))
    index = {value: i for i, value in enumerate(distinct)}
    blocks, stage1, stage2 = {}, [], []
    for start in range(0, LIMIT, BLOCK):
        block = tuple(index[v] for v in values[start:start + BLOCK])
        if block not in blocks:
            blocks[block] = len(blocks)
            stage2.extend(block)
        stage1.append(blocks[block])
    assert len(blocks) < 65536 and len(distinct) < 256
    with open(path, "w", encoding="ascii") as out:
        out.write(f"// Generated by tools/gen_unicode.py from Unicode {ud.unidata_version}; "
                  "do not edit.\n")
        for kind, name, data in (("uint16_t", "kCharClasses", distinct),
                                 ("uint16_t", "kAsciiClasses", values[:128]),
                                 ("uint16_t", "kCharStage1", stage1),
                                 ("uint8_t", "kCharStage2", stage2)):
            out.write(f"const {kind} {name}[{len(data)}] = {{\n")
            out.write("\n".join(rows(data)) + "\n};\n")


if __name__ == "__main__":
    main()
