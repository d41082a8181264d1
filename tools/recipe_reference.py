#!/usr/bin/env python3
"""Writes tests/recipe/dialects.jsonl: what deepseek-recipe makes of conversations and model output.

usage: recipe_reference.py [--cases N] [--seed N] > tests/recipe/dialects.jsonl
Needs the Python package deepseek-recipe 0.2.0 (MIT). Each line: a dialect, a request body, the
model's output cut into pieces, how it ended, and the events that the package gives, in a short form
(see tests/recipe/README.md).
"""
import argparse
import json
import random
import re

from deepseek_recipe import (
    ChatCompletionRequest, ConversionOptions, InferenceChunk, InferenceFinishReason,
    MessagesRequest, PromptUsage, ResponsesRequest, StreamProcessor)

MODEL = 'DeepSeek-V4.1-Flash'
SCHEMA = {'type': 'object', 'properties': {'city': {'type': 'string'}}}
REQUESTS = {'chat': ChatCompletionRequest, 'messages': MessagesRequest,
            'responses': ResponsesRequest}
WORDS = ['hello', ' world', '\n', '\n\n', '<', '</', 'think', '｜', '<｜', '"', '\\', 'é', '😀', ' ',
         '>', '{"a": 1}', 'Rome', ' is', ' STOP', '.', ',']
TAGS = [(' calls', ' invoke', ' parameter'), ('tool_calls', 'invoke', 'parameter')]


def words(rng, most):
    return ''.join(rng.choice(WORDS) for _ in range(rng.randrange(most)))


def value(rng):
    if rng.random() < 0.5:
        return 'true', words(rng, 5)
    return 'false', json.dumps(rng.choice([1, -2.5, None, True, [1, 'x'], {'k': 'v'}, 's']))


def calls(rng):
    block, invoke, parameter = rng.choice(TAGS)
    text = f'\n\n<｜DSML｜{block}>\n'
    for _ in range(rng.randrange(1, 4)):
        text += f'<｜DSML｜{invoke} name="{rng.choice(["weather", "time"])}">\n'
        for key in rng.sample(['city', 'days', 'units', 'é'], rng.randrange(4)):
            is_string, content = value(rng)
            text += (f'<｜DSML｜{parameter} name="{key}" string="{is_string}">{content}'
                     f'</｜DSML｜{parameter}>\n')
        text += f'</｜DSML｜{invoke}>\n'
    return text + f'</｜DSML｜{block}>'


def output(rng, thinking, tools):
    text = ''
    if thinking:
        text += words(rng, 6)
        if rng.random() < 0.9:
            text += '</think>'
    text += words(rng, 7)
    if tools and rng.random() < 0.7:
        text += ('.' if text[-1:] in ('<', '/', '｜', 'k') else '') + calls(rng)
    return text


def cut_short(rng, text):
    """A place to stop that is not within the name of a parameter."""
    while True:
        end = rng.randrange(len(text) + 1)
        if not re.search(r'parameter name=("[^"]*)?$', text[:end]):
            return text[:end]


def cut(rng, text):
    pieces = []
    while text:
        size = rng.randrange(1, 16)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def request(rng, dialect, thinking, tools):
    body = {}
    if dialect == 'responses':
        body['input'] = 'hi'
        body['reasoning'] = {'effort': 'high' if thinking else 'none'}
        if tools:
            body['tools'] = [{'type': 'function', 'name': name, 'parameters': SCHEMA}
                             for name in ('weather', 'time')]
        return body
    body['messages'] = [{'role': 'user', 'content': 'hi'}]
    body['thinking'] = {'type': 'enabled' if thinking else 'disabled'}
    stops = [] if rng.random() < 0.7 else rng.sample([' STOP', 'world', '}'], 1)
    if dialect == 'chat':
        if stops:
            body['stop'] = stops
        if tools:
            body['tools'] = [{'type': 'function', 'function': {'name': name, 'parameters': SCHEMA}}
                             for name in ('weather', 'time')]
        return body
    body['max_tokens'] = 1000
    if stops:
        body['stop_sequences'] = stops
    if tools:
        body['tools'] = [{'name': name, 'input_schema': SCHEMA} for name in ('weather', 'time')]
    return body


