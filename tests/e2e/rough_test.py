"""The real binary where things break: closed streams, full disks, cut files, few descriptors."""
import json
import os
import resource
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest

from server_process import BINARY, MODEL, Server, clean_env

SHORT = {'prompt': [5], 'max_tokens': 2}
ASK = ['generate', '-m', MODEL, '-p', 'hi', '--raw', '--max-tokens', '3']


def run(*words, **options):
    """(exit code, standard error); a death by signal is negative, a hang an exception."""
    options = {'stdout': subprocess.DEVNULL, 'stdin': subprocess.DEVNULL, 'timeout': 120, **options}
    done = subprocess.run([BINARY, *words], stderr=subprocess.PIPE, text=True, errors='replace',
                          env=clean_env(), check=False, **options)
    return done.returncode, done.stderr


def close_streams(*fds):
    def close():
        for fd in fds:
            os.close(fd)
    return close


class StreamsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, data):
        with open(self.path(name), 'wb') as file:
            file.write(data)
        return self.path(name)

    def test_missing_streams_do_not_reach_files(self):
        lines = self.write('in', b'{"prompt": [5, 6], "params": {"max_tokens": 2}}\n' * 3)
        for fds in ((0,), (2,), (0, 2), (0, 1, 2)):
            out = self.path('out%d%d' % (len(fds), fds[-1]))
            code, _ = run('generate', '-m', MODEL, '-i', lines, '-o', out,
                          preexec_fn=close_streams(*fds))
            self.assertEqual(code, 0, fds)
            with open(out, encoding='utf-8') as file:
                self.assertEqual([json.loads(line)['index'] for line in file], [0, 1, 2])
        # Without a standard output there is no success.
        self.assertEqual(run(*ASK, preexec_fn=close_streams(1))[0], 1)
        # Without a standard input a batch from it is empty.
        self.assertEqual(run('generate', '-m', MODEL, '-i', '-', '-o', self.path('none'),
                             preexec_fn=close_streams(0))[0], 0)

    def test_full_output_ends_the_run(self):
        with open('/dev/full', 'wb') as full:
            for words in (ASK, ['tokenize', '-m', MODEL, 'hi'], ['--version'], ['model', '--help']):
                code, text = run(*words, stdout=full)
                self.assertEqual(code, 1, (words, text))
        # The whole of it would take several minutes: `run` gives up before.
        lines = self.write('in', b'{"prompt": [5], "params": {"max_tokens": 300}}\n' * 200000)
        code, text = run('generate', '-m', MODEL, '-i', lines, '-o', '/dev/full', '--ignore-eos')
        self.assertEqual(code, 1, text)
        self.assertIn('No space left', text)

    def test_reader_that_leaves_ends_the_run(self):
        with subprocess.Popen([BINARY, *ASK[:-1], '1900', '--ignore-eos'], env=clean_env(),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            process.stdout.read(1)
            process.stdout.close()
            self.assertIn(b'cannot write', process.stderr.read())
            self.assertEqual(process.wait(60), 1)

    def test_bad_lines_fail_alone(self):
        good = b'{"prompt": [5, 6], "params": {"max_tokens": 1}}'
        bad = [b'{', b'\0\0', b'\xff\xfe', b'[]', b'{"prompt": [999999999]}',
               b'{"prompt": [5], "params": {"temperature": 1e30}}',
               b'{"prompt": [5], "params": {"tempature": 1}}', b'[' * 10000,
               b'{"prompt": [5], "params": {"max_tokens": NaN}}', b'{"prompt": "\\ud800"}']
        lines = self.write('in', b'\n'.join(line + b'\n' + good for line in bad) + b'\n')
        out = self.path('out')
        code, text = run('generate', '-m', MODEL, '-i', lines, '-o', out)
        self.assertEqual(code, 1, text)
        with open(out, encoding='utf-8') as file:
            answers = [json.loads(line) for line in file]
        self.assertEqual([a['index'] for a in answers], list(range(2 * len(bad))))
        for i, answer in enumerate(answers):
            self.assertEqual('error' in answer, i % 2 == 0, answer)

    def test_outputs_that_cannot_be_written(self):
        lines = self.write('in', b'{"prompt": [5]}\n')
        for out in (self.folder, '/nonexistent/out', lines, '/proc/none'):
            code, text = run('generate', '-m', MODEL, '-i', lines, '-o', out)
            self.assertEqual(code, 1, text)
            self.assertIn(out, text)
        code, text = run('generate', '-m', MODEL, '-i', '/nonexistent/in', '-o', self.path('o'))
        self.assertEqual(code, 1)
        self.assertFalse(os.path.exists(self.path('o')))

    def test_model_cut_short_while_in_use(self):
        model = self.path('model')
        shutil.copytree(MODEL, model)
        weights = [os.path.join(model, n) for n in os.listdir(model) if n.endswith('.safetensors')]
        for delay in (0, 0.002, 0.005, 0.01, 0.05):
            for path in weights:
                shutil.copy(os.path.join(MODEL, os.path.basename(path)), path)
            with subprocess.Popen([BINARY, 'generate', '-m', model, '-p', 'hi', '--raw'],
                                  env=clean_env(), stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE) as process:
                time.sleep(delay)
                for path in weights:
                    os.truncate(path, 512)
                text = process.stderr.read()
                self.assertIn(process.wait(60), (0, 1), text)  # not by a signal


class ServerTest(unittest.TestCase):
    def test_few_descriptors(self):
        limit = (32, 32)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[0]), before[1]))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        with Server('--max-connections', '100') as server:
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, limit)
            clients = [socket.create_connection(('127.0.0.1', server.port)) for _ in range(60)]
            for client in clients:
                client.close()
            self.assertEqual(server.post('/v1/completions', SHORT)[0], 200)

    def test_storm_of_clients_that_leave(self):
        with Server() as server:
            body = json.dumps({'prompt': [5, 6, 7], 'max_tokens': 500, 'stream': True, 'n': 4})
            head = (f'POST /v1/completions HTTP/1.1\r\nHost: a\r\n'
                    f'Content-Type: application/json\r\n'
                    f'Content-Length: {len(body)}\r\n\r\n{body}').encode()

            def storm(seed):
                for i in range(40):
                    client = socket.create_connection(('127.0.0.1', server.port))
                    client.sendall(head[:(10, len(head) - 5, len(head))[(seed + i) % 3]])
                    if i % 2 == 0:
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                          struct.pack('ii', 1, 0))
                    client.close()
            threads = [threading.Thread(target=storm, args=(seed,)) for seed in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertTrue(server.wait_idle())
            self.assertEqual(server.post('/v1/completions', SHORT)[0], 200)

    @unittest.skipUnless(os.path.exists('/proc/net/if_inet6'), 'no IPv6 here')
    def test_ipv6(self):
        for host in ('::1', '[::1]'):
            with Server('--host', host, wait=False) as server:
                deadline = time.monotonic() + 30
                status = b''
                while b' 200 ' not in status and time.monotonic() < deadline:
                    client = socket.create_connection(('::1', server.port))
                    client.sendall(b'GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n')
                    status = client.recv(64)
                    client.close()
                self.assertIn(b' 200 ', status)
                self.assertIn('http://[::1]:', ''.join(server.log))

    def test_values_out_of_range_are_usage_errors(self):
        for flags in (['--max-num-seqs', '0'], ['--max-num-queued-reqs', '-1'], ['--host', ''],
                      ['--kv-cache-watermark', '2'], ['--max-num-batched-tokens', '-1'],
                      ['--port', '-1'], ['--stream-interval', '0'], ['--max-model-len', 'nan']):
            code, text = run('serve', MODEL, *flags)
            self.assertEqual(code, 2, (flags, text))


if __name__ == '__main__':
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    unittest.main(verbosity=1)
