"""The real binary behind real sockets, on a tiny checkpoint: routes, streams, limits, signals.

usage: serve_test.py [unittest arguments]; DEEPINFER_BINARY names the binary.
Clients that are not installed (the openai package, curl) are skipped and counted.
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
import unittest

from server_process import BINARY, MODEL, Server, clean_env

try:
    import openai
except ImportError:
    openai = None

PROMPT = {'model': 'tiny', 'prompt': [5, 6, 7, 8], 'temperature': 0, 'ignore_eos': True}
CHAT = {'model': 'tiny', 'messages': [{'role': 'user', 'content': 'hello'}], 'temperature': 0}


def text_of(events):
    return ''.join(choice['text'] for event in events if event != '[DONE]'
                   for choice in event['choices'])


class RoutesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def test_small_routes(self):
        self.assertEqual(self.server.request('GET', '/ping')[0], 200)
        self.assertIn('version', json.loads(self.server.request('GET', '/version')[2]))
        models = json.loads(self.server.request('GET', '/v1/models')[2])
        self.assertEqual(models['data'][0]['id'], 'tiny')
        self.assertEqual(self.server.request('GET', '/v1/models/tiny')[0], 200)
        self.assertEqual(self.server.request('GET', '/v1/models/none')[0], 404)
        self.assertEqual(self.server.request('GET', '/none')[0], 404)
        status, headers, _ = self.server.request('GET', '/v1/completions')
        self.assertEqual((status, headers['allow']), (405, 'POST, OPTIONS'))
        status, headers, text = self.server.request('HEAD', '/health')
        self.assertEqual((status, text), (200, ''))
        self.assertGreater(int(headers['content-length']), 10)
        self.assertEqual(self.server.health()['status'], 'ok')

    def test_tokenize_and_back(self):
        status, answer = self.server.post('/tokenize', {'model': 'tiny', 'prompt': 'Hello world',
                                                        'add_special_tokens': False})
        self.assertEqual(status, 200, answer)
        self.assertEqual(answer['count'], len(answer['tokens']))
        status, back = self.server.post('/detokenize', {'model': 'tiny',
                                                        'tokens': answer['tokens']})
        self.assertEqual((status, back['prompt']), (200, 'Hello world'))

    def test_stream_equals_whole(self):
        body = {**PROMPT, 'max_tokens': 40}
        status, whole = self.server.post('/v1/completions', body)
        self.assertEqual(status, 200, whole)
        self.assertEqual(whole['usage']['completion_tokens'], 40)
        self.assertEqual(whole['choices'][0]['finish_reason'], 'length')
        events = self.server.events('/v1/completions',
                                    {**body, 'stream_options': {'include_usage': True}})
        self.assertEqual(events[-1], '[DONE]')
        self.assertEqual(events[-2]['choices'], [])
        self.assertEqual(events[-2]['usage'], whole['usage'] | {
            k: events[-2]['usage'][k] for k in events[-2]['usage'] if k not in (
                'prompt_tokens', 'completion_tokens', 'total_tokens')})
        self.assertEqual(text_of(events), whole['choices'][0]['text'])

    def test_chat_stream_equals_whole(self):
        body = {**CHAT, 'max_tokens': 24}
        status, whole = self.server.post('/v1/chat/completions', body)
        self.assertEqual(status, 200, whole)
        message = whole['choices'][0]['message']
        self.assertEqual(message['role'], 'assistant')
        events = self.server.events('/v1/chat/completions', body)
        self.assertEqual(events[0]['choices'][0]['delta']['role'], 'assistant')
        text = ''.join(event['choices'][0]['delta'].get('content') or ''
                       for event in events[:-1] if event['choices'])
        self.assertEqual(text, message['content'])

    def test_seeded_samples_do_not_depend_on_the_batch(self):
        body = {**PROMPT, 'temperature': 1, 'seed': 7, 'max_tokens': 30}
        alone = self.server.post('/v1/completions', body)[1]['choices'][0]['text']
        results = [None] * 16

        def run(i):
            seed = 7 if i % 4 == 0 else i
            answer = self.server.post('/v1/completions', {**body, 'seed': seed})[1]
            results[i] = answer['choices'][0]['text']
        threads = [threading.Thread(target=run, args=(i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([results[i] for i in range(0, 16, 4)], [alone] * 4)
        self.assertGreater(len(set(results)), 1)

    def test_wrong_requests_are_refused_and_harm_nobody(self):
        cases = [
            ({**PROMPT, 'temperature': -1}, 400),
            ({**PROMPT, 'top_p': 2}, 400),
            ({**PROMPT, 'n': 0}, 400),
            ({**PROMPT, 'n': 10**9}, 400),
            ({**PROMPT, 'max_tokens': 0.5}, 400),
            ({**PROMPT, 'prompt': [10**12]}, 400),
            ({**PROMPT, 'prompt': [-1]}, 400),
            ({**PROMPT, 'prompt': [5] * 5000}, 400),
            ({**PROMPT, 'prompt': {}}, 400),
            ({**PROMPT, 'model': 'other'}, 404),
            ({'model': 'tiny'}, 400),
            ([1], 400),
        ]
        for body, expected in cases:
            status, answer = self.server.post('/v1/completions', body)
            self.assertEqual(status, expected, (body if len(str(body)) < 500 else '...', answer))
            self.assertEqual(set(answer['error']) & {'message', 'type', 'param', 'code'},
                             {'message', 'type', 'param', 'code'})
        for text in ['', '{', 'null', '{"prompt": "\\ud800"', '\x00', '{"a":' * 1000, '1e999']:
            status, _, _ = self.server.request('POST', '/v1/completions', text,
                                               {'Content-Type': 'application/json'})
            self.assertEqual(status, 400, text[:40])
        status, _, _ = self.server.request('POST', '/v1/completions', json.dumps(PROMPT),
                                           {'Content-Type': 'text/plain'})
        self.assertEqual(status, 415)
        self.assertEqual(self.server.post('/v1/completions', {**PROMPT, 'max_tokens': 1})[0], 200)

    def leave_while_running(self, stream):
        """Samples aborted when four clients leave; 0 when they had ended before."""
        aborted = 'vllm:request_success_total{finished_reason="abort"}'
        before = self.server.metrics()[aborted]
        body = json.dumps({**PROMPT, 'max_tokens': 2000, 'stream': stream, 'n': 8})
        sockets = []
        for _ in range(4):
            client = socket.create_connection(('127.0.0.1', self.server.port))
            client.sendall(f'POST /v1/completions HTTP/1.1\r\nHost: a\r\n'
                           f'Content-Type: application/json\r\n'
                           f'Content-Length: {len(body)}\r\n\r\n{body}'.encode())
            sockets.append(client)
        deadline = time.monotonic() + 1
        while self.server.health()['running'] < 8 and time.monotonic() < deadline:
            pass
        for client in sockets:
            client.close()
        self.assertTrue(self.server.wait_idle())
        return self.server.metrics()[aborted] - before

    def test_client_that_leaves_frees_its_blocks(self):
        for stream in (True, False):
            # This process may be held up until the samples have ended: then once more.
            self.assertTrue(any(self.leave_while_running(stream) >= 8 for _ in range(20)))
            # The step in flight may hold its blocks a moment longer than the request lives.
            used = 'deepinfer:kv_blocks{state="used"}'
            deadline = time.monotonic() + 60
            while self.server.metrics()[used] > 0 and time.monotonic() < deadline:
                pass
            self.assertEqual(self.server.metrics()[used], 0)

    def test_metrics_add_up(self):
        before = self.server.metrics()
        for i in range(5):
            self.server.post('/v1/completions', {**PROMPT, 'max_tokens': 4})
        after = self.server.metrics()

        def grown(name):
            return after[name] - before[name]
        self.assertEqual(grown('vllm:time_to_first_token_seconds_count'), 5)
        self.assertEqual(grown('vllm:request_success_total{finished_reason="length"}'), 5)
        self.assertEqual(grown('vllm:generation_tokens_total'), 20)
        self.assertEqual(grown('vllm:prompt_tokens_total'), 20)

    def test_hostile_bytes(self):
        for data in [b'\x00' * 100, b'GET / HTTP/1.1\r\n' + b'A: b\r\n' * 20000,
                     b'POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999999\r\n'
                     b'\r\n', b'GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n',
                     b'\x16\x03\x01\x02\x00' + bytes(range(256)) * 4]:
            answer = self.server.raw(data)
            self.assertTrue(answer == b'' or answer.startswith(b'HTTP/1.1 4'), answer[:100])
        self.assertEqual(self.server.request('GET', '/health')[0], 200)

    @unittest.skipIf(openai is None, 'the openai package is not installed')
    def test_openai_client(self):
        client = openai.OpenAI(base_url=f'http://127.0.0.1:{self.server.port}/v1', api_key='x')
        self.assertEqual(client.models.list().data[0].id, 'tiny')
        whole = client.chat.completions.create(**CHAT, max_tokens=16, seed=1)
        stream = client.chat.completions.create(**CHAT, max_tokens=16, seed=1, stream=True,
                                                stream_options={'include_usage': True})
        chunks = list(stream)
        text = ''.join(c.choices[0].delta.content or '' for c in chunks if c.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        completion = client.completions.create(model='tiny', prompt='Hello', max_tokens=5,
                                               logprobs=2, echo=True)
        self.assertGreater(len(completion.choices[0].logprobs.tokens), 5)
        with self.assertRaises(openai.NotFoundError):
            client.completions.create(model='other', prompt='Hello')
        with self.assertRaises(openai.BadRequestError) as caught:
            client.chat.completions.create(model='tiny', messages=[], max_tokens=4)
        self.assertIsNotNone(caught.exception.code)

    @unittest.skipIf(shutil.which('curl') is None, 'curl is not installed')
    def test_curl(self):
        url = f'http://127.0.0.1:{self.server.port}/v1/completions'
        base = ['curl', '-sS', '--max-time', '20', '-H', 'Content-Type: application/json']
        body = json.dumps({**PROMPT, 'max_tokens': 4, 'stream': True})
        out = subprocess.run([*base, '-N', '-d', body, url], capture_output=True, text=True,
                             check=True).stdout
        self.assertTrue(out.endswith('data: [DONE]\n\n'), out)
        # A body over 1 MiB makes curl ask with Expect: 100-continue.
        big = json.dumps({**PROMPT, 'prompt': 'x' * (2 << 20)})
        out = subprocess.run([*base, '-d', '@-', '-w', '%{http_code}', url], input=big,
                             capture_output=True, text=True, check=True).stdout
        self.assertTrue(out.endswith('400'), out[-200:])


class LifeTest(unittest.TestCase):
    def test_keys(self):
        with Server('--api-key', 'one', '--api-key', 'two') as server:
            for path in ('/health', '/metrics', '/ping'):
                self.assertEqual(server.request('GET', path)[0], 200)
            for path in ('/v1/models', '/version', '/none'):
                self.assertEqual(server.request('GET', path)[0], 401, path)
            self.assertEqual(server.request('POST', '/v1/completions', PROMPT)[0], 401)
            good = {'Authorization': 'Bearer two'}
            self.assertEqual(server.request('GET', '/v1/models', None, good)[0], 200)
            self.assertEqual(server.post('/v1/completions', PROMPT, good)[0], 200)

    def test_sigterm_finishes_running_streams(self):
        with Server('--shutdown-timeout-ms', '20000') as server:
            streams = [server.stream('/v1/completions', {**PROMPT, 'max_tokens': 1500})
                       for _ in range(8)]
            self.assertEqual(streams[0][1].status, 200)
            server.signal(signal.SIGTERM)
            for connection, response in streams:
                self.assertTrue(response.read().endswith(b'data: [DONE]\n\n'))
                connection.close()
            self.assertEqual(server.wait_exit(), 0)

    def test_sigterm_is_bounded(self):
        with Server('--shutdown-timeout-ms', '50') as server:
            streams = [server.stream('/v1/completions', {**PROMPT, 'max_tokens': 2000, 'n': 16})
                       for _ in range(8)]
            server.signal(signal.SIGTERM)
            self.assertEqual(server.wait_exit(), 0)
            self.assertTrue(server.wait_log('some requests were cut'))
            for connection, _ in streams:
                connection.close()

    def test_second_signal_ends_at_once(self):
        with Server('--shutdown-timeout-ms', '600000') as server:
            # A connection in the middle of a request keeps the drain waiting.
            client = socket.create_connection(('127.0.0.1', server.port))
            client.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n'
                           b'Content-Type: application/json\r\nExpect: 100-continue\r\n\r\n')
            self.assertTrue(client.recv(100).startswith(b'HTTP/1.1 100'))
            server.signal(signal.SIGINT)
            self.assertTrue(server.wait_log('shutting down'))
            self.assertIsNone(server.process.poll())
            server.signal(signal.SIGINT)
            self.assertEqual(server.wait_exit(), 0)
            client.close()

    def test_killed_server_restarts_on_its_port(self):
        with Server() as server:
            port = server.port
            connection, response = server.stream('/v1/completions', {**PROMPT, 'max_tokens': 2000})
            self.assertEqual(response.status, 200)
            server.signal(signal.SIGKILL)
            server.wait_exit()
            connection.close()
        with Server('--port', str(port)) as server:
            self.assertEqual(server.post('/v1/completions', {**PROMPT, 'max_tokens': 2})[0], 200)

    def test_bad_starts_have_clear_exits(self):
        def run(*words):
            done = subprocess.run([BINARY, 'serve', *words], capture_output=True, text=True,
                                  timeout=60, env=clean_env(), check=False)
            return done.returncode, done.stderr
        code, text = run('/nonexistent/model')
        self.assertEqual(code, 1, text)
        self.assertIn('/nonexistent/model', text)
        self.assertEqual(run(MODEL, '--port', '70000')[0], 2)
        self.assertEqual(run(MODEL, '--unknown-flag')[0], 2)
        self.assertEqual(run(MODEL, '--max-num-seqs', 'many')[0], 2)
        code, text = run(MODEL, '--port', '0', '--dtype', 'float16')
        self.assertEqual(code, 2, text)
        with Server() as server:
            code, text = run(MODEL, '--port', str(server.port))
            self.assertEqual(code, 1, text)
            self.assertIn('--port', text)

    def test_ready_soon_after_the_start(self):
        best = 1e9
        for _ in range(3):
            with Server() as server:
                best = min(best, time.monotonic() - server.started_s)
        print(f'from exec to the first 200 of /health: {best * 1000:.0f} ms')
        self.assertLess(best, 5.0)


if __name__ == '__main__':
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    unittest.main(verbosity=1)
