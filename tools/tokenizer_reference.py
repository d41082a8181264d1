#!/usr/bin/env python3
"""Makes the tokenizer references of tests/tokenizer with the Hugging Face package `tokenizers`.

  tools/tokenizer_reference.py --gguf SmolLM2.gguf --tokenizers DIR [--train]

DIR holds qwen3.tokenizer.json.xz and deepseek_v3.tokenizer.json.xz. Each model becomes NAME.tok (a
tokenizer.json without vocabulary and merges, then these in binary) and an entry of reference.json:
hashes of the ids of mixed text. The text comes from mix.json by a generator that
src/text/tokenizer_reference_test.cc repeats, so the tests need neither the package nor the text.
Needs: tokenizers, gguf. --train trains the small models anew instead of reading their .tok files.
"""
import argparse
import json
import lzma
import os
import struct

from tokenizers import (Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        trainers)

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "tokenizer")
MASK = (1 << 64) - 1
MIB = 1 << 20
TEXT_SEED, TEXT_BYTES = 1, MIB
SPLIT_SEED, SPLIT_BYTES = 2, 1 << 17
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


class Rng:
    """SplitMix64."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return (z ^ (z >> 31)) % n

    def pick(self, items):
        return items[self.below(len(items))]


def mixed_text(mix, seed, size):
    rng = Rng(seed)
    sources = [mix["texts"], mix["texts"], mix["code"], mix["data"], mix["languages"],
               mix["languages"]]
    parts, length = [], 0
    while length < size:
        kind = rng.below(20)
        made = []
        if kind < 9:
            source = rng.pick(sources)
            start = rng.below(len(source))
            for i in range(1 + rng.below(4)):
                made.append(source[(start + i) % len(source)] + "\n")
        elif kind < 12:
            source = rng.pick(sources)
            for _ in range(1 + rng.below(20)):
                made.append(rng.pick(rng.pick(source).split(" ")))
                made.append(rng.pick(mix["joins"]))
        elif kind < 14:
            low, high = rng.pick(mix["ranges"])
            made = [chr(low + rng.below(high - low + 1)) for _ in range(1 + rng.below(24))]
        elif kind == 14:
            for _ in range(1 + rng.below(16)):
                low, high = rng.pick(mix["ranges"])
                made.append(chr(low + rng.below(high - low + 1)))
        else:
            name, most = [("spaces", 6), ("digits", 16), ("bits", 5), ("emoji", 5),
                          ("specials", 2)][kind - 15]
            made = [rng.pick(mix[name]) for _ in range(1 + rng.below(most))]
        made.append(["", " ", "\n", ""][rng.below(4)])
        text = "".join(made)
        parts.append(text)
        length += len(text.encode())
    return "".join(parts)


def fnv(data, value=0xCBF29CE484222325):
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def hash_ids(ids):
    """FNV-1a over whole 32-bit ids."""
    value = 0xCBF29CE484222325
    for token in ids:
        value = ((value ^ token) * 0x100000001B3) & MASK
    return f"{value:016x}"


def hash_texts(texts):
    value = 0xCBF29CE484222325
    for text in texts:
        value = fnv(text.encode() + b"\xff", value)
    return f"{value:016x}"


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_tok(name, config):
    """`config` is a parsed tokenizer.json."""
    model = config["model"]
    body = bytearray()
    if model["type"] == "BPE":
        vocab = model["vocab"]
        size = max(vocab.values()) + 1
        pieces = [""] * size
        for piece, index in vocab.items():
            pieces[index] = piece
        merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
        # A piece that an earlier merge makes is not written: it is left + right.
        known, made, rows = set(), set(), []
        for left, right in merges:
            known.update(p for p in (left, right) if p not in made)
            if left + right not in known:
                made.add(left + right)
        previous = -1
        for left, right in merges:
            merged = vocab[left + right]
            step = merged - previous - 1
            rows.append(varint(vocab[left]) + varint(vocab[right]) +
                        varint(step * 2 if step >= 0 else -step * 2 - 1))
            previous = merged
        for piece in pieces:
            text = b"" if piece in made else piece.encode()
            body += varint(len(text)) + text
        body += b"".join(rows)
        counts = {"vocab_count": size, "merge_count": len(merges)}
    else:
        for piece, score in model["vocab"]:
            body += varint(len(piece.encode())) + piece.encode() + struct.pack("<f", score)
        counts = {"vocab_count": len(model["vocab"]), "merge_count": 0}
    header = {k: v for k, v in config.items() if k not in ("model", "truncation", "padding")}
    header["model"] = {k: v for k, v in model.items() if k not in ("vocab", "merges")} | counts
    text = json.dumps(header, ensure_ascii=False).encode()
    with open(os.path.join(HERE, name + ".tok"), "wb") as out:
        out.write(struct.pack("<I", len(text)) + text + body)


def read_tok(name):
    """The tokenizer.json that write_tok was given."""
    data = open(os.path.join(HERE, name + ".tok"), "rb").read()
    length, = struct.unpack_from("<I", data)
    config = json.loads(data[4:4 + length])
    at = 4 + length

    def take():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    model = config["model"]
    size, merge_count = model.pop("vocab_count"), model.pop("merge_count")
    pieces, scores = [], []
    for _ in range(size):
        length = take()
        pieces.append(data[at:at + length].decode())
        at += length
        if model["type"] == "Unigram":
            scores.append(struct.unpack_from("<f", data, at)[0])
            at += 4
    if model["type"] == "Unigram":
        model["vocab"] = [list(pair) for pair in zip(pieces, scores)]
        return config
    merges, previous = [], -1
    for _ in range(merge_count):
        left, right, step = take(), take(), take()
        merged = previous + 1 + (step // 2 if step % 2 == 0 else -(step + 1) // 2)
        pieces[merged] = pieces[left] + pieces[right]
        merges.append([pieces[left], pieces[right]])
        previous = merged
    model["vocab"] = {piece: index for index, piece in enumerate(pieces) if piece}
    model["merges"] = merges
    return config


def added(index, content, **flags):
    token = dict(id=index, content=content, single_word=False, lstrip=False, rstrip=False,
                 normalized=False, special=True)
    return token | flags


def smollm2(path):
    from gguf import GGUFReader
    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = fields["tokenizer.ggml.merges"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    return dict(
        version="1.0", truncation=None, padding=None,
        added_tokens=[added(i, tokens[i]) for i, kind in enumerate(types) if kind == 3],
        normalizer=None,
        pre_tokenizer=dict(type="Sequence", pretokenizers=[
            dict(type="Digits", individual_digits=True),
            dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)]),
        post_processor=None,
        decoder=dict(type="ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=True),
        model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None,
                   end_of_word_suffix=None, fuse_unk=False, byte_fallback=False,
                   vocab={piece: i for i, piece in enumerate(tokens)},
                   merges=[list(m.split(" ")) for m in merges]))


def train_byte_level(lines, pre, ignore_merges, size, extra):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=size, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    config = json.loads(tokenizer.to_str())
    for i, token in enumerate(extra):
        config["added_tokens"].append(added(size + i, **token))
    return config


def train_small(lines):
    """name -> tokenizer.json of the trained models."""
    out = {}
    out["gpt2_small"] = train_byte_level(
        lines, pre_tokenizers.ByteLevel(add_prefix_space=True), False, 3000,
        [dict(content="<|endoftext|>"),
         dict(content="    ", special=False, normalized=True),
         dict(content="don", special=False, single_word=True),
         dict(content="<mask>", lstrip=True), dict(content="[INST]", rstrip=True)])
    out["llama3_small"] = train_byte_level(
        lines, pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), True, 4000,
        [dict(content="<|begin_of_text|>"), dict(content="<|im_end|>")])
    metaspace = pre_tokenizers.Metaspace()
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = metaspace
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(lines, trainers.UnigramTrainer(
        vocab_size=3000, show_progress=False, unk_token="<unk>",
        special_tokens=["<unk>", "<s>", "</s>"]))
    config = json.loads(tokenizer.to_str())
    for entry in config["model"]["vocab"]:
        entry[1] = struct.unpack("<f", struct.pack("<f", entry[1]))[0]
    out["unigram_small"] = config
    fallback = json.loads(json.dumps(config))
    fallback["model"]["byte_fallback"] = True
    fallback["model"]["vocab"] += [[f"<0x{b:02X}>", -20.0] for b in range(256)]
    fallback["normalizer"] = dict(type="NFC")
    fallback["pre_tokenizer"] = dict(type="Metaspace", replacement="▁", prepend_scheme="first",
                                     split=False)
    fallback["decoder"] = dict(type="Sequence", decoders=[
        dict(type="Replace", pattern=dict(String="▁"), content=" "), dict(type="ByteFallback"),
        dict(type="Fuse"), dict(type="Strip", content=" ", start=1, stop=0)])
    out["unigram_bytes"] = fallback
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = metaspace
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=3000, show_progress=False, limit_alphabet=600,
        special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]))
    config = json.loads(tokenizer.to_str())
    config["added_tokens"] = config["added_tokens"][:3]
    config["pre_tokenizer"] = None
    config["normalizer"] = dict(type="Sequence", normalizers=[
        dict(type="Prepend", prepend="▁"),
        dict(type="Replace", pattern=dict(String=" "), content="▁")])
    config["decoder"] = fallback["decoder"]
    out["fallback_small"] = config
    words = json.loads(json.dumps(config))
    words["model"] |= dict(byte_fallback=False, fuse_unk=False)
    words["normalizer"] = dict(type="Sequence", normalizers=[
        dict(type="NFKD"), dict(type="Lowercase"),
        dict(type="Strip", strip_left=True, strip_right=True)])
    words["pre_tokenizer"] = dict(type="Sequence", pretokenizers=[
        dict(type="Whitespace"), dict(type="Punctuation", behavior="Isolated"),
        dict(type="Digits", individual_digits=False)])
    words["decoder"] = None
    out["words_small"] = words
    return out


def split_cases():
    """Those of our own scanners, and those that PCRE2 runs."""
    def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
        return dict(type="Split", pattern={kind: pattern}, behavior=behavior, invert=invert)

    def byte_level(prefix=False, regex=True):
        return dict(type="ByteLevel", add_prefix_space=prefix, trim_offsets=True, use_regex=regex)

    behaviors = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
    lower = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    upper = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
    tail = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    tekken = (rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*|"
              r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + tail)
    qwen35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
              r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + tail)
    cl100k = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+|"
              r" ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s")
    regexes = [[split(p)] for p in (tekken, cl100k, r"\s+", r"\S+|\s", r"[^\s]+", r"\d+|\w+",
                                    r"(?=[A-Z])", r"a*", r"[\s,.]+", r"\bthe\b", r"(ab|c{1,2}+)+d?")]
    cases = [[split(qwen35)]]
    cases += [[split(LLAMA3, b, i)] for b in behaviors for i in (False, True)]
    cases += [[split("▁", b, i, "String")] for b in behaviors for i in (False, True)]
    cases += [[split(" ", b, kind="String")] for b in behaviors]
    cases += [[dict(type="Punctuation", behavior=b)] for b in behaviors]
    cases += [[dict(type="Metaspace", replacement="▁", prepend_scheme=s, split=p)]
              for s in ("always", "first", "never") for p in (True, False)]
    cases += [[dict(type="Digits", individual_digits=True)],
              [dict(type="Digits", individual_digits=False)], [dict(type="Whitespace")],
              [dict(type="WhitespaceSplit")], [byte_level()], [byte_level(True)],
              [byte_level(True, False)], [byte_level(), split("Ġ", kind="String")],
              [dict(type="Digits", individual_digits=False), byte_level()]]
    sequence = [[dict(type="Sequence", pretokenizers=steps) for steps in some]
                for some in (cases, regexes)]
    return sequence[0], sequence[1]


def normalizer_cases():
    cases = [[dict(type=t)] for t in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")]
    cases += [[dict(type="Strip", strip_left=a, strip_right=b)] for a in (True, False)
              for b in (True, False)]
    cases += [[dict(type="Replace", pattern=dict(String="the"), content="<é>")],
              [dict(type="Prepend", prepend="▁▁")],
              [dict(type="NFKD"), dict(type="Lowercase"), dict(type="Prepend", prepend="x"),
               dict(type="Replace", pattern=dict(String="x "), content="")]]
    return [dict(type="Sequence", normalizers=steps) for steps in cases]


def from_parts(**parts):
    config = dict(version="1.0", truncation=None, padding=None, added_tokens=[], normalizer=None,
                  pre_tokenizer=None, post_processor=None, decoder=None,
                  model=dict(type="BPE", dropout=None, unk_token=None,
                             continuing_subword_prefix=None, end_of_word_suffix=None,
                             fuse_unk=False, byte_fallback=False, vocab={"a": 0}, merges=[]))
    return Tokenizer.from_str(json.dumps(config | parts))


def reference(config, text, lines):
    tokenizer = Tokenizer.from_str(json.dumps(config))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    line_ids = [i for e in tokenizer.encode_batch(lines, add_special_tokens=False) for i in e.ids]
    rng = Rng(9)
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    random_ids = [rng.below(size + 5) for _ in range(20000)]
    entry = dict(count=len(ids), hash=hash_ids(ids), line_count=len(line_ids),
                 line_hash=hash_ids(line_ids),
                 decode_lines=hash_texts(tokenizer.decode_batch(
                     [e.ids for e in tokenizer.encode_batch(
                         [line for line in lines if "<0x" not in line],
                         add_special_tokens=False)], skip_special_tokens=True)))
    if "ByteFallback" not in json.dumps(config["decoder"]):
        # Where bytes do not make text we write one U+FFFD for each maximal prefix of a character,
        # the package's ByteFallback one for each byte.
        entry["decode"] = hash_texts([tokenizer.decode(ids, skip_special_tokens=False)])
        entry["decode_random"] = hash_texts([tokenizer.decode(random_ids,
                                                              skip_special_tokens=True)])
    return entry


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--tokenizers", required=True)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--dump", metavar="DIR", help="also write the text and the ids there")
    args = parser.parse_args()
    mix = json.load(open(os.path.join(HERE, "mix.json"), encoding="utf-8"))
    text = mixed_text(mix, TEXT_SEED, TEXT_BYTES)
    lines = text.split("\n")
    configs = {"smollm2": smollm2(args.gguf)}
    for name in ("qwen3", "deepseek_v3"):
        with lzma.open(os.path.join(args.tokenizers, name + ".tokenizer.json.xz")) as file:
            configs[name] = json.load(file)
    if args.train:
        configs |= train_small([line for name in ("texts", "code", "data", "languages")
                                for line in mix[name]])
    else:
        configs |= {name[:-4]: read_tok(name[:-4]) for name in sorted(os.listdir(HERE))
                    if name.endswith(".tok") and name[:-4] not in configs}
    out = dict(text=hash_texts([text]), models={}, splits=[], regex_splits=[], normalizers=[])
    for name, config in configs.items():
        write_tok(name, config)
        if read_tok(name)["model"]["vocab"] != config["model"]["vocab"]:
            raise SystemExit(f"{name}.tok does not give the vocabulary back")
        out["models"][name] = reference(config, text, lines)
        print(name, out["models"][name])
        if args.dump:
            with open(os.path.join(args.dump, name + ".ids"), "w", encoding="ascii") as file:
                ids = Tokenizer.from_str(json.dumps(config)).encode(text, add_special_tokens=False)
                file.write("\n".join(map(str, ids.ids)))
    cases = mixed_text(mix, SPLIT_SEED, SPLIT_BYTES).split("\n\n")
    # PCRE2 may be older than the newest characters, so its cases run over the plain lines.
    plain = [line for name in ("texts", "code", "data", "languages") for line in mix[name]]
    for name, steps_list, texts in zip(("splits", "regex_splits"), split_cases(), (cases, plain)):
        for steps in steps_list:
            split = from_parts(pre_tokenizer=steps).pre_tokenizer
            pieces = [piece for case in texts for piece, _ in split.pre_tokenize_str(case)]
            out[name].append(dict(pre_tokenizer=steps, count=len(pieces), hash=hash_texts(pieces)))
    for steps in normalizer_cases():
        form = from_parts(normalizer=steps).normalizer
        out["normalizers"].append(dict(
            normalizer=steps, hash=hash_texts(form.normalize_str(case) for case in cases)))
    with open(os.path.join(HERE, "reference.json"), "w", encoding="utf-8") as file:
        json.dump(out, file, ensure_ascii=False, indent=1)
        file.write("\n")
    if args.dump:
        with open(os.path.join(args.dump, "text.txt"), "w", encoding="utf-8", newline="") as file:
            file.write(text)


if __name__ == "__main__":
    main()
