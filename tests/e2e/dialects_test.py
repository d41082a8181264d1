"""Every dialect through the clients that people use, against the real binary and a small model.

usage: dialects_test.py [unittest arguments]; DEEPINFER_BINARY names the binary.
Packages that are not installed (openai, anthropic) are skipped and counted.
"""
import asyncio
import json
import os
import tempfile
import unittest

from server_process import ROOT, Server

try:
    import openai
except ImportError:
    openai = None
try:
    import anthropic
except ImportError:
    anthropic = None

MODEL = os.path.join(ROOT, 'checkpoints/tiny-v41')
TURN = [{'role': 'user', 'content': 'Say hello.'}]
FLAG = {'type': 'object', 'properties': {'ok': {'type': 'boolean'}}, 'required': ['ok'],
        'additionalProperties': False}
NO_THINKING = {'thinking': {'type': 'disabled'}}
SCHEMA = {'type': 'object', 'properties': {'city': {'type': 'string'}}, 'required': ['city']}


def format_of(schema):
    return {'type': 'json_schema', 'json_schema': {'name': 'answer', 'schema': schema}}


class DialectTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server('--max-model-len', '4096', model=MODEL, template=None)
        cls.base = f'http://127.0.0.1:{cls.server.port}'

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()


@unittest.skipIf(openai is None, 'the openai package is not installed')
class OpenAiTest(DialectTest):
    TOOLS = [{'type': 'function', 'function': {'name': 'weather', 'parameters': SCHEMA}}]

    def setUp(self):
        self.client = openai.OpenAI(base_url=self.base + '/v1', api_key='x', max_retries=0,
                                    timeout=120)

    def test_chat(self):
        whole = self.client.chat.completions.create(
            model='tiny', messages=TURN, max_tokens=12, seed=1)
        stream = self.client.chat.completions.create(
            model='tiny', messages=TURN, max_tokens=12, seed=1, stream=True,
            stream_options={'include_usage': True})
        text, reasoning, last = '', '', None
        for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ''
                reasoning += getattr(choice.delta, 'reasoning_content', None) or ''
            last = chunk
        message = whole.choices[0].message
        self.assertEqual(text, message.content or '')
        self.assertEqual(reasoning, getattr(message, 'reasoning_content', ''))
        self.assertEqual(last.usage.completion_tokens, whole.usage.completion_tokens)

    def test_chat_with_tools(self):
        with self.client.chat.completions.stream(
                model='tiny', messages=TURN, max_tokens=12, tools=self.TOOLS) as stream:
            try:
                self.assertGreater(len(list(stream)), 1)
                self.assertEqual(len(stream.get_final_completion().choices), 1)
            except openai.LengthFinishReasonError:  # the package's word for max_tokens
                pass

    def test_chat_async(self):
        async def run():
            client = openai.AsyncOpenAI(base_url=self.base + '/v1', api_key='x', max_retries=0)
            answers = await asyncio.gather(*(
                client.chat.completions.create(model='tiny', messages=TURN, max_tokens=4)
                for _ in range(4)))
            await client.close()
            return answers
        for answer in asyncio.run(run()):
            self.assertEqual(answer.usage.completion_tokens, 4)

    def test_responses(self):
        first = self.client.responses.create(model='tiny', input='Say hello.',
                                             max_output_tokens=12)
        self.assertIn(first.status, ('completed', 'incomplete'))
        self.assertGreater(len(first.output), 0)
        then = self.client.responses.create(model='tiny', input='And again.',
                                            previous_response_id=first.id, max_output_tokens=4)
        self.assertEqual(then.previous_response_id, first.id)
        self.assertGreater(then.usage.input_tokens, first.usage.input_tokens)
        self.assertEqual(self.client.responses.retrieve(first.id).output, first.output)
        items = self.client.responses.input_items.list(first.id).data
        self.assertEqual(items[0].content[0].text, 'Say hello.')
        self.client.responses.delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(first.id)

    def test_responses_stream(self):
        with self.client.responses.stream(model='tiny', input='Say hello.',
                                          max_output_tokens=12) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response() if 'response.completed' in kinds else None
        self.assertEqual(kinds[:2], ['response.created', 'response.in_progress'])
        self.assertIn(kinds[-1], ('response.completed', 'response.incomplete'))
        if final is not None:
            self.assertEqual(final.status, 'completed')

    def test_responses_in_the_background(self):
        queued = self.client.responses.create(
            model='tiny', input='Say hello.', background=True, extra_body={'ignore_eos': True})
        self.assertEqual(queued.status, 'queued')
        try:
            self.assertEqual(self.client.responses.cancel(queued.id).status, 'cancelled')
        except openai.BadRequestError:  # it was faster
            self.assertIn(self.client.responses.retrieve(queued.id).status,
                          ('completed', 'incomplete'))

    def test_formats(self):
        chat = self.client.chat.completions.create(model='tiny', messages=TURN, max_tokens=200,
                                                   response_format=format_of(FLAG),
                                                   extra_body=NO_THINKING)
        self.assertEqual(chat.choices[0].finish_reason, 'stop')
        self.assertIn(json.loads(chat.choices[0].message.content)['ok'], (True, False))
        response = self.client.responses.create(
            model='tiny', input='Say hello.', max_output_tokens=200, reasoning={'effort': 'none'},
            text={'format': {'type': 'json_schema', 'name': 'flag', 'schema': FLAG}})
        self.assertIn(json.loads(response.output_text)['ok'], (True, False))

    def test_required_call(self):
        tools = [{'type': 'function',
                  'function': {'name': 'set', 'parameters': FLAG, 'strict': True}}]
        chat = self.client.chat.completions.create(
            model='tiny', messages=TURN, max_tokens=200, tools=tools, tool_choice='required',
            parallel_tool_calls=False, extra_body=NO_THINKING)
        call = chat.choices[0].message.tool_calls[0].function
        self.assertEqual(call.name, 'set')
        self.assertIn(json.loads(call.arguments)['ok'], (True, False))

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model='tiny', messages=TURN, temperature=9)
        self.assertEqual(caught.exception.param, 'temperature')
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(
                model='tiny', messages=TURN, stream=True,
                response_format=format_of({'type': 'array', 'uniqueItems': True}))
        self.assertEqual(caught.exception.param, 'response_format.json_schema.schema')
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.create(model='none', input='x')