def of_chat(chunk, finish):
    for choice in chunk['choices']:
        delta = choice['delta']
        if 'role' in delta:
            yield ['role']
        if delta.get('reasoning_content'):
            yield ['reasoning', delta['reasoning_content']]
        if delta.get('content'):
            yield ['content', delta['content']]
        for call in delta.get('tool_calls', []):
            if 'id' in call:
                yield ['call', call['index'], call['function']['name']]
            if call['function'].get('arguments'):
                yield ['arguments', call['index'], call['function']['arguments']]
        if choice['finish_reason']:
            yield ['finish', choice['finish_reason']]


def of_messages(event, finish):
    kind = event['type']
    if kind == 'content_block_start':
        block = event['content_block']
        yield ['open', event['index'], block['type'], block.get('name', '')]
    elif kind == 'content_block_delta':
        delta = event['delta']
        if delta['type'] == 'signature_delta':
            yield ['signature', event['index']]
        else:
            text = delta.get('text', delta.get('thinking', delta.get('partial_json')))
            yield [delta['type'], event['index'], text]
    elif kind == 'content_block_stop':
        yield ['close', event['index']]
    elif kind == 'message_delta':
        yield ['end', event['delta']['stop_reason'], event['delta']['stop_sequence']]
    else:
        yield [kind]


def of_responses(event, finish):
    kind = event['type']
    if kind == 'response.output_item.added':
        yield [kind, event['output_index'], event['item']['type'], event['item'].get('name', '')]
    elif kind == 'response.output_item.done':
        item = event['item']
        status = '' if finish == 'length' else item['status']
        yield [kind, event['output_index'], status, item.get('phase', '')]
    elif kind.endswith('.delta'):
        yield [kind, event['output_index'], event['delta']]
    elif 'output_index' in event:
        text = event.get('text', event.get('arguments', event.get('part', {}).get('text', '')))
        yield [kind, event['output_index'], text]
    else:
        yield [kind]


SHORT = {'chat': of_chat, 'messages': of_messages, 'responses': of_responses}


def merged(events):
    """Neighbours that differ in their last member alone, a text, become one."""
    out = []
    for event in events:
        flows = event[0] in ('reasoning', 'content', 'arguments') or event[0].endswith('delta')
        if flows and out and out[-1][:-1] == event[:-1]:
            out[-1][-1] += event[-1]
        else:
            out.append(event)
    return out


def run(dialect, body, pieces, finish):
    kind = REQUESTS[dialect]
    converted = kind({**body, 'model': MODEL, 'stream': True}).convert(ConversionOptions())
    generator = kind.chunk_generator(converted, 'id_a', MODEL)
    processor = StreamProcessor(generator, converted.parsing_options)
    usage = PromptUsage(prompt_tokens=10, prompt_cache_hit_tokens=0)
    chunks = [InferenceChunk.ready(prompt_usage=usage)]
    chunks += [InferenceChunk.text(piece, 1) for piece in pieces]
    reason = InferenceFinishReason.Length if finish == 'length' else InferenceFinishReason.Stop
    chunks.append(InferenceChunk.finish(reason))
    events = []
    for chunk in chunks:
        if processor.finished:
            break
        events += processor.push(chunk)
    if not processor.finished:
        events += processor.finish()
    shorten = SHORT[dialect]
    return merged(short for event in events for short in shorten(json.loads(event.to_json()), finish))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--cases', type=int, default=360)
    parser.add_argument('--seed', type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    for case in range(options.cases):
        dialect = ('chat', 'messages', 'responses')[case % 3]
        thinking, tools = rng.random() < 0.6, rng.random() < 0.6
        body = request(rng, dialect, thinking, tools)
        text = output(rng, thinking, tools)
        finish = 'stop'
        if rng.random() < 0.3:
            text, finish = cut_short(rng, text), 'length'
        pieces = cut(rng, text)
        # The library keeps a line break after what might have been a mark.
        if re.search('[</｜k]\n+<｜DSML｜', text):
            continue
        print(json.dumps({'dialect': dialect, 'body': body, 'pieces': pieces, 'finish': finish,
                          'events': run(dialect, body, pieces, finish)},
                         ensure_ascii=False, separators=(',', ':')))


if __name__ == '__main__':
    main()
