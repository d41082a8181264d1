"""Files and batches of a real server: in order, line by line, after a kill, cancelled.

usage: batches_test.py [unittest arguments]; DEEPINFER_BINARY names the binary.
"""
import base64
import json
import os
import shutil
import struct
import tempfile
import time
import unittest

from server_process import Server

try:
    import openai
except ImportError:
    openai = None

PATIENCE_S = 120
BOUNDARY = 'a-boundary'


def form(purpose, name, content):
    parts = (('name="purpose"', purpose), (f'name="file"; filename="{name}"', content))
    text = ''.join(f'--{BOUNDARY}\r\nContent-Disposition: form-data; {head}\r\n\r\n{body}\r\n'
                   for head, body in parts)
    return f'{text}--{BOUNDARY}--\r\n'.encode()


def line(custom_id, url='/v1/completions', **body):
    body = {'prompt': [5, 6, 7], 'max_tokens': 4, 'ignore_eos': True, **body}
    return json.dumps({'custom_id': custom_id, 'method': 'POST', 'url': url, 'body': body})


class BatchesTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix='deepinfer_batches_')
        self.addCleanup(shutil.rmtree, self.directory, True)

    def server(self, *flags):
        return Server('--batch-dir', self.directory, *flags)

    def call(self, server, method, path, body=None, status=200):
        got, _, answer = server.request(method, path, body)
        self.assertEqual(got, status, answer)
        return json.loads(answer)

    def upload(self, server, lines, purpose='batch', status=200):
        got, _, answer = server.request(
            'POST', '/v1/files', form(purpose, 'in.jsonl', '\n'.join(lines)),
            {'Content-Type': f'multipart/form-data; boundary={BOUNDARY}'})
        self.assertEqual(got, status, answer)
        return json.loads(answer)

    def create(self, server, file_id, endpoint='/v1/completions', **more):
        return self.call(server, 'POST', '/v1/batches', {
            'input_file_id': file_id, 'endpoint': endpoint, 'completion_window': '24h', **more})

    def wait(self, server, batch_id, until):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            batch = self.call(server, 'GET', f'/v1/batches/{batch_id}')
            if until(batch):
                return batch
            self.assertLess(time.monotonic(), deadline, batch)
            self.assertNotIn(batch['status'], ('failed', 'expired'), batch)
            time.sleep(0.01)

    def lines(self, server, file_id):
        status, _, content = server.request('GET', f'/v1/files/{file_id}/content')
        self.assertEqual(status, 200)
        return [json.loads(text) for text in content.splitlines()]

    def test_lines_fail_alone_and_keep_their_order(self):
        with self.server() as server:
            lines = [line(f'n{i}', max_tokens=1 + i % 7) for i in range(60)]
            lines[7] = 'no json'
            lines[20] = line('wrong', prompt={})
            lines[33] = line('n3')
            lines[40] = line('other', url='/v1/chat/completions')
            file = self.upload(server, lines)
            self.assertEqual(file['purpose'], 'batch')
            self.assertEqual(file['bytes'], len('\n'.join(lines)))
            made = self.create(server, file['id'], metadata={'a': 'b'})
            self.assertEqual(made['object'], 'batch')
            batch = self.wait(server, made['id'], lambda b: b['status'] == 'completed')
            self.assertEqual(batch['request_counts'], {'total': 60, 'completed': 56, 'failed': 4})
            self.assertEqual(batch['metadata'], {'a': 'b'})
            answers = self.lines(server, batch['output_file_id'])
            bad = (7, 20, 33, 40)
            self.assertEqual([a['custom_id'] for a in answers],
                             [f'n{i}' for i in range(60) if i not in bad])
            for answer in answers:
                self.assertEqual(answer['response']['status_code'], 200)
                usage = answer['response']['body']['usage']
                self.assertEqual(usage['completion_tokens'], 1 + int(answer['custom_id'][1:]) % 7)
            errors = self.lines(server, batch['error_file_id'])
            self.assertEqual([e['custom_id'] for e in errors], [None, 'wrong', 'n3', 'other'])
            self.assertEqual(errors[1]['response']['status_code'], 400)
            self.assertEqual(errors[0]['error']['code'], 'invalid_value')
            files = self.call(server, 'GET', '/v1/files?limit=10&order=asc')
            self.assertEqual(len(files['data']), 3)
            self.assertEqual(files['data'][0]['id'], file['id'])
            listed = self.call(server, 'GET', '/v1/files?purpose=batch')
            self.assertEqual([f['id'] for f in listed['data']], [file['id']])
            self.call(server, 'DELETE', f"/v1/files/{file['id']}")
            self.call(server, 'GET', f"/v1/files/{file['id']}", status=404)
            self.call(server, 'POST', f"/v1/batches/{batch['id']}/cancel", status=400)
            self.assertEqual(self.call(server, 'GET', '/v1/batches')['data'][0]['id'], batch['id'])

    def test_goes_on_after_a_kill(self):
        lines = [line(f'n{i}', max_tokens=24, temperature=0) for i in range(300)]
        server = self.server('--batch-window', '4')
        self.addCleanup(server.__exit__)
        batch = self.create(server, self.upload(server, lines)['id'])
        self.wait(server, batch['id'], lambda b: 10 < b['request_counts']['completed'])
        server.process.kill()
        server.process.wait()
        # What a kill can leave: half a line, and half a description.
        output = os.path.join(self.directory, 'batches', batch['id'] + '.output')
        if os.path.exists(output):
            with open(output, 'a') as file:
                file.write('{"id":"batch_req_torn')
        with open(os.path.join(self.directory, 'files', 'file-torn'), 'w') as file:
            file.write('half')
        with open(os.path.join(self.directory, 'files', 'file-bad.json'), 'w') as file:
            file.write('half')
        with self.server() as again:
            batch = self.wait(again, batch['id'], lambda b: b['status'] == 'completed')
            self.assertEqual(batch['request_counts'],
                             {'total': 300, 'completed': 300, 'failed': 0})
            answers = self.lines(again, batch['output_file_id'])
            self.assertEqual([a['custom_id'] for a in answers], [f'n{i}' for i in range(300)])
            self.assertFalse(os.path.exists(os.path.join(self.directory, 'files', 'file-torn')))
    def test_cancel_keeps_what_was_answered(self):
        with self.server('--batch-window', '2') as server:
            lines = [line(f'n{i}', max_tokens=200) for i in range(2000)]
            file = self.upload(server, lines)
            first = self.create(server, file['id'])
            second = self.create(server, file['id'])
            self.wait(server, first['id'], lambda b: 0 < b['request_counts']['completed'])
            self.call(server, 'DELETE', f"/v1/files/{file['id']}", status=400)
            self.assertEqual(
                self.call(server, 'POST', f"/v1/batches/{second['id']}/cancel")['status'],
                'cancelled')
            self.call(server, 'POST', f"/v1/batches/{first['id']}/cancel")
            batch = self.wait(server, first['id'], lambda b: b['status'] == 'cancelled')
            answers = self.lines(server, batch['output_file_id'])
            self.assertEqual(len(answers), batch['request_counts']['completed'])
            self.assertEqual([a['custom_id'] for a in answers],
                             [f'n{i}' for i in range(len(answers))])
            self.assertLess(len(answers), 2000)
            self.call(server, 'DELETE', f"/v1/files/{file['id']}")

    def test_limits_and_refusals(self):
        flags = ('--max-stored-files', '3', '--max-stored-file-bytes', '20000',
                 '--max-batch-lines', '5')
        with self.server(*flags) as server:
            self.upload(server, ['x'], purpose='other', status=400)
            server.request('POST', '/v1/files', b'x', {'Content-Type': 'multipart/form-data'})
            many = self.upload(server, [line(f'n{i}') for i in range(6)])
            self.upload(server, ['x' * 30000], status=429)
            batch = self.create(server, many['id'])
            batch = self.failed(server, batch['id'])
            self.assertIn('allowed are 5', batch['errors']['data'][0]['message'])
            self.upload(server, ['x'])
            self.upload(server, ['x'])
            self.upload(server, ['x'], status=429)
            for body in ({}, {'input_file_id': 'file-none', 'endpoint': '/v1/completions'},
                         {'input_file_id': many['id'], 'endpoint': '/v1/other'},
                         {'input_file_id': many['id'], 'endpoint': '/v1/completions',
                          'completion_window': '1000h'}):
                status, _, _ = server.request('POST', '/v1/batches', body)
                self.assertIn(status, (400, 404))
            status, _, _ = server.request(
                'POST', '/v1/files', form('batch', 'a', 'b'),
                {'Content-Type': f'multipart/form-data; boundary={BOUNDARY}',
                 'Origin': 'http://other.example'})
            self.assertEqual(status, 403)

    def test_embeddings(self):
        with self.server() as server:
            whole = self.call(server, 'POST', '/v1/embeddings', {'input': [[5, 6, 7], [8, 9]]})
            vectors = [item['embedding'] for item in whole['data']]
            for vector in vectors:
                self.assertAlmostEqual(sum(x * x for x in vector), 1, places=4)
            self.assertEqual(whole['usage'], {'prompt_tokens': 5, 'total_tokens': 5})
            packed = self.call(server, 'POST', '/v1/embeddings',
                               {'input': [8, 9], 'encoding_format': 'base64'})
            data = base64.b64decode(packed['data'][0]['embedding'])
            got = struct.unpack(f'<{len(data) // 4}f', data)
            self.assertEqual(len(got), len(vectors[1]))
            # One prompt or two, from the cache or not: the same bits.
            self.assertEqual([struct.pack('<f', x) for x in vectors[1]],
                             [struct.pack('<f', x) for x in got])
            file = self.upload(server, [json.dumps({
                'custom_id': 'a', 'url': '/v1/embeddings', 'body': {'input': [8, 9]}})])
            batch = self.create(server, file['id'], '/v1/embeddings')
            batch = self.wait(server, batch['id'], lambda b: b['status'] == 'completed')
            answer = self.lines(server, batch['output_file_id'])[0]['response']['body']
            self.assertEqual(answer['data'][0]['embedding'], vectors[1])

    def failed(self, server, batch_id):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            batch = self.call(server, 'GET', f'/v1/batches/{batch_id}')
            if batch['status'] == 'failed':
                return batch
            self.assertLess(time.monotonic(), deadline, batch)
            time.sleep(0.01)

    @unittest.skipIf(openai is None, 'the openai package is not installed')
    def test_openai_package(self):
        with self.server() as server:
            client = openai.OpenAI(base_url=f'http://127.0.0.1:{server.port}/v1', api_key='x',
                                   max_retries=0, timeout=PATIENCE_S)
            content = '\n'.join(line(f'n{i}') for i in range(5)).encode()
            file = client.files.create(file=('in.jsonl', content), purpose='batch')
            self.assertEqual(client.files.retrieve(file.id).bytes, len(content))
            self.assertEqual(client.files.content(file.id).read(), content)
            batch = client.batches.create(input_file_id=file.id, endpoint='/v1/completions',
                                          completion_window='24h')
            self.wait(server, batch.id, lambda b: b['status'] == 'completed')
            batch = client.batches.retrieve(batch.id)
            self.assertEqual(batch.request_counts.completed, 5)
            text = client.files.content(batch.output_file_id).text
            self.assertEqual(len(text.splitlines()), 5)
            self.assertEqual([b.id for b in client.batches.list()], [batch.id])
            self.assertEqual(len(list(client.files.list())), 2)
            with self.assertRaises(openai.BadRequestError):
                client.batches.cancel(batch.id)
            self.assertTrue(client.files.delete(file.id).deleted)
            with self.assertRaises(openai.NotFoundError):
                client.files.retrieve(file.id)


if __name__ == '__main__':
    unittest.main()