class ThinkingTest(unittest.TestCase):
    """Needs no package: a template that begins to think, and a model that would not stop."""
    TEMPLATE = '{% for m in messages %}<｜User｜>{{ m.content }}{% endfor %}<｜Assistant｜><think>'

    def test_budget_is_kept(self):
        with tempfile.NamedTemporaryFile('w', suffix='.jinja') as template:
            template.write(self.TEMPLATE)
            template.flush()
            with Server('--max-model-len', '4096', model=MODEL, template=template.name) as server:
                body = {'messages': TURN, 'max_tokens': 24, 'seed': 5, 'ignore_eos': True}
                _, free = server.post('/v1/chat/completions', body)
                self.assertEqual(self.reasoning(free), 24)
                for budget in (1, 7):
                    thinking = {'type': 'enabled', 'budget_tokens': budget}
                    _, answer = server.post('/v1/chat/completions', {**body, 'thinking': thinking})
                    # The mark that ends it counts as well.
                    self.assertEqual(self.reasoning(answer), budget + 1)
                _, answer = server.post('/v1/chat/completions',
                                        {**body, 'thinking_token_budget': 0})
                self.assertEqual(self.reasoning(answer), 1)

    @staticmethod
    def reasoning(answer):
        return answer['usage']['completion_tokens_details']['reasoning_tokens']


@unittest.skipIf(anthropic is None, 'the anthropic package is not installed')
class AnthropicTest(DialectTest):
    TOOLS = [{'name': 'weather', 'input_schema': SCHEMA}]

    def setUp(self):
        self.client = anthropic.Anthropic(base_url=self.base, api_key='x', max_retries=0,
                                          timeout=120)

    def test_messages(self):
        message = self.client.messages.create(model='tiny', max_tokens=12, messages=TURN,
                                              tools=self.TOOLS)
        self.assertIn(message.stop_reason, ('end_turn', 'max_tokens', 'tool_use'))
        self.assertLessEqual(message.usage.output_tokens, 12)
        counted = self.client.messages.count_tokens(model='tiny', messages=TURN,
                                                    tools=self.TOOLS)
        usage = message.usage
        self.assertEqual(counted.input_tokens, usage.input_tokens + usage.cache_read_input_tokens)

    def test_required_call(self):
        message = self.client.messages.create(
            model='tiny', max_tokens=200, messages=TURN, thinking={'type': 'disabled'},
            tool_choice={'type': 'any', 'disable_parallel_tool_use': True},
            tools=[{'name': 'set', 'input_schema': FLAG}])
        self.assertEqual(message.stop_reason, 'tool_use')
        self.assertIn(message.content[-1].input['ok'], (True, False))

    def test_stream(self):
        with self.client.messages.stream(model='tiny', max_tokens=12, messages=TURN) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_message()
        self.assertEqual((kinds[0], kinds[-1]), ('message_start', 'message_stop'))
        self.assertIsNotNone(final.stop_reason)

    def test_async(self):
        async def run():
            async with anthropic.AsyncAnthropic(base_url=self.base, api_key='x',
                                                max_retries=0) as client:
                return await client.messages.create(model='tiny', max_tokens=4, messages=TURN)
        self.assertEqual(asyncio.run(run()).role, 'assistant')

    def test_errors(self):
        with self.assertRaises(anthropic.NotFoundError) as caught:
            self.client.messages.create(model='none', max_tokens=4, messages=TURN)
        self.assertEqual(caught.exception.body['type'], 'error')
        self.assertIsNotNone(caught.exception.request_id)
        with self.assertRaises(anthropic.BadRequestError):
            self.client.messages.create(model='tiny', max_tokens=4, messages=[])


if __name__ == '__main__':
    unittest.main(verbosity=2)
